"""LDA over token ids, by gensim: which tokens are words, the fitted topics, how coherent and how stable they are."""

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.options import check_whole, checked, progress_bar
from topic_probe.report import Report
from topic_probe.text.documents import Counts, content_hash, cut_documents, read_documents
from topic_probe.topics import Topics
from topic_probe.topics.lookup import special_ids, stop_word_ids, tokenizer_hash, vocabulary_size
from topic_probe.words import Forms

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

__all__ = ["TopicFit", "fit_topics"]

# Likeliest words of a topic by which it is scored and compared.
TOP = 10
# A document that starts a topic has so many words if there are enough that do; each word counts so often that it
# stands out of the random start.
_WORDS_TO_START, _START_WEIGHT = 10, 3.0

# Why token ids are not fitted; the first stands for those that are.
_REASONS = (
    "", "special tokens", "tokens that are no words", "stop words", "pieces of split words", "words not asked for",
)  # fmt: skip
NOT_ASKED = 5


# --- the result -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TopicFit(Report, kind="topic fit"):
    """A fitted topic model over token ids.

    Attributes:
        phi: P(word | topic); rows sum to one.
        token_ids: Token id of every column, ascending.
        texts: Readable form of every column.
        vocabulary_size: Number of token ids of the tokenizer.
        tokens: Expected number of fitted tokens of every topic.
        npmi: Coherence of a topic: mean normalised pointwise mutual information of its ten likeliest words, in
            documents; -1 where they never meet, 0 where they meet by chance, 1 where they only occur together.
        settings: Options of the fit.
        provenance: What was read and left out, and by which versions.
    """

    phi: Float64[Tensor, "topic column"]
    token_ids: Int64[Tensor, "column"]
    texts: tuple[str, ...]
    vocabulary_size: int
    tokenizer_hash: str
    tokens: Float64[Tensor, "topic"]
    npmi: Float64[Tensor, "topic"]
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def n_topics(self) -> int:
        """Number of topics."""
        return len(self.phi)

    @property
    def shares(self) -> Float64[Tensor, "topic"]:
        """Share of the fitted tokens that every topic has."""
        return self.tokens / self.tokens.sum()

    def topics(
        self, *, fraction: float = 0.002, one_topic_per_word: bool = True, forms: Forms = "case"
    ) -> Topics:
        """The likeliest words of every topic, as `Topics.from_matrix` chooses them; topic 15 stays topic 15.

        Words that are no likelier in a topic than if all fitted words were equally likely are never kept, so a topic
        that got no tokens stays empty.

        Args:
            fraction: Words kept per topic, as a share of all ids of the tokenizer: the paper's ambiguity threshold.
                The paper has 0.0005, 0.001 and 0.002, which are 15, 31 and 61 of the 30,522 ids of BERT.
            one_topic_per_word: Whether a word that several topics keep stays with its likeliest one, as in the paper's
                Table 1; not so in its Table 5.
            forms: Which entries are one word: those that differ in case and the space around them only ("case"), or
                also inflections ("song", "songs": "stem").
        """
        phi = self.phi.clone()
        phi[list(self.empty_topics)] = 1.0
        chance = (1 + 1e-9) / phi.shape[1]  # with room for rounding
        topics = Topics.from_matrix(
            phi,
            fraction=fraction,
            one_topic_per_word=one_topic_per_word,
            min_probability=min(chance, 0.5),
            token_ids=self.token_ids,
            vocabulary_size=self.vocabulary_size,
        )
        text_of = dict(zip(self.token_ids.tolist(), self.texts, strict=True))
        texts = tuple(text_of[entry] for entry in topics.words.tolist())
        return replace(topics, texts=texts, tokenizer_hash=self.tokenizer_hash, one_word=forms)

    @cached_property
    def empty_topics(self) -> tuple[int, ...]:
        """Topics that the fit gave less than one token: their words mean nothing."""
        return tuple((self.tokens < 1).nonzero()[:, 0].tolist())

    def top_columns(self, n: int) -> Int64[np.ndarray, "topic rank"]:
        """Columns of the likeliest words of every topic, equal ones in the order of their ids."""
        order: np.ndarray = np.argsort(-self.phi.numpy(), axis=1, kind="stable")[:, :n]
        return order

    def top_words(self, n: int = TOP) -> list[list[str]]:
        """The likeliest words of every topic."""
        return [[self.texts[column] for column in row] for row in self.top_columns(n).tolist()]

    def label(self, topic: int, n: int = 3) -> str:
        """A topic as people know it: ``id: word·word·word``."""
        return f"{topic}: {'·'.join(self.top_words(n)[topic])}"

    def diversity(self, n: int = 25) -> float:
        """Different words among the ``n`` likeliest of all topics, as a share: 1 where topics have none in common."""
        top = self.top_columns(n)
        return len(np.unique(top)) / top.size

    def to_dataframe(self, n: int = TOP) -> "pd.DataFrame":
        """A row for every topic: its share of the tokens, coherence, whether it is empty, top words."""
        import pandas as pd

        return pd.DataFrame(
            {
                "topic": range(self.n_topics),
                "share": self.shares.numpy(),
                "npmi": self.npmi.numpy(),
                "note": ["empty" if topic in self.empty_topics else "" for topic in range(self.n_topics)],
                "top_words": [" ".join(words) for words in self.top_words(n)],
            }
        )

    def found_in(self, other_fits: "Sequence[TopicFit]", n: int = TOP) -> "pd.DataFrame":
        """How much of every topic is found again in other fits, such as those of other seeds: the best found first.

        The topics of two fits are paired one to one so that they have most in common: words ÷ all words of their lists
        of the ``n`` likeliest, 1 for the same words, 0 for none and for a topic without a partner. Columns ``found``,
        the mean over the other fits, and ``lowest``.
        """
        import pandas as pd

        if not other_fits:
            raise ValueError("topics are looked for in other fits, as of other seeds: pass at least one")
        if any(other.tokenizer_hash != self.tokenizer_hash for other in other_fits):
            raise ValueError("the fits are of different tokenizers, so their words cannot be compared by id")
        found = np.array([_in_common(self, other, n) for other in other_fits])
        labels = [self.label(topic) for topic in range(self.n_topics)]
        table = pd.DataFrame({"topic": labels, "found": found.mean(axis=0), "lowest": found.min(axis=0)})
        return table.sort_values("found", ascending=False, kind="stable", ignore_index=True)

    def _tables(self) -> "dict[str, pd.DataFrame]":
        headline = (
            f"TopicFit: {self.n_topics} topics over {len(self.token_ids):,} words, "
            f"{self.provenance['documents']:,} documents; mean NPMI {np.nanmean(self.npmi):.3f}, "
            f"diversity {self.diversity():.2f}"
        )
        return {headline: self.to_dataframe(6)}


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


# --- documents as bags of words ---------------------------------------------------------------------


@checked
def word_ids(tokenizer: Any) -> Int64[Tensor, "word"]:
    """Token ids that are words by themselves, ascending: two letters or more and nothing else, and no stop words.

    A byte-level or sentencepiece vocabulary does not tell every piece from a word; documents of a text do.
    """
    reason, _ = _classified(tokenizer, None)
    return torch.from_numpy(np.flatnonzero(reason == 0))


def _classified(
    tokenizer: Any, stop_words: Iterable[str] | None
) -> tuple[Int64[np.ndarray, "vocabulary"], list[str]]:
    """Why every token id is no word to fit, as a place in ``_REASONS`` (0 where it is one), and its readable form."""
    texts = [""] * vocabulary_size(tokenizer)
    ids = list(tokenizer.get_vocab().values())
    for index, text in zip(ids, tokenizer.batch_decode([[index] for index in ids]), strict=True):
        texts[index] = str(text).strip("▁ ")
    reason = np.array([0 if _is_word(text) else 2 for text in texts], dtype=np.int64)
    reason[stop_word_ids(stop_words, tokenizer)] = 3
    reason[sorted(special_ids(tokenizer))] = 1
    return reason, texts


def _is_word(text: str) -> bool:
    # Marks are parts of letters in many scripts, and str.isalpha refuses them.
    kinds = [unicodedata.category(letter)[0] for letter in text]
    return kinds.count("L") >= 2 and not set(kinds) - {"L", "M"}


def read_bags(documents: Any, reason: Int64[np.ndarray, "vocabulary"], counts: Counts) -> "csr_array":
    """How often every token id is a word of every document, [document, token id].

    ``reason`` is 0 for ids that are words, and for others a place in ``_REASONS``, by which they are counted; ids above
    are as the last one.
    """
    from scipy.sparse import csr_array

    bags = [np.empty(0, np.int32)]
    for document in documents:
        ids = np.minimum(document.ids.numpy(), len(reason) - 1)
        why = reason[ids]
        if document.special is not None:
            why = np.where(document.special.numpy(), 1, why)
        if document.whole is not None:
            why = np.where((why == 0) & ~document.whole.numpy(), 4, why)
        for place in range(1, len(_REASONS)):
            counts.left_out[_REASONS[place]] += int((why == place).sum())
        bags.append(ids[why == 0].astype(np.int32))
    ids, starts = np.concatenate(bags), np.cumsum([len(bag) for bag in bags])
    table = csr_array((np.ones(len(ids), np.int32), ids, starts), shape=(len(bags) - 1, len(reason)))
    table.sum_duplicates()
    return table


def _frequent(
    bags: "csr_array", counts: Counts, min_documents: int, max_share: float
) -> Int64[np.ndarray, "column"]:
    """The token ids that are fitted; what the limits leave out is counted."""
    frequency = np.bincount(bags.indices, minlength=bags.shape[1])
    rare = (frequency > 0) & (frequency < min_documents)
    common = frequency > max_share * counts.documents
    counts.left_out["different words, in too few documents"] = int(rare.sum())
    counts.left_out["different words, in too many documents"] = int((common & ~rare).sum())
    columns = np.flatnonzero((frequency > 0) & ~rare & ~common)
    if not len(columns):
        why = "; ".join(f"{count:,} {reason}" for reason, count in counts.left_out.items() if count)
        raise ValueError(
            f"no word is left to fit in {counts.documents:,} documents ({why}); with few documents lower "
            "min_documents and raise max_share"
        )
    return columns


# --- fitting ----------------------------------------------------------------------------------------


@checked
def fit_topics(
    documents: Any,
    tokenizer: Any,
    *,
    n_topics: int = 100,
    seed: int = 0,
    passes: int = 10,
    min_documents: int = 5,
    max_share: float = 0.5,
    stop_words: Iterable[str] | None = None,
    progress: bool | None = None,
    **lda_options: Any,
) -> TopicFit:
    """LDA of the words of the documents, by gensim.

    The documents are read once, and their bags of words stay in memory. The same documents, in any order, give the same
    topics to the last bit on one machine.

    Args:
        documents: Documents of token ids, such as ``Corpus.documents`` gives. Pieces of split words are left out; of
            bare ids, whose text nobody saw, every token is a word.
        tokenizer: The tokenizer that made them.
        n_topics: Number of topics.
        seed: Seed of the fit.
        passes: Passes over the documents: ten suit thousands of documents, one or two millions.
        min_documents: Words in fewer documents are left out.
        max_share: Words in a larger share of the documents are left out.
        stop_words: Words left out, in any case; an empty list leaves all in; by default gensim's English list.
        progress: Whether to show a progress bar; by default in a terminal or a notebook.
        lda_options: Any other option of gensim's ``LdaModel``, such as ``alpha``, ``eta`` or ``chunksize``.
    """
    check_whole("n_topics", n_topics)
    if min_documents < 1 or not 0 < max_share <= 1:
        raise ValueError(
            f"min_documents must be at least 1 and max_share in (0, 1], got {min_documents} and {max_share}"
        )
    stop_words = None if stop_words is None else sorted(stop_words)
    reason, texts = _classified(tokenizer, stop_words)
    counts = Counts()
    every = read_bags(
        cut_documents(read_documents(documents), len(reason), None, "cut", counts), reason, counts
    )
    columns = _frequent(every, counts, min_documents, max_share)
    bags = every[:, columns]
    options = {"chunksize": _even_chunks(counts.documents), **lda_options, "passes": passes}
    phi, tokens = _fit(bags, n_topics, seed, options, progress)
    top = np.argsort(-phi, axis=1, kind="stable")[:, :TOP]
    return TopicFit(
        phi=torch.from_numpy(phi),
        token_ids=torch.from_numpy(columns),
        texts=tuple(texts[column] for column in columns),
        vocabulary_size=len(reason),
        tokenizer_hash=tokenizer_hash(tokenizer),
        tokens=torch.from_numpy(tokens),
        npmi=torch.from_numpy(coherence(top, bags)),
        settings={
            "n_topics": n_topics, "seed": seed, "min_documents": min_documents, "max_share": max_share,
            "stop_words": "gensim" if stop_words is None else stop_words, **options,
        },
        provenance=_provenance(counts, getattr(documents, "provenance", None)),
    )  # fmt: skip


def _even_chunks(n_documents: int) -> int:
    """Documents per update, by which all chunks are equally large: a quarter of them, within about 100 and 2000.

    gensim gives a last chunk of two documents the same say as a full one, and their words end up on top of topics.
    """
    wanted = min(2000, max(100, n_documents // 4))
    return math.ceil(n_documents / max(1, round(n_documents / wanted)))


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

    def __len__(self) -> int:
        return int(self.bags.shape[0])

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        columns, counts = self.bags.indices, self.bags.data
        for row in self.generator.permutation(len(self)):
            start, stop = self.bags.indptr[row : row + 2]
            self.bar.update()
            yield list(zip(columns[start:stop].tolist(), counts[start:stop].tolist(), strict=True))


def _fit(
    bags: "csr_array", n_topics: int, seed: int, options: Mapping[str, Any], progress: bool | None
) -> tuple[Float64[np.ndarray, "topic column"], Float64[np.ndarray, "topic"]]:
    """Topic-word matrix, and expected tokens per topic."""
    from gensim.models import LdaModel
    from gensim.utils import FakeDict

    corpus = _Passes(bags, seed)
    fixed = {"id2word": FakeDict(bags.shape[1]), "eval_every": None, "dtype": np.float64}
    model = LdaModel(num_topics=n_topics, random_state=seed, **fixed, **options)
    _start_from_documents(model, corpus)
    n_documents = options["passes"] * len(corpus)
    with progress_bar(total=n_documents, unit=" documents", shown=progress) as corpus.bar:
        model.update(corpus)
    phi = model.get_topics()
    prior = np.broadcast_to(model.eta, phi.shape).sum(axis=1)
    tokens = model.state.get_lambda().sum(axis=1) - prior
    return phi / phi.sum(axis=1, keepdims=True), np.maximum(tokens, 0)


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


def _provenance(counts: Counts, corpus: Any) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "documents": counts.documents,
        "tokens": counts.tokens,
        "documents_without_words": counts.without_words,
        "left_out": counts.summary()["left_out"],
        "corpus": corpus if isinstance(corpus, Mapping) else None,
        "versions": {name: version(name) for name in ("gensim", "numpy")},
    }


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
