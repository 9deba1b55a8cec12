"""One training loop for every regime of the toy transformer."""

import hashlib
import inspect
import json
import math
import os
import signal
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from topic_probe.notices import progress_bar, warn
from topic_probe.options import checked
from topic_probe.storage import draft
from topic_probe.toy.model import stands_for
from topic_probe.train.history import History, Series, TrainConfig, under
from topic_probe.train.stack import ToyStack, alike, source
from topic_probe.train.tasks import Task, ToyTask

Measure = Callable[[nn.Module], Any] | Callable[[int, nn.Module], Any]
_Functions = Mapping[str, Callable[[int, nn.Module], Any]]

ROTATION_LAG = 10  # Figure 5 compares W_V with itself ten steps before
CHECKPOINT_FORMAT = "topic_probe toy training 1"


@checked
def train_toy(
    model: nn.Module,
    config: TrainConfig,
    *,
    measure: Measure | Mapping[str, Measure] | None = None,
    log: Callable[[int, dict[str, float]], None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 5000,
    progress: bool | None = None,
) -> History:
    """Train a toy transformer in place and return what happened.

    The loss is the mean over documents (those with anything masked) of the mean loss over the masked positions.

    Ctrl-C ends the training after the step under way and returns the history so far; a second Ctrl-C raises. A loss
    that is not finite ends it too, with model and history at the last state that had a finite loss. Both are said
    in ``History.stopped``.

    Args:
        model: From :func:`topic_probe.toy.model.build_toy`. The parameters that require a gradient are trained.
        config: How to train.
        measure: Called with the model, or, if it takes two arguments, with the step and the model (a `TopicProbe`), at
            the steps the config says (the first and the last at least). Returns a number, an array, or a mapping of
            names to those; a mapping of functions gives each a name.
        log: Called with the step and the row of the history, for every row.
        checkpoint: A file to continue from if it exists, and to write to. Training that was stopped and continued
            ends in exactly the state of one that was not; only ``steps`` may differ.
        checkpoint_every: Steps between two writings; also at the end and on Ctrl-C.
        progress: Show a progress bar; by default in a terminal or a notebook.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world, init="near-zero", noise=0.0))
        >>> history = tp.train_toy(toy, tp.TrainConfig(loss="squared", learning_rate=0.1, steps=20))
        >>> float(history.loss[0])  # of a W_V of zeros: the squared length of a one-hot word
        1.0
        >>> bool(history.loss[-1] < 0.8), history.stopped
        (True, 'finished')
    """
    runs = [_Run(ToyTask(model, config), config, checkpoint, checkpoint_every)]
    return _train_all(runs, measure, log, progress=progress)[0]


@checked
def train_toys(
    models: Sequence[nn.Module],
    configs: Sequence[TrainConfig],
    *,
    measure: Measure | Mapping[str, Measure] | None = None,
    checkpoints: Sequence[str | Path | None] | None = None,
    checkpoint_every: int = 5000,
    progress: bool | None = None,
) -> tuple[History, ...]:
    """Train toys in place, those that are alike side by side, and return what happened to each.

    What `train_toy` would return for each, but for rounding, in less time: toys that differ in nothing but their
    seeds, the values of their tensors, and the world and masking of their documents have one computation of losses,
    gradients and updates. Others are trained one after another: those of another regime or size, with another loss,
    optimizer or number of steps, at another step of their checkpoints, and those that the lean form cannot express.

    Ctrl-C ends all of them after the step under way; those whose turn has not come stay where they are. One that
    diverges stops by itself.

    Args:
        models: From :func:`topic_probe.toy.model.build_toy`, one for each training.
        configs: How to train each.
        measure: As in `train_toy`, called with one model after another.
        checkpoints: A file for each, or None for one without. They are those of `train_toy`: either goes on where the
            other has stopped.
        checkpoint_every: Steps between two writings.
        progress: Show a progress bar for each of the groups that are trained side by side; by default in a
            terminal or a notebook.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toys = [tp.build_toy(tp.ToyConfig(regime="value", world=world), seed=seed) for seed in range(5)]
        >>> histories = tp.train_toys(toys, [tp.TrainConfig(steps=20, seed=seed) for seed in range(5)])
        >>> [history.last_step for history in histories]
        [20, 20, 20, 20, 20]
    """
    paths = [None] * len(models) if checkpoints is None else list(checkpoints)
    if not len(models) == len(configs) == len(paths):
        raise ValueError(
            f"needed a config for each model, and a checkpoint for each or none at all; got {len(models)} models, "
            f"{len(configs)} configs and {len(paths)} checkpoints"
        )
    for what, given in (
        ("model", list(map(id, models))),
        ("checkpoint", [p for p in paths if p is not None]),
    ):
        if len(set(given)) < len(given):
            raise ValueError(f"two trainings have the same {what}; give each its own")
    runs = [
        _Run(ToyTask(model, config), config, path, checkpoint_every)
        for model, config, path in zip(models, configs, paths, strict=True)
    ]
    return _train_all(runs, measure, None, progress=progress)


def _train_all(
    runs: "Sequence[_Run]",
    measure: Measure | Mapping[str, Measure] | None,
    log: Callable[[int, dict[str, float]], None] | None,
    *,
    progress: bool | None,
) -> "tuple[History, ...]":
    """Every run trained, those that can be side by side."""
    functions = _functions(measure)
    _take_up(runs)
    with _interrupts() as interrupt:
        for group in _groups(runs):
            if any(run.interrupted for run in runs):
                for run in group:
                    run.interrupt()
                continue
            together = group[0] if len(group) == 1 else _Stack(group)
            try:
                _train(together, functions, log, interrupt, progress=progress)
            finally:
                for run in group:
                    run.task.leave_stack()
    return tuple(run.history() for run in runs)


def _groups(runs: "Sequence[_Run]") -> "list[list[_Run]]":
    """Runs that can be trained side by side, in an order in which those that draw from one source stand together."""
    groups: dict[Any, dict[Any, list[_Run]]] = {}
    for i, run in enumerate(runs):
        task = run.task
        common = alike(task) if isinstance(task, ToyTask) else None
        if common is None:
            groups[i] = {None: [run]}
        else:
            assert isinstance(task, ToyTask)
            groups.setdefault((common, run.step), {}).setdefault(source(task), []).append(run)
    return [[run for own in by_source.values() for run in own] for by_source in groups.values()]


def _train(
    together: "_Run | _Stack",
    functions: _Functions,
    log: Callable[[int, dict[str, float]], None] | None,
    interrupt: "_Interrupt",
    *,
    progress: bool | None,
) -> None:
    """The loop, for one run or for several in step."""
    config, active = together.config, together.active
    with progress_bar(total=config.steps, initial=together.step, unit="step", shown=progress) as bar:
        try:
            while True:
                for run in active:
                    run.mark()
                together.evaluate()
                for run in active:
                    # Written only now, so that a checkpoint never holds a state whose loss is not finite.
                    run.save_if_due(active)
                    row = run.recorder.record(run.step, run.loss, run.gradients)
                    if row is not None and log is not None:
                        log(run.step, row)
                    if functions and config.measures(run.step):
                        run.measure(functions)
                if not active or together.step == config.steps:
                    break
                together.update()
                bar.update()
                if interrupt.requested:
                    for run in active:
                        run.stopped = f"interrupted after step {run.step} of {config.steps}"
                        run.mark()
                    break
        except KeyboardInterrupt:
            if interrupt.requested:
                raise
            # From a callback: the state is that of the step's beginning.
            for run in active:
                run.interrupt()
        for run in active:
            if run.interrupted:
                run.save(active)


def _take_up(runs: "Sequence[_Run]") -> None:
    """Every run goes on from its checkpoint, those that were saved together from where all of them had been saved.

    How a sum of several toys rounds depends on which toys these are. Where a kill has come between the files of toys
    side by side, those that were written go back to what they held before.
    """
    kept = {run: _read_checkpoint(run.path) for run in runs if run.path is not None and run.path.exists()}
    steps = {run.path: kept[run][0]["step"] if run in kept else 0 for run in runs}
    for run, (about, tensors) in kept.items():
        assert run.path is not None
        beside = [run.path.with_name(name) for name in about.get("beside", ())]
        behind = [path for path in beside if steps.get(path, about["step"]) < about["step"]]
        before = about.get("before")
        if not behind or any(steps[path] != (before["step"] if before else 0) for path in behind):
            run.load(about, tensors)
        elif before:
            run.load(before, under("before.", tensors))


class _Run:
    """A training under way: the state at one step, and everything recorded so far."""

    def __init__(self, task: Task, config: TrainConfig, checkpoint: str | Path | None, checkpoint_every: int):
        self.task, self.config = task, config
        self.path = None if checkpoint is None else Path(checkpoint)
        self.checkpoint_every = checkpoint_every
        if checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1 step, got {checkpoint_every}")
        if not task.trained:
            raise ValueError("every tensor of the model is frozen; name some in ToyConfig(trained=...)")
        self.trained = [task.tensors[name] for name in task.trained]
        self.optimizers = _optimizers(config, task)
        self.recorder = _Recorder(config, task)
        self.before = [tensor.detach().clone() for tensor in self.trained]
        self.measured: dict[str, list[tuple[int, Tensor]]] = {}
        self.first = self.step = 0
        self.stopped, self.loss = "finished", math.nan
        self.gradients: list[Tensor] = []
        self.active = [self]
        self.saved: tuple[dict[str, Any], dict[str, Tensor]] | None = None  # what the checkpoint holds

    @property
    def interrupted(self) -> bool:
        """Whether it was ended by Ctrl-C."""
        return self.stopped.startswith("interrupted")

    def interrupt(self) -> None:
        """End it here."""
        self.stopped = f"interrupted at step {self.step} of {self.config.steps}"

    def mark(self) -> None:
        """Remember what a checkpoint needs of the beginning of this step."""
        self.state = (self.task.generator.get_state(), self.task.n_empty, len(self.recorder.steps))

    def evaluate(self) -> None:
        """Loss and gradients on the batch of this step."""
        loss, gradients = self.task.fresh_loss()
        self.accept(loss.item(), gradients, self.active)

    def accept(self, loss: float, gradients: list[Tensor], active: "list[_Run]") -> None:
        """Take loss and gradients of this step; leave the active ones, at the state before, if they are not finite."""
        self.loss, self.gradients = loss, gradients
        if math.isfinite(loss):
            return
        what = f"the loss of step {self.step} is {loss}"
        if self.step == self.first:
            raise ValueError(f"{what}, before any update; look at the tensors the model starts with")
        self.step -= 1
        with torch.no_grad():
            torch._foreach_copy_(self.trained, self.before)
        self.stopped = f"diverged: {what}; the model is back at step {self.step} (try a lower learning_rate)"
        self.task.leave_stack()
        active.remove(self)

    def measure(self, functions: _Functions) -> None:
        """Call the user's functions and keep what they return."""
        self.task.update_model()
        for prefix, function in functions.items():
            for name, value in _numbers(prefix, function(self.step, self.task.model)):
                series = self.measured.setdefault(name, [])
                if series and series[0][1].shape != value.shape:
                    raise ValueError(
                        f"measure returned {name} of shape {tuple(value.shape)} at step {self.step}, after "
                        f"{tuple(series[0][1].shape)} before; return the same shape at every step"
                    )
                series.append((self.step, value))

    def update(self) -> None:
        """One step of the optimizers."""
        _update(self, self.task.trained)
        self.step += 1

    def history(self, *, rows: int | None = None, stopped: str | None = None) -> History:
        """What was recorded, all of it or the first rows."""
        steps, table = self.recorder.rows(rows)
        last = math.inf if rows is None else self.step - 1
        measured = {}
        for name, entries in self.measured.items():
            past = [(step, value) for step, value in entries if step <= last]
            if past:
                measured[name] = Series(torch.tensor([s for s, _ in past]), torch.stack([v for _, v in past]))
        return History(
            toy=self.task.toy,
            train=self.config,
            steps=steps,
            table=table,
            columns=self.recorder.columns,
            measured=measured,
            tensors={name: _copy(tensor) for name, tensor in self.task.tensors.items()},
            last_step=self.step,
            stopped=self.stopped if stopped is None else stopped,
            empty_batches=self.task.n_empty,
            provenance={
                **{package: version(package) for package in ("topic-probe", self.task.package, "torch")},
                "forward": self.task.forward,
                **self.task.identity,
            },
        )

    def save_if_due(self, active: "Sequence[_Run]") -> None:
        """Write a checkpoint at the end, and every so many steps, unless it has just been read there."""
        end = self.step == self.config.steps
        if (end and self.saved is None) or (
            self.step > self.first and (end or self.step % self.checkpoint_every == 0)
        ):
            self.save(active)

    def save(self, active: "Sequence[_Run]") -> None:
        """Write the state at the beginning of this step, if anywhere, whole or not at all.

        With others at its side its file keeps what it held before, until the files of all have been written.
        """
        path = self.path
        if path is None:
            return
        generator, n_empty, rows = self.state
        history, arrays = self.history(rows=rows, stopped="unfinished")._to_saved()
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        tensors["resume.generator"] = generator
        for step, units in self.recorder.directions.items():
            tensors |= {f"resume.past.{step}.{name}": unit.clone() for name, unit in units.items()}
        for optimizer in self.optimizers:
            moments = optimizer.moments()
            tensors |= {f"resume.moment.{name}": moment for name, moment in moments.items()}
        about = {"format": CHECKPOINT_FORMAT, "step": self.step, "n_empty": n_empty, "history": history}
        before, self.saved = self.saved, (about, tensors)
        if len(active) > 1:
            names = [
                run.path.name for run in active if run.path is not None and run.path.parent == path.parent
            ]
            about_before, tensors_before = before or (None, {})
            about = {**about, "beside": names, "before": about_before}
            tensors = tensors | {f"before.{name}": tensor for name, tensor in tensors_before.items()}
        try:
            _write_checkpoint(path, json.dumps(about), tensors)
        except OSError as error:
            self.saved = before
            warn(
                f"no checkpoint was written at step {self.step} ({error}); training goes on, and an earlier "
                f"{path} is as it was",
                stacklevel=3,
            )

    def load(self, about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Continue from what :meth:`save` wrote."""
        path, kept = self.path, about["history"]
        assert path is not None
        _check_same(path, "toy", kept["toy"], self.task.toy.to_dict())
        settings = {**kept["train"], "steps": self.config.steps}
        _check_same(path, "train", settings, self.config.to_dict())
        _check_same(path, "text", kept["provenance"], self.task.identity)
        if about["step"] > self.config.steps:
            raise ValueError(
                f"{path} is of step {about['step']}, beyond steps={self.config.steps}; raise steps, or train into "
                "another checkpoint file"
            )
        history = History._from_saved(kept, {name: tensor.numpy() for name, tensor in tensors.items()})
        with torch.no_grad():
            for name, value in history.tensors.items():
                self.task.tensors[name].copy_(value)
        self.first = self.step = about["step"]
        self.task.n_empty = about["n_empty"]
        self.task.generator.set_state(tensors["resume.generator"])
        for optimizer in self.optimizers:
            optimizer.load(under("resume.moment.", tensors))
        self.recorder.load(history, under("resume.past.", tensors))
        for name, series in history.measured.items():
            self.measured[name] = list(zip(series.steps.tolist(), series.values, strict=True))
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith("before.")}
        self.saved = {name: about[name] for name in ("format", "step", "n_empty", "history")}, own


class _Stack:
    """Runs of toys that are at the same step, side by side.

    The state of each is a slice of the state of all; what is not finite in one stays in its slice.

    Attributes:
        active: Those under way; the others have diverged.
    """

    def __init__(self, runs: Sequence[_Run]):
        self.runs, self.active = tuple(runs), list(runs)
        self.config, self.step = runs[0].config, runs[0].step
        self.stack = ToyStack([run.task for run in runs if isinstance(run.task, ToyTask)])
        self.trained = self.stack.trained
        self.before = [tensor.detach().clone() for tensor in self.trained]
        each = zip(*(run.optimizers for run in runs), strict=True)
        self.optimizers = [_Optimizer.joined(optimizers, self.stack.tensors) for optimizers in each]
        for i, run in enumerate(runs):
            run.trained = [tensor.detach()[i] for tensor in self.trained]
            run.before = [tensor[i] for tensor in self.before]
            run.recorder.trained = dict(zip(run.task.trained, run.trained, strict=True))

    def evaluate(self) -> None:
        """Losses and gradients on the batches of this step."""
        losses, self.gradients = self.stack.fresh_loss()
        by_run = zip(*(gradient.unbind() for gradient in self.gradients), strict=True)
        for run, loss, gradients in zip(self.runs, losses.tolist(), by_run, strict=True):
            if run in self.active:
                run.accept(loss, list(gradients), self.active)

    def update(self) -> None:
        """One step of the optimizers."""
        _update(self, self.runs[0].task.trained)
        self.step += 1
        for run in self.active:
            run.step += 1


def _update(state: _Run | _Stack, names: Sequence[str]) -> None:
    """Remember the trained tensors, and let the optimizers update them."""
    with torch.no_grad():
        torch._foreach_copy_(state.before, state.trained)
        gradients = dict(zip(names, state.gradients, strict=True))
        for optimizer in state.optimizers:
            optimizer.step(state.step, gradients)


class _Optimizer:
    """SGD or Adam with the update rules of torch.optim, without their bookkeeping around small tensors.

    Its tensors always move together: ``phases`` says in which phases of the schedule.
    """

    def __init__(self, config: TrainConfig, tensors: Mapping[str, Tensor], phases: tuple[bool, ...]):
        self.config, self.phases = config, phases
        self.names, self.tensors = list(tensors), list(tensors.values())
        adam = config.optimizer == "adam"
        self.first = [torch.zeros_like(t, requires_grad=False) for t in self.tensors] if adam else []
        self.second = [torch.zeros_like(t, requires_grad=False) for t in self.tensors] if adam else []

    @classmethod
    def joined(cls, optimizers: "Sequence[_Optimizer]", tensors: Mapping[str, Tensor]) -> "_Optimizer":
        """One for stacked tensors, whose moments those of the optimizers become slices of."""
        one = optimizers[0]
        whole = cls(one.config, {name: tensors[name] for name in one.names}, one.phases)
        whole.first = _in_slices([each.first for each in optimizers])
        whole.second = _in_slices([each.second for each in optimizers])
        return whole

    def updates(self, step: int) -> int:
        """How many updates the tensors have had by a step."""
        return sum(compress(self.config.updates(step), self.phases))

    def step(self, step: int, named: Mapping[str, Tensor]) -> None:
        """Update the tensors in place, if they move in that step, along their gradients."""
        rate, l2, count = self.config.learning_rate, self.config.l2, self.updates(step + 1)
        if count == self.updates(step):
            return
        gradients = [named[name] for name in self.names]
        if l2:  # the gradient of λ‖θ‖² is 2λθ
            gradients = list(torch._foreach_add(gradients, self.tensors, alpha=2 * l2))
        if not self.first:  # SGD
            torch._foreach_add_(self.tensors, gradients, alpha=-rate)
            return
        beta1, beta2, epsilon = 0.9, 0.999, 1e-8
        torch._foreach_lerp_(self.first, gradients, 1 - beta1)
        torch._foreach_mul_(self.second, beta2)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - beta2)
        scale = torch._foreach_sqrt(self.second)
        torch._foreach_div_(scale, (1 - beta2**count) ** 0.5)
        torch._foreach_add_(scale, epsilon)
        torch._foreach_addcdiv_(self.tensors, self.first, scale, -rate / (1 - beta1**count))

    def moments(self) -> dict[str, Tensor]:
        """The state, by name; how many updates there were follows from the step."""
        pairs = zip(self.names, self.first, self.second, strict=True) if self.first else ()
        return {f"{order}.{name}": _copy(moment) for name, *two in pairs for order, moment in enumerate(two)}

    def load(self, moments: Mapping[str, Tensor]) -> None:
        """Take the state back."""
        for order, own in enumerate((self.first, self.second)):
            for name, moment in zip(self.names, own, strict=bool(own)):
                moment.copy_(moments[f"{order}.{name}"])


def _optimizers(config: TrainConfig, task: Task) -> list[_Optimizer]:
    """One for all trained tensors; with a schedule, one for those that move in the same phases."""
    together: dict[tuple[bool, ...], dict[str, Tensor]] = {}
    for name in task.trained:
        together.setdefault(config.moves(name), {})[name] = task.tensors[name]
    for _, entries in config.schedule:
        for entry in entries:
            if not any(stands_for(entry, name) for name in task.trained):
                raise ValueError(
                    f"schedule moves {entry!r}, but trained are {', '.join(task.trained)}; leave it out, or train it "
                    "(in a toy by ToyConfig(trained=...))"
                )
    still = [name for phases, tensors in together.items() if not any(phases) for name in tensors]
    if still:
        raise ValueError(
            f"schedule never moves {', '.join(still)}; name it in a phase, or freeze it (in a toy by "
            "ToyConfig(trained=...))"
        )
    return [_Optimizer(config, tensors, phases) for phases, tensors in together.items()]


def _in_slices(lists: Sequence[list[Tensor]]) -> list[Tensor]:
    """Lists of as many tensors as one list of stacked tensors; the lists get slices of them in place of their own."""
    stacked = [torch.stack(tensors) for tensors in zip(*lists, strict=True)]
    for i, own in enumerate(lists):
        own[:] = [tensor[i] for tensor in stacked]
    return stacked


class _Recorder:
    """Rows of the history: loss, norms, how far W_V has turned in ten steps, and gradients where asked for."""

    def __init__(self, config: TrainConfig, task: Task):
        self.config = config
        self.trained = {name: task.tensors[name].detach() for name in task.trained}
        self.turning = [name for name in task.trained if name in task.watched and name.startswith("W_V")]
        self.columns = (
            "loss",
            "penalty",
            *(f"norm_{name}" for name in task.watched),
            *(f"rotation_{name}" for name in self.turning),
            *(
                f"gradient_{name}"
                for name in task.trained
                if config.record_gradients and name in task.watched
            ),
        )
        self.steps, self.values = array("q"), array("d")
        self.norms = {
            name: float(task.tensors[name].detach().norm(dtype=torch.float64)) for name in task.watched
        }
        # Unit vectors of W_V at the steps that a later row will look back to.
        self.directions: dict[int, dict[str, Tensor]] = {}

    def record(self, step: int, loss: float, gradients: list[Tensor]) -> dict[str, float] | None:
        """The row of a step, if it has one; to be called at every step."""
        has_row, kept = self.config.records(step), self.config.records(step + ROTATION_LAG)
        if not (has_row or kept):
            return None
        norms = _norms(list(self.trained.values()))
        self.norms.update(
            (name, norm) for name, norm in zip(self.trained, norms, strict=True) if name in self.norms
        )
        units = {}
        for name in self.turning:
            value = self.trained[name].to(torch.float64, copy=True).flatten()
            units[name] = value.div_(self.norms[name] if self.norms[name] > 0 else math.nan)
        if kept:
            self.directions[step] = units
        if not has_row:
            return None
        # Not popped: after an interruption this step is recorded again.
        before = self.directions.get(step - ROTATION_LAG, {})
        turned = [
            ((1 - torch.dot(units[name], before[name])) / 2).clamp(min=0).item() if before else math.nan
            for name in self.turning
        ]
        self.directions = {
            earlier: units for earlier, units in self.directions.items() if earlier >= step - ROTATION_LAG
        }
        penalty = self.config.l2 * sum(norm * norm for norm in norms)
        sizes = _norms(gradients) if self.config.record_gradients else []
        slopes = [size for name, size in zip(self.trained, sizes, strict=bool(sizes)) if name in self.norms]
        row = [loss, penalty, *self.norms.values(), *turned, *slopes]
        self.steps.append(step)
        self.values.extend(row)
        return dict(zip(self.columns, row, strict=True))

    def rows(self, n: int | None) -> tuple[Tensor, Float64[Tensor, "row column"]]:
        """Steps and table, all rows or the first n."""
        table = np.array(self.values).reshape(len(self.steps), len(self.columns))
        return torch.from_numpy(np.array(self.steps, dtype=np.int64)[:n]), torch.from_numpy(table[:n])

    def load(self, history: History, directions: Mapping[str, Tensor]) -> None:
        """Take rows and remembered W_V back."""
        self.steps = array("q", history.steps.tolist())
        self.values = array("d", history.table.flatten().tolist())
        for key, unit in directions.items():
            step, _, name = key.partition(".")
            # Copied, because a file's tensors lie anywhere, and sums depend on the alignment in their last bit.
            self.directions.setdefault(int(step), {})[name] = unit.to(self.trained[name].device, copy=True)


def _norms(tensors: list[Tensor]) -> list[float]:
    """The Frobenius norm of every tensor."""
    norms: list[float] = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64)).tolist()
    return norms


def _functions(measure: Measure | Mapping[str, Measure] | None) -> _Functions:
    """The functions to call by their names, each of a step and a model."""
    if measure is None:
        return {}
    named = measure if isinstance(measure, Mapping) else {"": measure}
    return {name: _of_step(function) for name, function in named.items()}


def _of_step(function: Callable[..., Any]) -> Callable[[int, nn.Module], Any]:
    """A function of a model, or of a step and a model, as one of both."""
    given = inspect.signature(function).parameters.values()
    needed = [one for one in given if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    return function if len(needed) == 2 else lambda step, model: function(model)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, Float64[Tensor, "..."]]]:
    """What a measurement returned, as named tensors."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _numbers(f"{name}.{key}" if name else str(key), entry)
        return
    if not isinstance(value, (int, float, np.ndarray, np.generic, Tensor)):
        raise TypeError(
            f"measure must return numbers, arrays or a mapping of names to those, got {type(value).__name__}; return "
            "the numbers wanted, such as tp.measure_embeddings(model, topics).cosine.ratio"
        )
    number = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value)
    yield name or "measured", number.to(torch.float64, copy=True)


def _check_same(path: Path, what: str, kept: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    # Both through JSON, as some kept ones came: tuples have become lists there.
    kept, own = (json.loads(json.dumps(values)) for values in (kept, own))
    different = [
        f"{key} ({kept.get(key)!r} there, {own.get(key)!r} here)" for key in own if kept.get(key) != own[key]
    ]
    if different:
        raise ValueError(
            f"{path} is the checkpoint of another {what} config: {'; '.join(different)}. Choose another checkpoint "
            "file, delete this one to start over, or train with its config"
        )


def _copy(tensor: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A copy of its own memory, in row order, as safetensors wants it."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        # In row order, also where there is no number: an empty slice has a stride that no view as bytes takes.
        flat = tensors[name].reshape(-1).clone(memory_format=torch.contiguous_format)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write_checkpoint(path: Path, text: str, tensors: dict[str, Tensor]) -> None:
    """One file, replaced as a whole."""
    from safetensors.torch import save

    data = save(tensors, metadata={"about": text, "sha256": _digest(text, tensors)})
    with draft(path, overwrite=True, file=True) as new, new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    remedy = "delete it to start over, or put back an older copy"
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"checkpoint {path} is truncated or no checkpoint ({error}); {remedy}") from error
    text = metadata.get("about", "")
    if metadata.get("sha256") != _digest(text, tensors):
        raise ValueError(f"checkpoint {path} is damaged: its contents do not match its checksum; {remedy}")
    about: dict[str, Any] = json.loads(text)
    if about.get("format") != CHECKPOINT_FORMAT:
        kind = about.get("format")
        raise ValueError(f"checkpoint {path} is of format {kind!r}, needed {CHECKPOINT_FORMAT!r}; {remedy}")
    return about, tensors


@dataclass
class _Interrupt:
    requested: bool = False

    def handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def _interrupts() -> Iterator[_Interrupt]:
    """Turn the first Ctrl-C into a request, so that no step is left half done."""
    interrupt = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # Ctrl-C reaches the main thread only
        return
    previous = signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)
