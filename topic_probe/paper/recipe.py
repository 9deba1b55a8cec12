"""What a recipe is, how it is run, and what comes out.

A recipe is a table of trainings (or of models), functions that give numbers of each, claims about these numbers, and
pictures. `run_recipe` measures, `judge` says what follows, and a `RecipeResult` keeps both, with the curves and
matrices that the pictures are drawn from: a saved result draws them again.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from topic_probe.options import checked, refuse_unknown
from topic_probe.paper.claims import VERDICTS, Claim, judge
from topic_probe.report import Report, provenance

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[Any, Any]]

FIRST_SEED = 3000
"""Of all recipes: seeds that nobody has looked at when bounds and settings were chosen."""

SEEDS, QUICK_SEEDS = 5, 3


@dataclass(frozen=True)
class Run:
    """How a recipe is run: the quick variant takes seconds in place of minutes or hours; ``seed`` is the first one."""

    quick: bool = False
    seed: int = FIRST_SEED
    progress: bool | None = None

    @property
    def seeds(self) -> range:
        """One for every repetition."""
        return range(self.seed, self.seed + (QUICK_SEEDS if self.quick else SEEDS))


@dataclass(frozen=True)
class Measured:
    """What a recipe measured.

    Attributes:
        numbers: A row for every training, control and seed; numbers of numpy become plain ones.
        arrays: Curves and matrices for the pictures, by name.
        tables: Further tables to read, by name.
        missing: Why something was not measured, by what it is.
    """

    numbers: Rows = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", plain(self.numbers))
        object.__setattr__(self, "tables", {name: plain(rows) for name, rows in self.tables.items()})


@dataclass(frozen=True)
class Recipe:
    """A figure or table of the paper.

    Attributes:
        name: What it is called.
        title: What the paper shows there, ``source`` says where.
        measure: From a run, and keyword arguments of its own (models, corpus), to what was measured.
        claims: What is claimed.
        figures: From the result to figures by the sentence that stands under them.
    """

    name: str
    title: str
    source: str
    measure: Callable[..., Measured]
    claims: tuple[Claim, ...]
    figures: "Callable[[RecipeResult], Mapping[str, Figure]]"


@dataclass(frozen=True, eq=False, repr=False)
class RecipeResult(Report, kind="recipe"):
    """A figure or table of the paper, reproduced: what was measured (`Measured`) and what follows for its claims.

    Attributes:
        claims: What is claimed, with numbers, controls and verdict (`topic_probe.paper.claims.judge`).
        seconds: How long it took.
        provenance: Seeds, settings, versions.
    """

    recipe: str
    title: str
    source: str
    quick: bool
    claims: Sequence[Mapping[str, Any]]
    numbers: Sequence[Mapping[str, Any]]
    arrays: Mapping[str, np.ndarray]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    missing: Mapping[str, str]
    seconds: float
    provenance: Mapping[str, Any]

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every claim and training: number, interval, bounds, controls, verdict."""
        import pandas as pd

        return pd.DataFrame([row for claim in self.claims for row in claim_rows(claim)])

    def numbers_table(self) -> "pd.DataFrame":
        """The numbers that the claims were judged by."""
        import pandas as pd

        return pd.DataFrame(list(self.numbers))

    def figures(self) -> "dict[str, Figure]":
        """The figures, each by the sentence that says what it shows; drawn from what was saved."""
        if not self.numbers:
            return {}
        # By name, because the recipes stand above what comes out of them.
        recipe: Recipe = import_module("topic_probe.paper").recipe_named(self.recipe)
        return dict(recipe.figures(self))

    def _notes(self) -> list[str]:
        verdicts = [claim["verdict"] for claim in self.claims]
        counts = ", ".join(f"{verdicts.count(each)} {each}" for each in VERDICTS if each in verdicts)
        seconds = f", {self.seconds:.0f} s" if isfinite(self.seconds) else ""
        variant = "quick variant, " if self.quick else ""
        reasons = [f"{what}: {why}" for what, why in self.missing.items()]
        return [f"{self.recipe}: {self.title}; {variant}{counts}{seconds}", *reasons]


def claim_rows(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A judged claim as rows of a table, one for every training and number."""
    about = {"claim": claim["id"], "says": claim["says"], "source": claim["source"]}
    if not claim["panels"]:
        return [{**about, "verdict": claim["verdict"], "why": claim["why"]}]
    return [
        about
        | {
            "training": panel["training"],
            "measured": number["value"],
            "low": number["low"],
            "high": number["high"],
            "wanted": wanted,
            "controls": "; ".join(
                f"{name}: {one['values'][place]:.4g}" for name, one in panel["controls"].items()
            ),
            "verdict": panel["verdict"],
        }
        for panel in claim["panels"]
        for place, (number, wanted) in enumerate(zip(panel["numbers"], claim["wanted"], strict=True))
    ]


@checked
def run_recipe(
    recipe: Recipe,
    *,
    quick: bool = False,
    seed: int = FIRST_SEED,
    progress: bool | None = None,
    **options: Any,
) -> RecipeResult:
    """Measure what a recipe asks for, and judge its claims.

    Args:
        recipe: of `topic_probe.paper.recipe_named`.
        quick: seconds in place of minutes or hours.
        seed: the first of the seeds (three in the quick variant, else five).
        progress: show progress bars; by default in a terminal or a notebook.
        **options: of the recipe's own: models, corpus, words, tokenizer.
    """
    refuse_unknown(f"the recipe {recipe.name}", options, own_options(recipe))
    start = time.perf_counter()
    run = Run(quick, seed, progress)
    return judged(recipe, run, recipe.measure(run, **options), seconds=time.perf_counter() - start)


def judged(recipe: Recipe, run: Run, measured: Measured, *, seconds: float = nan) -> RecipeResult:
    """The result of a recipe: what follows from what was measured."""
    import pandas as pd

    columns = None if measured.numbers else ["training", "control", "seed"]
    numbers = pd.DataFrame(list(measured.numbers), columns=columns)
    why = "; ".join(measured.missing.values())
    return RecipeResult(
        recipe.name,
        recipe.title,
        recipe.source,
        run.quick,
        claims=[judge(claim, numbers, quick=run.quick, missing=why) for claim in recipe.claims],
        numbers=measured.numbers,
        arrays=dict(measured.arrays),
        tables=measured.tables,
        missing=dict(measured.missing),
        seconds=seconds,
        provenance=provenance(options={"quick": run.quick, "seeds": list(run.seeds)}, seed=run.seed),
    )


def plain(rows: Rows) -> list[dict[str, Any]]:
    """Rows of plain values; numbers of numpy become Python's."""
    return [
        {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
        for row in rows
    ]


def array_name(training: str, control: str, seed: int, what: str) -> str:
    """What an array of a training is called among those of a result."""
    return " · ".join(part for part in (training, control, str(seed), what) if part)


def own_options(recipe: Recipe) -> tuple[str, ...]:
    """The names of the options that only some recipes have and this one takes."""
    import inspect

    parameters = inspect.signature(recipe.measure).parameters.values()
    return tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


def summary(results: Iterable[RecipeResult]) -> list[str]:
    """The short screen: a line for what the paper says, what was measured, where it must fail, and the verdict."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        for claim in result.claims:
            if claim["line"] and claim["panels"]:
                lines.setdefault(claim["line"], []).append(claim)
    rows = [("paper", "ours", "where it must fail", "")]
    for line, claims in lines.items():
        fails = next((text for claim in claims for text in failing(claim)), "")
        rows.append((line, measured(claims[0]), fails, _verdicts(claims)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  ".join(f"{text:<{width}}" for text, width in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    ]


def measured(claim: Mapping[str, Any]) -> str:
    """The first number of a claim in every training, from the smallest to the largest."""
    values = [panel["numbers"][0]["value"] for panel in claim["panels"]]
    return between(min(values), max(values), claim["shown"])


def between(low: float, high: float, shown: str) -> str:
    """A range as text, or one number where both ends are printed alike."""
    first, last = shown.format(low), shown.format(high)
    return last if first == last else f"{first.split(' ')[0].rstrip('%')}–{last.removeprefix('×')}"


def failing(claim: Mapping[str, Any]) -> list[str]:
    """What every control of a claim gives, over its trainings."""
    found: dict[str, list[float]] = {}
    for panel in claim["panels"]:
        for name, control in panel["controls"].items():
            found.setdefault(name, []).append(control["values"][0])
    shown = claim["shown"].split(" ")[0]
    return [f"{name} {between(min(values), max(values), shown)}" for name, values in found.items()]


def _verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """The verdict of a line, and of how many claims where they differ."""
    verdicts = [claim["verdict"] for claim in claims]
    if len(set(verdicts)) == 1:
        return str(verdicts[0])
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts)
