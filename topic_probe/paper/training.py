"""Settings of recipes, and what training them gives."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from topic_probe.topics import Topics
from topic_probe.toy.masking import Loss
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.theory.losses import RegimeName
from topic_probe.toy.world import World
from topic_probe.train.bert import TextConfig, build_bert
from topic_probe.train.history import History, OptimizerName, TrainConfig
from topic_probe.train.loop import Measure, train_toys

if TYPE_CHECKING:
    from topic_probe.train.text import TrainingText

Pair = tuple[Loss, OptimizerName]
CE_SGD: Pair = ("cross_entropy", "sgd")
CE_ADAM: Pair = ("cross_entropy", "adam")
SQ_SGD: Pair = ("squared", "sgd")
SQ_ADAM: Pair = ("squared", "adam")
PAIRS = (CE_SGD, CE_ADAM, SQ_SGD, SQ_ADAM)
"""Loss and optimizer of the four panels of Figures 1, 2 and 10, from left to right."""

PAPER_RATE = 0.01
OF_TOY = ("noise", "init", "world", "n_layers", "n_heads", "residual")
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
        control: What is broken in it, where it is there so that claims fail; empty where it is what is claimed of.
    """

    name: str
    toy: ToyConfig | TextConfig
    train: TrainConfig
    seed: int = 0
    seconds: float = nan
    control: str = ""

    @property
    def label(self) -> str:
        """Its name with what is broken and the seed: no other training of the recipe has the same."""
        return ", ".join(part for part in (self.name, self.control, f"seed {self.seed}") if part)

    @property
    def pair(self) -> Pair:
        """Loss and optimizer."""
        return self.train.loss, self.train.optimizer

    @property
    def regime(self) -> str:
        """What of a toy is trained."""
        assert isinstance(self.toy, ToyConfig)
        return self.toy.regime

    @property
    def world(self) -> World:
        """Where the documents of a toy come from."""
        assert isinstance(self.toy, ToyConfig)
        return self.train.world or self.toy.world

    @property
    def topics(self) -> Topics:
        """What belongs together in the world that a toy is for, whatever it is trained on; one topic for every word."""
        assert isinstance(self.toy, ToyConfig)
        return self.toy.world.blocks

    def shifted(self, seed: int) -> "Setting":
        """The same with other random numbers."""
        train = replace(self.train, seed=self.train.seed + seed)
        return replace(self, seed=self.seed + seed, train=train)


def pair_setting(
    regime: RegimeName, pair: Pair, steps: int, *, seconds: float, suffix: str = "", **changes: Any
) -> Setting:
    """A regime trained with a loss and an optimizer, at the paper's rate of 0.01 unless ``changes`` says otherwise.

    ``changes`` are fields of `TrainConfig`, or of `ToyConfig` those in ``OF_TOY``.
    """
    of_toy = {name: changes.pop(name) for name in OF_TOY if name in changes}
    loss, optimizer = pair
    given = {"learning_rate": PAPER_RATE, "record_every": max(1, steps // ROWS), **changes}
    return Setting(
        name=f"{regime}, {NAMES[loss]}, {NAMES[optimizer]}{suffix}",
        toy=ToyConfig(regime=regime, **of_toy),
        train=TrainConfig(loss=loss, optimizer=optimizer, steps=steps, **given),
        seconds=seconds,
    )


@dataclass(frozen=True, eq=False)
class Trained:
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
        """The trained model, which stays as it is: it is the same one until that of another training is asked for."""
        return _model_of(self)


@lru_cache(maxsize=1)
def _model_of(trained: Trained) -> nn.Module:
    # What a training is asked for, it is asked for in a row, and hooking a model takes longer than some of the answers.
    return trained.history.model()


@dataclass(frozen=True)
class Control:
    """Something broken, so that claims about what was broken must fail there.

    Attributes:
        name: What is broken.
        train: From a setting to the one that is trained in its place, or to None where there is nothing to break; None:
            what was trained already is measured.
        topics: From the topics that are measured to those that are measured in their place, of which the median counts;
            None: the same.
    """

    name: str
    train: Callable[[Setting], Setting | None] | None = None
    topics: Callable[[Topics], Sequence[Topics]] | None = None


def choose(settings: Sequence[Setting], only: Collection[str] | None) -> tuple[Setting, ...]:
    """The settings that are wanted, in their order."""
    known = [setting.name for setting in settings]
    for name in sorted(set(only or ()) - set(known)):
        raise ValueError(f"no setting {name!r} in this recipe; there are: {'; '.join(known)}")
    return tuple(setting for setting in settings if only is None or setting.name in only)


def train_all(
    settings: Iterable[Setting],
    *,
    text: "TrainingText | None" = None,
    folder: Path | None = None,
    progress: bool | None = None,
    watch: Mapping[str, Measure] | None = None,
) -> tuple[Trained, ...]:
    """Every setting trained, in order: BERTs on the text if there is one, else toys, seeds and worlds side by side.

    With a folder each training leaves a checkpoint there, continues where an earlier call was stopped (one on text is
    kept when it is finished), and is not repeated by another recipe that has the same setting. What is to be watched of
    toys, at the steps that their settings say, is in ``History.measured``; settings that have such steps belong to one
    recipe.
    """
    if text is not None:
        return tuple(_train_bert(setting, text, folder, progress=progress) for setting in settings)
    return tuple(_train_toys(tuple(settings), folder, watch, progress=progress))


def _train_toys(
    settings: Sequence[Setting],
    folder: Path | None,
    watch: Mapping[str, Measure] | None,
    *,
    progress: bool | None,
) -> Iterator[Trained]:
    start, paths = time.perf_counter(), [_checkpoint(setting, folder) for setting in settings]
    kept = [path is not None and path.exists() for path in paths]
    models = [
        build_toy(setting.toy, seed=setting.seed)
        for setting in settings
        if isinstance(setting.toy, ToyConfig)
    ]
    configs = [setting.train for setting in settings]
    histories = train_toys(
        models, configs, measure=watch, checkpoints=paths, checkpoint_every=20_000, progress=progress
    )
    for setting, history in zip(settings, histories, strict=True):
        _end_if_interrupted(setting, history)
    # Together they take what they take; a training that was finished before took nothing now.
    steps = [0 if done else setting.train.steps for setting, done in zip(settings, kept, strict=True)]
    seconds = time.perf_counter() - start
    for setting, history, own in zip(settings, histories, steps, strict=True):
        yield Trained(setting, history, seconds * own / max(1, sum(steps)))


def _train_bert(
    setting: Setting, text: "TrainingText", folder: Path | None, *, progress: bool | None
) -> Trained:
    from topic_probe.train.text import train_text

    assert isinstance(setting.toy, TextConfig)
    facts = {"toy": setting.toy.to_dict(), "train": setting.train.to_dict(), "seed": setting.seed}
    facts["text"] = text.fingerprint
    kept = None if folder is None else folder / f"{slug(setting.name)}-{digest(facts)[:10]}"
    if kept is not None and kept.exists():
        return Trained(setting, History.load(kept), 0.0)
    start = time.perf_counter()
    history = train_text(build_bert(setting.toy, seed=setting.seed), text, setting.train, progress=progress)
    _end_if_interrupted(setting, history)
    if kept is not None:
        history.save(kept)
    return Trained(setting, history, time.perf_counter() - start)


def _checkpoint(setting: Setting, folder: Path | None) -> Path | None:
    if folder is None:
        return None
    facts = {"toy": setting.toy.to_dict(), "train": setting.train.to_dict(), "seed": setting.seed}
    return folder / f"{slug(setting.name)}-{digest(facts)[:10]}.safetensors"


def _end_if_interrupted(setting: Setting, history: History) -> None:
    if history.last_step < setting.train.steps and history.stopped.startswith("interrupted"):
        end_if_stopped(setting.label, history.stopped)


def end_if_stopped(what: str, stopped: str | None) -> None:
    """An interruption ends the recipe; with a folder the next call goes on from it."""
    if stopped:
        raise KeyboardInterrupt(f"{what}: {stopped}")


def digest(facts: Any) -> str:
    """A name for what depends on these facts, which are plain values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def slug(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
