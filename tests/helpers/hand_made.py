"""Results of recipes made by hand: settings that count as trained, and a table of numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from topic_probe.paper.recipe import RecipeResult
from topic_probe.paper.training import Setting, Trained
from topic_probe.report import Report
from topic_probe.train.history import History


def hand_made(
    settings: Sequence[Setting],
    rows: Sequence[Mapping[str, Any]],
    *,
    quick: bool = True,
    reports: Mapping[str, Mapping[str, Report]] | None = None,
) -> RecipeResult:
    """A result with these numbers, whose settings were trained for no step; rows without a seed get the next one."""
    seeds: Counter[tuple[str, str]] = Counter()
    numbered = []
    for row in rows:
        which = row["setting"], row["control"]
        numbered.append({"seed": seeds[which], **row})
        seeds[which] += 1
    runs = tuple(
        Trained(
            setting,
            History(
                setting.toy, setting.train, torch.arange(1), torch.zeros(1, 1).double(), ("loss",), {}, {}, 0
            ),
            1.0,
        )
        for setting in settings
    )
    return RecipeResult(
        "by hand", "", quick, (), runs, reports=reports or {}, tables={"numbers": numbered}, source="source"
    )
