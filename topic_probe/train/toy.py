"""Training toys: seeds of one setting side by side, as the first axis of every tensor."""

import hashlib
import inspect
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from topic_probe.options import checked, progress_bar
from topic_probe.toy.masking import Attend, Loss, MaskedBatch, position_losses
from topic_probe.toy.model import (
    ToyConfig,
    attention_is_uniform,
    counts_suffice,
    has_hooks,
    in_paper_layout,
    mean_losses,
    predictions,
    set_toy_tensors,
    stand_for,
    toy_config,
    toy_parameters,
    toy_tensors,
    words_are_one_hot,
)
from topic_probe.train.history import History, Series, TrainConfig

Measure = Callable[[nn.Module], Any] | Callable[[int, nn.Module], Any]

ROTATION_LAG = 10  # Figure 5 compares W_V with itself ten steps before
DRAWN_AT_ONCE = 2000
"""Documents that are drawn at a time: those of 50 steps of 40."""


@checked
def train_toy(
    model: nn.Module,
    config: TrainConfig,
    *,
    measure: Measure | Mapping[str, Measure] | None = None,
    folder: str | Path | None = None,
    progress: bool | None = None,
) -> History:
    """What happened while a toy was trained, in place.

    The loss is the mean over documents (those with anything masked) of the mean loss over the masked positions.

    Ctrl-C and a loss that is not finite end the training, with model and history at the last step that had a finite
    loss. ``History.stopped`` says so.

    Args:
        model: From :func:`topic_probe.toy.model.build_toy`, which says what is trained of it.
        config: How to train.
        measure: Called with the model, or, if it takes two arguments, with the step and the model (a `TopicProbe`), at
            the steps the config says (the first and the last at least). Returns a number, an array, or a mapping of
            names to those; a mapping of functions gives each a name.
        folder: Where histories of finished trainings are kept. One of the same toy, config and names of ``measure`` is
            read back from there in place of training again.
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
    return train_toys([model], [config], measure=measure, folder=folder, progress=progress)[0]


@checked
def train_toys(
    models: Sequence[nn.Module],
    configs: Sequence[TrainConfig],
    *,
    measure: Measure | Mapping[str, Measure] | None = None,
    folder: str | Path | None = None,
    progress: bool | None = None,
) -> tuple[History, ...]:
    """What `train_toy` would return for each toy, but for rounding, in less time.

    Toys whose configs differ in nothing but the seed are trained side by side, by one computation of losses, gradients
    and updates; the groups of these one after another. Ctrl-C ends the group under way, and others stay where they
    are. A toy that diverges stops by itself.

    Args:
        models: From :func:`topic_probe.toy.model.build_toy`, one for each training.
        configs: How to train each.
        measure: As in `train_toy`, called with one model after another.
        folder: As in `train_toy`.
        progress: As in `train_toy`, a bar for each group.
    """
    if len(models) != len(configs) or len(set(map(id, models))) < len(models):
        raise ValueError(
            f"needed a model of its own for each config, got {len(set(map(id, models)))} models for {len(configs)}"
        )
    places: list[Path | None] = []
    histories: dict[int, History] = {}
    groups: dict[str, list[int]] = {}
    for i, (model, config) in enumerate(zip(models, configs, strict=True)):
        _check(toy_config(model), config)
        places.append(None if folder is None else Path(folder) / _name(model, config, measure))
        if (place := places[i]) is not None and place.exists():
            histories[i] = History.load(place)
            set_toy_tensors(model, histories[i].tensors)
        else:
            # By their texts, because a config with a mapping has no hash.
            setting = repr((toy_config(model), replace(config, seed=0), counts_suffice(model)))
            groups.setdefault(setting, []).append(i)
    interrupted = False
    for group in groups.values():
        training = _Training([models[i] for i in group], [configs[i] for i in group], measure)
        try:
            if not interrupted:
                training.run(progress=progress)
        except KeyboardInterrupt:
            interrupted = True
        for i, history in zip(group, training.histories(interrupted=interrupted), strict=True):
            histories[i] = history
            if (place := places[i]) is not None and history.stopped == "finished" and not place.exists():
                history.save(place)
    return tuple(histories[i] for i in range(len(models)))


def _check(toy: ToyConfig, config: TrainConfig) -> None:
    """ValueError where a config does not fit a toy."""
    size = (config.world or toy.world).vocabulary_size
    if size != toy.vocabulary_size:
        raise ValueError(
            f"the documents have {size} token ids, the model {toy.vocabulary_size}; build the model with "
            "ToyConfig(world=...) of the same number of words"
        )
    entries = [entry for _, names in config.schedule for entry in names]
    moved = [name for name in toy.tensor_names if stand_for(entries, name)]
    if entries and moved != list(toy.trained_tensors):
        raise ValueError(
            f"schedule moves {', '.join(moved)}, but trained are {', '.join(toy.trained_tensors)}; change one of them "
            "(ToyConfig(trained=...))"
        )


def _name(model: nn.Module, config: TrainConfig, measure: Any) -> str:
    """The name of a history that is kept: it depends on all that decides the numbers."""
    names = sorted(measure) if isinstance(measure, Mapping) else measure is not None
    about = [toy_config(model).to_dict(), config.to_dict(), names, version("topic-probe")]
    digest = hashlib.sha256(json.dumps(about).encode())
    for tensor in toy_tensors(model).values():
        digest.update(tensor.detach().numpy().tobytes())
    return f"toy-{digest.hexdigest()[:16]}"


# --- batches ----------------------------------------------------------------------------------------


def draw(toy: ToyConfig, config: TrainConfig, chunk: int) -> MaskedBatch:
    """The batches of a chunk of steps, one behind the other: a function of the seed and the chunk alone."""
    world, masking = config.world or toy.world, config.masking or toy.masking
    n_steps = max(1, DRAWN_AT_ONCE // config.batch_size)
    state = np.random.SeedSequence((config.seed, chunk)).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(state[0]))
    for _ in range(100):
        documents = world.documents(n_steps * config.batch_size, generator=generator)
        batch = masking.corrupt(documents, n_words=world.n_words, generator=generator)
        if _predicted(batch, toy.attend).view(n_steps, -1).any(dim=1).all():
            return batch
    raise ValueError(
        f"in 100 draws of {n_steps} batches some always had nothing masked; raise p_mask={masking.p_mask}, "
        f"batch_size={config.batch_size} or the length of the documents"
    )


def _predicted(batch: MaskedBatch, attend: Attend) -> Bool[Tensor, "batch position"]:
    """The positions that have a loss: the chosen ones of documents in which anything may be attended to."""
    return batch.chosen & batch.visible(attend).any(dim=1, keepdim=True)


def _queries(
    chunk: MaskedBatch, batch_size: int, toy: ToyConfig, *, uniform: bool
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """What `predictions` and `mean_losses` take in every step of a chunk: tokens, log counts, entries, shares.

    Positions of one document that show the same token are one query, because they have one prediction; under uniform
    attention what a position shows does not matter.
    """
    n_steps, size, dtype = len(chunk) // batch_size, toy.vocabulary_size, getattr(torch, toy.dtype)
    documents, positions = _predicted(chunk, toy.attend).nonzero(as_tuple=True)
    shown = torch.zeros_like(documents) if uniform else chunk.shown[documents, positions]
    there = torch.zeros(len(chunk) * size, dtype=torch.bool)
    there[documents * size + shown] = True
    keys, query = there.nonzero()[:, 0], there.cumsum(0)[documents * size + shown] - 1
    n_queries = torch.bincount(keys // (size * batch_size), minlength=n_steps)
    first = n_queries.cumsum(0) - n_queries
    steps = documents // batch_size
    entries = (query - first[steps]) * size + chunk.target[documents, positions]
    shares = _shares(documents, n_steps, batch_size).to(dtype)
    counts = chunk.counts(size, toy.attend)
    log_counts = torch.arange(int(counts.max()) + 1).to(dtype).log()[counts]  # of few numbers
    ends, n_masked = n_queries.tolist(), torch.bincount(steps, minlength=n_steps).tolist()
    by_query = (part.split_with_sizes(ends) for part in (keys % size, log_counts[keys // size]))
    by_position = (part.split_with_sizes(n_masked) for part in (entries, shares))
    return list(zip(*by_query, *by_position, strict=True))


def _shares(documents: Int64[Tensor, " masked"], n_steps: int, batch_size: int) -> Float64[Tensor, " masked"]:
    """Weight of every masked position: 1 / |M| of its document / number of its batch's documents that have any."""
    sizes = torch.bincount(documents, minlength=n_steps * batch_size).view(n_steps, batch_size)
    return 1 / (sizes * (sizes > 0).sum(dim=1, keepdim=True)).double().flatten()[documents]


# --- the loop ---------------------------------------------------------------------------------------


class _Training:
    """Toys of one setting and several seeds.

    Attributes:
        tensors: By name, with an axis ``toy`` in front. The models follow where they are measured, and at the end.
    """

    def __init__(self, models: Sequence[nn.Module], configs: Sequence[TrainConfig], measure: Any):
        self.models, self.configs = models, configs
        self.toy, self.config = toy_config(models[0]), configs[0]
        named = [toy_tensors(model) for model in models]
        self.tensors = {name: torch.stack([own[name].detach() for own in named]) for name in named[0]}
        self.trained = {name: self.tensors[name].requires_grad_() for name in self.toy.trained_tensors}
        self.recorder = Recorder(self.config, self.tensors, self.trained, measure)
        make = torch.optim.Adam if self.config.optimizer == "adam" else torch.optim.SGD
        # The gradient of λ‖θ‖² is 2λθ.
        rate, decay = self.config.learning_rate, 2 * self.config.l2
        self.optimizer = make(self.trained.values(), lr=rate, weight_decay=decay, fused=True)

    def run(self, *, progress: bool | None) -> None:
        """Train until the last step, or until all have diverged."""
        found = self.by_counts() if counts_suffice(self.models[0]) else self.through_hooks()
        with progress_bar(total=self.config.steps, unit="step", shown=progress) as bar:
            for step, (losses, gradients) in zip(range(self.config.steps + 1), found, strict=False):
                if not self.recorder.record(step, losses, gradients):
                    break
                if self.recorder.functions and self.config.measures(step):
                    for i, model in enumerate(self.models):
                        if i not in self.recorder.ended:
                            set_toy_tensors(model, self.tensors_of(i))
                            self.recorder.measure(i, model)
                if step < self.config.steps:
                    self.update(step, gradients)
                    bar.update()

    def by_counts(self) -> Iterator[tuple[Float[Tensor, "toy"], Sequence[Tensor]]]:
        """Losses and gradients of one step after another, from counts of words."""
        one_hot = all(map(words_are_one_hot, self.models))
        uniform = all(map(attention_is_uniform, self.models))
        for chunk in count():
            drawn = [draw(self.toy, config, chunk) for config in self.configs]
            queries = [_queries(own, self.config.batch_size, self.toy, uniform=uniform) for own in drawn]
            for parts in zip(*queries, strict=True):
                # Toys with fewer queries get more, of which nothing is predicted.
                tokens, log_counts, entries, shares = (
                    pad_sequence(list(part), batch_first=True) for part in zip(*parts, strict=True)
                )
                logits = predictions(self.tensors, tokens, log_counts, one_hot=one_hot, uniform=uniform)
                losses = mean_losses(logits, entries, shares, loss=self.config.loss)
                leaves = list(self.trained.values())
                yield losses.detach(), torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)

    def through_hooks(self) -> Iterator[tuple[Float[Tensor, "toy"], Sequence[Tensor]]]:
        """The same from the forward of the hooked models."""
        size = self.config.batch_size
        for chunk in count():
            drawn = [draw(self.toy, config, chunk) for config in self.configs]
            for start in range(0, len(drawn[0]), size):
                found = []
                for i, model in enumerate(self.models):
                    set_toy_tensors(model, self.tensors_of(i))
                    batch = drawn[i].select(slice(start, start + size))
                    found.append(through_hooks(model, batch, loss=self.config.loss))
                losses, gradients = zip(*found, strict=True)
                yield torch.stack(losses), [torch.stack(own) for own in zip(*gradients, strict=True)]

    def update(self, step: int, gradients: Sequence[Tensor]) -> None:
        """One step of the optimizer, for the tensors that move in it."""
        for (name, tensor), gradient in zip(self.trained.items(), gradients, strict=True):
            # Without a gradient a tensor keeps its value, and under Adam its moments. Fused optimizers take the numbers
            # of both as they lie in memory, whatever their strides say.
            tensor.grad = gradient.contiguous() if self.config.moves(name, step) else None
        self.optimizer.step()

    def tensors_of(self, i: int) -> dict[str, Tensor]:
        """The tensors of one toy."""
        return {name: tensor.detach()[i] for name, tensor in self.tensors.items()}

    def histories(self, *, interrupted: bool) -> list[History]:
        """What was recorded of every toy; the models get the tensors of their last steps."""
        packages = ("topic-probe", "transformer-lens", "torch")
        provenance = {package: version(package) for package in packages}
        found = []
        for i, (model, config) in enumerate(zip(self.models, self.configs, strict=True)):
            recorded = self.recorder.history(i, interrupted=interrupted)
            set_toy_tensors(model, recorded["tensors"])
            found.append(History(toy=self.toy, train=config, provenance=provenance, **recorded))
        return found


def through_hooks(
    model: nn.Module, batch: MaskedBatch, *, loss: Loss
) -> tuple[Float[Tensor, ""], list[Float[Tensor, "..."]]]:
    """The loss of a toy of any depth on a batch, and its gradients in the trained tensors, by the hooked forward."""
    toy, parameters = toy_config(model), toy_parameters(model)
    batch = batch.select(_predicted(batch, toy.attend).any(dim=1))
    rows, positions = batch.chosen.nonzero(as_tuple=True)
    logits = model(batch.shown, attention_mask=batch.visible(toy.attend).long())[rows, positions]
    losses = position_losses(logits, batch.target[rows, positions], loss=loss)
    mean = _shares(rows, 1, len(batch)).to(losses) @ losses
    leaves = {name: parameters[name] for name in toy.trained_tensors}
    found = torch.autograd.grad(mean, list(leaves.values()), materialize_grads=True)
    gradients = {name: in_paper_layout(model, name, own) for name, own in zip(leaves, found, strict=True)}
    for name in gradients:
        # b_K shifts all scores of a query alike, so what comes out is rounding, which Adam would make a step of.
        if name.startswith("b_K") and not has_hooks(model):
            gradients[name] = torch.zeros_like(gradients[name])
    return mean.detach(), list(gradients.values())


# --- what is recorded -------------------------------------------------------------------------------


class Recorder:
    """What is kept of models that are trained side by side.

    Attributes:
        step: The last step that was recorded.
        kept: Copies of the trained tensors at that step.
        directions: W_V as vectors of length 1, at the steps that a later row looks back to.
        ended: What the histories of models that have ended hold.
    """

    def __init__(
        self,
        config: TrainConfig,
        watched: Mapping[str, Float[Tensor, "model ..."]],
        trained: Mapping[str, Float[Tensor, "model ..."]],
        measure: Measure | Mapping[str, Measure] | None,
    ):
        """Of ``trained``, which training changes in place, and of the norms of ``watched``."""
        self.config, self.watched, self.trained = config, watched, trained
        self.functions = measure if isinstance(measure, Mapping) else {"": measure} if measure else {}
        self.moving = [name for name in watched if name in trained]
        self.norms = {name: _norms(tensor) for name, tensor in watched.items()}
        self.step = 0
        self.kept = {name: tensor.detach().clone() for name, tensor in trained.items()}
        self.columns: tuple[str, ...] = ("loss",)
        self.rows: dict[int, Tensor] = {}
        self.directions: dict[int, dict[str, Tensor]] = {}
        self.measured: dict[int, dict[str, dict[int, Tensor]]] = defaultdict(lambda: defaultdict(dict))
        self.ended: dict[int, dict[str, Any]] = {}

    def record(self, step: int, losses: Float[Tensor, "model"], gradients: Sequence[Tensor] = ()) -> bool:
        """Take a step before its update; whether any model is still to be trained."""
        for i, loss in enumerate(losses.tolist()):
            if not math.isfinite(loss) and i not in self.ended:
                what = f"the loss of step {step} is {loss}"
                if step == 0:
                    raise ValueError(f"{what}, before any update; look at the tensors the model starts with")
                back = f"the model is back at step {self.step} (try a lower learning_rate)"
                self._end(i, f"diverged: {what}; {back}")
        if len(self.ended) == len(losses):
            return False
        torch._foreach_copy_(list(self.kept.values()), [tensor.detach() for tensor in self.trained.values()])
        self.step = step
        self._add_row(losses, gradients)
        return True

    def _add_row(self, losses: Float[Tensor, "model"], gradients: Sequence[Tensor]) -> None:
        """The row of this step, if it has one, and the directions that a later row looks back to."""
        has_row, compared = self.config.records(self.step), self.config.records(self.step + ROTATION_LAG)
        if not (has_row or compared):
            return
        self.norms |= {name: _norms(self.kept[name]) for name in self.moving}
        turning = [name for name in self.moving if name.startswith("W_V")]
        directions = {
            name: self.kept[name].double().flatten(1) / self.norms[name][:, None] for name in turning
        }
        before = self.directions.pop(self.step - ROTATION_LAG, {})
        if compared:
            self.directions[self.step] = directions
        if has_row:
            cosines = {name: (directions[name] * before.get(name, math.nan)).sum(1) for name in turning}
            row = {"loss": losses.double()}
            row |= {f"norm_{name}": norm for name, norm in self.norms.items()}
            row |= {f"rotation_{name}": ((1 - cosine) / 2).clamp(min=0) for name, cosine in cosines.items()}
            if self.config.record_gradients:
                named = zip(self.trained, gradients, strict=True)
                row |= {f"gradient_{name}": _norms(gradient) for name, gradient in named}
            self.columns, self.rows[self.step] = tuple(row), torch.stack(list(row.values()), dim=1).cpu()

    def measure(self, i: int, model: nn.Module) -> None:
        """Call the user's functions on a model at this step, and keep what they return."""
        for prefix, function in self.functions.items():
            value = _called(function, self.step, model)
            for key, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                name = ".".join(part for part in (prefix, str(key)) if part) or "measured"
                self.measured[i][name][self.step] = torch.as_tensor(number).detach().cpu().double().clone()

    def history(self, i: int, *, interrupted: bool) -> dict[str, Any]:
        """What the history of a model holds of all this."""
        if i not in self.ended:
            stopped = f"interrupted at step {self.step} of {self.config.steps}"
            self._end(i, stopped if interrupted else "finished")
        return self.ended[i]

    def _end(self, i: int, stopped: str) -> None:
        """Leave a model where the last step was recorded."""
        tensors = {**self.watched, **self.kept}
        rows = [torch.zeros(0, len(self.columns)), *(row[i : i + 1] for row in self.rows.values())]
        self.ended[i] = {
            "steps": torch.tensor(list(self.rows), dtype=torch.int64),
            "table": torch.cat(rows).double(),
            "columns": self.columns,
            "measured": {
                name: Series(torch.tensor(list(values)), torch.stack(list(values.values())))
                for name, values in self.measured[i].items()
            },
            "tensors": {name: tensor.detach()[i].clone().cpu() for name, tensor in tensors.items()},
            "last_step": self.step,
            "stopped": stopped,
        }


def _norms(tensor: Float[Tensor, "model ..."]) -> Float64[Tensor, "model"]:
    """The Frobenius norm of every model's tensor."""
    norms: Tensor = torch.linalg.vector_norm(tensor.detach().flatten(1), dim=1, dtype=torch.float64)
    return norms


def _called(function: Callable[..., Any], step: int, model: nn.Module) -> Any:
    """What a function of a model, or of a step and a model, returns."""
    given = inspect.signature(function).parameters.values()
    needed = [one for one in given if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    return function(step, model) if len(needed) == 2 else function(model)
