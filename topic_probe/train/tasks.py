"""What the training loop needs to know of a toy and its documents."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from topic_probe.toy.draws import Draws
from topic_probe.toy.lean import (
    LeanForm,
    MaskedCounts,
    has_hooks,
    hooked_loss,
    lean_form,
    lean_loss,
    queries,
)
from topic_probe.toy.masking import MaskedBatch, Masking
from topic_probe.toy.model import ToyConfig, in_paper_layout, toy_config, toy_parameters, toy_tensors
from topic_probe.toy.world import Documents
from topic_probe.train.history import TrainConfig

MOST_EMPTY_BATCHES = 1000  # in a row; a sensible p_mask never comes near


class Task(ABC):
    """A model with the loss of fresh batches, as the training loop sees it.

    Attributes:
        model: What measurements are called with.
        toy: Its config.
        tensors: Everything that a checkpoint and a history keep, by name. They share the memory of the parameters, or
            are slices of tensors of several models that are trained side by side.
        own: Those that share the memory of the parameters, while others are used.
        trained: Names of those that are trained.
        watched: Names of those that have a norm in every row of the history.
        masking: How batches are corrupted.
        generator: The only source of randomness, and the only state beside the tensors.
        n_empty: Batches so far that had nothing masked.
        forward: The form of the forward pass.
        package: Whose version belongs to the results.
        identity: What a checkpoint must agree with beyond the configs.
    """

    model: nn.Module
    toy: ToyConfig
    tensors: Mapping[str, Tensor]
    own: Mapping[str, Tensor] | None = None
    trained: tuple[str, ...]
    watched: tuple[str, ...]
    masking: Masking
    generator: torch.Generator
    n_empty: int = 0
    forward: str
    package: str
    identity: Mapping[str, str]

    @abstractmethod
    def loss_and_gradients(self) -> tuple[Tensor, list[Tensor]] | None:
        """The loss of a fresh batch with the gradients of the trained tensors; None if nothing was masked in it."""

    def fresh_loss(self) -> tuple[Tensor, list[Tensor]]:
        """The same of the first batch in which something is masked."""
        for _ in range(MOST_EMPTY_BATCHES):
            result = self.loss_and_gradients()
            if result is not None:
                return result
            self.n_empty += 1
        raise nothing_masked(self.masking)

    def join_stack(self, slices: Mapping[str, Tensor]) -> None:
        """Work on slices of tensors of several models from now on."""
        self.own, self.tensors = self.tensors, slices

    def update_model(self) -> None:
        """Give the model the values of its slices, if it is in a stack."""
        if self.own is not None:
            with torch.no_grad():
                for name in self.trained:
                    self.own[name].copy_(self.tensors[name])

    def leave_stack(self) -> None:
        """Work on the memory of the model again, with the values of its slices, if it is in a stack."""
        if self.own is not None:
            self.update_model()
            self.tensors, self.own = self.own, None


class ToyTask(Task):
    """The toy transformer on documents of its world."""

    package = "transformer-lens"
    identity: Mapping[str, str] = {}
    toy: ToyConfig

    def __init__(self, model: nn.Module, config: TrainConfig):
        self.model, self.config, self.toy = model, config, toy_config(model)
        self.device = next(model.parameters()).device
        self.form = None if config.forward == "hooked" else lean_form(model)
        if self.form is None and config.forward == "lean":
            raise ValueError(
                "the lean form is for one layer and head without residual and without hooks on the model; "
                "use forward='auto' or 'hooked'"
            )
        self.has_hooks = has_hooks(model)
        self.forward = "hooked" if self.form is None else "lean"
        self.leaves = {name: leaf for name, leaf in toy_parameters(model).items() if leaf.requires_grad}
        # Tensors in the paper's orientation that share the memory of the parameters: a step updates these, and
        # what it updates, differentiates and saves is the same on every TransformerLens.
        self.tensors = {name: view.detach() for name, view in toy_tensors(model).items()}
        self.trained, self.watched = tuple(self.leaves), tuple(self.tensors)
        self.differentiated = [self.tensors[name].requires_grad_() for name in self.trained]
        self.dtype = next(iter(self.tensors.values())).dtype
        self.world, self.masking = config.world or self.toy.world, config.masking or self.toy.masking
        if self.world.vocabulary_size != self.toy.vocabulary_size:
            raise ValueError(
                f"the documents have {self.world.vocabulary_size} token ids, the model {self.toy.vocabulary_size}; "
                "build the model with ToyConfig(world=...) of the same number of words"
            )
        _check_masks(self.masking)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.documents = self.masked = None
        if config.n_documents is not None:
            self.documents = self.world.documents(config.n_documents, generator=self.generator)
            self.masked = None if config.remask else self._corrupt(self.documents)

    def draw(self) -> MaskedBatch:
        """The next batch, on the CPU."""
        size = self.config.batch_size
        if self.documents is None:
            return self._corrupt(self.world.documents(size, generator=self.generator))
        n = len(self.documents)
        rows = torch.arange(n) if n <= size else torch.randperm(n, generator=self.generator)[:size]
        return self._corrupt(self.documents.select(rows)) if self.masked is None else self.masked.select(rows)

    def draw_counts(self) -> MaskedCounts:
        """The same without the order of words."""
        if self.documents is None:
            return MaskedCounts.fresh(self.world, self.masking, self.config.batch_size, Draws(self.generator))
        return MaskedCounts.of_batch(self.draw(), self.toy.vocabulary_size)

    def _corrupt(self, documents: Documents) -> MaskedBatch:
        return self.masking.corrupt(documents, n_words=self.world.n_words, generator=self.generator)

    def loss_and_gradients(self) -> tuple[Tensor, list[Tensor]] | None:
        """Loss of a fresh batch with the gradients of the trained tensors; None if nothing was masked in it."""
        if self.form is None:
            return self._hooked(self.draw().to(self.device))
        return self._lean(self.draw_counts().to(self.device), self.form)

    def _lean(self, batch: MaskedCounts, form: LeanForm) -> tuple[Tensor, list[Tensor]] | None:
        reduced = queries(batch, uniform=form.uniform, dtype=self.dtype)
        if reduced is None:
            return None
        loss = lean_loss(self.tensors, form, reduced, loss=self.config.loss)
        return loss, list(torch.autograd.grad(loss, self.differentiated, materialize_grads=True))

    def _hooked(self, batch: MaskedBatch) -> tuple[Tensor, list[Tensor]] | None:
        loss = hooked_loss(self.model, batch, loss=self.config.loss)
        if loss is None:
            return None
        gradients = torch.autograd.grad(loss, list(self.leaves.values()), materialize_grads=True)
        # b_K shifts all scores of a query alike, so what comes out is rounding, which Adam would make a step of.
        exact = {
            name: torch.zeros_like(gradient) if name.startswith("b_K") and not self.has_hooks else gradient
            for name, gradient in zip(self.leaves, gradients, strict=True)
        }
        return loss, [in_paper_layout(self.model, name, gradient) for name, gradient in exact.items()]


def nothing_masked(masking: Masking) -> ValueError:
    """For a masking that leaves batch after batch as it is."""
    return ValueError(
        f"{MOST_EMPTY_BATCHES} batches in a row had nothing masked; raise p_mask={masking.p_mask}, batch_size or the "
        "length of the documents"
    )


def _check_masks(masking: Masking) -> None:
    """ValueError where nothing is ever masked."""
    if masking.p_mask == 0:
        raise ValueError("with p_mask=0 nothing is masked and there is nothing to learn; raise p_mask")
