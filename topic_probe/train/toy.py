"""Training toys: seeds of one setting side by side, as the first axis of every tensor."""

import hashlib
import inspect
import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from topic_probe.options import checked, progress_bar
from topic_probe.toy.model import (
    ToyConfig,
    counts_suffice,
    mean_losses,
    predictions,
    set_toy_tensors,
    toy_config,
    toy_parameters,
    toy_tensors,
)
from topic_probe.toy.world import Attend, Loss, MaskedBatch, position_losses
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

    The loss is the mean over documents (those with anything masked) of the mean loss over the masked positions. Where
    it is not finite any more, the rows of the history end, and ``History.stopped`` says so.

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

    Toys of one layer and head whose configs differ in nothing but the seed are trained side by side, by one computation
    of losses, gradients and updates; the groups of these one after another.

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
    places: dict[int, Path] = {}
    histories: dict[int, History] = {}
    groups: dict[str, list[int]] = {}
    for i, (model, config) in enumerate(zip(models, configs, strict=True)):
        toy = toy_config(model)
        n, size = (config.world or toy.world).vocabulary_size, toy.vocabulary_size
        if n != size:
            raise ValueError(
                f"the documents have {n} token ids, the model {size}; build the model with ToyConfig(world=...) of "
                "the same number of words"
            )
        if folder is not None:
            places[i] = Path(folder) / _name(model, config, measure)
        if i in places and places[i].exists():
            histories[i] = History.load(places[i])
            set_toy_tensors(model, histories[i].tensors)
        else:
            # By their texts, because a config with a mapping has no hash.
            setting = (toy, replace(config, seed=0), counts_suffice(model) or i)
            groups.setdefault(repr(setting), []).append(i)
    for group in groups.values():
        found = _train([models[i] for i in group], [configs[i] for i in group], measure, progress)
        for i, history in zip(group, found, strict=True):
            histories[i] = history
            if i in places and history.stopped == "finished" and not places[i].exists():
                history.save(places[i])
    return tuple(histories[i] for i in range(len(models)))


def _name(model: nn.Module, config: TrainConfig, measure: Any) -> str:
    """The name of a history that is kept: it depends on all that decides the numbers."""
    names = sorted(measure) if isinstance(measure, Mapping) else measure is not None
    about = [asdict(toy_config(model)), asdict(config), names, version("topic-probe")]
    digest = hashlib.sha256(json.dumps(about).encode())
    for tensor in toy_tensors(model).values():
        digest.update(tensor.detach().numpy().tobytes())
    return f"toy-{digest.hexdigest()[:16]}"


def _train(
    models: Sequence[nn.Module], configs: Sequence[TrainConfig], measure: Any, progress: bool | None
) -> list[History]:
    """Train toys of one setting and several seeds, or one toy of any depth."""
    toy = toy_config(models[0])
    if counts_suffice(models[0]):
        named = [toy_tensors(model) for model in models]
        tensors = {name: torch.stack([own[name].detach() for own in named]) for name in named[0]}
        leaves = {name: tensors[name].requires_grad_() for name in toy.trained_tensors}
        losses = _by_counts(models, configs, tensors)
    else:
        tensors = {name: view.detach()[None] for name, view in toy_tensors(models[0]).items()}
        leaves = {name: toy_parameters(models[0])[name] for name in toy.trained_tensors}
        losses = _through_hooks(models[0], configs[0])

    def follow(i: int) -> nn.Module:
        set_toy_tensors(models[i], {name: tensor.detach()[i] for name, tensor in tensors.items()})
        return models[i]

    recorder = Recorder(configs[0], tensors, leaves, measure)
    optimize(leaves, losses, recorder, follow, progress)
    packages = ("topic-probe", "transformer-lens", "torch")
    provenance = {package: version(package) for package in packages}
    histories = []
    for i, config in enumerate(configs):
        own = {name: tensor.detach().clone() for name, tensor in toy_tensors(follow(i)).items()}
        histories.append(History(toy, config, tensors=own, provenance=provenance, **recorder.of(i)))
    return histories


# --- losses -----------------------------------------------------------------------------------------


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


def _by_counts(
    models: Sequence[nn.Module], configs: Sequence[TrainConfig], tensors: Mapping[str, Tensor]
) -> Iterator[Float[Tensor, "toy"]]:
    """Losses of one step after another, from counts of words."""
    toy, size = toy_config(models[0]), configs[0].batch_size
    # By what stays as it is: W_E is the identity (equation 7); keys, or all that queries ask for, are zero.
    frozen = {name: tensor for name, tensor in tensors.items() if not tensor.requires_grad}
    one_hot = "W_E" in frozen and bool((frozen["W_E"] == torch.eye(frozen["W_E"].shape[-1])).all())
    zero = {name for name, tensor in frozen.items() if not tensor.any()}
    uniform = "W_K" in zero or {"W_Q", "b_Q"} <= zero
    for chunk in count():
        drawn = [draw(toy, config, chunk) for config in configs]
        queries = [_queries(own, size, toy, uniform=uniform) for own in drawn]
        for parts in zip(*queries, strict=True):
            # Toys with fewer queries get more, of which nothing is predicted.
            tokens, log_counts, entries, shares = (
                pad_sequence(list(part), batch_first=True) for part in zip(*parts, strict=True)
            )
            logits = predictions(tensors, tokens, log_counts, one_hot=one_hot, uniform=uniform)
            yield mean_losses(logits, entries, shares, loss=configs[0].loss)


def _queries(
    chunk: MaskedBatch, batch_size: int, toy: ToyConfig, *, uniform: bool
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """What `predictions` and `mean_losses` take in every step of a chunk: tokens, log counts, entries, shares.

    Positions of one document that show the same token are one query, because they have one prediction; under uniform
    attention what a position shows does not matter.
    """
    n_documents, size, dtype = chunk.shown.shape[0], toy.vocabulary_size, getattr(torch, toy.dtype)
    n_steps = n_documents // batch_size
    documents, positions = _predicted(chunk, toy.attend).nonzero(as_tuple=True)
    shown = torch.zeros_like(documents) if uniform else chunk.shown[documents, positions]
    there = torch.zeros(n_documents * size, dtype=torch.bool)
    there[documents * size + shown] = True
    keys, query = there.nonzero()[:, 0], there.cumsum(0)[documents * size + shown] - 1
    n_queries = torch.bincount(keys // (size * batch_size), minlength=n_steps)
    first = n_queries.cumsum(0) - n_queries
    steps = documents // batch_size
    entries = (query - first[steps]) * size + chunk.target[documents, positions]
    # Every position has 1 / |M| of its document / number of its batch's documents that have any.
    n_chosen = torch.bincount(documents, minlength=n_documents).view(n_steps, batch_size)
    weights = 1 / (n_chosen * (n_chosen > 0).sum(dim=1, keepdim=True)).double()
    shares = weights.flatten()[documents].to(dtype)
    counts = chunk.counts(size, toy.attend)
    log_counts = torch.arange(int(counts.max()) + 1).to(dtype).log()[counts]  # of few numbers
    ends, n_masked = n_queries.tolist(), torch.bincount(steps, minlength=n_steps).tolist()
    by_query = (part.split_with_sizes(ends) for part in (keys % size, log_counts[keys // size]))
    by_position = (part.split_with_sizes(n_masked) for part in (entries, shares))
    return list(zip(*by_query, *by_position, strict=True))


def _through_hooks(model: nn.Module, config: TrainConfig) -> Iterator[Float[Tensor, "toy"]]:
    """Losses of one step after another of a toy of any depth."""
    for chunk in count():
        drawn = draw(toy_config(model), config, chunk)
        for start in range(0, len(drawn), config.batch_size):
            batch = drawn.select(slice(start, start + config.batch_size))
            yield hooked_loss(model, batch, loss=config.loss)[None]


def hooked_loss(model: nn.Module, batch: MaskedBatch, *, loss: Loss) -> Float[Tensor, ""]:
    """The loss of a toy on a batch, by the hooked forward."""
    attend = toy_config(model).attend
    batch = batch.select(_predicted(batch, attend).any(dim=1))
    rows, positions = batch.chosen.nonzero(as_tuple=True)
    logits = model(batch.shown, attention_mask=batch.visible(attend).long())[rows, positions]
    losses = position_losses(logits, batch.target[rows, positions], loss=loss)
    return batch.document_means(losses.double()).mean()


# --- the loop, and what it records --------------------------------------------------------------------


def optimize(
    leaves: Mapping[str, Tensor],
    losses: Iterator[Float[Tensor, "model"]],
    recorder: "Recorder",
    follow: Callable[[int], nn.Module],
    progress: bool | None,
) -> None:
    """Train until the last step, or until no loss is finite.

    Args:
        leaves: What is trained.
        losses: Of one step after another, for the leaves as they are.
        recorder: Also says how to train.
        follow: A model by its number, with the tensors that it has now.
        progress: Whether to show a bar.
    """
    config = recorder.config
    make = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
    # The gradient of λ‖θ‖² is 2λθ.
    rate, decay = config.learning_rate, 2 * config.l2
    optimizer = make(leaves.values(), lr=rate, weight_decay=decay, fused=True)
    with progress_bar(total=config.steps, unit="step", shown=progress) as bar:
        for step, loss in zip(range(config.steps + 1), losses, strict=False):
            found = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)
            # b_K shifts all scores of a query alike: its gradient is rounding, which Adam would make a step of. Fused
            # optimizers take numbers as they lie in memory, whatever their strides say.
            gradients = {
                name: torch.zeros_like(gradient) if name.startswith("b_K") else gradient.contiguous()
                for name, gradient in zip(leaves, found, strict=True)
            }
            finite = recorder.record(step, loss.detach(), gradients)
            if not finite:
                break
            if recorder.functions and config.measures(step):
                for i in finite:
                    recorder.measure(step, i, follow(i))
            if step < config.steps:
                for name, leaf in leaves.items():
                    # Without a gradient a tensor keeps its value, and under Adam its moments.
                    leaf.grad = gradients[name] if config.moves(name, step) else None
                optimizer.step()
                bar.update()


class Recorder:
    """What is kept of models that are trained side by side.

    Attributes:
        rows: By step, the columns of every model.
        past: W_V of the last steps.
        diverged: By model, the first step whose loss was not finite, and that loss.
    """

    def __init__(
        self,
        config: TrainConfig,
        watched: Mapping[str, Float[Tensor, "model ..."]],
        trained: Mapping[str, Tensor],
        measure: Measure | Mapping[str, Measure] | None,
    ):
        """Of the norms of ``watched``; those that are not trained stay as they are."""
        self.config = config
        self.functions = measure if isinstance(measure, Mapping) else {"": measure} if measure else {}
        self.moving = {name: tensor for name, tensor in watched.items() if name in trained}
        self.norms = {name: _norms(tensor) for name, tensor in watched.items()}
        self.columns: tuple[str, ...] = ()
        self.rows: dict[int, Tensor] = {}
        unknown = {name: torch.full_like(tensor, math.nan) for name, tensor in self.moving.items()}
        self.past: deque[dict[str, Tensor]] = deque([unknown] * ROTATION_LAG, maxlen=ROTATION_LAG + 1)
        self.diverged: dict[int, tuple[int, float]] = {}
        self.measured: dict[int, dict[str, dict[int, Tensor]]] = defaultdict(lambda: defaultdict(dict))

    def record(self, step: int, losses: Float[Tensor, "model"], gradients: Mapping[str, Tensor]) -> list[int]:
        """Take a step before its update; the models whose losses were finite until now."""
        for i, loss in enumerate(losses.tolist()):
            if not math.isfinite(loss):
                self.diverged.setdefault(i, (step, loss))
        turning = {name: tensor for name, tensor in self.moving.items() if name.startswith("W_V")}
        self.past.append({name: tensor.detach().clone() for name, tensor in turning.items()})
        if self.config.records(step):
            self.norms |= {name: _norms(tensor) for name, tensor in self.moving.items()}
            row = {"loss": losses.double()}
            row |= {f"norm_{name}": norm for name, norm in self.norms.items()}
            for name in turning:
                now, before = (
                    at[name].double().flatten(1) / _norms(at[name])[:, None]
                    for at in (self.past[-1], self.past[0])
                )
                row[f"rotation_{name}"] = ((1 - (now * before).sum(1)) / 2).clamp(min=0)
            if self.config.record_gradients:
                row |= {
                    f"gradient_{name}": _norms(gradient.reshape(len(losses), -1))
                    for name, gradient in gradients.items()
                }
            self.columns, self.rows[step] = tuple(row), torch.stack(list(row.values()), dim=1).cpu()
        return [i for i in range(len(losses)) if i not in self.diverged]

    def measure(self, step: int, i: int, model: nn.Module) -> None:
        """Call the user's functions on a model at a step, and keep what they return."""
        for prefix, function in self.functions.items():
            value = _called(function, step, model)
            for key, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                name = ".".join(part for part in (prefix, str(key)) if part) or "measured"
                self.measured[i][name][step] = torch.as_tensor(number).detach().cpu().double().clone()

    def of(self, i: int) -> dict[str, Any]:
        """What the history of a model holds of all this."""
        last, stopped = self.config.steps, "finished"
        if i in self.diverged:
            step, loss = self.diverged[i]
            last = step - 1
            stopped = f"diverged: the loss of step {step} is {loss}; try a lower learning_rate"
        steps = [step for step in self.rows if step <= last]
        rows = [self.rows[step][i] for step in steps]
        return {
            "steps": torch.tensor(steps, dtype=torch.int64),
            "table": torch.stack(rows).double() if rows else torch.zeros(0, len(self.columns)).double(),
            "columns": self.columns,
            "measured": {
                name: Series(torch.tensor(list(values)), torch.stack(list(values.values())))
                for name, values in self.measured[i].items()
            },
            "last_step": last,
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
