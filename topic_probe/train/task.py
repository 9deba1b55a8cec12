"""What the training loop needs to know of a model and its data, and what that is for the toy."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from topic_probe.toy.lean import LeanForm, has_hooks, hooked_loss, lean_form, lean_loss, queries
from topic_probe.toy.masking import MaskedBatch, Masking
from topic_probe.toy.model import ToyConfig, in_paper_layout, toy_config, toy_parameters, toy_tensors
from topic_probe.train.bert import TextConfig
from topic_probe.train.history import TrainConfig


class Task(ABC):
    """A model with the loss of fresh batches, as the training loop sees it.

    Attributes:
        model: What measurements are called with.
        toy: Its config.
        tensors: Everything that a checkpoint and a history keep, by name; they share the memory of the parameters.
        trained: Names of those that are trained.
        watched: Names of those that have a norm in every row of the history.
        masking: How batches are corrupted.
        generator: The only source of randomness, and the only state beside the tensors.
        forward: The form of the forward pass.
        package: Whose version belongs to the results.
        identity: What a checkpoint must agree with beyond the configs.
    """

    model: nn.Module
    toy: ToyConfig | TextConfig
    tensors: Mapping[str, Tensor]
    trained: tuple[str, ...]
    watched: tuple[str, ...]
    masking: Masking
    generator: torch.Generator
    forward: str
    package: str
    identity: Mapping[str, str]

    @abstractmethod
    def loss_and_gradients(self) -> tuple[Tensor, list[Tensor]] | None:
        """Loss of a fresh batch with the gradients of the trained tensors; None if nothing was masked in it."""


class ToyTask(Task):
    """The toy transformer on documents of its topic model."""

    package = "transformer-lens"
    identity: Mapping[str, str] = {}
    toy: ToyConfig

    def __init__(self, model: nn.Module, config: TrainConfig):
        self.model, self.config, self.toy = model, config, toy_config(model)
        self.vocabulary_size = self.toy.vocabulary_size
        self.batches = _Batches(config, self.toy, next(model.parameters()).device)
        self.masking, self.generator = self.batches.masking, self.batches.generator
        self.form, self.hooked = _choose_form(model, config), has_hooks(model)
        self.forward = "hooked" if self.form is None else "lean"
        self.leaves = {name: leaf for name, leaf in toy_parameters(model).items() if leaf.requires_grad}
        # Tensors in the paper's orientation that share the memory of the parameters: a step updates these, and
        # what it updates, differentiates and saves is the same on every TransformerLens.
        self.tensors = {name: view.detach() for name, view in toy_tensors(model).items()}
        self.trained, self.watched = tuple(self.leaves), tuple(self.tensors)
        self.differentiated = [self.tensors[name].requires_grad_() for name in self.trained]

    def loss_and_gradients(self) -> tuple[Tensor, list[Tensor]] | None:
        """Loss of a fresh batch with the gradients of the trained tensors; None if nothing was masked in it."""
        batch = self.batches.draw()
        return self._hooked(batch) if self.form is None else self._lean(batch, self.form)

    def _lean(self, batch: MaskedBatch, form: LeanForm) -> tuple[Tensor, list[Tensor]] | None:
        dtype = self.differentiated[0].dtype
        reduced = queries(batch, self.vocabulary_size, uniform=form.uniform, dtype=dtype)
        if reduced is None:
            return None
        loss = lean_loss(self.tensors, form, reduced, loss=self.config.loss)
        return loss, list(torch.autograd.grad(loss, self.differentiated, materialize_grads=True))

    def _hooked(self, batch: MaskedBatch) -> tuple[Tensor, list[Tensor]] | None:
        loss = hooked_loss(self.model, batch, loss=self.config.loss)
        if loss is None:
            return None
        found = torch.autograd.grad(loss, list(self.leaves.values()), materialize_grads=True)
        gradients = []
        for (name, _), gradient in zip(self.leaves.items(), found, strict=True):
            # b_K shifts all scores of a query alike, so what comes out is rounding, which Adam would make a step of.
            exact = torch.zeros_like(gradient) if name.startswith("b_K") and not self.hooked else gradient
            gradients.append(in_paper_layout(self.model, name, exact))
        return loss, gradients


class _Batches:
    """Masked batches without end; nothing but the generator carries state."""

    def __init__(self, config: TrainConfig, toy: ToyConfig, device: torch.device):
        self.config, self.device = config, device
        self.world, self.masking = config.world or toy.world, config.masking or toy.masking
        if self.world.vocabulary_size != toy.vocabulary_size:
            raise ValueError(
                f"the documents have {self.world.vocabulary_size} token ids, the model {toy.vocabulary_size}; build "
                "the model with ToyConfig(world=...) of the same number of words"
            )
        check_masks(self.masking)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.documents = self.masked = None
        if config.n_documents is not None:
            self.documents = self.world.documents(config.n_documents, generator=self.generator)
            self.masked = None if config.remask else self._corrupt(self.documents)

    def draw(self) -> MaskedBatch:
        """The next batch, on the device of the model."""
        batch = self._draw()
        return MaskedBatch(*(getattr(batch, part.name).to(self.device) for part in fields(MaskedBatch)))

    def _corrupt(self, documents: Any) -> MaskedBatch:
        return self.masking.corrupt(documents, n_words=self.world.n_words, generator=self.generator)

    def _draw(self) -> MaskedBatch:
        size = self.config.batch_size
        if self.documents is None:
            return self._corrupt(self.world.documents(size, generator=self.generator))
        n = len(self.documents)
        rows = torch.arange(n) if n <= size else torch.randperm(n, generator=self.generator)[:size]
        if self.masked is None:
            return self._corrupt(self.documents.select(rows))
        return MaskedBatch(*(getattr(self.masked, part.name)[rows] for part in fields(MaskedBatch)))


def check_masks(masking: Masking) -> None:
    """ValueError where nothing is ever masked."""
    if masking.p_mask == 0:
        raise ValueError("with p_mask=0 nothing is masked and there is nothing to learn; raise p_mask")


def _choose_form(model: nn.Module, config: TrainConfig) -> LeanForm | None:
    form = None if config.forward == "hooked" else lean_form(model)
    if form is None and config.forward == "lean":
        raise ValueError(
            "the lean form is for one layer and head without residual and without hooks on the model; "
            "use forward='auto' or 'hooked'"
        )
    return form
