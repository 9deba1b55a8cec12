"""Table 5: the same as Table 1 where a word may have several topics.

A word stays with every topic that keeps it, and two words have the same topic when they share one. The table is in an
appendix of the paper whose numbers are not part of this package, so none stand beside ours.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from topic_probe.paper.pretrained import THRESHOLDS, TextSettings
from topic_probe.paper.recipe import RecipeResult
from topic_probe.paper.table1 import Table, run_table
from topic_probe.text.corpus import Corpus

TITLE = "same-topic words in pretrained models, several topics per word"
SOURCE = "Table 5, Appendix E.3"

_TABLE = Table("table5", TITLE, SOURCE, False, {}, "not printed here")


def run(
    *,
    quick: bool = False,
    only: Iterable[str] | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = False,
    models: Any = None,
    corpus: Corpus | None = None,
    settings: TextSettings | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    twins: bool = True,
) -> RecipeResult:
    """Measure every model at every threshold; arguments as in `topic_probe.paper.table1.run`."""
    return run_table(
        _TABLE, quick=quick, only=only, seed=seed, folder=folder, progress=progress, models=models, corpus=corpus,
        settings=settings, thresholds=thresholds, twins=twins,
    )  # fmt: skip
