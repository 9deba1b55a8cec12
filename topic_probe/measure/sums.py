"""What the old engine knows of documents; `folder` has what stays."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from topic_probe.measure.folder import MEASURED, Progress, Sum
from topic_probe.measure.folder import clear as clear_sums

__all__ = ["ByTopics", "Parts", "Progress", "Sum", "Sums", "clear_sums"]

Sums = Mapping[str, Any]
Parts = Mapping[str, Any]


@dataclass
class ByTopics(Progress):
    """With what was left out for each of several topics."""

    by_topics: list[Counter[str]] = field(default_factory=list)

    @classmethod
    def like(cls, known: Progress) -> "ByTopics":
        """The same of one topic."""
        return cls(**vars(known))

    def add(self, number: int, n_measured: int, left_out: Mapping[str, int]) -> None:
        """Counts documents of some of the topics."""
        self.measured += n_measured if number == 0 else 0
        if self.by_topics:
            self.by_topics[number].update({**left_out, MEASURED: n_measured})
        else:
            self.left_out.update(left_out)

    def of_topics(self, number: int) -> "ByTopics":
        """What is known for some of the topics."""
        if not self.by_topics:
            return self
        left_out = Counter(self.by_topics[number])
        measured = left_out.pop(MEASURED, 0)
        return replace(self, left_out=left_out, measured=measured, by_topics=[])



