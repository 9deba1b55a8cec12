"""What the training loop needs to know of a model and its data: for the toy in its world, and for a BERT on text."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from topic_probe.text.documents import read_documents
from topic_probe.topics.lookup import tokenizer_hash, vocabulary_size
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
from topic_probe.train.bert import TextConfig, bert_parameters, is_attention, text_config
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
    toy: ToyConfig | TextConfig
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


@dataclass(frozen=True, eq=False)
class TrainingText:
    """Documents in memory, four bytes a token, for many trainings on the same text.

    Attributes:
        ids: Token ids of all documents, one behind the other.
        starts: Where each document begins, and where the last one ends.
        tokenizer: Whose ids they are.
    """

    ids: Int32[np.ndarray, " token"]
    starts: Int64[np.ndarray, " border"]
    tokenizer: Any

    @classmethod
    def read(cls, documents: Any, tokenizer: Any = None, *, n_documents: int | None = None) -> "TrainingText":
        """All documents of a stream or of anything that measurements take, or the first ``n_documents``."""
        if isinstance(documents, cls):
            return documents if n_documents is None else documents.first(n_documents)
        tokenizer = getattr(documents, "tokenizer", None) if tokenizer is None else tokenizer
        if tokenizer is None:
            raise ValueError(
                "it must be known which ids are special tokens: pass tokenizer=, or a stream from "
                "corpus.documents(tokenizer)"
            )
        chosen = islice(read_documents(documents), n_documents)
        rows = [document.ids.numpy().astype(np.int32) for document in chosen if len(document)]
        if not rows:
            raise ValueError("there is no document to train on")
        return cls(np.concatenate(rows), np.cumsum([0, *map(len, rows)]), tokenizer)

    def first(self, n_documents: int) -> "TrainingText":
        """The first documents."""
        starts = self.starts[: n_documents + 1]
        return TrainingText(self.ids[: starts[-1]], starts, self.tokenizer)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return int(np.diff(self.starts).max())

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the documents."""
        return hashlib.sha256(self.starts.tobytes() + self.ids.tobytes()).hexdigest()

    def batch(
        self, rows: Int64[Tensor, " batch"], *, pad_id: int
    ) -> tuple[Int64[Tensor, "batch position"], Int64[Tensor, " batch"]]:
        """Documents by number, padded on the right, and their lengths."""
        parts = [
            torch.from_numpy(self.ids[self.starts[r] : self.starts[r + 1]]).long() for r in rows.tolist()
        ]
        lengths = torch.tensor([len(part) for part in parts])
        return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=pad_id), lengths


class TextTask(Task):
    """A BERT that predicts the masked tokens of real text."""

    package, forward = "transformers", "huggingface"
    toy: TextConfig

    def __init__(self, model: nn.Module, documents: Any, config: TrainConfig, tokenizer: Any = None):
        self.model, self.toy = model, text_config(model)
        for name, kept in (("world", None), ("loss", "cross_entropy"), ("forward", "auto"), ("remask", True)):
            if getattr(config, name) != kept:
                raise ValueError(f"{name} is an option of the toy; training on text has {name}={kept!r}")
        self.masking, self.batch_size = config.masking or Masking(), config.batch_size
        _check_masks(self.masking)
        self.text = TrainingText.read(documents, tokenizer, n_documents=config.n_documents)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.device = next(model.parameters()).device
        self._read_tokenizer(self.text.tokenizer)
        self.identity = {"documents": self.text.fingerprint, "tokenizer": tokenizer_hash(self.text.tokenizer)}
        parameters = bert_parameters(model)
        self.tensors = {name: parameter.detach() for name, parameter in parameters.items()}
        self.watched = tuple(name for name in parameters if name == "W_E" or is_attention(name))
        self.leaves = [parameter for parameter in parameters.values() if parameter.requires_grad]
        self.trained = tuple(name for name, parameter in parameters.items() if parameter.requires_grad)

    def _read_tokenizer(self, tokenizer: Any) -> None:
        """Which ids are what, refusing text that the model has no embeddings or positions for."""
        if tokenizer.mask_token_id is None:
            raise ValueError("the tokenizer has no [MASK] token; masked language modelling needs one")
        self.mask_id, self.pad_id = int(tokenizer.mask_token_id), int(tokenizer.pad_token_id or 0)
        self.special = torch.zeros(vocabulary_size(tokenizer), dtype=torch.bool)
        self.special[tokenizer.all_special_ids] = True
        self.words = (~self.special).nonzero()[:, 0]
        highest, size = max(int(self.text.ids.max()), len(self.special) - 1), self.toy.vocabulary_size
        if highest >= size:
            raise ValueError(
                f"the tokenizer has the ids 0..{highest}, but the model knows 0..{size - 1}; build it with "
                "TextConfig(vocabulary_size=len(tokenizer))"
            )
        if self.text.longest > self.toy.max_length:
            raise ValueError(
                f"the longest document has {self.text.longest} tokens, but the model has positions for "
                f"{self.toy.max_length}; cut documents with corpus.documents(tokenizer, max_length=...)"
            )

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Evaluation mode: dropout would draw from the global generator."""
        mode = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(mode)

    def draw(self) -> MaskedBatch:
        """The next batch, on the device of the model."""
        n, size = len(self.text), self.batch_size
        rows = torch.arange(n) if n <= size else torch.randint(n, (size,), generator=self.generator)
        ids, lengths = self.text.batch(rows, pad_id=self.pad_id)
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        return self.masking.corrupt_tokens(
            ids,
            mask,
            maskable=mask & ~self.special[ids],
            words=self.words,
            mask_id=self.mask_id,
            generator=self.generator,
        ).to(self.device)

    def loss_and_gradients(self) -> tuple[Tensor, list[Tensor]] | None:
        """Loss of a fresh batch with the gradients of the trained tensors; None if nothing was masked in it."""
        loss = masked_loss(self.model, self.draw())
        if loss is None:
            return None
        return loss, list(torch.autograd.grad(loss, self.leaves, materialize_grads=True))


def masked_loss(model: nn.Module, batch: MaskedBatch) -> Float[Tensor, ""] | None:
    """Cross-entropy, mean over all masked positions of a batch; None if there are none.

    The vocabulary is only predicted where a word was masked: that is most of the cost of a small model.
    """
    rows, positions = batch.chosen.nonzero(as_tuple=True)
    if len(rows) == 0:
        return None
    hidden = model.bert(batch.shown, attention_mask=batch.mask.long())[0]  # type: ignore[operator]
    logits = model.cls(hidden[rows, positions])  # type: ignore[operator]
    return cross_entropy(logits, batch.target[rows, positions])
