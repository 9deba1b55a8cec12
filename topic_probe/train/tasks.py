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
from topic_probe.topics.vocabulary import tokenizer_hash, vocabulary_size
from topic_probe.toy.masking import MaskedBatch, Masking
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
    toy: TextConfig
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
        for name, kept in (("world", None), ("loss", "cross_entropy")):
            if getattr(config, name) != kept:
                raise ValueError(f"{name} is an option of the toy; training on text has {name}={kept!r}")
        self.masking, self.batch_size = config.masking or Masking(), config.batch_size
        _check_masks(self.masking)
        self.text = TrainingText.read(documents, tokenizer)
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
        level = torch.rand(ids.shape, dtype=torch.float64, generator=self.generator)
        chosen = (level < self.masking.p_mask) & mask & ~self.special[ids]
        kept, random = (
            self.masking.p_mask * self.masking.p_keep,
            self.masking.p_mask * (self.masking.p_keep + self.masking.p_random),
        )
        shown = ids.masked_fill(chosen & (level >= kept), self.mask_id)
        anew = chosen & (level >= kept) & (level < random)
        picks = torch.randint(len(self.words), (int(anew.sum()),), generator=self.generator)
        shown[anew] = self.words[picks]
        device = self.device
        return MaskedBatch(shown.to(device), ids.to(device), mask.to(device), chosen.to(device))

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
