"""Which vocabulary entries belong to which topic: the table that every measurement looks up."""

import hashlib
import html
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from topic_probe import storage
from topic_probe.notices import warn
from topic_probe.options import check_value, check_whole, checked, settle_fields
from topic_probe.topics.builtin import word_lists
from topic_probe.topics.incidence import Incidence
from topic_probe.topics.lists import (
    Ids,
    by_topic,
    check_vocabulary_size,
    plain_tensor,
    token_id_array,
    word_list,
)
from topic_probe.topics.models import (
    FractionOf,
    Rounding,
    columns_of,
    kept_per_topic,
    matrix,
    most_likely,
    never_kept,
    probabilities_of,
    topic_model,
)
from topic_probe.topics.vocabulary import (
    ONE_PIECE,
    OUTCOMES,
    SPLIT,
    check_tokenizer,
    look_up,
    readable,
    tokenizer_hash,
    vocabulary_size,
)
from topic_probe.words import Forms, form

__all__ = ["Topics", "tokenizer_hash"]

_KIND = "topics"

_ROWS_SHOWN = 12
_WORDS_SHOWN = 6
_WORDS_IN_LABEL = 3
_HEADER = ("id", "name", "size", "first words")

_REPEATED = "repeated within a topic, merged"
_IDENTICAL = "identical topics"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Topics:
    """The topics of a vocabulary: for every labelled entry, the set of topics that it belongs to.

    Built by ``builtin``, ``blocks``, ``from_token_ids``, ``from_word_lists``, ``from_matrix`` or ``from_lda``.
    Topics are numbered from 0 and keep their number everywhere. An empty topic is kept and warned about. Two
    objects are equal when their ``fingerprint`` is.

    Attributes:
        names: Name of every topic.
        vocabulary_size: Number of token ids.
        words: Labelled entries, ascending. Entries below ``vocabulary_size`` are token ids; the entry
            ``vocabulary_size + k`` is the split word whose pieces are ``compounds[k]``.
        assignments: A row for every word of every topic: its place in ``words``, and the topic; ascending. Every
            word has at least one.
        compounds: Piece sequences of split words that were kept on demand.
        weights: P(word | topic) of every assignment; None where topics come from lists. It orders ``top_words`` and
            nothing else.
        texts: Readable form of every entry of ``words``; empty where no tokenizer was at hand.
        tokenizer_hash: Hash of the tokenizer that the ids belong to; None where none was given.
        one_word: Which entries are forms of one word: those that differ in case and space only ("case"), or also in
            inflection ("stem"). Pairs of them are pairs of the same word, and none of a topic.
        left_out: Reason -> what was left out or merged for it.
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
        n, n_entries = len(self.words), self.vocabulary_size + len(self.compounds)
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"topics need names that differ, got {list(self.names)}")
        place, topic = self.assignments.numpy().T
        pairs = place * self.n_topics + topic
        if len(place) and not (
            0 <= int(place.min()) <= int(place.max()) < n
            and 0 <= int(topic.min()) <= int(topic.max()) < self.n_topics
            and bool((pairs[1:] > pairs[:-1]).all())
        ):
            raise ValueError(
                f"assignments must be places below {n} with topics below {self.n_topics}, ascending, without repeats"
            )
        if n == 0 or not bool((np.bincount(place, minlength=n) > 0).all()):
            raise ValueError("every word needs a topic, and there must be a word: leave other words out")
        if self.words[0] < 0 or self.words[-1] >= n_entries or bool((self.words.diff() <= 0).any()):
            raise ValueError(f"words must be ascending, without repeats, within 0..{n_entries - 1}")
        if int((self.words >= self.vocabulary_size).sum()) != len(self.compounds):
            raise ValueError("every compound must be among the words, as vocabulary_size + its place")
        if self.weights is not None and len(self.weights) != len(place):
            raise ValueError("weights must hold a number for every assignment")
        if len(self.texts) not in (0, n):
            raise ValueError(f"texts must be empty or one per word, got {len(self.texts)} for {n} words")
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
        leading_space: bool = True,
        split_words: Literal["drop", "keep"] = "drop",
        forms: Forms = "case",
    ) -> "Topics":
        """Topics from word lists that come along, looked up with a tokenizer as ``from_word_lists`` does it.

        Args:
            name: One of `builtin_topics`, such as "wordnet-domains".
            tokenizer: As in ``from_word_lists``.
            language: Code of the language as CLDR has it; only the names of emoji are there in others than English.
            case_variants: As in ``from_word_lists``.
            leading_space: As in ``from_word_lists``.
            split_words: As in ``from_word_lists``.
            forms: As in ``from_word_lists``.
        """
        family = word_lists(name)
        topics = cls.from_word_lists(
            family.lists(language),
            tokenizer,
            case_variants=case_variants,
            leading_space=leading_space,
            split_words=split_words,
            forms=forms,
        )
        return replace(topics, policy=f"{family.described}, language {language}; {topics.policy}")

    @classmethod
    @checked
    def blocks(cls, *, n_topics: int, words_per_topic: int) -> "Topics":
        """Topics of the toy vocabulary: id 0 is [MASK] and has none, word i is in the ceil(i / v)-th topic.

        Args:
            n_topics: T, at least 1.
            words_per_topic: v, at least 1. The vocabulary has T v + 1 ids.

        Example:
            >>> tp.Topics.blocks(n_topics=2, words_per_topic=3).top_words()
            [[1, 2, 3], [4, 5, 6]]
        """
        n_topics = check_whole("n_topics", n_topics)
        width = check_whole("words_per_topic", words_per_topic)
        check_vocabulary_size(n_topics * width + 1, name="n_topics times words_per_topic")
        return cls(
            names=tuple(str(topic) for topic in range(n_topics)),
            vocabulary_size=n_topics * width + 1,
            words=torch.arange(1, n_topics * width + 1),
            assignments=torch.stack(
                [torch.arange(n_topics * width), torch.arange(n_topics).repeat_interleave(width)], 1
            ),
            policy=f"blocks of {width} consecutive ids from 1 on; id 0 is [MASK] and has no topic",
        )

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

        String keys become topics in the order given; whole-number keys in ascending order, whatever the
        numbers are, named by their number. The key -1 holds outliers (BERTopic's habit), which are left out.

        Args:
            ids: Topic -> token ids (a list, set, tensor or array).
            vocabulary_size: Number of token ids; every id must be below it.
            tokenizer: The Hugging Face tokenizer that the ids belong to. It only adds readable words, and the
                hash that ``check_tokenizer`` compares.
            forms: Which entries are one word: "case": those that differ in case and the space around them only; "stem":
                also inflections ("song", "songs"), going by Porter's rules for English, which needs the tokenizer.

        Example:
            >>> topics = tp.Topics.from_token_ids({"war": [5, 9], "music": [7, 9]}, vocabulary_size=10)
            >>> topics.names, topics.words.tolist()
            (('war', 'music'), [5, 7, 9])
            >>> topics.membership.int().tolist()
            [[1, 0], [0, 1], [1, 1]]
        """
        size = check_vocabulary_size(vocabulary_size)
        given, outliers = by_topic(ids, "token ids")
        lists = {
            name: token_id_array(values, f"topic {name!r}", below=size) for name, values in given.items()
        }
        left_out = {reason: token_id_array(values, reason).tolist() for reason, values in outliers.items()}
        entries, topics = _assignments(list(lists.values()))
        left_out[_REPEATED] = _repeated_within(entries, topics).tolist()
        return _assemble(
            entries,
            topics,
            names=tuple(lists),
            vocabulary_size=size,
            tokenizer=tokenizer,
            forms=forms,
            left_out=left_out,
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
        leading_space: bool = True,
        split_words: Literal["drop", "keep"] = "drop",
        forms: Forms = "case",
    ) -> "Topics":
        """Topics from lists of words, looked up with a tokenizer. A word under several topics is in all.

        A variant of a word counts if the tokenizer makes exactly one piece of it that is neither special nor
        unknown and begins a word; the id of that piece then gets the topic. A word of which no variant counts
        is named in ``left_out``. Keys are read as in ``from_token_ids``.

        Args:
            words: Topic -> words.
            tokenizer: Any Hugging Face tokenizer, fast or slow. It comes back as it went in.
            case_variants: Look up the word also in lower case, Capitalised and in UPPER CASE.
            leading_space: Look up the word also behind a space, where byte-level tokenizers have another id
                for it (``Ġword``); sentencepiece's ``▁word`` is found either way.
            split_words: What to do with a word that is several pieces in every variant: "drop" leaves it out,
                "keep" stores the pieces of each variant as a compound, for measurements on whole words.
            forms: As in ``from_token_ids``. Only listed words are looked up, so list the inflections that are wanted.

        Example:
            >>> tokenizer = tp.word_tokenizer(["the army lost the battle", "the band played a song"])
            >>> words = {"war": ["army", "battle", "siege"], "music": ["band", "song"]}
            >>> topics = tp.Topics.from_word_lists(words, tokenizer)
            >>> topics.label(0), topics.label(1)
            ('0: war (army·battle)', '1: music (band·song)')
            >>> topics.left_out
            {'unknown words': ('siege',)}
        """
        given, outliers = by_topic(words, "words")
        lists = {name: word_list(values, f"topic {name!r}") for name, values in given.items()}
        listed = dict.fromkeys(word for values in lists.values() for word in values)
        found = look_up(listed, tokenizer, case_variants=case_variants, leading_space=leading_space)

        kept = {ONE_PIECE, SPLIT} if split_words == "keep" else {ONE_PIECE}
        left_out: dict[str, Iterable[str | int]] = {
            outcome: [word for word, what in found.items() if what.outcome == outcome]
            for outcome in OUTCOMES
            if outcome not in kept
        }
        left_out |= {reason: word_list(values, reason) for reason, values in outliers.items()}
        left_out[_REPEATED] = [word for values in lists.values() for word in _repeats(values)]

        size = vocabulary_size(tokenizer)
        sequences = sorted({s for what in found.values() if what.outcome in kept for s in what.sequences})
        compounds = tuple(sequence for sequence in sequences if len(sequence) > 1)
        entry_of = {sequence: size + place for place, sequence in enumerate(compounds)}
        entry_of |= {sequence: sequence[0] for sequence in sequences if len(sequence) == 1}
        entries, topics = _assignments(
            [
                np.array([entry_of[s] for w in values for s in found[w].sequences if s in entry_of], np.int64)
                for values in lists.values()
            ]
        )
        return _assemble(
            entries,
            topics,
            names=tuple(lists),
            vocabulary_size=size,
            compounds=compounds,
            tokenizer=tokenizer,
            forms=forms,
            left_out=left_out,
            policy="words as listed"
            + (", in any case" if case_variants else "")
            + (", with and without a leading space" if leading_space else "")
            + "; a word listed under several topics belongs to all of them; split words are "
            + ("kept as compounds" if SPLIT in kept else "left out"),
        )

    @classmethod
    @checked
    def from_matrix(
        cls,
        phi: Any,
        *,
        fraction: float,
        of: FractionOf = "fit",
        one_topic_per_word: bool = True,
        exclude: Iterable[Any] = (),
        rounding: Rounding = "plain",
        min_probability: float = 0.0,
        names: Sequence[str] | None = None,
        token_ids: Iterable[Any] | None = None,
        vocabulary_size: int | None = None,
        tokenizer: Any = None,
        forms: Forms = "case",
    ) -> "Topics":
        """Topics from any topic model: of every topic, its most likely tokens.

        Every topic keeps the k tokens of the highest P(token | topic), equal ones in the order of their ids,
        never one of probability 0. ``fraction`` is the paper's ambiguity threshold: k is ``fraction`` times V, the
        number of columns or of token ids, as ``of`` says.

        Args:
            phi: [topic, token] array, tensor or nested list. Rows are divided by their sum; counts do too.
            fraction: Tokens kept per topic, as a share of V; above 0, at most 1.
            of: What V is. "fit": the columns of phi, excluded tokens included. "tokenizer": all token ids, of which
                phi may have but those that its documents hold.
            one_topic_per_word: A token that several topics keep stays with the topic where P(token | topic)
                is highest, the lowest-numbered one where equal; the others get no token in its place. If
                False, it belongs to all of them.
            exclude: Token ids never kept, removed before choosing. Ids that phi does not have change nothing.
            rounding: "plain": k is V * fraction rounded to the nearest whole number (halves up), at least 1.
                "public_code": k is int(V * fraction) + 1, as in the code published with the paper.
            min_probability: Keep only tokens with more than this, even if fewer than k. It helps against
                smoothing, by which every token that a rare topic never saw is equally likely.
            names: Names of the topics; their numbers by default.
            token_ids: The token id of every column; by default, column i is the token id i.
            vocabulary_size: Number of token ids; needed with ``token_ids``, otherwise V by default.
            tokenizer: As in ``from_token_ids``.
            forms: As in ``from_token_ids``. Inflections that a topic keeps still count apart towards k.

        Example:
            >>> phi = [[0.5, 0.3, 0.2, 0.0], [0.1, 0.4, 0.2, 0.3]]  # two topics over four tokens
            >>> tp.Topics.from_matrix(phi, fraction=0.5).top_words()  # token 1 is likelier in topic 1
            [[0], [1, 3]]
            >>> tp.Topics.from_matrix(phi, fraction=0.5, one_topic_per_word=False).top_words()
            [[0, 1], [1, 3]]
        """
        table = matrix(phi)
        n_topics, n_columns = table.shape
        if not 0 <= min_probability < 1:
            raise ValueError(f"min_probability must be at least 0 and below 1, got {min_probability}")
        names = [str(topic) for topic in range(n_topics)] if names is None else names
        names = tuple(check_value(f"names[{place}]", name, str) for place, name in enumerate(names))
        if len(names) != n_topics:
            raise ValueError(f"phi has {n_topics} rows and needs as many names, got {len(names)}")
        columns, size = columns_of(n_columns, token_ids, vocabulary_size)
        counted = size if of == "tokenizer" else n_columns
        per_topic = min(n_columns, kept_per_topic(counted, fraction, rounding))
        excluded = np.isin(columns, token_id_array(exclude, "exclude"))

        kept = []
        for topic, name in enumerate(names):
            probabilities = probabilities_of(table[topic], f"row {topic} of phi (topic {name!r})")
            allowed = ~excluded & (probabilities > min_probability)
            kept.append(most_likely(probabilities, columns, allowed, per_topic))
        entries, topics = _assignments([ids for ids, _ in kept])
        weights = np.concatenate([probabilities for _, probabilities in kept])
        twins = _identical_topics(entries, topics, names)
        left_out: dict[str, Iterable[str | int]] = {"excluded": np.sort(columns[excluded]).tolist()}
        policy = (
            f"the {per_topic} most likely of {n_columns} tokens per topic ({fraction:g} of the {counted} "
        )
        policy += f"{'ids of the tokenizer' if of == 'tokenizer' else 'columns'}); a token kept by several "
        if one_topic_per_word:
            left_out["left to a likelier topic"] = _repeats(np.sort(entries).tolist())
            best = np.lexsort((topics, -weights, entries))
            best = best[np.unique(entries[best], return_index=True)[1]]
            entries, topics, weights = entries[best], topics[best], weights[best]
            policy += "topics stays where it is likeliest (lowest number where equal), without a replacement"
        else:
            policy += "topics belongs to all of them"
        return _assemble(
            entries,
            topics,
            weights=weights,
            names=names,
            vocabulary_size=size,
            tokenizer=tokenizer,
            forms=forms,
            left_out=left_out,
            policy=policy,
            twins=twins,
        )

    @classmethod
    @checked
    def from_lda(
        cls,
        lda: Any,
        *,
        fraction: float = 0.001,
        of: FractionOf = "fit",
        one_topic_per_word: bool = True,
        stop_words: Iterable[str] | None = None,
        exclude: Iterable[Any] = (),
        rounding: Rounding = "plain",
        min_probability: float | None = None,
        names: Sequence[str] | None = None,
        token_ids: Iterable[Any] | None = None,
        vocabulary_size: int | None = None,
        tokenizer: Any = None,
        forms: Forms = "case",
    ) -> "Topics":
        """Topics from LDA over token ids: what ``fit_topics`` gives, or a model of gensim's. Topic 15 stays topic 15.

        The choice of words is that of ``from_matrix``, from the whole matrix P(token | topic).

        Args:
            lda: A ``TopicFit``, or a gensim model with ``get_topics`` (LdaModel, LdaMulticore, and others).
            fraction: Words kept per topic, as a share of a vocabulary: the ambiguity threshold, for which the paper has
                0.0005, 0.001 and 0.002.
            of: Which vocabulary. "tokenizer" is the paper's: its topics of BERT have 15, 30 and 59 words, which these
                shares of 30,522 ids are up to rounding. "fit" counts the words that the topic model was fitted on,
                among which rare ones are not, so topics of a small corpus keep few.
            one_topic_per_word: Whether a word that several topics keep stays with its likeliest one, as in the paper's
                Table 1; not so in its Table 5.
            stop_words: Words whose tokens are never kept, in any case. None: gensim's English list for a gensim model
                with a ``tokenizer``, none for a fit, which has left them out already.
            exclude: More token ids never kept. Special tokens of ``tokenizer`` never are.
            rounding: How many words that share is: "plain" rounds to the nearest number, "public_code" up to the next,
                as ``from_matrix`` says.
            min_probability: Keep only words likelier than this in the topic, by default what each has if all are
                equally likely. An empty topic of a fit then stays empty instead of keeping arbitrary tokens.
            names: As in ``from_matrix``.
            token_ids: The token id of every column of a gensim model. By default its ``id2word`` says so, with token
                ids or with tokens of ``tokenizer``; without ``id2word``, columns are token ids.
            vocabulary_size: Number of token ids; by default that of the fit, or of ``tokenizer``.
            tokenizer: As in ``from_token_ids``. A fit brings its own words and hash, and refuses another tokenizer.
            forms: As in ``from_matrix``.
        """
        source = topic_model(lda, token_ids, vocabulary_size, tokenizer)
        if stop_words is None and source.filtered:
            stop_words = ()
        excluded = [*token_id_array(exclude, "exclude"), *never_kept(stop_words, tokenizer)]
        # P(token | topic) if all tokens were equally likely, and a rounding error more; below 1.
        chance = min((1 + 1e-9) / int(source.phi.shape[1]), 0.5)
        topics = cls.from_matrix(
            source.phi,
            fraction=fraction,
            of=of,
            one_topic_per_word=one_topic_per_word,
            exclude=excluded,
            rounding=rounding,
            min_probability=chance if min_probability is None else min_probability,
            names=names,
            token_ids=source.token_ids,
            vocabulary_size=source.vocabulary_size,
            tokenizer=tokenizer,
        )
        if tokenizer is not None or source.hash is None:
            return replace(topics, one_word=forms)
        texts = tuple(source.texts[entry] for entry in topics.words.tolist())
        return replace(topics, texts=texts, tokenizer_hash=source.hash, one_word=forms)

    # --- what measurements ask --------------------------------------------------------------------

    @property
    def n_topics(self) -> int:
        """Number of topics, empty ones included."""
        return len(self.names)

    def __len__(self) -> int:
        return self.n_topics

    @property
    def membership(self) -> Bool[Tensor, "word topic"]:
        """Row i holds the topics of ``words[i]``; made when it is asked for, with a cell for every word and topic."""
        cells = torch.zeros(len(self.words), self.n_topics, dtype=torch.bool)
        cells[tuple(self.assignments.T)] = True
        return cells

    def topics_of(self, place: int) -> tuple[int, ...]:
        """The topics of ``words[place]``, ascending."""
        start, stop = torch.searchsorted(
            self.assignments[:, 0].contiguous(), torch.tensor([place, place + 1])
        )
        return tuple(self.assignments[start:stop, 1].tolist())

    @cached_property
    def sizes(self) -> Int64[Tensor, "topic"]:
        """Words of every topic; 0 for an empty topic."""
        return self.assignments[:, 1].bincount(minlength=self.n_topics)

    @cached_property
    def _groups(self) -> tuple[Int64[Tensor, "word"], Incidence]:
        from scipy.sparse import csr_array

        place, topic = self.assignments.numpy().T
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        # The bytes of big-endian numbers sort as the numbers do. Behind the topics of a word stands a number that is
        # higher than all, so that sets sort by their first topic, and then the larger set comes first.
        ends = np.insert(topic, np.append(starts[1:], len(topic)), self.n_topics).astype(">i4").tobytes()
        bounds = 4 * (np.append(starts, len(topic)) + np.arange(len(starts) + 1))
        sets = [ends[start:stop] for start, stop in pairwise(bounds.tolist())]
        number = {topics: number for number, topics in enumerate(sorted(set(sets)))}
        found = [np.frombuffer(topics, ">i4")[:-1] for topics in number]
        bounds = np.cumsum([0, *map(len, found)], dtype=np.int32)
        columns = np.concatenate(found).astype(np.int32)
        table = csr_array((np.ones(len(columns), bool), columns, bounds), shape=(len(found), self.n_topics))
        return torch.tensor([number[topics] for topics in sets]), Incidence(table)

    @property
    def group_of_word(self) -> Int64[Tensor, "word"]:
        """Group of every word; words with the same set of topics form a group."""
        return self._groups[0]

    @property
    def incidence(self) -> Incidence:
        """The topics of every group, and which groups share one; groups are sorted by their first topic."""
        return self._groups[1]

    @cached_property
    def form_of_word(self) -> Int64[Tensor, "word"]:
        """Number of the form of every word: entries that are forms of one word ("President", " president") share it.

        ``one_word`` says whether inflections ("song", "songs") are. Without readable texts every entry is a word of
        its own.
        """
        if not self.texts:
            return torch.arange(len(self.words))
        numbers: dict[str | int, int] = {}
        # What reads as nothing is no form of anything else.
        forms = [form(text, self.one_word) or row for row, text in enumerate(self.texts)]
        return torch.tensor([numbers.setdefault(name, len(numbers)) for name in forms])

    def places(self, entries: Shaped[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Where every entry stands in ``words``; -1 where it has no topic or is out of range.

        What is known of words is known by place (``group_of_word``, ``form_of_word``), so entries are looked up once.

        Args:
            entries: Token ids, or entries of compounds, of any shape and on any device.

        Example:
            >>> import torch
            >>> topics = tp.Topics.from_token_ids({"war": [5, 9], "music": [7]}, vocabulary_size=10)
            >>> topics.places(torch.tensor([9, 7, 0])).tolist()  # of the words 5, 7, 9
            [2, 1, -1]
        """
        if not isinstance(entries, Tensor):
            raise TypeError(
                f"topics know whole-number entries, got {type(entries).__name__}: pass a tensor of ids"
            )
        if entries.dtype.is_floating_point or entries.dtype.is_complex or entries.dtype == torch.bool:
            raise TypeError(f"topics know whole-number entries, got {entries.dtype}: pass token ids")
        ids = plain_tensor(entries, "entries").long().contiguous()
        place = torch.searchsorted(self.words.contiguous(), ids).clamp(max=len(self.words) - 1)
        return torch.where(self.words[place] == ids, place, -1).to(entries.device)

    def labels(self, entries: Shaped[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Group of every entry; -1 where it has no topic or is out of range."""
        places = self.places(entries)
        return torch.where(places >= 0, self.group_of_word.to(places.device)[places], -1)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over what defines the topics: ids, names, vocabulary, weights, tokenizer, and what is one word."""
        facts: list[Any] = [self.vocabulary_size, self.names, self.compounds, self.tokenizer_hash]
        # Topics of before there was a choice keep their fingerprint.
        facts += [] if self.one_word == "case" else [self.one_word]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for name, array in self._arrays().items():
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topics) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise ValueError if the topics were made with another tokenizer; without one, they fit any."""
        check_tokenizer(tokenizer)
        if self.tokenizer_hash is None:
            return
        other = tokenizer_hash(tokenizer)
        if other != self.tokenizer_hash:
            raise ValueError(
                f"the topics were made with another tokenizer (vocabulary {self.tokenizer_hash[:12]}…) than "
                f"this one ({other[:12]}…), so their ids are other words: make them again with this one"
            )

    # --- other topics made from these -------------------------------------------------------------

    def with_vocabulary_size(self, n: int) -> "Topics":
        """The same topics over ``n`` token ids, for a model whose table is padded beyond the tokenizer."""
        n = check_vocabulary_size(n, name="vocabulary size")
        single = self.words < self.vocabulary_size
        pieces = [piece for compound in self.compounds for piece in compound]
        highest = max(self.words[single].tolist() + pieces)
        if n <= highest:
            raise ValueError(f"{n} token ids do not reach the labelled id {highest}: drop it with `without`")
        return replace(
            self,
            vocabulary_size=n,
            words=torch.where(single, self.words, self.words - self.vocabulary_size + n),
        )

    def shuffled(self, seed: int) -> "Topics":
        """A null control: the same words and topic sizes, the topic sets dealt to the words at random.

        Words that were of the same topic are so afterwards only by chance. ``weights`` are dropped. Entries are dealt
        one by one, so forms of a word may part; the permutations behind p-values keep them together.

        Example:
            >>> topics = tp.Topics.blocks(n_topics=3, words_per_topic=4)
            >>> shuffled = topics.shuffled(seed=0)
            >>> shuffled.sizes.tolist(), shuffled == topics
            ([4, 4, 4], False)
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

    @checked
    def restrict(self, ids: Iterable[Any]) -> "Topics":
        """The same topics with only the given entries, for example those that occur in a text."""
        return self._subset(np.isin(self.words.numpy(), token_id_array(ids, "restrict")), "restricted away")

    @checked
    def without(self, ids: Iterable[Any]) -> "Topics":
        """The same topics without the given entries. Entries that have no topic anyway change nothing.

        Example:
            >>> tp.Topics.blocks(n_topics=2, words_per_topic=3).without([2, 6]).top_words()
            [[1, 3], [4, 5]]
        """
        return self._subset(~np.isin(self.words.numpy(), token_id_array(ids, "without")), "dropped on demand")

    def _subset(self, keep: Bool[np.ndarray, "word"], reason: str) -> "Topics":
        if not keep.any():
            raise ValueError("no word is left in any topic: the ids given leave out every labelled word")
        chosen = torch.from_numpy(keep)
        words = self.words[chosen]
        split = words >= self.vocabulary_size
        compounds = tuple(self.compounds[place] for place in (words[split] - self.vocabulary_size).tolist())
        words[split] = self.vocabulary_size + torch.arange(len(compounds))
        dropped = (*self.left_out.get(reason, ()), *self.words[~chosen].tolist())
        place, topic = self.assignments[chosen[self.assignments[:, 0]]].T
        subset = replace(
            self,
            words=words,
            assignments=torch.stack([(chosen.cumsum(0) - 1)[place], topic], dim=1),
            compounds=compounds,
            weights=None if self.weights is None else self.weights[chosen[self.assignments[:, 0]]],
            texts=tuple(self.texts[place] for place in np.flatnonzero(keep)) if self.texts else (),
            left_out={**self.left_out, reason: dropped} if dropped else self.left_out,
        )
        _warn_of_empty(subset, (subset.sizes == 0) & (self.sizes > 0))
        return subset

    # --- for reading --------------------------------------------------------------------------------

    def top_words(self, n: int = 10, *, tokenizer: Any = None) -> list[list[str | int]]:
        """The first ``n`` words of every topic: the likeliest ones, or without weights those of lowest id.

        Entries are readable words where they are known (through ``tokenizer``, or through the constructor's),
        otherwise ids. Entries that read the same, as with and without a leading space, are listed once.
        """
        n = check_whole("n", n, 0)
        if tokenizer is not None:
            self.check_tokenizer(tokenizer)
        return [self._first_words(topic, n, tokenizer) for topic in range(self.n_topics)]

    def label(self, topic: int, n: int = _WORDS_IN_LABEL) -> str:
        """A topic as people know it, with its first ``n`` words: ``id: word·word``, or ``id: name (word·word)``."""
        n = check_whole("n", n, 0)
        if not 0 <= check_value("topic", topic, int) < self.n_topics:
            raise ValueError(f"topics are numbered 0..{self.n_topics - 1}, got {topic}")
        return self._label(topic, n)

    @cached_property
    def topic_labels(self) -> tuple[str, ...]:
        """What ``label`` says of every topic."""
        return tuple(self._label(topic, _WORDS_IN_LABEL) for topic in range(self.n_topics))

    def _label(self, topic: int, n: int) -> str:
        words = "·".join(_printable(word) for word in self._first_words(topic, n))
        if (name := self.names[topic]) == str(topic):  # nobody gave it a name
            return f"{topic}: {words or '(no words)'}"
        return f"{topic}: {_printable(name)} ({words or 'no words'})"

    @cached_property
    def _ranking(self) -> list[Int64[np.ndarray, "_"]]:
        """For every topic, the rows of its words, likeliest first."""
        rows, topics = self.assignments.numpy().T
        weights = np.zeros(len(rows)) if self.weights is None else self.weights.numpy()
        order = np.lexsort((rows, -weights, topics))
        return np.split(rows[order], self.sizes.cumsum(0).numpy()[:-1])

    def _first_words(self, topic: int, n: int, tokenizer: Any = None) -> list[str | int]:
        shown: dict[str | int, None] = {}
        for row in self._ranking[topic].tolist():
            if len(shown) >= n:
                break
            entry = int(self.words[row])
            if tokenizer is not None:
                shown[readable(tokenizer, _pieces(entry, self.vocabulary_size, self.compounds))] = None
            else:
                shown[self.texts[row] if self.texts else entry] = None
        return list(shown)

    def _table(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for topic, name in enumerate(self.names[:_ROWS_SHOWN]):
            words = " · ".join(_printable(word) for word in self._first_words(topic, _WORDS_SHOWN))
            rows.append((str(topic), _printable(name), f"{int(self.sizes[topic]):,}", words))
        return rows

    def _notes(self) -> list[str]:
        several = int((self.assignments[:, 0].bincount() > 1).sum())
        notes = [f"… {self.n_topics - _ROWS_SHOWN:,} more topics"] if self.n_topics > _ROWS_SHOWN else []
        notes += [f"{several:,} words have several topics"] if several else []
        notes += [f"policy: {self.policy}"] if self.policy else []
        notes += ["forms: inflections of a word are one word (same stem)"] if self.one_word == "stem" else []
        return notes + [f"{reason}: {_abridged(items)}" for reason, items in self.left_out.items()]

    def _headline(self) -> str:
        split = f", {len(self.compounds):,} of them compounds" if self.compounds else ""
        count = f"{self.n_topics:,} topics, {len(self.words):,} words{split}"
        return f"Topics: {count}; {self.vocabulary_size:,} token ids"

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *_text_table(_HEADER, self._table()), *self._notes()])

    def _repr_html_(self) -> str:
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self._notes())
        return _html_table(_HEADER, self._table(), caption=self._headline()) + notes

    # --- on disk ------------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {"words": self.words.numpy(), "assignments": self.assignments.numpy()}
        return arrays if self.weights is None else {**arrays, "weights": self.weights.numpy()}

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the topics into the folder ``path``, whole or not at all.

        Args:
            path: A folder that does not exist or is empty; another one is refused.
            overwrite: Replace topics that are saved there. A folder with other files is refused all the same.
        """
        content = {
            "fingerprint": self.fingerprint,
            "names": self.names,
            "vocabulary_size": self.vocabulary_size,
            "compounds": self.compounds,
            "texts": self.texts,
            "tokenizer_hash": self.tokenizer_hash,
            "one_word": self.one_word,
            "left_out": dict(self.left_out),
            "policy": self.policy,
        }
        storage.save(path, _KIND, content, self._arrays(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Topics":
        """Topics that ``save`` has written; what is damaged, changed, foreign or too new is refused by name.

        Example:
            >>> import tempfile
            >>> topics = tp.Topics.blocks(n_topics=2, words_per_topic=3)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     topics.save(f"{folder}/topics")
            ...     tp.Topics.load(f"{folder}/topics") == topics
            True
        """
        saved = storage.load(path, _KIND)
        content, arrays = saved.content, saved.arrays
        try:
            topics = cls(
                names=tuple(content["names"]),
                vocabulary_size=content["vocabulary_size"],
                words=torch.tensor(arrays["words"]),
                assignments=torch.tensor(arrays["assignments"]),
                compounds=tuple(tuple(pieces) for pieces in content["compounds"]),
                weights=torch.tensor(arrays["weights"]) if "weights" in arrays else None,
                texts=tuple(content["texts"]),
                tokenizer_hash=content["tokenizer_hash"],
                one_word=content["one_word"],
                left_out={reason: tuple(items) for reason, items in content["left_out"].items()},
                policy=content["policy"],
            )
            changed = topics.fingerprint != content["fingerprint"]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"{saved.path} does not hold whole topics ({error!r}): save them again"
            ) from error
        if changed:
            raise ValueError(
                f"{saved.path} and its arrays do not add up to the fingerprint they were saved with: one of them was "
                "changed or is damaged, save the topics again"
            )
        return topics


# --- putting topics together ------------------------------------------------------------------------


def _repeats(items: Sequence[Any]) -> list[Any]:
    """The items that occur more than once, each once."""
    return [item for item, count in Counter(items).items() if count > 1]


def _repeated_within(
    entries: Int64[np.ndarray, "assignment"], topics: Int64[np.ndarray, "assignment"]
) -> Int64[np.ndarray, "_"]:
    """The entries that occur more than once in a topic, each once for every such topic."""
    pairs = topics * (entries.max(initial=0) + 1) + entries
    if len(_sorted(pairs)) == len(pairs):  # as usual, and much sooner known than their places are
        return entries[:0]
    _, first, count = np.unique(pairs, return_index=True, return_counts=True)
    return np.asarray(entries[np.sort(first[count > 1])])


def _sorted(numbers: Int64[np.ndarray, "_"]) -> Int64[np.ndarray, "_"]:
    """The different numbers, ascending; by sorting, which is many times faster than the table that numpy fills."""
    ordered = np.sort(numbers)
    grows = ordered[1:] > ordered[:-1]
    return np.asarray(ordered if grows.all() else ordered[np.append(True, grows)])


def _assignments(lists: Sequence[Ids]) -> tuple[Ids, Ids]:
    """All (entry, topic) pairs of a list of entries per topic, as two columns."""
    return np.concatenate(lists), np.repeat(np.arange(len(lists)), [len(entries) for entries in lists])


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
    twins: tuple[str, ...] | None = None,
) -> Topics:
    """Topics from (entry, topic) pairs; empty and identical topics are warned about."""
    if tokenizer is not None:
        check_tokenizer(tokenizer)
    names = tuple(str(_storable(name)) for name in names)
    twins = _identical_topics(entries, topics, names) if twins is None else twins
    reasons = {reason: tuple(dict.fromkeys(map(_storable, items))) for reason, items in left_out.items()}
    reasons = {reason: items for reason, items in {**reasons, _IDENTICAL: twins}.items() if items}
    if len(entries) == 0:
        why = "; ".join(f"{reason}: {_abridged(items)}" for reason, items in reasons.items())
        raise ValueError(f"no word is left in any topic ({why or 'every list is empty'})")
    pairs = entries * len(names) + topics
    if weights is None:
        pairs = _sorted(pairs)
    else:
        pairs, place = np.unique(pairs, return_index=True)
        weights = weights[place]
    entry, topic = np.divmod(pairs, len(names))
    begins = np.append(True, entry[1:] > entry[:-1])
    words = entry[begins]
    texts = (
        ()
        if tokenizer is None
        else tuple(
            readable(tokenizer, _pieces(entry, vocabulary_size, compounds)) for entry in words.tolist()
        )
    )
    assembled = Topics(
        names=names,
        vocabulary_size=vocabulary_size,
        words=torch.from_numpy(words),
        assignments=torch.from_numpy(np.stack([begins.cumsum() - 1, topic], axis=1)),
        compounds=compounds,
        weights=None if weights is None else torch.from_numpy(weights),
        texts=texts,
        tokenizer_hash=None if tokenizer is None else tokenizer_hash(tokenizer),
        one_word=forms,
        left_out=reasons,
        policy=policy,
    )
    _warn_of_empty(assembled, assembled.sizes == 0)
    if twins:
        warn(f"topics with the very words of another: {_abridged(twins)}", stacklevel=4)
    return assembled


def _pieces(entry: int, vocabulary_size: int, compounds: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The token ids that an entry of topics stands for."""
    return (entry,) if entry < vocabulary_size else compounds[entry - vocabulary_size]


def _warn_of_empty(topics: Topics, empty: Bool[Tensor, "topic"]) -> None:
    names = [topics.names[topic] for topic in empty.nonzero()[:, 0].tolist()]
    if names:
        warn(
            f"topics without a word, which measure as NaN: {_abridged(names)}; `left_out` may say why",
            stacklevel=5,
        )


def _identical_topics(
    entries: Int64[np.ndarray, "assignment"],
    topics: Int64[np.ndarray, "assignment"],
    names: tuple[str, ...],
) -> tuple[str, ...]:
    """``later = earlier`` for every topic with exactly the words of an earlier one; empty ones are no twins."""
    size = entries.max(initial=0) + 1
    pairs = _sorted(topics * size + entries)
    bounds = np.searchsorted(pairs, size * np.arange(len(names) + 1)).tolist()
    words = (pairs % size).tobytes()
    first: dict[bytes, int] = {}
    twins = []
    for topic, (start, stop) in enumerate(pairwise(bounds)):
        earlier = first.setdefault(words[start * pairs.itemsize : stop * pairs.itemsize], topic)
        if earlier != topic and start < stop:
            twins.append(f"{names[topic]} = {names[earlier]}")
    return tuple(twins)


# --- tables -----------------------------------------------------------------------------------------


def _printable(value: str | int) -> str:
    """Text that cannot break a line or a file: control characters and half characters are written out."""
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]


def _storable(item: str | int) -> str | int:
    """The item, with halves of characters, which no file can hold, written out."""
    return item.encode(errors="backslashreplace").decode() if isinstance(item, str) else item


def _abridged(items: Sequence[str | int], n: int = 5) -> str:
    more = ", …" if len(items) > n else ""
    return f"{len(items):,} ({', '.join(_printable(item) for item in items[:n])}{more})"


def _text_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]


def _html_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, caption: str) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption>{line(header, 'th')}{body}</table>"
