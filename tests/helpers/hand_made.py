"""Results of recipes made by hand: settings that count as trained, and a table of numbers."""

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
    """A result with these numbers, whose settings were trained for no step."""
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
        "by hand", "", quick, (), runs, reports=reports or {}, tables={"numbers": list(rows)}, source="source"
    )
