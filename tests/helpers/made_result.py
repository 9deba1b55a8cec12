"""Results of trainings that nobody made: tables of numbers written by hand, and what is measured of given tensors."""

from dataclasses import replace

import torch
from topic_probe.paper.training import Trained

from topic_probe.paper.recipe import Recipe, Run
from topic_probe.train.history import History


def made_result(rows, *settings, quick=False, reports=None):
    """The result: (setting, control) → numbers of every seed; ``settings`` are what is claimed of."""
    recipe = Recipe("figure0", "nothing", "Figure 0", lambda run: run.result(), (), lambda _: {})
    runs = tuple(Trained(setting, _history(setting), 1.0) for setting in settings)
    table = [
        {"setting": setting, "control": control, "seed": seed, **numbers}
        for (setting, control), every in rows.items()
        for seed, numbers in enumerate(every)
    ]
    return replace(Run(recipe, quick).result(runs=runs), tables={"numbers": table}, reports=reports or {})


def claims_of(recipe, result):
    """Everything that a recipe claims of a result."""
    return [claim for check in recipe.claims for claim in check(result)]


def numbers_of(recipe, trained, monkeypatch, *controls):
    """What a recipe measures of a training in the place of its own, by name; of these labels' controls, too."""
    monkeypatch.setattr("topic_probe.paper.toys.train_all", lambda *_, **__: [trained])
    # Reports are of settings that are shown, of which this is none.
    other = replace(trained.setting, name="not shown")
    alone = replace(recipe, quick_settings=(other,), quick_controls=controls)
    rows = alone.measure(Run(alone, quick=True)).tables["numbers"]
    return {row["control"]: row for row in rows} if controls else rows[0]


def _history(setting):
    steps, table = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.float64)
    return History(setting.toy, setting.train, steps, table, ("loss",), {}, {"W_V": torch.zeros(1, 1)}, 0)
