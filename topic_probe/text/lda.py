"""LDA over token ids, by gensim: the fitted topics, their scores, and their way to disk and back."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.notices import progress_bar, warn
from topic_probe.options import Group, check_number, check_whole, shares
from topic_probe.report import Report
from topic_probe.tables import WIDTH, as_text, number, width_of
from topic_probe.text.bags import COMMON, RARE, judge, read_bags
from topic_probe.text.documents import Counts, content_hash
from topic_probe.topics.vocabulary import tokenizer_hash

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

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
                "exclusive": (topics_of[top] == 1).mean(axis=1),
                "note": [self._note(topic) for topic in range(self.n_topics)],
                "top_words": [" ".join(words) for words in self.top_words(n)],
            }
        )

    def found_in(self, other_fits: "Sequence[TopicFit]", n: int = TOP) -> "pd.DataFrame":
        """How much of every topic is found again in other fits, such as those of other seeds: a row for every topic.

        The topics of two fits are paired one to one so that they have most in common. What two of them have in common
        is words ÷ all words of their lists of the ``n`` likeliest: 1 for the same words, 0 for none, and 0 for a topic
        that is left without a partner. Columns ``found``, the mean over the other fits, and ``lowest``; the topic that
        is best found comes first. ``found_in(...)["found"].mean()`` is that of the whole fit.

        Args:
            other_fits: One or more fits over the same tokenizer.
            n: Likeliest words of a topic that are compared.
        """
        import pandas as pd

        if not other_fits:
            raise ValueError(
                "topics are looked for in other fits, such as those of other seeds: pass at least one"
            )
        if any(other.tokenizer_hash != self.tokenizer_hash for other in other_fits):
            raise ValueError("the fits are of different tokenizers, so their words cannot be compared by id")
        found = np.array([_in_common(self, other, n) for other in other_fits])
        table = pd.DataFrame(
            {
                "topic": [self.label(topic) for topic in range(self.n_topics)],
                "found": found.mean(axis=0),
                "lowest": found.min(axis=0),
            }
        )
        return table.sort_values("found", ascending=False, kind="stable", ignore_index=True)

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


def _in_common(fit: TopicFit, other: TopicFit, n: int) -> Float64[np.ndarray, "topic"]:
    """Share of the likeliest words (Jaccard) that every topic has in common with its partner in another fit."""
    from scipy.optimize import linear_sum_assignment

    one, two = (fit.token_ids.numpy()[fit.top_columns(n)] for fit in (fit, other))
    both = np.array([np.isin(two, words).sum(axis=1) for words in one])
    likeness = both / (one.shape[1] + two.shape[1] - both)
    topics, partners = linear_sum_assignment(likeness, maximize=True)
    found = np.zeros(fit.n_topics)
    found[topics] = likeness[topics, partners]
    return found


_TENSORS = ("phi", "token_ids", "tokens", "document_frequency", "npmi")


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
        "(learnt)",
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
    progress: bool | None = None,
    updates: Updates,
    kept: Kept,
) -> TopicFit:
    """LDA of the words of the documents, by gensim.

    The documents are read once, and their bags of words stay in memory. The same documents, in any order, give the same
    topics to the last bit on one machine.

    Args:
        documents: Documents of token ids, such as ``Corpus.documents`` gives. Pieces of split words are left out; of
            bare ids, whose text nobody saw, every token is a word.
        tokenizer: The tokenizer that made them.
        n_topics: Number of topics.
        seed: Seed of the fit; global generators are not touched.
        progress: Whether to show a bar with the time left; by default in a terminal or a notebook.

    Raises:
        ValueError: if no word is left, and for options out of range.
    """
    check_whole("n_topics", n_topics)
    check_whole("seed", seed, 0, 2**32 - 1)  # what gensim takes
    if not isinstance(updates.alpha, str | int | float) and len(updates.alpha) != n_topics:
        raise ValueError(f"alpha must be one number for each of {n_topics} topics, got {len(updates.alpha)}")
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
    }
    every, counts = read_bags(documents, words)
    columns = _columns(every, counts, kept.min_documents, kept.max_share)
    bags = every[:, columns]
    settings["chunk_size"] = _even_chunks(counts.documents, updates.chunk_size)
    phi, tokens, stopped = _fit(bags, settings, progress)
    top = np.argsort(-phi, axis=1, kind="stable")[:, :TOP]
    fit = TopicFit(
        phi=torch.from_numpy(phi),
        token_ids=torch.from_numpy(columns),
        texts=tuple(words.texts[column] for column in columns),
        vocabulary_size=len(words.reason),
        tokenizer_hash=tokenizer_hash(tokenizer),
        tokens=torch.from_numpy(tokens),
        document_frequency=torch.from_numpy(_document_frequency(bags)),
        npmi=torch.from_numpy(coherence(top, bags)),
        settings=settings,
        provenance=_provenance(counts, getattr(documents, "provenance", None), stopped),
    )
    _warn_of_bad_topics(fit)
    return fit


def _even_chunks(n_documents: int, wanted: int | None) -> int:
    """A chunk size near the one wanted by which all chunks are equally large.

    gensim gives a last chunk of two documents the same say as a full one, and their words end up on top of topics.
    """
    wanted = min(2000, max(100, n_documents // 4)) if wanted is None else wanted
    return math.ceil(n_documents / max(1, round(n_documents / wanted)))


def _columns(
    bags: "csr_array", counts: Counts, min_documents: int, max_share: float
) -> Int64[np.ndarray, "column"]:
    """The token ids that are fitted; what the limits leave out is counted."""
    frequency = _document_frequency(bags)
    rare = (frequency > 0) & (frequency < min_documents)
    common = frequency > max_share * counts.documents
    counts.left_out[RARE], counts.left_out[COMMON] = int(rare.sum()), int((common & ~rare).sum())
    columns = np.flatnonzero((frequency > 0) & ~rare & ~common)
    if not len(columns):
        why = "; ".join(f"{count:,} {reason}" for reason, count in counts.left_out.items() if count)
        raise ValueError(
            f"no word is left to fit in {counts.documents:,} documents ({why or 'they are empty'}); with few "
            "documents lower min_documents and raise max_share"
        )
    return columns


def _document_frequency(bags: "csr_array") -> Int64[np.ndarray, "column"]:
    """Documents that every column occurs in."""
    return np.bincount(bags.indices, minlength=bags.shape[1])


class _Passes:
    """The documents as gensim wants them, (column, count) pairs, in a new random order at every pass.

    A corpus goes from theme to theme, and topics updated in that order would forget. Documents are sorted by a hash of
    their words first, so the order in which they were read changes nothing.
    """

    def __init__(self, bags: "csr_array", seed: int) -> None:
        rows = pairwise(bags.indptr.tolist())
        hashes = [
            content_hash(bags.indices[start:stop].tobytes() + bags.data[start:stop].tobytes())
            for start, stop in rows
        ]
        self.bags = bags[np.argsort(hashes)]
        self.generator = np.random.default_rng(seed)
        self.bar: Any = None
        self.n_read = 0

    def __len__(self) -> int:
        return int(self.bags.shape[0])

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        columns, counts = self.bags.indices, self.bags.data
        for row in self.generator.permutation(len(self)):
            start, stop = self.bags.indptr[row : row + 2]
            self.bar.update()
            self.n_read += 1
            yield list(zip(columns[start:stop].tolist(), counts[start:stop].tolist(), strict=True))


def _fit(
    bags: "csr_array", settings: Mapping[str, Any], progress: bool | None
) -> tuple[Float64[np.ndarray, "topic column"], Float64[np.ndarray, "topic"], str | None]:
    """Topic-word matrix, expected tokens per topic, and where the fit was interrupted."""
    from gensim.models import LdaModel
    from gensim.utils import FakeDict

    corpus, stopped = _Passes(bags, settings["seed"]), None
    model = LdaModel(
        id2word=FakeDict(bags.shape[1]),
        num_topics=settings["n_topics"],
        chunksize=settings["chunk_size"],
        random_state=settings["seed"],
        eval_every=None,
        dtype=np.float64,
        **{name: settings[name] for name in ("passes", "iterations", "alpha", "eta")},
    )
    if settings["start"] == "documents":
        _start_from_documents(model, corpus)
    n_documents = settings["passes"] * len(corpus)
    with progress_bar(total=n_documents, unit=" documents", shown=progress) as corpus.bar:
        try:
            model.update(corpus)
        except KeyboardInterrupt:
            if model.num_updates == 0:
                raise
            stopped = f"interrupted after {corpus.n_read:,} of {n_documents:,} documents"
    phi = model.get_topics()
    prior = np.broadcast_to(model.eta, phi.shape).sum(axis=1)
    tokens = model.state.get_lambda().sum(axis=1) - prior
    return phi / phi.sum(axis=1, keepdims=True), np.maximum(tokens, 0), stopped


def _start_from_documents(model: Any, corpus: _Passes) -> None:
    """Put the words of a random document into every topic.

    From gensim's own start, in which all topics are nearly alike, the words of a small corpus end up spread over topics
    without a theme. On a hundred Wikipedia articles this doubles the coherence.
    """
    order = corpus.generator.permutation(len(corpus))
    short = corpus.bags.sum(axis=1)[order] < _WORDS_TO_START
    first = order[np.argsort(short, kind="stable")][: model.num_topics]
    model.state.sstats[: len(first)] += _START_WEIGHT * corpus.bags[first].toarray()
    model.sync_state()


def _provenance(counts: Counts, corpus: Any, stopped: str | None) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "documents": counts.documents,
        "tokens": counts.tokens,
        "documents_without_words": counts.without_words,
        "left_out": counts.summary()["left_out"],
        "stopped": stopped,
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


def coherence(top: Int64[np.ndarray, "topic rank"], bags: "csr_array") -> Float64[np.ndarray, "topic"]:
    """NPMI of every topic, over whole documents."""
    words, place = np.unique(top, return_inverse=True)
    there = (bags[:, words] > 0).astype(np.int64)
    together = (there.T @ there).toarray()  # documents with both words
    rows = place.reshape(top.shape)
    return np.array([_npmi(together[np.ix_(row, row)], bags.shape[0]) for row in rows])


def _npmi(together: Int64[np.ndarray, "rank rank"], n: int) -> float:
    """Mean NPMI over all pairs of a topic's words."""
    if len(together) < 2 or n == 0:
        return math.nan
    later, earlier = np.tril_indices(len(together), k=-1)
    single, joint = together.diagonal(), together[later, earlier]
    npmi = np.full(len(joint), -1.0)  # never together: the limit
    npmi[joint == n] = 1.0  # always together, everywhere: the other limit
    between = (joint > 0) & (joint < n)
    pmi = np.log(joint[between] * n / (single[later] * single[earlier])[between])
    npmi[between] = pmi / -np.log(joint[between] / n)
    return float(npmi.mean())
