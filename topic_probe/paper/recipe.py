"""What a recipe is, the one way in which all are run, and what comes out: claims, with all that they were made from."""

import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from topic_probe.options import refuse_unknown
from topic_probe.paper.claims import Claim, claims_table, claims_to_dataframe, ordered, summary
from topic_probe.paper.training import Control, Setting, Trained, choose, digest, slug
from topic_probe.report import Report
from topic_probe.storage import draft, seal

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

R = TypeVar("R", bound=Report)

CONTROL_SEEDS = 2
"""How many times a control is trained: it has to be seen to fail, not to be known well."""


@dataclass(frozen=True)
class Recipe:
    """A figure or table of the paper: its settings, what is measured, its claims and its figures.

    Attributes:
        name: That of its module.
        title: What the paper shows there.
        source: Where it shows it, and where claims have their words that say nothing else.
        measure: From a `Run`, and keyword-only options of the recipe's own, to a result without claims.
        claims: Functions from what was measured to claims, in the order in which they are shown. They look at nothing
            else, so that the same claims can be made of anything else that is measured in the same way.
        figures: From the result to its figures by name.
        settings: What is trained; empty where nothing is.
        quick_settings: What the quick variant trains.
        controls: What is trained and measured beside it, so that claims fail there.
        quick_controls: Those of the quick variant; None: the same.
        seeds: How many times every setting is trained, with other documents and another initialisation each.
        quick_seeds: How many times in the quick variant.
    """

    name: str
    title: str
    source: str
    measure: "Callable[..., RecipeResult]"
    claims: "tuple[Callable[[RecipeResult], Iterable[Claim]], ...]"
    figures: "Callable[[RecipeResult], Mapping[str, Figure]]"
    settings: tuple[Setting, ...] = ()
    quick_settings: tuple[Setting, ...] = ()
    controls: tuple[Control, ...] = ()
    quick_controls: tuple[Control, ...] | None = None
    seeds: int = 5
    quick_seeds: int = 3

    def trainings(self, quick: bool) -> tuple[Setting, ...]:
        """The settings of a variant."""
        return self.quick_settings if quick else self.settings

    @property
    def options(self) -> tuple[str, ...]:
        """The names of all options that `run_recipe` takes for this recipe."""
        return (*_keywords(run_recipe), *_keywords(self.measure))


@dataclass(frozen=True)
class Run:
    """A recipe with the options that all recipes have, as `run_recipe` was given them."""

    recipe: Recipe
    quick: bool = False
    only: frozenset[str] | None = None
    seed: int = 0
    folder: Path | None = None
    progress: bool | None = None

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What is claimed of, for the first seed."""
        chosen = choose(self.recipe.trainings(self.quick), self.only)
        return tuple(setting.shifted(self.seed) for setting in chosen)

    @property
    def trainings(self) -> tuple[Setting, ...]:
        """What is to be trained: every setting with every seed, and broken as the controls say."""
        return tuple(
            setting
            for first in self.settings
            for setting in (
                *(first.shifted(seed) for seed in range(self.seeds)),
                *(broken.shifted(seed) for broken in self._broken(first) for seed in range(CONTROL_SEEDS)),
            )
        )

    def _broken(self, setting: Setting) -> Iterator[Setting]:
        """A setting as the controls train it."""
        for control in self.controls:
            broken = None if control.train is None else control.train(setting)
            if broken is not None:
                yield replace(broken, control=control.name)

    @property
    def controls(self) -> tuple[Control, ...]:
        """What is broken beside what is claimed of."""
        quick = self.recipe.quick_controls if self.quick else None
        return self.recipe.controls if quick is None else quick

    @property
    def seeds(self) -> int:
        """How many times a setting is trained."""
        return self.recipe.quick_seeds if self.quick else self.recipe.seeds

    def kept_at(self, kind: str, facts: Sequence[Any]) -> Path | None:
        """Where something measured is kept, which depends on these facts; None without a folder."""
        return None if self.folder is None else self.folder / "measured" / f"{kind}-{digest(facts)}"

    def result(self, reports: Iterable[tuple[str, Report]] = (), **measured: Any) -> "RecipeResult":
        """What was measured, still without claims; reports come with the names of their settings."""
        by_kind: dict[str, dict[str, Report]] = {}
        for setting, report in reports:
            by_kind.setdefault(report.kind, {})[setting] = report
        recipe = self.recipe
        return RecipeResult(
            recipe.name,
            recipe.title,
            self.quick,
            claims=(),
            reports=by_kind,
            draw=recipe.figures,
            source=recipe.source,
            **measured,
        )


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A pretrained model that a setting is about, or a reason why there is nothing to measure.

    Attributes:
        label: What it is called in tables.
        random: Whether it is the untrained twin of a model.
        threshold: At which its topics were chosen; NaN where none is.
        missing: Why it was not measured, and what to do about it; empty if it was.
    """

    label: str = ""
    random: bool = False
    threshold: float = nan
    missing: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class RecipeResult:
    """A figure or table of the paper, reproduced.

    Attributes:
        recipe: Its name.
        title: What the paper shows there.
        quick: Whether it is the quick variant.
        claims: What must be seen, checked; what does not hold comes first.
        runs: What was trained, every setting with every seed and the controls, in order; empty where nothing is.
        reports: What was measured, kind → setting → report: ``result.reports["agreement"][setting]``.
        tables: The numbers side by side, name → rows: plain values (text, numbers, None) by column.
        seconds: How long everything took.
        draw: The function of the recipe that makes its figures, name → figure; None if it has none.
        source: Where the paper shows it.
        subjects: What a setting that is not trained is about, and what could not be measured, in order.
    """

    recipe: str
    title: str
    quick: bool
    claims: tuple[Claim, ...]
    runs: tuple[Trained, ...] = ()
    reports: Mapping[str, Mapping[str, Report]] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    seconds: float = nan
    draw: "Callable[[RecipeResult], Mapping[str, Figure]] | None" = None
    source: str = ""
    subjects: Mapping[str, Subject] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every claim that was checked holds, and is evidence."""
        counts = summary(self.claims)
        return counts["holds"] + counts["not checked"] == len(self.claims)

    @property
    def shown_runs(self) -> tuple[Trained, ...]:
        """The training of every setting with the first of its seeds, as figures show it; no controls."""
        first: dict[str, Trained] = {}
        for trained in self.runs:
            if not trained.setting.control:
                first.setdefault(trained.setting.name, trained)
        return tuple(first.values())

    def run(self, name: str) -> Trained:
        """The training of a setting by its name, that of the first seed."""
        for trained in self.shown_runs:
            if trained.setting.name == name:
                return trained
        raise KeyError(f"no setting {name!r}; there are {', '.join(t.setting.name for t in self.shown_runs)}")

    def of(self, kind: type[R]) -> dict[str, R]:
        """The reports of a kind by their settings, empty where it has none."""
        reports = self.reports.get(kind.kind, {})
        return {setting: report for setting, report in reports.items() if isinstance(report, kind)}

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every claim."""
        return claims_to_dataframe(self.claims)

    def table(self, name: str) -> "pd.DataFrame":
        """One of the tables by its name."""
        import pandas as pd

        if name not in self.tables:
            raise KeyError(f"no table {name!r}; there are {', '.join(self.tables) or 'none'}")
        return pd.DataFrame(list(self.tables[name]))

    def figures(self) -> dict[str, "Figure"]:
        """The figures of the recipe by name, drawn from what was trained and measured; empty if it has none."""
        return {} if self.draw is None else dict(self.draw(self))

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in summary(self.claims).items() if count)
        kind = " (quick variant)" if self.quick else ""
        head = f"{self.recipe}{kind}: {self.title}\n{counts}, in {self.seconds:.0f} s"
        return f"{head}\n\n{claims_table(self.claims)}"

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """A folder with the claims (JSON and text), tables, figures, and a folder for every history and report.

        ``claims.json``, ``claims.txt``, ``tables/NAME.json`` and ``.csv``, ``figures/NAME.svg`` and ``.png``,
        ``histories/SETTING``, ``reports/KIND/SETTING``, and ``saved.json`` with the checksums of all. It is whole or
        absent, and takes the place of an earlier result only with ``overwrite=True``.
        """
        with draft(directory, overwrite=overwrite) as folder:
            about = {"recipe": self.recipe, "title": self.title, "quick": self.quick}
            seconds = self.seconds if isfinite(self.seconds) else None
            claims = [claim.to_dict() for claim in self.claims]
            content = {**about, "seconds": seconds, "claims": claims}
            text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
            (folder / "claims.json").write_text(text, encoding="utf-8")
            (folder / "claims.txt").write_text(f"{self!r}\n", encoding="utf-8")
            for trained in self.runs:
                trained.history.save(folder / "histories" / slug(trained.setting.label))
            for kind, reports in self.reports.items():
                for name, report in reports.items():
                    report.save(folder / "reports" / kind / slug(name))
            self._save_tables(folder / "tables")
            self._save_figures(folder / "figures")
            seal(folder, "recipe", about)
        return Path(directory).expanduser()

    def _save_tables(self, folder: Path) -> None:
        for name in self.tables:
            folder.mkdir(exist_ok=True)
            frame = self.table(name)
            text = frame.to_json(orient="records", indent=1, force_ascii=False, double_precision=15)
            (folder / f"{slug(name)}.json").write_text(text, encoding="utf-8")
            frame.to_csv(folder / f"{slug(name)}.csv", index=False)

    def _save_figures(self, folder: Path) -> None:
        from matplotlib import pyplot

        from topic_probe.show.style import svg_of

        for name, figure in self.figures().items():
            folder.mkdir(exist_ok=True)
            (folder / f"{slug(name)}.svg").write_bytes(svg_of(figure))
            figure.savefig(folder / f"{slug(name)}.png", bbox_inches="tight", dpi=150)
            pyplot.close(figure)


def run_recipe(
    recipe: Recipe,
    *,
    quick: bool = False,
    only: Iterable[str] | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool | None = None,
    **options: Any,
) -> RecipeResult:
    """Train and measure what a recipe says, and check its claims.

    Args:
        recipe: what to run.
        quick: the quick variant: small and short settings, some seconds.
        only: names of settings, or labels of pretrained models, in place of all; a claim about two settings needs both.
        seed: added to all seeds: of documents, initialisations, topics, untrained twins and intervals.
        folder: where histories of finished trainings, fits and reports are kept, so that what is done is not repeated.
        progress: show progress bars; by default in a terminal or a notebook.
        **options: those of the recipe's own ``measure``.
    """
    refuse_unknown(recipe.name, options, recipe.options)
    start = time.perf_counter()
    run = Run(
        recipe,
        quick,
        None if only is None else frozenset(only),
        seed,
        None if folder is None else Path(folder).expanduser(),
        progress,
    )
    measured = recipe.measure(run, **options)
    made = (claim for check in recipe.claims for claim in check(measured))
    claims = ordered(replace(claim, source=claim.source or recipe.source) for claim in made)
    return replace(measured, claims=tuple(claims), seconds=time.perf_counter() - start)


def _keywords(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
