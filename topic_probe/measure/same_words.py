"""What several models are asked about: topics by their words in each vocabulary, and the same texts for all."""

import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from warnings import warn

from topic_probe.lens.host import facts_of
from topic_probe.text.corpus import Corpus
from topic_probe.text.documents import Long, check_read_again
from topic_probe.text.encoder import Encoder
from topic_probe.text.same_texts import Level, SameTexts
from topic_probe.topics import Topics, tokenizer_hash
from topic_probe.topics.builtin import word_lists
from topic_probe.topics.lists import by_topic, word_list
from topic_probe.topics.lookup import ONE_PIECE, SPLIT, look_up, tokenizer_identity
from topic_probe.words import form


@dataclass(frozen=True)
class Side:
    """A model with its name, and the topics in its own vocabulary."""

    name: str
    model: Any
    topics: Topics

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer; None where it has none."""
        return getattr(self.model, "tokenizer", None)


def _tokenizers_differ(tokenizers: Sequence[Any]) -> bool:
    """Whether ids of one model may be other words to another one; models without tokenizers share their ids."""
    return len({None if tokenizer is None else tokenizer_hash(tokenizer) for tokenizer in tokenizers}) > 1


def topics_of_each(
    models: Mapping[str, Any], topics: Any, level: Level, language: str
) -> tuple[list[Topics], dict[str, Any]]:
    """The topics in the vocabulary of every model, and what is left of their words.

    Raises:
        TypeError: where words are to be looked up and a model has no tokenizer.
        ValueError: where no word is left, and for topics whose words nobody knows.
    """
    tokenizers = [getattr(model, "tokenizer", None) for model in models.values()]
    if isinstance(topics, Topics) and not _tokenizers_differ(tokenizers):
        sizes = topics.sizes.tolist()
        table = [[name, n, n] for name, n in zip(topics.names, sizes, strict=True)]
        n_words = len(set(topics.form_of_word.tolist()))
        about = {"topics": table, "listed": n_words, "kept": n_words, "missing": {}}
        return [topics] * len(models), about
    lacking = [name for name, tokenizer in zip(models, tokenizers, strict=True) if tokenizer is None]
    if lacking:
        raise TypeError(
            f"words are looked up with the tokenizer of every model, and {', '.join(lacking)} has none: open it with "
            "open_model(model, tokenizer=...), or give all models Topics of the vocabulary that they share"
        )
    lists = _lists(topics, language)
    listed = list(dict.fromkeys(word for words in lists.values() for word in words))
    missing: dict[str, set[str]] = {}
    kinds = {ONE_PIECE, SPLIT} if level == "word" else {ONE_PIECE}
    for name, tokenizer in zip(models, tokenizers, strict=True):
        found = look_up(listed, tokenizer, case_variants=True)
        missing[name] = {word for word in listed if found[word].outcome not in kinds}
    kept = set(listed).difference(*missing.values())
    if not kept:
        lost = ", ".join(f"{name} lacks {len(words):,}" for name, words in missing.items())
        raise ValueError(f"no word is left that all models have, of {len(listed):,}: {lost}")
    left = {topic: [word for word in words if word in kept] for topic, words in lists.items()}
    if empty := [topic for topic, words in left.items() if not words]:
        warn(
            f"topics without a word that all models have, which stay empty: {', '.join(empty[:5])}",
            stacklevel=3,
        )
    split: Literal["keep", "drop"] = "keep" if level == "word" else "drop"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "topics without a word")  # said once for all models
        each = [Topics.from_word_lists(left, tokenizer, split_words=split) for tokenizer in tokenizers]
    return each, {
        "topics": [[topic, len(words), len(left[topic])] for topic, words in lists.items()],
        "listed": len(listed),
        "kept": len(kept),
        "missing": {name: len(words) for name, words in missing.items()},
    }


def _lists(topics: Any, language: str) -> dict[str, list[str]]:
    """Topics as lists of words."""
    if isinstance(topics, str):
        topics = word_lists(topics).lists(language)
    elif isinstance(topics, Topics):
        if not topics.texts:
            raise ValueError(
                "the words of these topics are unknown, because they were made of ids without a tokenizer, and the "
                "models do not share a vocabulary: pass lists of words"
            )
        place, topic = topics.assignments.T.tolist()
        read: dict[str, dict[str, None]] = {name: {} for name in topics.names}
        for at, number in zip(place, topic, strict=True):
            read[topics.names[number]][form(topics.texts[at])] = None
        return {name: list(words) for name, words in read.items()}
    given = by_topic(topics, "words")
    return {name: list(dict.fromkeys(word_list(words, f"topic {name!r}"))) for name, words in given.items()}


class SameDocuments(NamedTuple):
    """The documents of every model, at how many tokens they are cut, and what reads texts for all models.

    Attributes:
        each: the documents of every model.
        max_length: at how many tokens these are still to be cut.
        same: what reads texts for all models; None of documents that came as token ids.
        facts: what the documents of every model depend on beside its own tokenizer.
    """

    each: list[Any]
    max_length: int | None
    same: SameTexts | None
    facts: Sequence[str]


def documents_of_each(
    sides: Sequence[Side],
    documents: Any,
    max_length: int | None,
    long: Long,
    level: Level,
    sources: Collection[Hashable] | None,
) -> SameDocuments:
    """Documents for every model: of texts the same words for all, of ids what all can take.

    Raises:
        ValueError: for ids where vocabularies differ, and what can be read only once.
        TypeError: for texts where a model has no tokenizer.
    """
    tokenizers = [side.tokenizer for side in sides]
    limits = [_least(facts_of(side.model).context_length, max_length) for side in sides]
    texts = isinstance(documents, Corpus) or (
        isinstance(documents, list | tuple) and any(isinstance(part, str) for part in documents)
    )
    check_read_again(
        documents,
        "every model reads the documents",
        instead="a list, or a Corpus (Corpus.from_texts takes a function that gives texts anew)",
    )
    if not texts:
        if _tokenizers_differ(tokenizers):
            raise ValueError(
                "these models have different vocabularies, so documents of token ids are other words to each: pass the "
                "texts, or the Corpus itself"
            )
        if sources is not None:
            raise ValueError("sources= is for texts: documents of token ids know where they are from")
        return SameDocuments([documents] * len(sides), _least(*limits), None, [])
    if any(tokenizer is None for tokenizer in tokenizers):
        lacking = ", ".join(side.name for side in sides if side.tokenizer is None)
        raise TypeError(
            f"texts are read with the tokenizer of every model, and {lacking} has none: open it with "
            "open_model(model, tokenizer=...)"
        )
    # Models that share a tokenizer share its documents.
    own = [tokenizer_hash(tokenizer) for tokenizer in tokenizers]
    kinds = list(dict.fromkeys(own))
    encoders = []
    for kind in kinds:
        longest = _least(*(limit for limit, other in zip(limits, own, strict=True) if other == kind))
        tokenizer = tokenizers[own.index(kind)]
        encoders.append(Encoder(tokenizer, longest, "cut", add_special_tokens=True, begin_token=False))
    same = SameTexts(documents, encoders, long=long, level=level, sources=sources)
    facts = [tokenizer_identity(tokenizers[own.index(kind)]) for kind in kinds]
    return SameDocuments([same.of(kinds.index(kind)) for kind in own], None, same, facts)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
