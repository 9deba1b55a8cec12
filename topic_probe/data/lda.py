"""Topic models of token ids: which words to fit, LDA by gensim, how good and how stable the topics are."""

import html
import math
import os
import tempfile
import unicodedata
import warnings
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from topic_probe.data.batches import Document, read_documents
from topic_probe.storage import (
    check_schema,
    checksum,
    read_json,
    read_safetensors,
    to_json,
    to_safetensors,
    write_directory,
)
from topic_probe.topics import stop_word_ids
from topic_probe.vocabulary import tokenizer_hash, vocabulary_size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TopicFit", "TopicStability", "fit_topics", "topic_stability", "word_ids"]

_KIND, _SCHEMA = "topic fit", 1
_JSON, _ARRAYS = "fit.json", "arrays.safetensors"

# Likeliest words of a topic by which it is shown, scored and compared.
_TOP = 10
# The share of top words that no other topic has is usually told for this many.
_TOP_DIVERSITY = 25
# In vocabularies that mark the beginning of a word more tokens than these do so.
_SHARE_MARKED = 0.1
# A document that starts a topic has so many words if there are enough that do; each word counts so often that it
# stands out of the random start.
_WORDS_TO_START, _START_WEIGHT = 10, 3.0

STOP, SPECIAL, NO_WORD, PIECE, RARE, COMMON = (
    "stop words",
    "special tokens",
    "tokens that are no words",
    "pieces of split words",
    "different words, in too few documents",
    "different words, in too many documents",
)


# --- which token ids are words ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Words:
    """What is known of every token id before any text is read.

    Attributes:
        reason: Why an id is not fitted, as a place in ``reasons``; 0 where it is.
        lettered: Whether it has letters: a word of two such tokens is a split one.
        begins: Whether it begins a word, where the vocabulary marks that (``Ġword``, ``▁word``); otherwise True.
        texts: Readable form of every id.
    """

    reason: Int64[np.ndarray, "vocabulary"]
    lettered: Bool[np.ndarray, "vocabulary"]
    begins: Bool[np.ndarray, "vocabulary"]
    texts: tuple[str, ...]
    reasons: tuple[str, ...] = ("", SPECIAL, NO_WORD, STOP)


def word_ids(
    tokenizer: Any, *, stop_words: Iterable[str] | None = None, min_letters: int = 2
) -> Int64[Tensor, "word"]:
    """Token ids that are words by themselves, ascending: letters only, and no stop words.

    Special tokens, punctuation, numbers, pieces that continue a word (``##ing``) and single letters are none. A
    byte-level or sentencepiece vocabulary does not tell every piece from a word; documents with word numbers do.

    Args:
        tokenizer: A Hugging Face tokenizer.
        stop_words: Words to leave out, looked up in any case and behind a space; None: gensim's English list.
        min_letters: Letters that a word has at least.
    """
    words = _judge(tokenizer, stop_words, min_letters)
    return torch.from_numpy(np.flatnonzero(words.reason == 0))


def _judge(tokenizer: Any, stop_words: Iterable[str] | None, min_letters: int) -> _Words:
    size = vocabulary_size(tokenizer)
    texts, begins = [""] * size, np.zeros(size, dtype=bool)
    tokens = {index: str(token) for token, index in tokenizer.get_vocab().items()}
    decoded = tokenizer.batch_decode([[index] for index in tokens])
    for (index, token), text in zip(tokens.items(), decoded, strict=True):
        texts[index], begins[index] = str(text).strip("▁ "), token.startswith(("Ġ", "▁"))
    if begins.mean() < _SHARE_MARKED:
        begins[:] = True
    reason = np.array([0 if _is_word(text, min_letters) else 2 for text in texts], dtype=np.int64)
    reason[stop_word_ids(stop_words, tokenizer)] = 3
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    reason[sorted(special | set(tokenizer.all_special_ids))] = 1
    lettered = np.array([any(map(str.isalpha, text)) for text in texts], dtype=bool)
    return _Words(reason, lettered, begins, tuple(texts))


def _is_word(text: str, min_letters: int) -> bool:
    # Marks are parts of letters in many scripts, and str.isalpha refuses them.
    kinds = [unicodedata.category(letter)[0] for letter in text]
    return kinds.count("L") >= min_letters and not set(kinds) - {"L", "M"}


# --- bags of words ----------------------------------------------------------------------------------

# Token ids of a document, ascending, and how often it has each.
_Bag = tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]


class _Bags:
    """Bags of words of all documents: in memory while they are few, then in a temporary file.

    They are kept in blocks of neighbouring documents, and come back with the blocks in random order and the documents
    of many blocks mixed. A corpus goes from theme to theme, and topics updated in that order would forget. Only the
    places of the blocks stay in memory.
    """

    _IN_MEMORY = 1 << 26
    _BLOCK, _BLOCKS_MIXED = 32, 128

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=self._IN_MEMORY)  # noqa: SIM115
        self._starts = array("Q")
        self._block: list[_Bag] = []
        self.n = 0

    def __enter__(self) -> "_Bags":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, bag: _Bag) -> None:
        self.n += 1
        self._block.append(bag)
        if len(self._block) == self._BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write the block that is being filled."""
        if not self._block:
            return
        lengths = [len(ids) for ids, _ in self._block]
        both = [part for place in (0, 1) for part in (bag[place] for bag in self._block)]
        content = np.concatenate([np.array([len(lengths), *lengths]), *both]).astype("<u4").tobytes()
        self._starts.append(self._file.tell())
        self._block = []
        try:
            self._file.write(content)
        except OSError as error:
            raise OSError(
                f"the words of the documents do not fit into {tempfile.gettempdir()} ({error}): name a folder of a "
                "larger disk in the environment variable TMPDIR"
            ) from error

    def shuffled(self, generator: np.random.Generator) -> Iterator[_Bag]:
        """All bags in an order that the generator gives."""
        order = generator.permutation(len(self._starts))
        for first in range(0, len(order), self._BLOCKS_MIXED):
            bags = [
                bag for block in order[first : first + self._BLOCKS_MIXED] for bag in self._read(int(block))
            ]
            for place in generator.permutation(len(bags)):
                yield bags[place]

    def __iter__(self) -> Iterator[_Bag]:
        """All bags in the order in which they came."""
        for block in range(len(self._starts)):
            yield from self._read(block)

    def _read(self, block: int) -> Iterator[_Bag]:
        self._file.seek(self._starts[block])
        lengths = self._numbers(int(self._numbers(1)[0]))
        ids, counts = (np.split(self._numbers(int(lengths.sum())), lengths.cumsum()[:-1]) for _ in range(2))
        yield from zip(ids, counts, strict=True)

    def _numbers(self, n: int) -> Int64[np.ndarray, "_"]:
        return np.frombuffer(self._file.read(4 * n), dtype="<u4").astype(np.int64)


@dataclass
class _Reading:
    """What one pass over the documents gives."""

    bags: _Bags
    words: _Words
    documents: int = 0
    tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.document_frequency = np.zeros(len(self.words.reason), dtype=np.int64)

    def read(self, documents: Any) -> None:
        """Take the words of every document, and count the rest by its reason."""
        size = len(self.words.reason)
        for document in read_documents(documents):
            ids = document.ids.numpy()
            if len(ids) and not 0 <= ids.min() <= ids.max() < size:
                raise ValueError(
                    f"document {self.documents} holds the token id {ids.max()}, the tokenizer has 0..{size - 1}: "
                    "were the documents made with another tokenizer?"
                )
            self.documents += 1
            self.tokens += len(ids)
            kept = self._kept(document, ids)
            unique, counts = np.unique(ids[kept], return_counts=True)
            self.document_frequency[unique] += 1
            self.bags.add((unique, counts.astype(np.int64)))
        self.bags.flush()

    def _kept(self, document: Document, ids: Int64[np.ndarray, "_"]) -> Bool[np.ndarray, "_"]:
        reason = self.words.reason[ids]
        if document.special is not None:
            reason = np.where(document.special.numpy(), 1, reason)
        kept = reason == 0
        for place, count in enumerate(np.bincount(reason, minlength=4)[1:], 1):
            self.left_out[self.words.reasons[place]] += int(count)
        split = kept & self._split(document, ids)
        self.left_out[PIECE] += int(split.sum())
        whole: np.ndarray = kept & ~split
        return whole

    def _split(self, document: Document, ids: Int64[np.ndarray, "_"]) -> Bool[np.ndarray, "_"]:
        """Whether tokens are pieces of longer words, by the word numbers or else by how the tokens look."""
        if document.word_index is None:
            continues: np.ndarray = ~self.words.begins[ids]
            return continues
        # Sentencepiece counts punctuation to the word before it, so only tokens with letters make a word a split one.
        numbers = document.word_index.numpy()
        inside = numbers >= 0
        pieces: np.ndarray = np.bincount(numbers[inside], self.words.lettered[ids[inside]], minlength=1)
        split: np.ndarray = inside & (pieces[numbers] > 1)
        return split


# --- the result -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TopicFit:
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
        for topic, row in enumerate(np.sort(self._top(_TOP), axis=1).tolist()):
            if topic not in self.empty_topics and (earlier := first.setdefault(tuple(row), topic)) != topic:
                pairs.append((earlier, topic))
        return tuple(pairs)

    def _top(self, n: int) -> Int64[np.ndarray, "topic rank"]:
        """Columns of the likeliest words of every topic, equal ones in the order of their ids."""
        order: np.ndarray = np.argsort(-self.phi.numpy(), axis=1, kind="stable")[:, :n]
        return order

    def top_words(self, n: int = _TOP) -> list[list[str]]:
        """The likeliest words of every topic."""
        return [[self.texts[column] for column in row] for row in self._top(n).tolist()]

    def label(self, topic: int, n: int = 3) -> str:
        """A topic as people know it: ``id: word·word·word``."""
        if not 0 <= topic < self.n_topics:
            raise ValueError(f"topics are numbered 0..{self.n_topics - 1}, got {topic}")
        return f"{topic}: {'·'.join(self.top_words(n)[topic])}"

    def diversity(self, n: int = _TOP_DIVERSITY) -> float:
        """Different words among the ``n`` likeliest of all topics, as a share: 1 where topics have none in common."""
        top = self._top(n)
        return len(np.unique(top)) / top.size

    def to_dataframe(self, n: int = _TOP) -> "pd.DataFrame":
        """A row for every topic: its share of the tokens, coherence, words that only it has, notes, top words."""
        import pandas as pd

        top = self._top(n)
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
        table = self.to_dataframe().to_string(
            index=False, float_format=lambda number: f"{number:.3f}", max_rows=30, max_colwidth=90
        )
        return f"{self._headline()}\n{table}"

    def _repr_html_(self) -> str:
        table = self.to_dataframe().to_html(
            index=False, float_format=lambda number: f"{number:.3f}", max_rows=30, border=0
        )
        return f"<p><b>{html.escape(self._headline())}</b></p>{table}"

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """The folder with the fit (JSON and safetensors), whole or absent.

        Args:
            path: A folder that does not exist or is empty; another one is refused.
            overwrite: Replace a fit that is saved there. A folder with other files is refused all the same.
        """
        packed = to_safetensors({name: getattr(self, name).numpy() for name in _TENSORS})
        content = {
            "kind": _KIND,
            "schema": _SCHEMA,
            "arrays_sha256": checksum(packed),
            "texts": [text.encode(errors="backslashreplace").decode() for text in self.texts],
            "vocabulary_size": self.vocabulary_size,
            "tokenizer_hash": self.tokenizer_hash,
            "settings": self.settings,
            "provenance": self.provenance,
        }
        return write_directory(path, {_JSON: to_json(content), _ARRAYS: packed}, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "TopicFit":
        """A fit that ``save`` has written; what is damaged, foreign or too new is refused by name."""
        folder = Path(path).expanduser()
        content = read_json(folder / _JSON)
        if content.get("kind") != _KIND:
            raise ValueError(f"{folder / _JSON} holds {content.get('kind')!r}, not a topic fit")
        check_schema(content, folder / _JSON, newest=_SCHEMA)
        arrays = read_safetensors(folder / _ARRAYS, sha256=content.get("arrays_sha256"))
        try:
            return cls(
                **{name: torch.from_numpy(arrays[name]) for name in _TENSORS},
                texts=tuple(content["texts"]),
                vocabulary_size=content["vocabulary_size"],
                tokenizer_hash=content["tokenizer_hash"],
                settings=content["settings"],
                provenance=content["provenance"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{folder} does not hold a whole topic fit ({error!r}): save it again"
            ) from error


_TENSORS = ("phi", "token_ids", "tokens", "document_frequency", "npmi", "umass")


# --- fitting ----------------------------------------------------------------------------------------


def fit_topics(
    documents: Any,
    tokenizer: Any,
    *,
    n_topics: int = 100,
    passes: int = 10,
    iterations: int = 50,
    chunk_size: int | None = None,
    alpha: str | float | Sequence[float] = "symmetric",
    eta: str | float | None = None,
    start: str = "documents",
    min_documents: int = 5,
    max_share: float = 0.5,
    stop_words: Iterable[str] | None = None,
    min_letters: int = 2,
    seed: int = 0,
    workers: int = 1,
    distributed: bool = False,
    progress: bool = False,
) -> TopicFit:
    """LDA of the words of the documents, by gensim.

    The documents are read once; their bags of words wait in memory or, from 64 MB on, in a temporary file. With one
    worker the same call gives the same topics; with several it does not, because the order of updates changes.

    Args:
        documents: Documents of token ids, such as ``Corpus.documents`` gives. Where they have word numbers, pieces of
            split words are left out.
        tokenizer: The tokenizer that made them.
        n_topics: Number of topics.
        passes: Passes over the documents. Ten suit thousands of documents, one or two millions.
        iterations: Steps at most for the topics of one document.
        chunk_size: Documents per update, roughly (all chunks get the same size, and are mixed); None: a quarter of the
            documents, within 100 and 2000.
        alpha: Prior over topics of a document: "symmetric" (1 / n_topics), "asymmetric", a number, one per topic, or
            "auto" (learnt, by one worker only).
        eta: Prior over words of a topic: None or "symmetric" (1 / n_topics), "auto" or a number.
        start: "documents": every topic starts from the words of a random document, which gives far better topics on
            small corpora. "random": gensim's own start.
        min_documents: Words in fewer documents are left out.
        max_share: Words in a larger share of the documents are left out.
        stop_words: Words left out, in any case; None: gensim's English list; () for none.
        min_letters: Words of fewer letters are left out.
        seed: Seed of the fit; global generators are not touched.
        workers: Processes; more than one uses gensim's LdaMulticore.
        distributed: Use gensim's own cluster (a running dispatcher and workers, package Pyro4).
        progress: Whether to show a bar with the time left.

    Raises:
        ValueError: if no word is left, or for options that do not fit together.
    """
    if start not in ("documents", "random"):
        raise ValueError(f"start must be 'documents' or 'random', got {start!r}")
    _check_options(n_topics, passes, chunk_size, min_documents, max_share, workers, distributed, alpha)
    if stop_words is not None and not isinstance(stop_words, str):
        stop_words = sorted(stop_words)
    words = _judge(tokenizer, stop_words, min_letters)
    with _Bags() as bags:
        reading = _Reading(bags, words)
        reading.read(documents)
        columns = _columns(reading, min_documents, max_share)
        settings = {
            "n_topics": n_topics,
            "passes": passes,
            "iterations": iterations,
            "chunk_size": _even_chunks(reading.documents, chunk_size),
            "alpha": _plain(alpha),
            "eta": eta,
            "start": start,
            "min_documents": min_documents,
            "max_share": max_share,
            "stop_words": "gensim" if stop_words is None else stop_words,
            "min_letters": min_letters,
            "seed": seed,
            "workers": workers,
            "distributed": distributed,
            "reproducible": workers == 1 and not distributed,
        }
        phi, tokens, stopped = _fit(bags, columns, settings, progress)
        top = np.argsort(-phi, axis=1, kind="stable")[:, :_TOP]
        npmi, umass = _coherence(top, bags, columns)
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
        provenance=_provenance(reading, documents, stopped),
    )
    _warn_of_bad_topics(fit)
    return fit


def _check_options(
    n_topics: int,
    passes: int,
    chunk_size: int | None,
    min_documents: int,
    max_share: float,
    workers: int,
    distributed: bool,
    alpha: Any,
) -> None:
    given = {"n_topics": n_topics, "passes": passes, "chunk_size": chunk_size, "workers": workers}
    for name, value in given.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if min_documents < 1 or not 0 < max_share <= 1:
        raise ValueError(
            f"min_documents must be at least 1 and max_share in (0, 1], got {min_documents} and {max_share}"
        )
    if distributed and workers > 1:
        raise ValueError("distributed and workers exclude each other: a cluster has its own workers")
    if isinstance(alpha, str) and alpha == "auto" and (workers > 1 or distributed):
        raise ValueError("alpha='auto' is learnt by one worker only: use 'symmetric' or 'asymmetric'")


def _even_chunks(n_documents: int, wanted: int | None) -> int:
    """A chunk size near the one wanted by which all chunks are equally large.

    gensim gives a last chunk of two documents the same say as a full one, and their words end up on top of topics.
    """
    wanted = min(2000, max(100, n_documents // 4)) if wanted is None else wanted
    return math.ceil(n_documents / max(1, round(n_documents / wanted)))


def _columns(reading: _Reading, min_documents: int, max_share: float) -> Int64[np.ndarray, "column"]:
    """The token ids that are fitted; what the limits leave out is counted."""
    frequency = reading.document_frequency
    rare = (frequency > 0) & (frequency < min_documents)
    common = frequency > max_share * reading.documents
    reading.left_out[RARE], reading.left_out[COMMON] = int(rare.sum()), int((common & ~rare).sum())
    columns = np.flatnonzero((frequency > 0) & ~rare & ~common)
    if not len(columns):
        why = "; ".join(f"{count:,} {reason}" for reason, count in reading.left_out.items() if count)
        raise ValueError(
            f"no word is left to fit in {reading.documents:,} documents ({why or 'they are empty'}); with few "
            "documents lower min_documents and raise max_share"
        )
    return columns


class _Passes:
    """The bags as gensim wants them: sized, iterable for every pass, each document (column, count) pairs."""

    def __init__(self, bags: _Bags, columns: Int64[np.ndarray, "column"], seed: int, bar: Any) -> None:
        self._bags, self._bar = bags, bar
        self.n_read = 0
        self._place = np.full(int(columns.max()) + 1, -1)
        self._place[columns] = np.arange(len(columns))
        self._generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self._bags.n

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for places, counts in self.shuffled():
            self._bar.update()
            self.n_read += 1
            yield list(zip(places.tolist(), counts.tolist(), strict=True))

    def shuffled(self) -> Iterator[_Bag]:
        """Columns and counts of every document, in a new order every time."""
        for ids, counts in self._bags.shuffled(self._generator):
            inside = ids < len(self._place)
            places = self._place[ids[inside]]
            yield places[places >= 0], counts[inside][places >= 0]


def _fit(
    bags: _Bags, columns: Int64[np.ndarray, "column"], settings: Mapping[str, Any], progress: bool
) -> tuple[Float64[np.ndarray, "topic column"], Float64[np.ndarray, "topic"], str | None]:
    """Topic-word matrix, expected tokens per topic, and where the fit was interrupted."""
    from tqdm.auto import tqdm

    stopped = None
    with tqdm(total=settings["passes"] * bags.n, unit=" documents", disable=not progress) as bar:
        model = _untrained(len(columns), settings)
        passes = _Passes(bags, columns, settings["seed"], bar)
        if settings["start"] == "documents":
            _start_from_documents(model, passes)
        try:
            model.update(passes, chunks_as_numpy=settings["distributed"])
        except KeyboardInterrupt:
            if model.num_updates == 0:
                raise
            stopped = f"interrupted after {passes.n_read:,} of {bar.total:,} documents"
        phi = model.get_topics().astype(np.float64)
        prior = np.broadcast_to(model.eta, phi.shape).sum(axis=1, dtype=np.float64)
        tokens = model.state.get_lambda().sum(axis=1, dtype=np.float64) - prior
    return phi / phi.sum(axis=1, keepdims=True), np.maximum(tokens, 0), stopped


def _untrained(n_words: int, settings: Mapping[str, Any]) -> Any:
    from gensim.models import LdaModel, LdaMulticore
    from gensim.utils import FakeDict

    options = {
        "id2word": FakeDict(n_words),
        "num_topics": settings["n_topics"],
        "chunksize": settings["chunk_size"],
        "random_state": settings["seed"],
        "eval_every": None,
        **{name: settings[name] for name in ("passes", "iterations", "alpha", "eta")},
    }
    if settings["workers"] > 1:
        return LdaMulticore(workers=settings["workers"], **options)
    try:
        return LdaModel(distributed=settings["distributed"], **options)
    except RuntimeError as error:
        if not settings["distributed"]:
            raise
        raise RuntimeError(
            f"gensim's cluster cannot be used ({error}): install Pyro4 and start a Pyro4 name server, "
            "gensim.models.lda_worker on every machine and gensim.models.lda_dispatcher, or use workers= on this one"
        ) from error


def _start_from_documents(model: Any, passes: _Passes) -> None:
    """Put the words of a random document into every topic.

    From gensim's own start, in which all topics are nearly alike, the words of a small corpus end up spread over topics
    without a theme. On a hundred Wikipedia articles this doubles the coherence.
    """
    long: list[_Bag] = []
    short: list[_Bag] = []
    for bag in passes.shuffled():
        if len(long) == model.num_topics:
            break
        if bag[1].sum() >= _WORDS_TO_START:
            long.append(bag)
        elif len(short) < model.num_topics:
            short.append(bag)
    for topic, (places, counts) in enumerate([*long, *short][: model.num_topics]):
        model.state.sstats[topic, places] += (_START_WEIGHT * counts).astype(model.dtype)
    model.sync_state()


def _provenance(reading: _Reading, documents: Any, stopped: str | None) -> dict[str, Any]:
    from importlib.metadata import version

    told = getattr(documents, "provenance", None)
    return {
        "documents": reading.documents,
        "tokens": reading.tokens,
        "left_out": {reason: count for reason, count in sorted(reading.left_out.items()) if count},
        "stopped": stopped,
        "corpus": told if isinstance(told, Mapping) else None,
        "versions": {name: version(name) for name in ("gensim", "numpy")},
    }


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist() if isinstance(value, Sequence | np.ndarray) else value


def _warn_of_bad_topics(fit: TopicFit) -> None:
    if fit.empty_topics:
        warnings.warn(
            f"{len(fit.empty_topics)} of {fit.n_topics} topics got no words (such as {fit.empty_topics[:5]}): fit "
            "fewer topics, or more documents",
            stacklevel=3,
        )
    if fit.identical_topics:
        pairs = ", ".join(f"{one} = {other}" for one, other in fit.identical_topics[:5])
        warnings.warn(f"topics with the same top words: {pairs}", stacklevel=3)


# --- how good they are ------------------------------------------------------------------------------


def _coherence(
    top: Int64[np.ndarray, "topic rank"], bags: _Bags, columns: Int64[np.ndarray, "column"]
) -> tuple[Float64[np.ndarray, "topic"], Float64[np.ndarray, "topic"]]:
    """NPMI and UMass of every topic, counted in one pass over the documents."""
    words, place = np.unique(top, return_inverse=True)
    counts = _count_together(words, bags, columns)
    place = place.reshape(top.shape)
    scores = [_scores(counts[np.ix_(row, row)], bags.n) for row in place]
    return np.array([npmi for npmi, _ in scores]), np.array([umass for _, umass in scores])


def _count_together(
    words: Int64[np.ndarray, "chosen"], bags: _Bags, columns: Int64[np.ndarray, "column"]
) -> Int64[np.ndarray, "chosen chosen"]:
    """Documents in which two of the words are; on the diagonal, those in which one is."""
    counts = np.zeros((len(words), len(words)), dtype=np.int64)
    for ids, _ in bags:
        found = np.flatnonzero(np.isin(columns[words], ids, assume_unique=True))
        counts[np.ix_(found, found)] += 1
    return counts


def _scores(together: Int64[np.ndarray, "rank rank"], n: int) -> tuple[float, float]:
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


@dataclass(frozen=True, eq=False, repr=False)
class TopicStability:
    """How well the topics of a fit are found again in other fits, such as those of other seeds.

    Attributes:
        similarity: For every other fit and topic of the first: how alike its partner is, 0 (nothing in common) to 1.
        partner: The topic of the other fit that it is paired with; -1 where the other has too few topics.
        labels: The topics of the first fit.
        measure: How likeness was measured.
    """

    similarity: Float64[Tensor, "fit topic"]
    partner: Int64[Tensor, "fit topic"]
    labels: tuple[str, ...]
    measure: str

    @property
    def per_topic(self) -> Float64[Tensor, "topic"]:
        """Mean over the other fits; topics near 0 are chance."""
        return self.similarity.mean(dim=0)

    @property
    def mean(self) -> float:
        """Mean over topics and fits."""
        return float(self.similarity.mean())

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every topic of the first fit, least stable last."""
        import pandas as pd

        table = pd.DataFrame(
            {
                "topic": self.labels,
                "stability": self.per_topic.numpy(),
                "lowest": self.similarity.min(dim=0).values.numpy(),
            }
        )
        return table.sort_values("stability", ascending=False, kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        table = self.to_dataframe().to_string(
            index=False, float_format=lambda number: f"{number:.3f}", max_rows=30
        )
        return f"TopicStability: mean {self.mean:.3f} ({self.measure}) over {len(self.similarity)} other fits\n{table}"


def topic_stability(fits: Sequence[TopicFit], *, n: int = _TOP, measure: str = "jaccard") -> TopicStability:
    """How well the topics of the first fit are found again in each of the others.

    Topics are paired one to one so that the sum of likenesses is largest.

    Args:
        fits: Two or more fits of the same tokenizer, for example of different seeds.
        n: Likeliest words per topic that "jaccard" compares.
        measure: "jaccard": common words ÷ all words of the two lists. "cosine": of the two rows P(word | topic).
    """
    if len(fits) < 2:
        raise ValueError(f"stability compares at least two fits, got {len(fits)}")
    if measure not in ("jaccard", "cosine"):
        raise ValueError(f"measure must be 'jaccard' or 'cosine', got {measure!r}")
    if len({fit.tokenizer_hash for fit in fits}) > 1:
        raise ValueError("the fits are of different tokenizers, so their words cannot be compared by id")
    tables = [_comparable(fit, n if measure == "jaccard" else None) for fit in fits]
    pairs = [_paired(_likeness(tables[0], other, measure)) for other in tables[1:]]
    return TopicStability(
        similarity=torch.from_numpy(np.stack([similarity for similarity, _ in pairs])),
        partner=torch.from_numpy(np.stack([partner for _, partner in pairs])),
        labels=tuple(fits[0].label(topic) for topic in range(fits[0].n_topics)),
        measure=f"{measure} of the {n} likeliest words" if measure == "jaccard" else measure,
    )


def _comparable(fit: TopicFit, n: int | None) -> Float64[np.ndarray, "topic vocabulary"]:
    """Rows over all token ids: probabilities, or 1 on the ``n`` likeliest words."""
    table = np.zeros((fit.n_topics, fit.vocabulary_size))
    if n is None:
        table[:, fit.token_ids.numpy()] = fit.phi.numpy()
    else:
        np.put_along_axis(table, fit.token_ids.numpy()[fit._top(n)], 1.0, axis=1)
    return table


def _likeness(
    one: Float64[np.ndarray, "topic vocabulary"],
    other: Float64[np.ndarray, "partner vocabulary"],
    measure: str,
) -> Float64[np.ndarray, "topic partner"]:
    products = one @ other.T
    squares, others = (one**2).sum(axis=1)[:, None], (other**2).sum(axis=1)
    likeness: np.ndarray
    if measure == "jaccard":
        likeness = products / (squares + others - products)
    else:
        likeness = products / np.sqrt(squares * others)
    return likeness


def _paired(
    likeness: Float64[np.ndarray, "topic partner"],
) -> tuple[Float64[np.ndarray, "topic"], Int64[np.ndarray, "topic"]]:
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    rows, columns = linear_sum_assignment(likeness, maximize=True)
    similarity, partner = np.zeros(len(likeness)), np.full(len(likeness), -1, dtype=np.int64)
    similarity[rows], partner[rows] = likeness[rows, columns], columns
    return similarity, partner
