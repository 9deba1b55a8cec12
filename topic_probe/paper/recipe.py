"""What all recipes share: a setting, what was trained in it, and a result of checked claims."""

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from topic_probe.paper.claims import Claim, claims_table, claims_to_dataframe, summary
from topic_probe.report import Report
from topic_probe.toy.masking import Loss
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.theory.losses import RegimeName
from topic_probe.toy.world import World
from topic_probe.train.bert import TextConfig, build_bert
from topic_probe.train.history import History, OptimizerName, TrainConfig
from topic_probe.train.loop import train_text, train_toy
from topic_probe.train.tasks import TrainingText

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Pair = tuple[Loss, OptimizerName]
PAIRS: tuple[Pair, ...] = (
    ("cross_entropy", "sgd"),
    ("cross_entropy", "adam"),
    ("squared", "sgd"),
    ("squared", "adam"),
)
"""Loss and optimizer of the four panels of Figures 1, 2 and 10, from left to right."""

PAPER_RATE = 0.01
NAMES = {"cross_entropy": "cross-entropy", "squared": "squared", "sgd": "SGD", "adam": "Adam"}
ROWS = 2000
"""Rows that a history of a recipe has at most, however long the training."""


@dataclass(frozen=True)
class Setting:
    """One training of a recipe.

    Attributes:
        name: Unique within the recipe.
        toy: The model, a toy or a BERT that is trained on text.
        train: The training.
        seed: Of the initialisation.
        seconds: What the training took when it was measured, on one core of a two-core machine.
    """

    name: str
    toy: ToyConfig | TextConfig
    train: TrainConfig
    seed: int = 0
    seconds: float = nan

    @property
    def pair(self) -> Pair:
        """Loss and optimizer."""
        return self.train.loss, self.train.optimizer

    @property
    def world(self) -> World:
        """Where the documents of a toy come from."""
        assert isinstance(self.toy, ToyConfig)
        return self.train.world or self.toy.world

    def shifted(self, seed: int) -> "Setting":
        """The same with other random numbers."""
        train = replace(self.train, seed=self.train.seed + seed)
        return replace(self, seed=self.seed + seed, train=train)


def pair_setting(
    regime: RegimeName,
    pair: tuple[Loss, OptimizerName],
    steps: int,
    *,
    seconds: float,
    suffix: str = "",
    **changes: Any,
) -> Setting:
    """A regime trained with a loss and an optimizer, at the paper's rate of 0.01 unless ``changes`` says otherwise.

    ``changes`` are fields of `TrainConfig`, or ``noise``, ``init`` and ``world`` of `ToyConfig`.
    """
    of_toy = {name: changes.pop(name) for name in ("noise", "init", "world") if name in changes}
    loss, optimizer = pair
    given = {"learning_rate": PAPER_RATE, "record_every": max(1, steps // ROWS), **changes}
    return Setting(
        name=f"{regime}, {NAMES[loss]}, {NAMES[optimizer]}{suffix}",
        toy=ToyConfig(regime=regime, **of_toy),
        train=TrainConfig(loss=loss, optimizer=optimizer, steps=steps, **given),
        seconds=seconds,
    )


@dataclass(frozen=True, eq=False)
class TrainedToy:
    """What came out of a setting.

    Attributes:
        setting: What was trained.
        history: Losses, norms, and the tensors at the end.
        seconds: How long the training took, 0 if it was read from a checkpoint.
    """

    setting: Setting
    history: History
    seconds: float

    def model(self) -> nn.Module:
        """The trained model, a new one at every call."""
        return self.history.model()


@dataclass(frozen=True, eq=False, repr=False)
class RecipeResult:
    """A figure or table of the paper, reproduced.

    Attributes:
        recipe: Its name.
        title: What the paper shows there.
        quick: Whether it is the quick variant.
        claims: What must be seen, checked.
        runs: What was trained, in order; empty where nothing is.
        reports: What was measured, kind → setting → report: ``result.reports["agreement"][setting]``.
        tables: The numbers side by side, name → rows: plain values (text, numbers, None) by column.
        seconds: How long everything took.
        draw: The function of the recipe that makes its figures, name → figure; None if it has none.
    """

    recipe: str
    title: str
    quick: bool
    claims: tuple[Claim, ...]
    runs: tuple[TrainedToy, ...] = ()
    reports: Mapping[str, Mapping[str, Report]] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    seconds: float = nan
    draw: "Callable[[RecipeResult], Mapping[str, Figure]] | None" = None

    @property
    def passed(self) -> bool:
        """Whether no claim failed; claims that were not checked do not count."""
        return summary(self.claims)["failed"] == 0

    def run(self, name: str) -> TrainedToy:
        """The training of a setting by its name."""
        for trained in self.runs:
            if trained.setting.name == name:
                return trained
        raise KeyError(f"no setting {name!r}; there are {', '.join(t.setting.name for t in self.runs)}")

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

    def save(self, directory: str | Path) -> Path:
        """A new folder with the claims (JSON and text), tables, figures, and a folder for every history and report.

        ``claims.json``, ``claims.txt``, ``tables/NAME.json`` and ``.csv``, ``figures/NAME.svg`` and ``.png``,
        ``histories/SETTING``, ``reports/KIND/SETTING``. It is whole or absent.
        """
        target = Path(directory).expanduser()
        if target.exists():
            raise FileExistsError(f"{target} exists and is not overwritten: choose another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            about = {"recipe": self.recipe, "title": self.title, "quick": self.quick, "seconds": self.seconds}
            content = {**about, "claims": [claim.to_dict() for claim in self.claims]}
            (draft / "claims.json").write_text(
                json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8"
            )
            (draft / "claims.txt").write_text(f"{self!r}\n", encoding="utf-8")
            for trained in self.runs:
                trained.history.save(draft / "histories" / slug(trained.setting.name))
            for kind, reports in self.reports.items():
                for name, report in reports.items():
                    report.save(draft / "reports" / kind / slug(name))
            self._save_tables(draft / "tables")
            self._save_figures(draft / "figures")
            draft.chmod(0o755)
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return target

    def _save_tables(self, folder: Path) -> None:
        for name in self.tables:
            folder.mkdir(exist_ok=True)
            frame = self.table(name)
            text = frame.to_json(orient="records", indent=1, force_ascii=False, double_precision=15)
            (folder / f"{slug(name)}.json").write_text(text, encoding="utf-8")
            frame.to_csv(folder / f"{slug(name)}.csv", index=False)

    def _save_figures(self, folder: Path) -> None:
        from matplotlib import pyplot

        for name, figure in self.figures().items():
            folder.mkdir(exist_ok=True)
            for kind in ("svg", "png"):
                figure.savefig(folder / f"{slug(name)}.{kind}", bbox_inches="tight", dpi=150)
            pyplot.close(figure)


def slug(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def choose(settings: Sequence[Setting], only: Iterable[str] | None, seed: int) -> tuple[Setting, ...]:
    """The settings that are wanted, in their order, with the wanted random numbers."""
    wanted = None if only is None else set(only)
    unknown = (wanted or set()) - {setting.name for setting in settings}
    if unknown:
        known = "; ".join(setting.name for setting in settings)
        raise ValueError(f"no setting {sorted(unknown)[0]!r} in this recipe; there are: {known}")
    kept = [setting for setting in settings if wanted is None or setting.name in wanted]
    return tuple(setting.shifted(seed) for setting in kept)


def train_all(
    settings: Iterable[Setting],
    *,
    text: TrainingText | None = None,
    folder: str | Path | None = None,
    progress: bool = False,
) -> dict[str, TrainedToy]:
    """Every setting trained, by name; those of a BERT on the text.

    With a folder each training leaves a checkpoint there, continues where an earlier call was stopped, and is not
    repeated by another recipe that has the same setting.
    """
    return {setting.name: _train(setting, text, folder, progress=progress) for setting in settings}


def _train(
    setting: Setting, text: TrainingText | None, folder: str | Path | None, *, progress: bool
) -> TrainedToy:
    start = time.perf_counter()
    path = (
        None
        if folder is None
        else Path(folder).expanduser() / f"{slug(setting.name)}-{_digest(setting, text)}.safetensors"
    )
    finished_before = path is not None and path.exists()
    if isinstance(setting.toy, TextConfig):
        model = build_bert(setting.toy, seed=setting.seed)
        history = train_text(model, text, setting.train, checkpoint=path, progress=progress)
    else:
        model = build_toy(setting.toy, seed=setting.seed)
        history = train_toy(model, setting.train, checkpoint=path, checkpoint_every=20_000, progress=progress)
    if history.last_step < setting.train.steps and history.stopped.startswith("interrupted"):
        raise KeyboardInterrupt(f"{setting.name}: {history.stopped}")
    seconds = time.perf_counter() - start
    return TrainedToy(setting, history, 0.0 if finished_before and seconds < 5 else seconds)


def _digest(setting: Setting, text: TrainingText | None) -> str:
    content = {"toy": setting.toy.to_dict(), "train": setting.train.to_dict(), "seed": setting.seed}
    if text is not None:
        content["text"] = text.fingerprint
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]
