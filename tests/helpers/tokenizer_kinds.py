"""Tokenizers of every kind, trained on a few texts whose words a person has marked by hand."""

import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# Texts with their letters as a person parts them: words, and behind a minus what was cut off one.
BY_HAND = {
    "possessive and punctuation": (
        "The army's band, (army) the bandleader; army.",
        "The army -s band army the bandleader army",
    ),
    "digits": ("included0 and included 3.14", "included0 and included 314"),
    "elision": ("l'armée dell'arte et l’armée", "-l armée -dell arte et -l armée"),
    "contraction": ("don't we'll they're", "dont well theyre"),
    "decomposed": ("cafe\u0301 und cafe\u0301", "café und café"),
    "one letter": ("A band of A army", "A band of A army"),
    "soft hyphen": ("sol\u00addier and soldier", "soldier and soldier"),
    "chinese": ("军队 band", "军 队 band"),
    "thai": ("กก band", "ก ก band"),
    "turkish": ("İ army İstanbul", "İ army İstanbul"),
    "emoji": ("army 🎺 band 🇫🇷 army", "army band army"),
    "no space": ("army,band;the", "army band the"),
}


def trained(model, trainer, pre_tokenizer=None, decoder=None, normalizer=None, unknown="[UNK]"):
    """A tokenizer of a kind, trained on the texts so that some words are one piece and some are several."""
    backend = Tokenizer(model)
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoder
    backend.train_from_iterator([text for text, _ in BY_HAND.values()] * 3, trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=unknown)


def kinds():
    sizes = {"special_tokens": ["[UNK]"], "show_progress": False}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe = {"vocab_size": 330, **sizes}
    metaspace = decoders.Metaspace()
    return {
        "wordpiece": trained(
            models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=150, **sizes),
            pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), normalizers.BertNormalizer(lowercase=True),
        ),
        "byte-level": trained(
            models.BPE(), trainers.BpeTrainer(initial_alphabet=alphabet, **bpe),
            pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(),
        ),
        "byte-level with a first space": trained(
            models.BPE(), trainers.BpeTrainer(initial_alphabet=alphabet, **bpe),
            pre_tokenizers.ByteLevel(add_prefix_space=True, trim_offsets=False), decoders.ByteLevel(),
        ),
        "metaspace": trained(
            models.BPE(unk_token="[UNK]"), trainers.BpeTrainer(vocab_size=140, **sizes),
            pre_tokenizers.Metaspace(), metaspace,
        ),
        "metaspace, never parted": trained(
            models.BPE(unk_token="[UNK]"), trainers.BpeTrainer(vocab_size=140, **sizes),
            decoder=metaspace,
            normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        ),
        "unigram": trained(
            models.Unigram(), trainers.UnigramTrainer(vocab_size=120, unk_token="[UNK]", **sizes),
            pre_tokenizers.Metaspace(), metaspace, normalizers.NFKC(),
        ),
        "slow": hf.ByT5Tokenizer(),
    }  # fmt: skip


KINDS = kinds()
