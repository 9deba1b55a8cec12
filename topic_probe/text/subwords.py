"""Tokenizers of word pieces made from a corpus, of the kinds that pretrained models have."""

from collections.abc import Iterable
from typing import Any, Literal

from topic_probe.options import check_value, checked
from topic_probe.text.documents import check_read_again
from topic_probe.text.word_tokenizer import BY_ROLE

Kind = Literal["wordpiece", "unigram", "byte-level", "byte-level without ends"]

# Roles of the special tokens, in the order of their ids; the first and the last of a text are roles, too.
_ROBERTA = {
    "bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>",
}  # fmt: skip
_ALBERT = {**BY_ROLE, "pad_token": "<pad>", "unk_token": "<unk>"}
_GPT2 = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")


@checked
def subword_tokenizer(texts: Iterable[str], kind: Kind = "wordpiece", *, n_tokens: int = 4000) -> Any:
    """A Hugging Face tokenizer of a kind, trained on some texts.

    The same texts give the same tokenizer, but for "unigram", whose training adds up in no fixed order: save it.

    Args:
        texts: a `Corpus`, or any strings; read twice for "wordpiece".
        kind: "wordpiece" as BERT and ELECTRA have it, in lower case between ``[CLS]`` and ``[SEP]``; "unigram" as
            ALBERT, in lower case with ``▁`` for spaces; "byte-level" as RoBERTa and BART, case kept, between ``<s>``
            and ``</s>``; "byte-level without ends" as GPT-2, whose only special token is ``<|endoftext|>``.
        n_tokens: ids at most, special tokens among them. Byte-level kinds need 256 for the bytes.

    Example:
        >>> tokenizer = tp.subword_tokenizer(["the army and the band"] * 2, n_tokens=40)
        >>> tokenizer.convert_ids_to_tokens(tokenizer("The army")["input_ids"])
        ['[CLS]', 'the', 'army', '[SEP]']
    """
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    check_value("kind", kind, Kind)
    if n_tokens < 1:
        raise ValueError(f"n_tokens must be at least 1, got {n_tokens}")
    backend, roles, ends = _parts(kind)
    special, size = list(dict.fromkeys(roles.values())), n_tokens
    if kind == "wordpiece":
        check_read_again(texts, "texts are read twice for word pieces", instead="a list, or a Corpus")
        backend = _word_pieces(backend, texts, special, size, roles["unk_token"])
    else:
        backend.train_from_iterator(texts, _trainer(kind, special, size, roles["unk_token"]))
    if ends:
        first, last = ends
        ids = [(token, backend.token_to_id(token)) for token in ends]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1", special_tokens=ids
        )
    if backend.get_vocab_size() > n_tokens:
        raise ValueError(
            f"these texts need {backend.get_vocab_size()} tokens for their letters alone: raise n_tokens, got "
            f"{n_tokens}"
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def _parts(kind: str) -> tuple[Any, dict[str, str], tuple[str, ...]]:
    """A tokenizer to be trained, its special tokens by their roles, and those around every text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    if kind == "wordpiece":
        backend, roles = Tokenizer(models.WordPiece(unk_token=BY_ROLE["unk_token"])), BY_ROLE
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    elif kind == "unigram":
        backend, roles = Tokenizer(models.Unigram()), _ALBERT
        backend.normalizer = normalizers.Sequence(
            [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
        )
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        backend, roles = Tokenizer(models.BPE()), _ROBERTA if kind == "byte-level" else _GPT2
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    if kind == "byte-level without ends":
        return backend, roles, ()
    ends = ("bos_token", "eos_token") if kind == "byte-level" else ("cls_token", "sep_token")
    return backend, roles, tuple(roles[role] for role in ends)


def _trainer(kind: str, special: list[str], size: int, unknown: str) -> Any:
    from tokenizers import pre_tokenizers, trainers

    of_all: dict[str, Any] = {"vocab_size": size, "special_tokens": special, "show_progress": False}
    if kind == "unigram":
        return trainers.UnigramTrainer(unk_token=unknown, **of_all)
    return trainers.BpeTrainer(initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), **of_all)


def _word_pieces(backend: Any, texts: Iterable[str], special: list[str], size: int, unknown: str) -> Any:
    """Trained so that the same texts give the same ids.

    The trainer numbers letters inside words in the order of a hash table, which is another one in every process, and
    breaks ties by these numbers. They are fixed here by training with these letters among the special tokens, which
    the tokenizer that comes back has not.
    """
    from tokenizers import models, trainers

    letters: set[str] = set()
    for text in texts:
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text)):
            letters.update(word[1:])
    fixed = [*special, *(f"##{letter}" for letter in sorted(letters))]
    trained = type(backend).from_str(backend.to_str())
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=fixed, show_progress=False)
    trained.train_from_iterator(texts, trainer)
    backend.model = models.WordPiece(trained.get_vocab(), unk_token=unknown)
    backend.add_special_tokens(special)
    return backend
