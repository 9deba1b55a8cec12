"""Texts in which words of a topic give way to words of another, or to others of their own topic."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from topic_probe.measure.matching import frequency_classes
from topic_probe.measure.scores import Units
from topic_probe.topics import Topics

NOTHING_SHOWN = "documents that show no word of any topic"
OWN_TOPIC = "documents of the topic that words are given of"
NO_PARTNER = "documents without a word that could be replaced"
NO_POSITION = "documents without a position to predict"


@dataclass(frozen=True, eq=False)
class Exchange:
    """The texts of one document: as it is, with words of another topic, and with others of its own topic.

    Attributes:
        texts: what they show.
        own, other: places of the words of its topic, and of the other, without those that are in both.
        counted: how many words were chosen, how many replaced, and how many in the texts with words of its own topic.
        why: why nothing is done, where all texts are the same; empty otherwise.
    """

    texts: Int64[Tensor, "text position"]
    own: Int64[Tensor, " own"]
    other: Int64[Tensor, " other"]
    counted: tuple[int, ...] = (0, 0, 0)
    why: str = ""

    def odds(
        self, scores: Float[Tensor, "position token"], groupings: Int64[Tensor, "grouping word"]
    ) -> Float64[np.ndarray, "grouping position"]:
        """Log-odds of the two topics, from log-probabilities that need not be normalised.

        Args:
            scores: the log-probabilities of all token ids.
            groupings: which token ids stand for the words of the topics.
        """
        scores = scores.detach().double().cpu()
        found = [
            scores[:, ids[self.own]].logsumexp(1) - scores[:, ids[self.other]].logsumexp(1)
            for ids in groupings
        ]
        odds: np.ndarray = torch.stack(found).numpy()
        return odds

    def odds_of_counts(
        self, places: Int64[Tensor, " word"], seen: Bool[Tensor, "position word"]
    ) -> Float64[np.ndarray, " position"]:
        """The same of the numbers of words of the two topics that are seen from positions, each one more than it is."""
        own, other = ((seen & torch.isin(places, of)).sum(1).double() + 1 for of in (self.own, self.other))
        odds: np.ndarray = (own / other).log().numpy()
        return odds


@dataclass
class Exchanges:
    """Replaces words of the topic of a document.

    Attributes:
        topics: which words are whose.
        class_of: the class of frequency of every word; -1: never a replacement, nor replaced.
        fraction: what share of the topic's words is replaced.
        toward: the other topic; None: any.
        n_matched: how often the same words are replaced by others of their own topic.
        n_permutations: how often words are put into topics at random, with others of their class.
        seed: of all choices.
    """

    topics: Topics
    class_of: Int64[np.ndarray, " word"]
    fraction: float
    toward: int | None
    n_matched: int
    n_permutations: int
    seed: int

    def __post_init__(self) -> None:
        self._member = self.topics.membership.numpy()
        self._form = self.topics.form_of_word.numpy()
        self._single = (self.topics.words < self.topics.vocabulary_size).numpy()
        self.groupings = self._groupings()

    def _groupings(self) -> Int64[Tensor, "grouping word"]:
        """The words of the topics as they are; then, time and again, with others of their class in their places."""
        generator = np.random.default_rng([self.seed, 2])
        found = self.topics.words.repeat(1 + self.n_permutations, 1).numpy()
        for own in np.unique(self.class_of):
            (alike,) = np.nonzero((self.class_of == own) & self._single)
            for row in found[1:]:
                row[alike] = generator.permutation(row[alike])
        return torch.from_numpy(found)

    @property
    def n_texts(self) -> int:
        """How many texts there are of every document."""
        return 2 + self.n_matched

    def nothing(self, ids: Int64[Tensor, " position"], why: str) -> Exchange:
        """A document to which nothing is done."""
        none = torch.zeros(0, dtype=torch.int64)
        return Exchange(ids.repeat(self.n_texts, 1), none, none, why=why)

    def of_document(self, ids: Int64[Tensor, " position"], words: Units, key: int) -> Exchange:
        """What is done to a document that shows these words."""
        generator = np.random.default_rng([self.seed, key % 2**64, 1])
        places = words.places.numpy()
        if not len(places):
            return self.nothing(ids, NOTHING_SHOWN)
        own = int(self._member[places].sum(0).argmax())
        other = self._other(own, generator) if self.toward is None else self.toward
        if other is None or other == own:
            return self.nothing(ids, NO_PARTNER if other is None else OWN_TOPIC)
        of_own, of_other = (self._member[:, t] & ~self._member[:, u] for t, u in ((own, other), (other, own)))
        mine = np.unique(places[of_own[places]])
        forms = np.unique(self._form[mine])
        n = min(len(forms), max(1, round(self.fraction * len(forms))))
        chosen = mine[np.isin(self._form[mine], generator.choice(forms, n, replace=False))]
        partners = self._partners(chosen, of_other, generator)
        if not partners:
            return self.nothing(ids, NO_PARTNER)
        replaced = np.array(sorted(partners))
        texts, n_replaced = ids.repeat(self.n_texts, 1), [0, 0]
        for number in range(1, self.n_texts):
            if number > 1:
                partners = self._partners(replaced, of_own, generator)
            for place, by in partners.items():
                at = words.positions[words.places == place]
                texts[number, at] = self.topics.words[by]
                n_replaced[min(number, 2) - 1] += len(at)
        own_set, other_set = (
            torch.from_numpy(np.flatnonzero(of & self._single)) for of in (of_own, of_other)
        )
        return Exchange(texts, own_set, other_set, (int(np.isin(places, chosen).sum()), *n_replaced))

    def _other(self, own: int, generator: np.random.Generator) -> int | None:
        """A topic that has words to give."""
        others = np.flatnonzero(self._member[(self.class_of >= 0) & ~self._member[:, own]].any(0))
        return int(generator.choice(others)) if len(others) else None

    def _partners(
        self,
        places: Int64[np.ndarray, " place"],
        pool: Bool[np.ndarray, " word"],
        generator: np.random.Generator,
    ) -> dict[int, int]:
        """For words another one each of their class of frequency, as far as there are such."""
        left = generator.permutation(np.flatnonzero(pool & (self.class_of >= 0)))
        found = {}
        for place in generator.permutation(places).tolist():
            fits = (self.class_of[left] == self.class_of[place]) & (self._form[left] != self._form[place])
            if fits.any():
                first = int(fits.argmax())
                found[place] = int(left[first])
                left = np.delete(left, first)
        return found


def word_classes(topics: Topics, frequency: Shaped[Tensor, "*shape"], n: int) -> Int64[np.ndarray, " word"]:
    """The class of frequency of every word; -1 for words that do not occur, and those of several tokens.

    Raises:
        ValueError: where there is not a frequency for every token id.
    """
    if frequency.shape != (topics.vocabulary_size,):
        raise ValueError(
            f"frequency needs a number for each of the {topics.vocabulary_size} token ids, got "
            f"{list(frequency.shape)}"
        )
    single = topics.words < topics.vocabulary_size
    of_word = torch.where(single, frequency[topics.words.where(single, 0)], 0).numpy()
    classes, seen = np.full(len(of_word), -1), of_word > 0
    if seen.any():
        # Classes follow from the order alone, so shares of a corpus do as well as counts.
        classes[seen] = frequency_classes(np.unique(of_word[seen], return_inverse=True)[1], n)[0]
    return classes
