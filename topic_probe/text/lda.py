"""LDA over token ids, by gensim: the fitted topics, their scores, and their way to disk and back."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.notices import progress_bar, warn
from topic_probe.options import Group, check_number, check_whole, shares
from topic_probe.processes import Processes, Together, joined
from topic_probe.report import Report
from topic_probe.tables import WIDTH, as_text, number, width_of
from topic_probe.text.bags import BYTES_OF_WORD, COMMON, RARE, Bag, Bags, Reading, judge, unpacked
from topic_probe.text.shares import BLOCKS, check_same_documents, share_of
from topic_probe.topics.vocabulary import tokenizer_hash

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TopicFit", "fit_topics"]

# Likeliest words of a topic by which it is shown, scored and compared.
TOP = 10
# The share of top words that no other topic has is usually told for this many.
_TOP_DIVERSITY = 25
# A document that starts a topic has so many words if there are enough that do; each word counts so often that it
# stands out of the random start.
_WORDS_TO_START, _START_WEIGHT = 10, 3.0


# --- the result -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TopicFit(Report, kind="topic fit"):
    """A fitted topic model over token ids. Topic 15 here is topic 15 everywhere.

    Attributes:
        phi: P(word | topic); rows sum to one.
        token_ids: Token id of every column, ascending.
        texts: Readable form of every column.
        vocabulary_size: Number of token ids of the tokenizer.
        tokenizer_hash: The tokenizer that the ids belong to.
        tokens: Expected number of fitted tokens of every topic.
        document_frequency: Documents that every column occurs in.
        npmi: Coherence of a topic: mean normalised pointwise mutual information of its ten likeliest words, in
            documents; -1 where they never meet, 0 where they meet by chance, 1 where they only occur together. NaN
            for a topic of fewer than two words.
        umass: Coherence after Mimno and others: mean log P(rarer word | likelier word), at most 0 up to smoothing.
        settings: Options of the fit.
        provenance: What was read and left out, and by which versions.
    """

    phi: Float64[Tensor, "topic column"]
    token_ids: Int64[Tensor, "column"]
    texts: tuple[str, ...]
    vocabulary_size: int
    tokenizer_hash: str
    tokens: Float64[Tensor, "topic"]
    document_frequency: Int64[Tensor, "column"]
    npmi: Float64[Tensor, "topic"]
    umass: Float64[Tensor, "topic"]
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def n_topics(self) -> int:
        """Number of topics."""
        return len(self.phi)

    def __len__(self) -> int:
        return self.n_topics

    @property
    def shares(self) -> Float64[Tensor, "topic"]:
        """Share of the fitted tokens that every topic has."""
        return self.tokens / self.tokens.sum()

    @cached_property
    def empty_topics(self) -> tuple[int, ...]:
        """Topics that the fit gave less than one token: their words mean nothing."""
        return tuple((self.tokens < 1).nonzero()[:, 0].tolist())

    @cached_property
    def identical_topics(self) -> tuple[tuple[int, int], ...]:
        """Pairs of topics (the lower number first) with the same ten likeliest words, empty topics aside."""
        first: dict[tuple[int, ...], int] = {}
        pairs = []
        for topic, row in enumerate(np.sort(self.top_columns(TOP), axis=1).tolist()):
            if topic not in self.empty_topics and (earlier := first.setdefault(tuple(row), topic)) != topic:
                pairs.append((earlier, topic))
        return tuple(pairs)

    def top_columns(self, n: int) -> Int64[np.ndarray, "topic rank"]:
        """Columns of the likeliest words of every topic, equal ones in the order of their ids."""
        order: np.ndarray = np.argsort(-self.phi.numpy(), axis=1, kind="stable")[:, :n]
        return order

    def top_words(self, n: int = TOP) -> list[list[str]]:
        """The likeliest words of every topic."""
        return [[self.texts[column] for column in row] for row in self.top_columns(n).tolist()]

    def label(self, topic: int, n: int = 3) -> str:
        """A topic as people know it: ``id: word·word·word``."""
        if not 0 <= topic < self.n_topics:
            raise ValueError(f"topics are numbered 0..{self.n_topics - 1}, got {topic}")
        return f"{topic}: {'·'.join(self.top_words(n)[topic])}"

    def diversity(self, n: int = _TOP_DIVERSITY) -> float:
        """Different words among the ``n`` likeliest of all topics, as a share: 1 where topics have none in common."""
        top = self.top_columns(n)
        return len(np.unique(top)) / top.size

    def to_dataframe(self, n: int = TOP) -> "pd.DataFrame":
        """A row for every topic: its share of the tokens, coherence, words that only it has, notes, top words."""
        import pandas as pd

        top = self.top_columns(n)
        topics_of = np.bincount(top.ravel(), minlength=len(self.token_ids))
        return pd.DataFrame(
            {
                "topic": range(self.n_topics),
                "share": self.shares.numpy(),
                "npmi": self.npmi.numpy(),
                "umass": self.umass.numpy(),
                "exclusive": (topics_of[top] == 1).mean(axis=1),
                "note": [self._note(topic) for topic in range(self.n_topics)],
                "top_words": [" ".join(words) for words in self.top_words(n)],
            }
        )

    def _note(self, topic: int) -> str:
        if topic in self.empty_topics:
            return "empty"
        return next((f"same words as {one}" for one, other in self.identical_topics if other == topic), "")

    def _headline(self) -> str:
        return (
            f"TopicFit: {self.n_topics} topics over {len(self.token_ids):,} words, "
            f"{self.provenance['documents']:,} documents; mean NPMI {np.nanmean(self.npmi):.3f}, "
            f"diversity {self.diversity():.2f}"
        )

    def __repr__(self) -> str:
        return self.to_text()

    def to_text(self, *, wide: bool = False) -> str:
        """What ``print`` shows: as many of the likeliest words as have room; ten with ``wide``."""
        n = TOP
        while not wide and n > 1 and width_of(self.to_dataframe(n)) > WIDTH:
            n -= 1
        return f"{self._headline()}\n{as_text(self.to_dataframe(n), wide=True, max_rows=30)}"

    def _repr_html_(self) -> str:
        table = self.to_dataframe().to_html(index=False, float_format=number, max_rows=30, border=0)
        return f"<p><b>{html.escape(self._headline())}</b></p>{table}"

    def _to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        content = {
            "texts": [text.encode(errors="backslashreplace").decode() for text in self.texts],
            "vocabulary_size": self.vocabulary_size,
            "tokenizer_hash": self.tokenizer_hash,
            "settings": self.settings,
            "provenance": self.provenance,
        }
        return content, {name: getattr(self, name).numpy() for name in _TENSORS}

    @classmethod
    def _from_saved(cls, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "TopicFit":
        return cls(
            **{name: torch.from_numpy(arrays[name]) for name in _TENSORS},
            texts=tuple(content["texts"]),
            vocabulary_size=content["vocabulary_size"],
            tokenizer_hash=content["tokenizer_hash"],
            settings=content["settings"],
            provenance=content["provenance"],
        )


_TENSORS = ("phi", "token_ids", "tokens", "document_frequency", "npmi", "umass")


# --- fitting ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Updates(Group):
    """How topics are fitted."""

    passes: Annotated[
        int, "passes over the documents: ten suit thousands of documents, one or two millions"
    ] = 10
    iterations: Annotated[int, "steps at most for the topics of one document"] = 50
    chunk_size: Annotated[
        int | None,
        "documents per update, roughly (all chunks get the same size, and are mixed), by default a quarter of the "
        "documents, within 100 and 2000",
    ] = None
    alpha: Annotated[
        Literal["symmetric", "asymmetric", "auto"] | float | Sequence[float],
        'prior over topics of a document: "symmetric" (1 / n_topics), "asymmetric", a number, one per topic, or "auto" '
        "(learnt, by one worker only)",
    ] = "symmetric"
    eta: Annotated[
        Literal["symmetric", "auto"] | float | None,
        'prior over words of a topic: "symmetric" (1 / n_topics), "auto" or a number, by default symmetric',
    ] = None
    start: Annotated[
        Literal["documents", "random"],
        'what topics start from: "documents" gives each the words of a random document, which makes far better topics '
        'of small corpora; "random" is gensim\'s own start',
    ] = "documents"

    def __post_init__(self) -> None:
        check_whole("passes", self.passes)
        check_whole("iterations", self.iterations)
        if self.chunk_size is not None:
            check_whole("chunk_size", self.chunk_size)
        for name, prior in (("alpha", self.alpha), ("eta", self.eta)):
            if prior is not None and not isinstance(prior, str):
                for number in prior if isinstance(prior, Iterable) else [prior]:
                    check_number(name, number, why="a prior")


@dataclass(frozen=True)
class Kept(Group):
    """Which words are fitted."""

    min_documents: Annotated[int, "words in fewer documents are left out"] = 5
    max_share: Annotated[float, "words in a larger share of the documents are left out"] = 0.5
    stop_words: Annotated[
        Iterable[str] | None,
        "words left out, in any case; an empty list leaves all in, by default gensim's English list",
    ] = None
    min_letters: Annotated[int, "words of fewer letters are left out"] = 2

    def __post_init__(self) -> None:
        if self.min_documents < 1 or not 0 < self.max_share <= 1:
            raise ValueError(
                f"min_documents must be at least 1 and max_share in (0, 1], got {self.min_documents} and "
                f"{self.max_share}"
            )


@shares
def fit_topics(
    documents: Any,
    tokenizer: Any,
    *,
    n_topics: int = 100,
    seed: int = 0,
    workers: int = 1,
    progress: bool | None = None,
    updates: Updates,
    kept: Kept,
    together: Together,
) -> TopicFit:
    """LDA of the words of the documents, by gensim.

    The documents are read once; their bags of words wait in memory or, from 64 MB on, in a temporary file. The same
    documents, in any order, give the same topics to the last bit, on one machine with any number of processes that
    share them out; only workers of gensim's own do not.

    Args:
        documents: Documents of token ids, such as ``Corpus.documents`` gives. Pieces of split words are left out; of
            bare ids, whose text nobody saw, every token is a word.
        tokenizer: The tokenizer that made them.
        n_topics: Number of topics.
        seed: Seed of the fit; global generators are not touched.
        workers: Processes of gensim's LdaMulticore; with more than one the topics change from run to run.
        progress: Whether to show a bar with the time left; by default in a terminal or a notebook.

    Raises:
        ValueError: if no word is left, for options that do not fit together, and for processes that were given
            different ones, or different documents.
    """
    check_whole("n_topics", n_topics)
    check_whole("workers", workers)
    check_whole("seed", seed, 0, 2**32 - 1)  # what gensim takes
    if not isinstance(updates.alpha, str | int | float) and len(updates.alpha) != n_topics:
        raise ValueError(f"alpha must be one number for each of {n_topics} topics, got {len(updates.alpha)}")
    if together.distributed and workers > 1:
        raise ValueError(
            "distributed and workers exclude each other: start as many processes as there are cores"
        )
    if updates.alpha == "auto" and workers > 1:
        raise ValueError("alpha='auto' is learnt by one worker only: use 'symmetric' or 'asymmetric'")
    stop_words = kept.stop_words
    if stop_words is not None and not isinstance(stop_words, str):
        stop_words = sorted(stop_words)
    words = judge(tokenizer, stop_words, kept.min_letters)
    settings = {
        "n_topics": n_topics,
        **vars(updates),
        "alpha": _plain(updates.alpha),
        **vars(kept),
        "stop_words": "gensim" if stop_words is None else stop_words,
        "seed": seed,
        "workers": workers,
        "reproducible": workers == 1,
    }
    with joined(together.distributed, together.patience) as processes, Bags() as bags:
        reading = Reading(bags, words)
        _read(reading, documents, processes, {**settings, "tokenizer": tokenizer_hash(tokenizer)})
        columns = _columns(reading, kept.min_documents, kept.max_share)
        settings["chunk_size"] = _even_chunks(reading.counts.documents, updates.chunk_size)
        corpus = (_Pairs if workers > 1 else _Passes)(bags, columns, len(words.reason), seed)
        phi, tokens, stopped = _fit(corpus, reading.tokens[columns], settings, processes, progress)
        top = np.argsort(-phi, axis=1, kind="stable")[:, :TOP]
        npmi, umass = coherence(top, bags, columns, processes)
    fit = TopicFit(
        phi=torch.from_numpy(phi),
        token_ids=torch.from_numpy(columns),
        texts=tuple(words.texts[column] for column in columns),
        vocabulary_size=len(words.reason),
        tokenizer_hash=tokenizer_hash(tokenizer),
        tokens=torch.from_numpy(tokens),
        document_frequency=torch.from_numpy(reading.document_frequency[columns]),
        npmi=torch.from_numpy(npmi),
        umass=torch.from_numpy(umass),
        settings=settings,
        provenance=_provenance(reading, stopped, processes.size),
    )
    _warn_of_bad_topics(fit)
    return fit


def _read(reading: Reading, documents: Any, processes: Processes, facts: Mapping[str, Any]) -> None:
    """Reads the share of a process, and makes it what all have read."""
    share = share_of(documents, processes, None)
    if processes.size > 1:
        processes.check_equal({**facts, **share.outline()})
    reading.read(share, processes.check)
    if processes.size > 1:
        check_same_documents(share, processes, read=True)
    reading.exchange(processes)


def _even_chunks(n_documents: int, wanted: int | None) -> int:
    """A chunk size near the one wanted by which all chunks are equally large.

    gensim gives a last chunk of two documents the same say as a full one, and their words end up on top of topics.
    """
    wanted = min(2000, max(100, n_documents // 4)) if wanted is None else wanted
    return math.ceil(n_documents / max(1, round(n_documents / wanted)))


def _columns(reading: Reading, min_documents: int, max_share: float) -> Int64[np.ndarray, "column"]:
    """The token ids that are fitted; what the limits leave out is counted."""
    frequency = reading.document_frequency
    rare = (frequency > 0) & (frequency < min_documents)
    common = frequency > max_share * reading.counts.documents
    reading.counts.left_out[RARE], reading.counts.left_out[COMMON] = (
        int(rare.sum()),
        int((common & ~rare).sum()),
    )
    columns = np.flatnonzero((frequency > 0) & ~rare & ~common)
    if not len(columns):
        why = "; ".join(f"{count:,} {reason}" for reason, count in reading.counts.left_out.items() if count)
        raise ValueError(
            f"no word is left to fit in {reading.counts.documents:,} documents ({why or 'they are empty'}); with few "
            "documents lower min_documents and raise max_share"
        )
    return columns


class _Passes:
    """The documents as gensim wants them, sized and iterable for every pass, but packed: `columns` has their words."""

    def __init__(self, bags: Bags, columns: Int64[np.ndarray, "column"], n_ids: int, seed: int) -> None:
        self._bags = bags
        self.bar: Any = None
        self.n_read = 0
        self._place = np.full(n_ids, -1)
        self._place[columns] = np.arange(len(columns))
        self._generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self._bags.n

    def __iter__(self) -> Iterator[Any]:
        for packed in self.shuffled():
            self.bar.update()
            self.n_read += 1
            yield packed

    def shuffled(self) -> Iterator[bytes]:
        """All documents, in a new order every time."""
        return self._bags.shuffled(self._generator)

    def columns(self, packed: Sequence[bytes]) -> tuple[Int64[np.ndarray, "_"], ...]:
        """Columns and counts of the words of some documents, and where each of these ends."""
        ids, counts = unpacked(b"".join(packed))
        columns = self._place[ids]
        fitted = columns >= 0
        n_fitted = np.concatenate([[0], fitted.cumsum()])
        ends = n_fitted[np.cumsum([len(one) for one in packed], dtype=np.int64) // BYTES_OF_WORD]
        return columns[fitted], counts[fitted], ends


class _Pairs(_Passes):
    """The same for processes of gensim's own: each document (column, count) pairs."""

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for packed in super().__iter__():
            columns, counts, _ = self.columns([packed])
            yield list(zip(columns.tolist(), counts.tolist(), strict=True))


def _fit(
    corpus: _Passes,
    tokens_of: Int64[np.ndarray, "column"],
    settings: Mapping[str, Any],
    processes: Processes,
    progress: bool | None,
) -> tuple[Float64[np.ndarray, "topic column"], Float64[np.ndarray, "topic"], str | None]:
    """Topic-word matrix, expected tokens per topic, and where the fit was interrupted."""
    stopped = None
    model = _untrained(corpus, tokens_of, settings, processes)
    if settings["start"] == "documents":
        _start_from_documents(model, corpus)
    n_documents = settings["passes"] * len(corpus)
    shown = progress if processes.index == 0 else False
    with (
        progress_bar(total=n_documents, unit=" documents", shown=shown) as corpus.bar,
        model.interruptible() if processes.size > 1 else nullcontext(),
    ):
        try:
            model.update(corpus)
        except KeyboardInterrupt:
            if model.num_updates == 0:
                raise
            stopped = f"interrupted after {corpus.n_read:,} of {n_documents:,} documents"
    phi = model.get_topics().astype(np.float64)
    prior = np.broadcast_to(model.eta, phi.shape).sum(axis=1, dtype=np.float64)
    tokens = model.state.get_lambda().sum(axis=1, dtype=np.float64) - prior
    return phi / phi.sum(axis=1, keepdims=True), np.maximum(tokens, 0), stopped


def _untrained(
    corpus: _Passes, tokens_of: Int64[np.ndarray, "column"], settings: Mapping[str, Any], processes: Processes
) -> Any:
    from gensim.models import LdaMulticore
    from gensim.utils import FakeDict

    from topic_probe.text.variational import SharedLda

    options = {
        "id2word": FakeDict(len(tokens_of)),
        "num_topics": settings["n_topics"],
        "chunksize": settings["chunk_size"],
        "eval_every": None,
        **{name: settings[name] for name in ("passes", "iterations", "alpha", "eta")},
    }
    if settings["workers"] > 1:
        return LdaMulticore(workers=settings["workers"], random_state=settings["seed"], **options)
    return SharedLda(processes, corpus, tokens_of, settings["seed"], **options)


def _start_from_documents(model: Any, passes: _Passes) -> None:
    """Put the words of a random document into every topic.

    From gensim's own start, in which all topics are nearly alike, the words of a small corpus end up spread over topics
    without a theme. On a hundred Wikipedia articles this doubles the coherence.
    """
    long: list[Bag] = []
    short: list[Bag] = []
    for packed in passes.shuffled():
        if len(long) == model.num_topics:
            break
        places, counts, _ = passes.columns([packed])
        if counts.sum() >= _WORDS_TO_START:
            long.append((places, counts))
        elif len(short) < model.num_topics:
            short.append((places, counts))
    for topic, (places, counts) in enumerate([*long, *short][: model.num_topics]):
        model.state.sstats[topic, places] += (_START_WEIGHT * counts).astype(model.dtype)
    model.sync_state()


def _provenance(reading: Reading, stopped: str | None, n_processes: int) -> dict[str, Any]:
    from importlib.metadata import version

    corpus = reading.progress.corpus
    return {
        "documents": reading.counts.documents,
        "tokens": reading.counts.tokens,
        "documents_without_words": reading.counts.without_words,
        "left_out": reading.counts.summary()["left_out"],
        "stopped": stopped,
        "processes": n_processes,
        "corpus": corpus if isinstance(corpus, Mapping) else None,
        "versions": {name: version(name) for name in ("gensim", "numpy")},
    }


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist() if isinstance(value, Sequence | np.ndarray) else value


def _warn_of_bad_topics(fit: TopicFit) -> None:
    if fit.empty_topics:
        warn(
            f"{len(fit.empty_topics)} of {fit.n_topics} topics got no words (such as {fit.empty_topics[:5]}): fit "
            "fewer topics, or more documents",
            stacklevel=3,
        )
    if fit.identical_topics:
        pairs = ", ".join(f"{one} = {other}" for one, other in fit.identical_topics[:5])
        warn(f"topics with the same top words: {pairs}", stacklevel=3)


# --- how coherent topics are --------------------------------------------------------------------------


def coherence(
    top: Int64[np.ndarray, "topic rank"],
    bags: Bags,
    columns: Int64[np.ndarray, "column"],
    processes: Processes,
) -> tuple[Float64[np.ndarray, "topic"], Float64[np.ndarray, "topic"]]:
    """NPMI and UMass of every topic, counted in one pass over the documents."""
    words, place = np.unique(top, return_inverse=True)
    own = range(processes.index, BLOCKS, processes.size)
    counts = _count_together(words, bags.of_blocks(own), columns)
    processes.meet()
    counts = processes.add(counts.astype(np.float64)).astype(np.int64)
    place = place.reshape(top.shape)
    pairs = [scores(counts[np.ix_(row, row)], bags.n) for row in place]
    return np.array([npmi for npmi, _ in pairs]), np.array([umass for _, umass in pairs])


def _count_together(
    words: Int64[np.ndarray, "chosen"], bags: Iterable[Bag], columns: Int64[np.ndarray, "column"]
) -> Int64[np.ndarray, "chosen chosen"]:
    """Documents in which two of the words are; on the diagonal, those in which one is."""
    counts = np.zeros((len(words), len(words)), dtype=np.int64)
    for ids, _ in bags:
        found = np.flatnonzero(np.isin(columns[words], ids, assume_unique=True))
        counts[np.ix_(found, found)] += 1
    return counts


def scores(together: Int64[np.ndarray, "rank rank"], n: int) -> tuple[float, float]:
    """Mean NPMI and UMass over all pairs of a topic's words, which come likeliest first."""
    if len(together) < 2 or n == 0:
        return math.nan, math.nan
    later, earlier = np.tril_indices(len(together), k=-1)
    single, joint = together.diagonal(), together[later, earlier]
    umass = np.log((joint + 1) / single[earlier]).mean()
    npmi = np.full(len(joint), -1.0)  # never together: the limit
    npmi[joint == n] = 1.0  # always together, everywhere: the other limit
    between = (joint > 0) & (joint < n)
    pmi = np.log(joint[between] * n / (single[later] * single[earlier])[between])
    npmi[between] = pmi / -np.log(joint[between] / n)
    return float(npmi.mean()), float(umass)
