"""A result of trainings that nobody made, with a table of numbers written by hand."""

from dataclasses import replace

import torch

from topic_probe.paper.recipe import Recipe, Run
from topic_probe.paper.training import Trained
from topic_probe.train.history import History


def made_result(rows, *settings, quick=False):
    """The result: (setting, control) → numbers of every seed; ``settings`` are what is claimed of."""
    recipe = Recipe("figure0", "nothing", "Figure 0", lambda run: run.result(), (), lambda _: {})
    runs = tuple(Trained(setting, _history(setting), 1.0) for setting in settings)
    table = [
        {"setting": setting, "control": control, "seed": seed, **numbers}
        for (setting, control), every in rows.items()
        for seed, numbers in enumerate(every)
    ]
    return replace(Run(recipe, quick).result(runs=runs), tables={"numbers": table})


def _history(setting):
    steps, table = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.float64)
    return History(setting.toy, setting.train, steps, table, ("loss",), {}, {}, 0)
