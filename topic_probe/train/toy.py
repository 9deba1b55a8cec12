"""Training toys: seeds of one setting side by side, as the first axis of every tensor."""

import hashlib
import inspect
import json
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from topic_probe.notices import progress_bar
from topic_probe.options import checked
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
_Functions = Mapping[str, Callable[[int, nn.Module], Any]]

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

    Ctrl-C ends the training after the step under way and returns the history so far; a second Ctrl-C raises. A loss
    that is not finite ends it too, with model and history at the last state that had a finite loss. Both are said
    in ``History.stopped``.

    Args:
        model: From :func:`topic_probe.toy.model.build_toy`. The parameters that require a gradient are trained.
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
    """What happened while toys were trained, in place, those that are alike side by side.

    What `train_toy` would return for each, but for rounding, in less time: toys that differ in nothing but their
    seeds, the values of their tensors, and the world and masking of their documents have one computation of losses,
    gradients and updates. Others are trained one after another.

    Ctrl-C ends all of them after the step under way; those whose turn has not come stay where they are. One that
    diverges stops by itself.

    Args:
        models: From :func:`topic_probe.toy.model.build_toy`, one for each training.
        configs: How to train each.
        measure: As in `train_toy`, called with one model after another.
        folder: As in `train_toy`.
        progress: Show a progress bar for each of the groups that are trained side by side; by default in a
            terminal or a notebook.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toys = [tp.build_toy(tp.ToyConfig(regime="value", world=world), seed=seed) for seed in range(5)]
        >>> histories = tp.train_toys(toys, [tp.TrainConfig(steps=20, seed=seed) for seed in range(5)])
        >>> [history.last_step for history in histories]
        [20, 20, 20, 20, 20]
    """
    if len(models) != len(configs):
        raise ValueError(
            f"needed a config for each model; got {len(models)} models and {len(configs)} configs"
        )
    if len(set(map(id, models))) < len(models):
        raise ValueError("two trainings have the same model; give each its own")
    for model, config in zip(models, configs, strict=True):
        _check(model, config)
    functions = functions_of(measure)
    places = [_place(folder, *pair, functions) for pair in zip(models, configs, strict=True)]
    histories: dict[int, History] = {}
    for i, place in enumerate(places):
        if place is not None and place.exists():
            histories[i] = History.load(place)
            set_toy_tensors(models[i], histories[i].tensors)
    with _interrupts() as interrupt:
        for group in _groups(models, configs, done=histories):
            training = _Training([models[i] for i in group], [configs[i] for i in group])
            if interrupt.requested:
                training.stopped = f"interrupted at step 0 of {training.config.steps}"
            else:
                training.run(functions, interrupt, progress=progress)
            histories |= zip(group, training.histories(), strict=True)
    for i, place in enumerate(places):
        if place is not None and not place.exists() and histories[i].stopped == "finished":
            histories[i].save(place)
    return tuple(histories[i] for i in range(len(models)))


def _check(model: nn.Module, config: TrainConfig) -> None:
    """ValueError where a config does not fit a toy."""
    toy = toy_config(model)
    trained = [name for name, leaf in toy_parameters(model).items() if leaf.requires_grad]
    world, masking = config.world or toy.world, config.masking or toy.masking
    if not trained:
        raise ValueError("nothing to train: all tensors are frozen; set ToyConfig(trained=...)")
    if world.vocabulary_size != toy.vocabulary_size:
        raise ValueError(
            f"the documents have {world.vocabulary_size} token ids, the model {toy.vocabulary_size}; "
            "build the model with ToyConfig(world=...) of the same number of words"
        )
    if masking.p_mask == 0:
        raise ValueError("with p_mask=0 nothing is masked and there is nothing to learn; raise p_mask")
    entries = [entry for _, names in config.schedule for entry in names]
    for entry in entries:
        if not any(stand_for([entry], name) for name in trained):
            raise ValueError(
                f"schedule moves {entry!r}, but trained are {', '.join(trained)}; leave it out, or train it by "
                "ToyConfig(trained=...)"
            )
    still = [name for name in trained if not stand_for(entries, name)]
    if entries and still:
        raise ValueError(
            f"schedule never moves {', '.join(still)}; name it in a phase, or freeze it by ToyConfig(trained=...)"
        )


def _place(
    folder: str | Path | None, model: nn.Module, config: TrainConfig, functions: _Functions
) -> Path | None:
    """Where the history of a training is kept: its name depends on all that decides the numbers."""
    if folder is None:
        return None
    about = [toy_config(model).to_dict(), config.to_dict(), sorted(functions), version("topic-probe")]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for leaf in toy_parameters(model).values():
        digest.update(leaf.detach().cpu().contiguous().numpy().tobytes() + bytes([leaf.requires_grad]))
    return Path(folder) / f"toy-{digest.hexdigest()[:16]}"


def _groups(
    models: Sequence[nn.Module], configs: Sequence[TrainConfig], *, done: Mapping[int, History]
) -> list[list[int]]:
    """Numbers of the trainings that are to be done, those that can be side by side together."""
    groups: dict[Any, list[int]] = {}
    for i, (model, config) in enumerate(zip(models, configs, strict=True)):
        if i in done:
            continue
        leaves = toy_parameters(model)
        kinds = tuple(
            (name, leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad) for name, leaf in leaves.items()
        )
        of_config = replace(config, seed=0, world=None, masking=None)
        key = of_config, kinds, counts_suffice(model), words_are_one_hot(model), attention_is_uniform(model)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


# --- batches ----------------------------------------------------------------------------------------


def draw(toy: ToyConfig, config: TrainConfig, chunk: int) -> MaskedBatch:
    """The batches of a chunk of steps, one behind the other: a function of the seed and the chunk alone."""
    world, masking = config.world or toy.world, config.masking or toy.masking
    n_steps = _steps_at_once(config)
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


def _steps_at_once(config: TrainConfig) -> int:
    """How many steps make a chunk: about as many as 2,000 documents are for."""
    return max(1, DRAWN_AT_ONCE // config.batch_size)


@dataclass(frozen=True)
class _Queries:
    """What the loss of a batch depends on, of one toy.

    Positions of one document that show the same token are one query, because they have one prediction.

    Attributes:
        tokens: What every query shows.
        documents: Its document.
        log_counts: The logarithm of how often each document shows each token where it may be attended to.
        entries: For every position to be predicted, where its query and the word that was there cross.
        shares: The share of each in the mean over documents of the mean over their positions.
    """

    tokens: Int64[Tensor, " query"]
    documents: Int64[Tensor, " query"]
    log_counts: Float[Tensor, "document word"]
    entries: Int64[Tensor, " masked"]
    shares: Float[Tensor, " masked"]


def _queries(
    chunk: MaskedBatch, n_steps: int, toy: ToyConfig, *, uniform: bool, like: Tensor
) -> list[_Queries]:
    """Those of every step of a chunk; under uniform attention what a position shows does not matter."""
    batch_size, size = len(chunk) // n_steps, toy.vocabulary_size
    documents, positions = _predicted(chunk, toy.attend).nonzero(as_tuple=True)
    shown = torch.zeros_like(documents) if uniform else chunk.shown[documents, positions]
    there = torch.zeros(len(chunk) * size, dtype=torch.bool, device=documents.device)
    there[documents * size + shown] = True
    keys, query = there.nonzero()[:, 0], there.cumsum(0)[documents * size + shown] - 1
    n_queries = torch.bincount(keys // (size * batch_size), minlength=n_steps)
    first = n_queries.cumsum(0) - n_queries
    steps = documents // batch_size
    entries = (query - first[steps]) * size + chunk.target[documents, positions]
    ends, n_masked = n_queries.tolist(), torch.bincount(steps, minlength=n_steps).tolist()
    counts = chunk.counts(size, toy.attend)
    log_counts = torch.arange(int(counts.max()) + 1).to(like).log()[counts]  # of few numbers
    log_counts[~chunk.visible(toy.attend).any(dim=1)] = 0.0  # these have no loss, and must not turn into NaN
    by_query = (part.split_with_sizes(ends) for part in (keys % size, keys // size % batch_size))
    shares = _shares(documents, n_steps, batch_size).to(like)
    by_position = (part.split_with_sizes(n_masked) for part in (entries, shares))
    of_steps = log_counts.view(n_steps, batch_size, size).unbind()
    return [_Queries(*parts) for parts in zip(*by_query, of_steps, *by_position, strict=True)]


def _shares(documents: Int64[Tensor, " masked"], n_steps: int, batch_size: int) -> Float64[Tensor, " masked"]:
    """Weight of every masked position: 1 / |M| of its document / number of its batch's documents that have any."""
    sizes = torch.bincount(documents, minlength=n_steps * batch_size).view(n_steps, batch_size)
    return 1 / (sizes * (sizes > 0).sum(dim=1, keepdim=True)).double().flatten()[documents]


def _together(parts: Sequence[_Queries]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, log counts, entries and shares of several toys, padded with queries of which nothing is predicted."""
    tokens, documents, entries, shares = (
        pad_sequence([getattr(part, name) for part in parts], batch_first=True)
        for name in ("tokens", "documents", "entries", "shares")
    )
    toys = torch.arange(len(parts), device=tokens.device)[:, None]
    log_counts = torch.stack([part.log_counts for part in parts])[toys, documents]
    return tokens, log_counts, entries, shares


# --- the loop ---------------------------------------------------------------------------------------


class _Training:
    """Toys that are trained side by side, and what was recorded of them.

    Attributes:
        tensors: By name, with an axis ``toy`` in front. The models follow when they are told to.
        losses: Of every toy on the batch of this step.
        ended: Why a toy has ended before the others, with its last step and tensors.
    """

    def __init__(self, models: Sequence[nn.Module], configs: Sequence[TrainConfig]):
        self.models, self.configs, self.config = models, configs, configs[0]
        self.toys = [toy_config(model) for model in models]
        named = [toy_tensors(model) for model in models]
        self.tensors = {name: torch.stack([own[name].detach() for own in named]) for name in named[0]}
        leaves = toy_parameters(models[0])
        self.trained = {n: t.requires_grad_() for n, t in self.tensors.items() if leaves[n].requires_grad}
        self.counted = counts_suffice(models[0])
        self.one_hot, self.uniform = words_are_one_hot(models[0]), attention_is_uniform(models[0])
        make = torch.optim.Adam if self.config.optimizer == "adam" else torch.optim.SGD
        # The gradient of λ‖θ‖² is 2λθ.
        rate, decay = self.config.learning_rate, 2 * self.config.l2
        self.optimizer = make(self.trained.values(), lr=rate, weight_decay=decay, fused=True)
        self.step, self.stopped = 0, "finished"
        self.ended: dict[int, tuple[str, int, dict[str, Tensor]]] = {}
        self.rows = _Rows(self.config, self.tensors, self.trained)
        self.measured: list[dict[str, list[tuple[int, Tensor]]]] = [{} for _ in models]

    def run(self, functions: _Functions, interrupt: "_Interrupt", *, progress: bool | None) -> None:
        """Train until the last step, or until all have diverged, or until Ctrl-C."""
        with progress_bar(total=self.config.steps, unit="step", shown=progress) as bar:
            try:
                while self.evaluate():
                    self.rows.record(self.step, self.losses, self.gradients)
                    if self.config.measures(self.step):
                        self.measure(functions)
                    if self.step == self.config.steps:
                        break
                    self.update()
                    bar.update()
                    if interrupt.requested:
                        self.stopped = f"interrupted after step {self.step} of {self.config.steps}"
                        break
            except KeyboardInterrupt:  # from what measures
                if interrupt.requested:
                    raise
                interrupt.requested = True
                self.stopped = f"interrupted at step {self.step} of {self.config.steps}"
            finally:
                self.update_models()

    def evaluate(self) -> bool:
        """Losses and gradients on the batches of this step; whether any toy is still under way."""
        n_steps = _steps_at_once(self.config)
        chunk, place = divmod(self.step, n_steps)
        if place == 0:
            self.chunks = [draw(*pair, chunk) for pair in zip(self.toys, self.configs, strict=True)]
            if self.counted:
                self.queries = [
                    _queries(one, n_steps, toy, uniform=self.uniform, like=self.tensors["W_E"])
                    for one, toy in zip(self.chunks, self.toys, strict=True)
                ]
        losses_of = self._by_counts if self.counted else self._through_hooks
        self.losses, self.gradients = losses_of(place)
        for i, loss in enumerate(self.losses.tolist()):
            if not math.isfinite(loss) and i not in self.ended:
                self._end(i, loss)
        return len(self.ended) < len(self.models)

    def _by_counts(self, place: int) -> tuple[Float[Tensor, "toy"], list[Tensor]]:
        tokens, log_counts, entries, shares = _together([queries[place] for queries in self.queries])
        logits = predictions(self.tensors, tokens, log_counts, one_hot=self.one_hot, uniform=self.uniform)
        losses = mean_losses(logits, entries, shares, loss=self.config.loss)
        trained = list(self.trained.values())
        return losses.detach(), list(torch.autograd.grad(losses.sum(), trained, materialize_grads=True))

    def _through_hooks(self, place: int) -> tuple[Float[Tensor, "toy"], list[Tensor]]:
        self.update_models()
        rows = slice(place * self.config.batch_size, (place + 1) * self.config.batch_size)
        found = [
            hooked_loss(model, chunk.select(rows), loss=self.config.loss)
            for model, chunk in zip(self.models, self.chunks, strict=True)
        ]
        gradients = [gradients_of(model, loss) for model, loss in zip(self.models, found, strict=True)]
        return torch.stack(found).detach(), [torch.stack(own) for own in zip(*gradients, strict=True)]

    def _end(self, i: int, loss: float) -> None:
        """Leave a toy at the state before the last update."""
        what = f"the loss of step {self.step} is {loss}"
        if self.step == 0:
            raise ValueError(f"{what}, before any update; look at the tensors the model starts with")
        stopped = f"diverged: {what}; the model is back at step {self.step - 1} (try a lower learning_rate)"
        tensors = {name: tensor.detach()[i] for name, tensor in self.tensors.items()}
        before = {name: tensor[i].clone() for name, tensor in self.before.items()}
        self.ended[i] = stopped, self.step - 1, tensors | before

    def update(self) -> None:
        """One step of the optimizer, for the tensors that move in it."""
        self.before = {name: tensor.detach().clone() for name, tensor in self.trained.items()}
        for (name, tensor), gradient in zip(self.trained.items(), self.gradients, strict=True):
            # Without a gradient a tensor keeps its value, and under Adam its moments. Fused optimizers take the numbers
            # of both as they lie in memory, whatever their strides say.
            tensor.grad = gradient.contiguous() if self.config.moves(name, self.step) else None
        self.optimizer.step()
        self.step += 1

    def tensors_of(self, i: int) -> dict[str, Tensor]:
        """The tensors of one toy."""
        if i in self.ended:
            return self.ended[i][2]
        return {name: tensor.detach()[i] for name, tensor in self.tensors.items()}

    def update_models(self) -> None:
        """Give the models the values of their tensors."""
        for i, model in enumerate(self.models):
            set_toy_tensors(model, self.tensors_of(i))

    def measure(self, functions: _Functions) -> None:
        """Call the user's functions and keep what they return."""
        if functions:
            self.update_models()
        for i, model in enumerate(self.models):
            for prefix, function in functions.items() if i not in self.ended else ():
                for name, value in named_numbers(prefix, function(self.step, model)):
                    series = self.measured[i].setdefault(name, [])
                    if series and series[0][1].shape != value.shape:
                        raise ValueError(
                            f"measure returned {name} of shape {tuple(value.shape)} at step {self.step}, after "
                            f"{tuple(series[0][1].shape)} before; return the same shape at every step"
                        )
                    series.append((self.step, value))

    def histories(self) -> "list[History]":
        """What was recorded of every toy."""
        return [self._history(i) for i in range(len(self.models))]

    def _history(self, i: int) -> History:
        stopped, last_step, _ = self.ended.get(i, (self.stopped, self.step, {}))
        steps, table = self.rows.of(i, last_step)
        measured = {}
        for name, entries in self.measured[i].items():
            at, values = zip(*entries, strict=True)
            measured[name] = Series(torch.tensor(at), torch.stack(values))
        return History(
            toy=self.toys[i],
            train=self.configs[i],
            steps=steps,
            table=table,
            columns=self.rows.columns,
            measured=measured,
            tensors={name: _copy(tensor) for name, tensor in self.tensors_of(i).items()},
            last_step=last_step,
            stopped=stopped,
            provenance={
                package: version(package) for package in ("topic-probe", "transformer-lens", "torch")
            },
        )


def _copy(tensor: Tensor) -> Tensor:
    """A copy of its own memory, in row order, as safetensors wants it."""
    return tensor.cpu().clone(memory_format=torch.contiguous_format)


def hooked_loss(model: nn.Module, batch: MaskedBatch, *, loss: Loss) -> Float[Tensor, ""]:
    """The loss of a toy on a batch through the hooked forward, of any depth."""
    attend, device = toy_config(model).attend, next(model.parameters()).device
    batch = batch.select(_predicted(batch, attend).any(dim=1))
    rows, positions = batch.chosen.nonzero(as_tuple=True)
    logits = model(batch.shown.to(device), attention_mask=batch.visible(attend).long().to(device))[
        rows, positions
    ]
    losses = position_losses(logits, batch.target[rows, positions].to(device), loss=loss)
    return _shares(rows, 1, len(batch)).to(losses) @ losses


def gradients_of(model: nn.Module, loss: Float[Tensor, ""]) -> list[Float[Tensor, "..."]]:
    """The gradients of a loss in the trained tensors of a toy, in the paper's orientation."""
    leaves = {name: leaf for name, leaf in toy_parameters(model).items() if leaf.requires_grad}
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    gradients = {n: in_paper_layout(model, n, gradient) for n, gradient in zip(leaves, found, strict=True)}
    # b_K shifts all scores of a query alike, so what comes out is rounding, which Adam would make a step of.
    exact = (name.startswith("b_K") and not has_hooks(model) for name in gradients)
    return [g * 0 if zero else g for zero, g in zip(exact, gradients.values(), strict=True)]


class _Rows:
    """Rows of the history: loss, norms, how far W_V has turned in ten steps, and gradients where asked for."""

    def __init__(self, config: TrainConfig, tensors: Mapping[str, Tensor], trained: Mapping[str, Tensor]):
        self.config, self.trained = config, trained
        self.turning = [name for name in trained if name.startswith("W_V")]
        self.norms = {name: _norms(tensor) for name, tensor in tensors.items()}
        slopes = trained if config.record_gradients else ()
        self.columns = (
            "loss",
            "penalty",
            *(f"norm_{name}" for name in tensors),
            *(f"rotation_{name}" for name in self.turning),
            *(f"gradient_{name}" for name in slopes),
        )
        self.steps: list[int] = []
        self.rows: list[Tensor] = []
        # Unit vectors of W_V at the steps that a later row will look back to.
        self.directions: dict[int, dict[str, Tensor]] = {}

    def record(self, step: int, losses: Float[Tensor, "toy"], gradients: Sequence[Tensor]) -> None:
        """Take the row of a step, if it has one; to be called at every step."""
        has_row, kept = self.config.records(step), self.config.records(step + ROTATION_LAG)
        if not (has_row or kept):
            return
        self.norms |= {name: _norms(tensor) for name, tensor in self.trained.items()}
        units = {
            name: self.trained[name].detach().double().flatten(1) / self.norms[name][:, None]
            for name in self.turning
        }
        if kept:
            self.directions[step] = units
        before = self.directions.pop(step - ROTATION_LAG, {})
        if has_row:
            unknown = torch.full_like(losses, math.nan, dtype=torch.float64)
            turned = [
                ((1 - (units[name] * before[name]).sum(1)) / 2).clamp(min=0) if before else unknown
                for name in self.turning
            ]
            penalty = self.config.l2 * sum(self.norms[name] ** 2 for name in self.trained)
            slopes = [_norms(gradient) for gradient in gradients] if self.config.record_gradients else []
            row = [
                losses.double(),
                torch.zeros_like(unknown) + penalty,
                *self.norms.values(),
                *turned,
                *slopes,
            ]
            self.steps.append(step)
            self.rows.append(torch.stack(row, dim=1).cpu())

    def of(self, i: int, last_step: int) -> tuple[Int64[Tensor, " row"], Float64[Tensor, "row column"]]:
        """Steps and table of one toy."""
        steps = torch.tensor(self.steps, dtype=torch.int64)
        table = (
            torch.stack(self.rows)[:, i]
            if self.rows
            else torch.zeros(0, len(self.columns), dtype=torch.float64)
        )
        return steps[steps <= last_step], table[steps <= last_step]


def _norms(tensor: Float[Tensor, "toy ..."]) -> Float64[Tensor, "toy"]:
    """The Frobenius norm of every toy's tensor."""
    norms: Tensor = torch.linalg.vector_norm(tensor.detach().flatten(1), dim=1, dtype=torch.float64)
    return norms


# --- measurements and Ctrl-C ------------------------------------------------------------------------


def functions_of(measure: Measure | Mapping[str, Measure] | None) -> _Functions:
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


def named_numbers(name: str, value: Any) -> Iterator[tuple[str, Float64[Tensor, "..."]]]:
    """What a measurement returned, as named tensors."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from named_numbers(f"{name}.{key}" if name else str(key), entry)
        return
    if not isinstance(value, (int, float, np.ndarray, np.generic, Tensor)):
        raise TypeError(
            f"measure must return numbers, arrays or a mapping of names to those, got {type(value).__name__}; return "
            "the numbers wanted, such as tp.measure_embeddings(model, topics).cosine.ratio"
        )
    number = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value)
    yield name or "measured", number.to(torch.float64, copy=True)


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
