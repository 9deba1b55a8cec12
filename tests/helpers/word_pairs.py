"""What sums over pairs of words have to be, from whole matrices, which the package never forms."""

from dataclasses import replace

import numpy as np

from topic_probe.estimate import Ends, split_halves
from topic_probe.topics import Topics


def topics_of(lists, vocabulary_size, texts=None):
    """Topics of ids, whose entries read as told, else as their numbers."""
    plain = Topics.from_token_ids(lists, vocabulary_size=vocabulary_size)
    if texts is None:
        return plain
    return replace(plain, texts=tuple(texts.get(entry, f"w{entry}") for entry in plain.words.tolist()))


class Pairs:
    """All ordered pairs of some entries.

    ``relation`` is 0 for one word, 1 for words that share a topic, 2 for others; ``names`` are different words in the
    order in which they appear, and ``of`` says which entry is a form of which.
    """

    def __init__(self, ids, lists, texts=None):
        self.lists = {name: set(some) for name, some in lists.items()}
        self.ids = np.asarray(ids)
        words = [(texts or {}).get(entry, f"w{entry}").strip("( ").lower() for entry in self.ids.tolist()]
        self.names = list(dict.fromkeys(words))
        self.of = np.eye(len(self.names))[[self.names.index(word) for word in words]]
        self.member = np.array(
            [[entry in some for some in self.lists.values()] for entry in self.ids.tolist()]
        )
        share = self.member.astype(int) @ self.member.T.astype(int) > 0
        self.relation = np.where(self.of @ self.of.T > 0, 0, np.where(share, 1, 2))

    def sums(self, scores, topic=None):
        """Sums [score, relation] and counts of scores [score, first, second]; or those that one topic is about."""
        relation = self.relation
        if topic is not None:
            own = self.member[:, topic]
            # Within the topic, or from it to words that it shares no topic with.
            relation = np.where(own[:, None] & (own | (relation != 1)), relation, -1)
        kinds = [relation == kind for kind in range(3)]
        return np.stack([scores[:, kind].sum(1) for kind in kinds], 1), np.array(
            [kind.sum() for kind in kinds]
        )

    def effect_sizes(self, scores, topic=None):
        """(mean of the same topic − of different ones) / standard deviation of all pairs of different words."""
        sums, counts = self.sums(scores, topic)
        squares, n = self.sums(scores**2, topic)[0][:, 1:].sum(1), counts[1:].sum()
        deviation = np.sqrt(squares / n - (sums[:, 1:].sum(1) / n) ** 2)
        return (sums[:, 1] / counts[1] - sums[:, 2] / counts[2]) / deviation

    @property
    def strata(self):
        """The first topic of any form of every word."""
        return np.array([self.member[form > 0].any(0).argmax() for form in self.of.T])

    def ends(self, scores, seed):
        """What every word adds to pairs as either end, by the half of the other word."""
        half = self.of @ np.eye(2)[split_halves(self.strata, seed=seed)]
        both = scores + scores.transpose(0, 2, 1)
        parts = []
        for kind in (1, 2):
            chosen = self.relation == kind
            parts.append(np.einsum("if,sij,jh->hfs", self.of, both * chosen, half, optimize=True))
            parts.append(np.einsum("if,ij,jh->hf", self.of, 2.0 * chosen, half, optimize=True))
        return Ends(*parts)

    def squares(self, scores):
        """Squared scores of every word with all others."""
        return np.einsum("if,sij->fs", self.of, scores**2 * (self.relation > 0), optimize=True)


def scores_of(rows):
    """Cosines and dot products between rows."""
    rows = np.asarray(rows, dtype=np.float64)
    dot, norms = rows @ rows.T, np.linalg.norm(rows, axis=1)
    return np.stack([dot / np.outer(norms, norms), dot])
