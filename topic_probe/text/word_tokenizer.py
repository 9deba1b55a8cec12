"""A tokenizer of whole words made from a corpus, so that training on text needs nothing downloaded."""

from collections.abc import Iterable
from typing import Any

from topic_probe.options import checked

BY_ROLE = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip
SPECIAL_TOKENS = tuple(BY_ROLE.values())


@checked
def word_tokenizer(texts: Iterable[str], *, n_words: int = 5000) -> Any:
    """A Hugging Face tokenizer that knows the most frequent words of some texts, and ``[UNK]`` for all others.

    Texts are cut into words and marks as BERT does it: in lower case, without accents, between ``[CLS]`` and
    ``[SEP]``. The same texts always give the same tokenizer: equally frequent words come in alphabetical order.
    A small vocabulary is what makes training a small BERT affordable, because predicting a word costs as much as there
    are words.

    Args:
        texts: A `Corpus`, or any strings; read once.
        n_words: Words and marks at most; the five special tokens are added to these.

    Example:
        >>> tokenizer = tp.word_tokenizer(["the army and the band"], n_words=3)
        >>> tokenizer.tokenize("The army, the band")  # "band" is the fourth word, "," is in no text
        ['the', 'army', '[UNK]', 'the', '[UNK]']
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if n_words < 1:
        raise ValueError(f"n_words must be at least 1, got {n_words}")
    _, unknown, first, last, _ = SPECIAL_TOKENS
    tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    size = n_words + len(SPECIAL_TOKENS)
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() == len(SPECIAL_TOKENS):
        raise ValueError("the texts have no words")
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1", special_tokens=ids
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **BY_ROLE)
