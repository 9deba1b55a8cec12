"""Words and the ids that a Hugging Face tokenizer has for them, fast or slow, whatever its algorithm."""

import hashlib
import json
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topic_probe.topics.lists import word_list
from topic_probe.words import form, without_marks

# What a word can turn out to be. Where its variants differ, the earlier one counts.
ONE_PIECE = "one piece"
SPLIT = "split words"
CONTINUES = "pieces that do not begin a word"
OTHER = "pieces that read as another word"
UNKNOWN = "unknown words"
SPECIAL = "special tokens"
EMPTY = "empty words"
OUTCOMES = (ONE_PIECE, SPLIT, CONTINUES, OTHER, UNKNOWN, SPECIAL, EMPTY)


@dataclass(frozen=True)
class Lookup:
    """What a word is to a tokenizer, and the different pieces of those of its variants that are this."""

    outcome: str
    sequences: tuple[tuple[int, ...], ...] = ()


def look_up(words: Iterable[str], tokenizer: Any, *, case_variants: bool) -> dict[str, Lookup]:
    """What every word is to the tokenizer, alone and behind a space."""
    judge = _Judge(tokenizer)
    variants = {word: _variants(word.strip(), case_variants) for word in words}
    pieces = _pieces(tokenizer, sorted({text for texts in variants.values() for text in texts}))
    return {
        word: judge.word(word, {text: pieces[text] for text in texts}) for word, texts in variants.items()
    }


def _variants(word: str, case: bool) -> list[str]:
    """The texts under which a word may have an id of its own, itself first."""
    texts = [word]
    if case:
        texts += [word.lower(), word.capitalize(), string.capwords(word), word.upper()]
    return list(dict.fromkeys([*texts, *(f" {text}" for text in texts)]))


def _pieces(tokenizer: Any, texts: list[str]) -> dict[str, tuple[int, ...]]:
    """The ids of every text, neither cut nor padded."""
    if not texts:
        return {}
    found = tokenized(tokenizer, texts)
    return {text: tuple(ids) for text, ids in zip(texts, found["input_ids"], strict=True)}


def tokenized(
    tokenizer: Any, texts: str | list[str], *, special_tokens: bool = False, offsets: bool = False
) -> Mapping[str, Any]:
    """What a tokenizer makes of a text or several, neither cut nor padded: ids, and where in a text each token lies."""
    batch: Mapping[str, Any] = tokenizer(
        texts, add_special_tokens=special_tokens, return_offsets_mapping=offsets, padding=False, truncation=False,
        verbose=False, return_attention_mask=False, return_token_type_ids=False,
    )  # fmt: skip
    return batch


class _Judge:
    """What must be known of a tokenizer to say what pieces are."""

    def __init__(self, tokenizer: Any) -> None:
        ids = _vocabulary(tokenizer)
        unknown, self.continuation = {tokenizer.unk_token_id}, "##"
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # The wrapper may not know the model's unknown token, and byte-level models have ordinary tokens
            # that start with ##: the model itself is asked, in the one form that all models share.
            model = json.loads(backend.to_str())["model"]
            unknown |= {model.get("unk_id"), ids.get(model.get("unk_token"))}
            self.continuation = model.get("continuing_subword_prefix") or ""
        self.tokenizer = tokenizer
        self.tokens = {index: str(token) for token, index in ids.items()}
        self.unknown = unknown - {None}
        self.special = special_ids(tokenizer)

    def word(self, word: str, variants: Mapping[str, tuple[int, ...]]) -> Lookup:
        """What a word is whose variants have these pieces, the word itself first."""
        # The name of a special token is no word, although its lower-case variant would pass as a split one.
        own = next(iter(variants.values()))
        if self.kind(own) in (SPECIAL, UNKNOWN) and self.tokens[own[0]] == word.strip():
            return Lookup(self.kind(own))
        kinds: dict[str, dict[tuple[int, ...], None]] = {}
        for text, pieces in variants.items():
            kind = self.kind(pieces)
            # A vocabulary without some letters and without an unknown token drops them: "▁and" comes of "Band".
            # Case, accents and punctuation do not count, because tokenizers change them.
            read = readable(self.tokenizer, pieces)
            if kind in (ONE_PIECE, SPLIT, CONTINUES) and _letters(read) != _letters(text):
                kind = OTHER
            kinds.setdefault(kind, {})[pieces] = None
        outcome = min(kinds, key=OUTCOMES.index)
        return Lookup(outcome, tuple(kinds[outcome]))

    def kind(self, pieces: tuple[int, ...]) -> str:
        if self.unknown.intersection(pieces):
            return UNKNOWN
        if self.special.intersection(pieces):
            return SPECIAL
        if not "".join(self.tokens[piece] for piece in pieces).strip("Ġ▁ "):
            return EMPTY
        if len(pieces) > 1:
            return SPLIT
        continues = self.continuation and self.tokens[pieces[0]].startswith(self.continuation)
        return CONTINUES if continues else ONE_PIECE


def _letters(text: str) -> str:
    bare = without_marks(text.replace("▁", " ").replace("Ġ", " "))
    return "".join(filter(str.isalnum, bare)) or bare


def readable(tokenizer: Any, pieces: Sequence[int]) -> str:
    """The text of some pieces, without the marks that tokenizers put for a space."""
    text = str(tokenizer.decode(list(pieces), clean_up_tokenization_spaces=False)).strip("▁ ")
    if text and "\ufffd" not in text:
        return text
    # Half a character, or a control character: the raw tokens say more than what they decode to.
    return "".join(str(token) for token in tokenizer.convert_ids_to_tokens(list(pieces))).lstrip("Ġ▁")


# --- what a tokenizer is --------------------------------------------------------------------------


def check_tokenizer(tokenizer: Any) -> None:
    """TypeError for what is no tokenizer of Hugging Face."""
    if isinstance(tokenizer, type) or not (callable(tokenizer) and hasattr(tokenizer, "get_vocab")):
        raise TypeError(
            f"a Hugging Face tokenizer is needed, got {tokenizer!r:.100}; "
            "transformers.AutoTokenizer.from_pretrained loads one from a name or folder"
        )


def _vocabulary(tokenizer: Any) -> dict[Any, int]:
    check_tokenizer(tokenizer)
    vocabulary: dict[Any, int] = tokenizer.get_vocab()
    return vocabulary


def vocabulary_size(tokenizer: Any) -> int:
    """One more than the highest id: ids may have gaps, so the number of tokens could be too small."""
    return max(_vocabulary(tokenizer).values()) + 1


def special_ids(tokenizer: Any) -> set[int]:
    """Ids of the special tokens, also of those that were added later."""
    added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    return (added | set(tokenizer.all_special_ids)) - {None}


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 over the sorted vocabulary of a Hugging Face tokenizer; its fast and slow form give the same."""
    items = sorted((index, str(token)) for token, index in _vocabulary(tokenizer).items())
    return hashlib.sha256(json.dumps(items).encode()).hexdigest()


def tokenizer_identity(tokenizer: Any) -> str:
    """A hash that equals another one only if the tokenizers do the same to every text.

    Truncation and padding do not count, because they are set for every call.
    """
    from tokenizers import __version__

    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = tokenizer.init_kwargs if backend is None else json.loads(backend.to_str())
    facts = {
        "class": type(tokenizer).__name__,
        "vocabulary": tokenizer_hash(tokenizer),
        "special": sorted(tokenizer.all_special_ids),
        "rules": {name: rule for name, rule in rules.items() if name not in ("truncation", "padding")},
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


# --- stop words -----------------------------------------------------------------------------------


def stop_word_ids(stop_words: Iterable[str] | None, tokenizer: Any) -> list[int]:
    """Ids of the tokens of stop words, in any case, ascending; None stands for gensim's English list.

    Tokens count that a stop word becomes, alone or behind a space, and tokens that read like one, because behind a
    bracket some tokenizers have one that stands for it nowhere else.
    """
    if stop_words is None:
        from gensim.parsing.preprocessing import STOPWORDS

        stop_words = sorted(STOPWORDS)
    words = word_list(stop_words, "stop_words")
    found = look_up(words, tokenizer, case_variants=True).values()
    ids = {pieces[0] for what in found for pieces in what.sequences if len(pieces) == 1}
    forms = {form(word) for word in words}
    known = sorted(set(tokenizer.get_vocab().values()))
    texts = tokenizer.batch_decode([[index] for index in known])
    alike = {index for index, text in zip(known, texts, strict=True) if form(text.strip("▁ ")) in forms}
    return sorted(ids | alike)
