"""Which vocabulary entries belong to which topic: the table that every measurement looks up."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal
from warnings import warn

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from topic_probe.options import check_whole, checked, settle_fields
from topic_probe.report import Report
from topic_probe.topics.builtin import word_lists
from topic_probe.topics.incidence import Incidence
from topic_probe.topics.lists import (
    by_topic,
    check_vocabulary_size,
    probabilities,
    token_id_array,
    word_list,
)
from topic_probe.topics.lookup import (
    ONE_PIECE,
    OUTCOMES,
    SPLIT,
    look_up,
    readable,
    tokenizer_hash,
    vocabulary_size,
)
from topic_probe.words import Forms, form

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Topics", "tokenizer_hash"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Topics(Report, kind="topics"):
    """The topics of a vocabulary: for every labelled entry, the set of topics that it belongs to.

    Topics are numbered from 0 and keep their number everywhere. An empty topic is kept and warned about. Two
    objects are equal when their ``fingerprint`` is.

    Attributes:
        names: Name of every topic.
        vocabulary_size: Number of token ids.
        words: Labelled entries, ascending. Entries below ``vocabulary_size`` are token ids; the entry
            ``vocabulary_size + k`` is the split word whose pieces are ``compounds[k]``.
        assignments: A row for every word of every topic: its place in ``words``, and the topic; ascending.
        weights: P(word | topic) of every assignment; None where topics come from lists.
        texts: Readable form of every entry of ``words``; empty where no tokenizer was at hand.
        one_word: Which entries are forms of one word: those that differ in case and space only ("case"), or also in
            inflection ("stem"). Pairs of them are pairs of the same word, and none of a topic.
        left_out: Reason -> what was left out for it.
        policy: How words came to their topics, in a sentence.
    """

    names: tuple[str, ...]
    vocabulary_size: int
    words: Int64[Tensor, "word"]
    assignments: Int64[Tensor, "assignment 2"]
    compounds: tuple[tuple[int, ...], ...] = ()
    weights: Float64[Tensor, "weight"] | None = None
    texts: tuple[str, ...] = ()
    tokenizer_hash: str | None = None
    one_word: Forms = "case"
    left_out: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    policy: str = ""

    def __post_init__(self) -> None:
        settle_fields(self)
        check_vocabulary_size(self.vocabulary_size)
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"topics need names that differ, got {list(self.names)}")
        if self.one_word == "stem" and not self.texts:
            raise ValueError("forms='stem' needs words that can be read: pass the tokenizer of the ids")

    # --- constructors ---------------------------------------------------------------------------

    @classmethod
    @checked
    def builtin(
        cls,
        name: str,
        tokenizer: Any,
        *,
        language: str = "en",
        case_variants: bool = True,
        split_words: Literal["drop", "keep"] = "drop",
        forms: Forms = "case",
    ) -> "Topics":
        """Topics from word lists that come along, looked up with a tokenizer.

        Args:
            name: One of `builtin_topics`, such as "wordnet-domains".
            tokenizer: Any Hugging Face tokenizer, fast or slow.
            language: Code of the language as CLDR has it; only the names of emoji are there in others than English.
            case_variants: As in ``from_word_lists``.
            split_words: As in ``from_word_lists``.
            forms: As in ``from_word_lists``.
        """
        family = word_lists(name)
        options: Any = {"case_variants": case_variants, "split_words": split_words, "forms": forms}
        topics = cls.from_word_lists(family.lists(language), tokenizer, **options)
        return replace(topics, policy=f"{family.described}, language {language}; {topics.policy}")

    @classmethod
    @checked
    def blocks(cls, *, n_topics: int, words_per_topic: int) -> "Topics":
        """Topics of the toy vocabulary of T topics of v words each, which has T v + 1 ids.

        Id 0 is [MASK] and has no topic, word i is in the ceil(i / v)-th one.

        Example:
            >>> tp.Topics.blocks(n_topics=2, words_per_topic=3).top_words()
            [[1, 2, 3], [4, 5, 6]]
        """
        n_topics, width = check_whole("n_topics", n_topics), check_whole("words_per_topic", words_per_topic)
        blocks = {topic: range(topic * width + 1, (topic + 1) * width + 1) for topic in range(n_topics)}
        topics = cls.from_token_ids(blocks, vocabulary_size=n_topics * width + 1)
        policy = f"blocks of {width} consecutive ids from 1 on; id 0 is [MASK] and has no topic"
        return replace(topics, policy=policy)

    @classmethod
    @checked
    def from_token_ids(
        cls,
        ids: Mapping[Any, Any],
        *,
        vocabulary_size: int,
        tokenizer: Any = None,
        forms: Forms = "case",
    ) -> "Topics":
        """Topics from lists of token ids. An id listed under several topics belongs to all of them.

        Strings as keys become topics in the order given, whole numbers in ascending order, named by their number; -1
        holds outliers (BERTopic's habit) and is left out.

        Args:
            ids: Topic -> token ids (a list, set, tensor or array).
            vocabulary_size: Number of token ids; every id must be below it.
            tokenizer: The tokenizer that the ids belong to: it makes words readable, and models with another one
                are refused.
            forms: Which entries are one word: those that differ in case and the space around them only ("case"), or
                also inflections ("song", "songs"), by Porter's rules for English ("stem", which needs the tokenizer).

        Example:
            >>> topics = tp.Topics.from_token_ids({"war": [5, 9], "music": [7, 9]}, vocabulary_size=10)
            >>> topics.words.tolist(), topics.membership.int().tolist()
            ([5, 7, 9], [[1, 0], [0, 1], [1, 1]])
        """
        size = check_vocabulary_size(vocabulary_size)
        given = by_topic(ids, "token ids")
        lists = [token_id_array(values, f"topic {name!r}", below=size) for name, values in given.items()]
        return _assemble(
            np.concatenate(lists),
            np.repeat(np.arange(len(lists)), [len(entries) for entries in lists]),
            names=tuple(given),
            vocabulary_size=size,
            tokenizer=tokenizer,
            forms=forms,
            left_out={},
            policy="as listed; an id listed under several topics belongs to all of them",
        )

    @classmethod
    @checked
    def from_word_lists(
        cls,
        words: Mapping[Any, Any],
        tokenizer: Any,
        *,
        case_variants: bool = True,
        split_words: Literal["drop", "keep"] = "drop",
        forms: Forms = "case",
    ) -> "Topics":
        """Topics from lists of words, looked up with a tokenizer. A word under several topics is in all.

        A word is looked up alone and behind a space, where byte-level tokenizers have another id for it (``Ġword``). A
        variant counts if the tokenizer makes exactly one piece of it that is neither special nor unknown and begins a
        word. A word of which no variant counts is named in ``left_out``. Keys are read as in ``from_token_ids``.

        Args:
            words: Topic -> words.
            tokenizer: Any Hugging Face tokenizer, fast or slow.
            case_variants: Look up the word also in lower case, Capitalised and in UPPER CASE.
            split_words: What to do with a word that is several pieces in every variant: "drop" leaves it out,
                "keep" stores the pieces of each variant as a compound, for measurements on whole words.
            forms: As in ``from_token_ids``.

        Example:
            >>> tokenizer = tp.word_tokenizer(["the army lost the battle", "the band played a song"])
            >>> words = {"war": ["army", "battle", "siege"], "music": ["band", "song"]}
            >>> topics = tp.Topics.from_word_lists(words, tokenizer)
            >>> topics.label(0), topics.left_out
            ('0: war (army·battle)', {'unknown words': ('siege',)})
        """
        given = by_topic(words, "words")
        lists = {name: word_list(values, f"topic {name!r}") for name, values in given.items()}
        listed = dict.fromkeys(word for values in lists.values() for word in values)
        found = look_up(listed, tokenizer, case_variants=case_variants)

        wanted = {ONE_PIECE, SPLIT} if split_words == "keep" else {ONE_PIECE}
        kept = {word: what.sequences for word, what in found.items() if what.outcome in wanted}
        left_out: dict[str, Iterable[str | int]] = {
            outcome: [word for word, what in found.items() if what.outcome == outcome]
            for outcome in OUTCOMES
            if outcome not in wanted
        }

        size = vocabulary_size(tokenizer)
        compounds = tuple(sorted({pieces for of in kept.values() for pieces in of if len(pieces) > 1}))
        split_entry = {pieces: size + place for place, pieces in enumerate(compounds)}
        pairs = [
            (split_entry.get(pieces, pieces[0]), topic)
            for topic, values in enumerate(lists.values())
            for word in values
            for pieces in kept.get(word, ())
        ]
        entries, topics = np.array(pairs, np.int64).reshape(-1, 2).T
        case = ", in any case" if case_variants else ""
        return _assemble(
            entries,
            topics,
            names=tuple(lists),
            vocabulary_size=size,
            compounds=compounds,
            tokenizer=tokenizer,
            forms=forms,
            left_out=left_out,
            policy=f"words as listed{case}, with and without a leading space; a word listed under several topics "
            f"belongs to all of them; split words are {'kept as compounds' if SPLIT in wanted else 'left out'}",
        )

    @classmethod
    @checked
    def from_matrix(
        cls,
        phi: Any,
        *,
        fraction: float,
        one_topic_per_word: bool = True,
        exclude: Iterable[Any] = (),
        min_probability: float = 0.0,
        token_ids: Iterable[Any] | None = None,
        vocabulary_size: int | None = None,
        tokenizer: Any = None,
        forms: Forms = "case",
    ) -> "Topics":
        """Topics from any topic model: of every topic, the k tokens of the highest P(token | topic).

        Equal ones are kept in the order of their ids, and never one of probability 0.

        Args:
            phi: [topic, token] array, tensor or nested list. Rows are divided by their sum; counts do too.
            fraction: The paper's ambiguity threshold: k as a share of all token ids, rounded (halves up), at least 1.
            one_topic_per_word: A token that several topics keep stays where it is likeliest (the lowest number where
                equal), and the others get no token in its place. If False, it belongs to all of them.
            exclude: Token ids that are never kept, removed before choosing.
            min_probability: Keep only tokens with more than this, even if fewer than k. It helps against
                smoothing, by which every token that a rare topic never saw is equally likely.
            token_ids: The token id of every column; by default, column i is the token id i.
            vocabulary_size: Number of token ids; by default that of the columns, needed with ``token_ids``.
            tokenizer: As in ``from_token_ids``.
            forms: As in ``from_token_ids``; inflections count apart towards k.

        Example:
            >>> phi = [[0.5, 0.3, 0.2, 0.0], [0.1, 0.4, 0.2, 0.3]]  # two topics over four tokens
            >>> tp.Topics.from_matrix(phi, fraction=0.5).top_words()  # token 1 is likelier in topic 1
            [[0], [1, 3]]
            >>> tp.Topics.from_matrix(phi, fraction=0.5, one_topic_per_word=False).top_words()
            [[0, 1], [1, 3]]
        """
        table = probabilities(phi)
        n_topics, n_columns = table.shape
        if not (0 < fraction <= 1 and 0 <= min_probability < 1):
            raise ValueError(
                f"fraction must be in (0, 1] and min_probability in [0, 1), got {fraction} and {min_probability}"
            )
        columns, size = _columns(n_columns, token_ids, vocabulary_size)
        per_topic = max(1, math.floor(size * fraction + 0.5))

        by_id = np.argsort(columns)
        columns, table = columns[by_id], table[:, by_id]
        excluded = np.isin(columns, token_id_array(exclude, "exclude"))
        table[:, excluded] = 0
        likeliest = np.argsort(-table, axis=1, kind="stable")[:, :per_topic]
        kept = np.take_along_axis(table, likeliest, axis=1)
        topics, rank = np.nonzero(kept > min_probability)
        entries, weights = columns[likeliest[topics, rank]], kept[topics, rank]
        left_out: dict[str, Iterable[str | int]] = {"excluded": columns[excluded].tolist()}
        policy = f"the {per_topic} most likely tokens per topic ({fraction:g} of {size} ids); a token kept by several "
        if one_topic_per_word:
            best = np.lexsort((topics, -weights, entries))
            once, first, n_kept = np.unique(entries[best], return_index=True, return_counts=True)
            left_out["left to a likelier topic"] = once[n_kept > 1].tolist()
            entries, topics, weights = once, topics[best[first]], weights[best[first]]
            policy += "topics stays where it is likeliest (lowest number where equal), without a replacement"
        else:
            policy += "topics belongs to all of them"
        return _assemble(
            entries,
            topics,
            weights=weights,
            names=tuple(map(str, range(n_topics))),
            vocabulary_size=size,
            tokenizer=tokenizer,
            forms=forms,
            left_out=left_out,
            policy=policy,
        )

    # --- what measurements ask --------------------------------------------------------------------

    @property
    def n_topics(self) -> int:
        """Number of topics, empty ones included."""
        return len(self.names)

    def __len__(self) -> int:
        return self.n_topics

    @property
    def membership(self) -> Bool[Tensor, "word topic"]:
        """Row i holds the topics of ``words[i]``."""
        cells = torch.zeros(len(self.words), self.n_topics, dtype=torch.bool)
        cells[tuple(self.assignments.T)] = True
        return cells

    def topics_of(self, place: int) -> tuple[int, ...]:
        """The topics of ``words[place]``, ascending."""
        return tuple(self.assignments[self.assignments[:, 0] == place, 1].tolist())

    @cached_property
    def sizes(self) -> Int64[Tensor, "topic"]:
        """Words of every topic; 0 for an empty topic."""
        return self.assignments[:, 1].bincount(minlength=self.n_topics)

    @cached_property
    def _groups(self) -> tuple[Int64[Tensor, "word"], Incidence]:
        from scipy.sparse import csr_array

        place, topic = self.assignments.numpy().T
        bounds, topics = [*np.flatnonzero(np.diff(place, prepend=-1)).tolist(), len(topic)], topic.tolist()
        sets = [tuple(topics[start:stop]) for start, stop in pairwise(bounds)]
        number = {members: group for group, members in enumerate(sorted(set(sets)))}
        columns = np.concatenate([*number])
        ends = np.cumsum([0, *map(len, number)])
        table = csr_array((np.ones(len(columns), bool), columns, ends), shape=(len(number), self.n_topics))
        return torch.tensor([number[members] for members in sets]), Incidence(table)

    @property
    def group_of_word(self) -> Int64[Tensor, "word"]:
        """Group of every word; words with the same set of topics form a group."""
        return self._groups[0]

    @property
    def incidence(self) -> Incidence:
        """The topics of every group; groups are sorted by their first topic."""
        return self._groups[1]

    @cached_property
    def form_of_word(self) -> Int64[Tensor, "word"]:
        """Number of the form of every word, which forms of one word share; without texts every entry has its own."""
        if not self.texts:
            return torch.arange(len(self.words))
        numbers: dict[str | int, int] = {}
        # What reads as nothing is no form of anything else.
        forms = [form(text, self.one_word) or row for row, text in enumerate(self.texts)]
        return torch.tensor([numbers.setdefault(name, len(numbers)) for name in forms])

    def places(self, entries: Shaped[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Where every entry stands in ``words``; -1 where it has no topic or is out of range.

        Example:
            >>> import torch
            >>> topics = tp.Topics.from_token_ids({"war": [5, 9], "music": [7]}, vocabulary_size=10)
            >>> topics.places(torch.tensor([9, 7, 0])).tolist()  # of the words 5, 7, 9
            [2, 1, -1]
        """
        ids = entries.cpu().long().contiguous()
        place = torch.searchsorted(self.words.contiguous(), ids).clamp(max=len(self.words) - 1)
        return torch.where(self.words[place] == ids, place, -1).to(entries.device)

    def labels(self, entries: Shaped[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Group of every entry; -1 where it has none."""
        places = self.places(entries)
        return torch.where(places >= 0, self.group_of_word.to(places.device)[places], -1)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over what defines the topics: ids, names, vocabulary, weights, tokenizer, and what is one word."""
        facts = [self.vocabulary_size, self.names, self.compounds, self.tokenizer_hash, self.one_word]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for tensor in (self.words, self.assignments, self.weights):
            if tensor is not None:
                digest.update(f"{[*tensor.shape]}".encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topics) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.fingerprint)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise ValueError if the topics were made with another tokenizer; without one, they fit any."""
        if self.tokenizer_hash not in (None, tokenizer_hash(tokenizer)):
            raise ValueError(
                "the topics were made with another tokenizer than this one, so their ids are other words: make them "
                "again with this one"
            )

    # --- other topics made from these -------------------------------------------------------------

    def with_vocabulary_size(self, n: int) -> "Topics":
        """The same topics over ``n`` token ids, for a model whose table is padded beyond the tokenizer."""
        n = check_vocabulary_size(n, name="vocabulary size")
        single = self.words < self.vocabulary_size
        pieces = [piece for compound in self.compounds for piece in compound]
        highest = max(self.words[single].tolist() + pieces)
        if n <= highest:
            raise ValueError(
                f"{n} token ids do not reach the labelled id {highest}: leave it out of the topics"
            )
        return replace(
            self,
            vocabulary_size=n,
            words=torch.where(single, self.words, self.words - self.vocabulary_size + n),
        )

    def shuffled(self, seed: int) -> "Topics":
        """A null control: the same words and topic sizes, the topic sets dealt to the words at random.

        ``weights`` are dropped. Entries are dealt one by one, so forms of a word may part; the permutations behind
        p-values keep them together.
        """
        seed = check_whole("seed", seed, 0)
        order = torch.randperm(len(self.words), generator=torch.Generator().manual_seed(seed))
        place, topic = self.assignments.T
        dealt = torch.stack([order.argsort()[place], topic], dim=1)
        return replace(
            self,
            assignments=dealt[dealt[:, 0].argsort(stable=True)],
            weights=None,
            policy=f"{self.policy}; topic sets shuffled over the words with seed {seed}",
        )

    # --- for reading --------------------------------------------------------------------------------

    def top_words(self, n: int = 10) -> list[list[str | int]]:
        """The first ``n`` words of every topic: the likeliest ones, or without weights those of lowest id.

        They are ids where no tokenizer was at hand. Entries that read the same are listed once.
        """
        return [words[:n] for words in self._ranked_words]

    @cached_property
    def _ranked_words(self) -> list[list[str | int]]:
        rows, topics = self.assignments.numpy().T
        weights = np.zeros(len(rows)) if self.weights is None else self.weights.numpy()
        order = np.lexsort((rows, -weights, topics))
        shown: Sequence[str | int] = self.texts or self.words.tolist()
        ranked = np.split(rows[order], self.sizes.cumsum(0).numpy()[:-1])
        return [list(dict.fromkeys(shown[row] for row in of_topic.tolist())) for of_topic in ranked]

    @cached_property
    def topic_labels(self) -> tuple[str, ...]:
        """The ``label`` of every topic."""
        return tuple(map(self.label, range(self.n_topics)))

    def label(self, topic: int, n: int = 3) -> str:
        """A topic as people know it, with its first ``n`` words: ``id: word·word``, or ``id: name (word·word)``."""
        words = "·".join(map(_printable, self._ranked_words[topic][:n]))
        if (name := self.names[topic]) == str(topic):  # nobody gave it a name
            return f"{topic}: {words or '(no words)'}"
        return f"{topic}: {_printable(name)} ({words or 'no words'})"

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every topic: its number, name, number of words, and first words."""
        import pandas as pd

        return pd.DataFrame(
            {
                "id": range(self.n_topics),
                "name": list(map(_printable, self.names)),
                "size": self.sizes.tolist(),
                "first_words": [" · ".join(map(_printable, words)) for words in self.top_words(6)],
            }
        )

    def _tables(self) -> "dict[str, pd.DataFrame]":
        split = f", {len(self.compounds):,} of them compounds" if self.compounds else ""
        count = f"{self.n_topics:,} topics, {len(self.words):,} words{split}"
        return {f"Topics: {count}; {self.vocabulary_size:,} token ids": self.to_dataframe()}

    def _notes(self) -> list[str]:
        several = int((self.assignments[:, 0].bincount() > 1).sum())
        notes = [f"{several:,} words have several topics"] if several else []
        notes += [f"policy: {self.policy}"] if self.policy else []
        notes += ["forms: inflections of a word are one word (same stem)"] if self.one_word == "stem" else []
        return notes + [f"{reason}: {_abridged(items)}" for reason, items in self.left_out.items()]


# --- putting topics together ------------------------------------------------------------------------


def _columns(n: int, token_ids: Iterable[Any] | None, size: int | None) -> tuple[Int64[np.ndarray, "_"], int]:
    """The token id of every one of n columns, and the number of token ids."""
    if token_ids is None:
        return np.arange(n), check_vocabulary_size(n if size is None else size, n)
    if size is None:
        raise ValueError("token_ids needs vocabulary_size as well, the number of ids of the tokenizer")
    columns = token_id_array(token_ids, "token_ids", below=check_vocabulary_size(size), ordered=True)
    if not len(columns) == len(np.unique(columns)) == n:
        raise ValueError(
            f"token_ids must name a different id for each of the {n} columns of phi, got {columns}"
        )
    return columns, size


def _assemble(
    entries: Int64[np.ndarray, "assignment"],
    topics: Int64[np.ndarray, "assignment"],
    *,
    names: tuple[str, ...],
    vocabulary_size: int,
    policy: str,
    left_out: Mapping[str, Iterable[str | int]],
    weights: Float64[np.ndarray, "assignment"] | None = None,
    compounds: tuple[tuple[int, ...], ...] = (),
    tokenizer: Any = None,
    forms: Forms = "case",
) -> Topics:
    """Topics from (entry, topic) pairs; empty topics are warned about."""
    reasons = {reason: tuple(dict.fromkeys(items)) for reason, items in left_out.items()}
    reasons = {reason: items for reason, items in reasons.items() if items}
    if len(entries) == 0:
        why = "; ".join(f"{reason}: {_abridged(items)}" for reason, items in reasons.items())
        raise ValueError(f"no word is left in any topic ({why or 'every list is empty'})")
    pairs, first = np.unique(entries * len(names) + topics, return_index=True)
    entry, topic = np.divmod(pairs, len(names))
    words, place = np.unique(entry, return_inverse=True)
    texts: tuple[str, ...] = ()
    made_with = None if tokenizer is None else tokenizer_hash(tokenizer)
    if tokenizer is not None:
        pieces = [(e,) if e < vocabulary_size else compounds[e - vocabulary_size] for e in words.tolist()]
        texts = tuple(readable(tokenizer, piece) for piece in pieces)
    assembled = Topics(
        names=names,
        vocabulary_size=vocabulary_size,
        words=torch.from_numpy(words),
        assignments=torch.from_numpy(np.stack([place, topic], axis=1)),
        compounds=compounds,
        weights=None if weights is None else torch.from_numpy(weights[first]),
        texts=texts,
        tokenizer_hash=made_with,
        one_word=forms,
        left_out=reasons,
        policy=policy,
    )
    empty = [name for name, size in zip(names, assembled.sizes.tolist(), strict=True) if size == 0]
    if empty:
        warn(f"topics without a word, which measure as NaN: {_abridged(empty)}; see left_out", stacklevel=4)
    return assembled


def _printable(value: str | int) -> str:
    """Text that cannot break a line: control characters are written out."""
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]


def _abridged(items: Sequence[str | int], n: int = 5) -> str:
    more = ", …" if len(items) > n else ""
    return f"{len(items):,} ({', '.join(_printable(item) for item in items[:n])}{more})"
