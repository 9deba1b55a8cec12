"""Training a small BERT on real text by transformers' Trainer, with the norms of its tensors recorded (Figure 5)."""

import hashlib
import math
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import DataCollatorForLanguageModeling, PrinterCallback, Trainer, TrainingArguments

from topic_probe.lens.running import generators_as_they_were
from topic_probe.notices import progress_bar
from topic_probe.options import checked
from topic_probe.text.documents import read_documents
from topic_probe.topics.lookup import tokenizer_hash, vocabulary_size
from topic_probe.toy.masking import Masking
from topic_probe.train.bert import bert_parameters, is_attention, text_config
from topic_probe.train.history import History, Series, TrainConfig
from topic_probe.train.toy import ROTATION_LAG, Measure, functions_of, named_numbers

OPTIONS = (
    "optimizer", "learning_rate", "batch_size", "steps", "seed", "masking", "record_every", "measure_every",
    "measure_steps",
)  # fmt: skip
"""What training on text reads of a `TrainConfig`; all else belongs to the toy."""

MOST_EMPTY_BATCHES = 100
"""How often in a row a batch is masked anew because nothing was masked in it."""


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
    def read(cls, documents: Any, tokenizer: Any = None) -> "TrainingText":
        """All documents of a stream or of anything that measurements take."""
        if isinstance(documents, cls):
            return documents
        tokenizer = getattr(documents, "tokenizer", None) if tokenizer is None else tokenizer
        if tokenizer is None:
            raise ValueError(
                "it must be known which ids are special tokens: pass tokenizer=, or a stream from "
                "corpus.documents(tokenizer)"
            )
        rows = [
            document.ids.numpy().astype(np.int32) for document in read_documents(documents) if len(document)
        ]
        if not rows:
            raise ValueError("there is no document to train on")
        return cls(np.concatenate(rows), np.cumsum([0, *map(len, rows)]), tokenizer)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> dict[str, Any]:
        """A document as transformers' collators take it."""
        tokens = slice(self.starts[row], self.starts[row + 1])
        return {"input_ids": self.ids[tokens], "special_tokens_mask": self.special[tokens]}

    @cached_property
    def special(self) -> Bool[np.ndarray, " token"]:
        """Whether a token is a special one, which is never masked."""
        return np.isin(self.ids, self.tokenizer.all_special_ids)

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return int(np.diff(self.starts).max())

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the documents."""
        return hashlib.sha256(self.starts.tobytes() + self.ids.tobytes()).hexdigest()


@checked
def train_text(
    model: nn.Module,
    documents: Any,
    config: TrainConfig,
    *,
    tokenizer: Any = None,
    measure: Measure | Mapping[str, Measure] | None = None,
    progress: bool | None = None,
) -> History:
    """Train a BERT in place on real text by masked language modelling and return what happened.

    The history is that of `train_toy`; the tensors of every layer are ``W_K.0``, ``W_Q.0``, ``W_V.0``, ``W_K.1`` and
    so on, all heads of a layer together. The loss is the mean over all masked positions of the batch; special tokens
    are never masked. Masking is that of transformers: a random token is any of the tokenizer's.

    Ctrl-C and a loss that is not finite end the training as they end that of a toy.

    Args:
        model: From `build_bert`. Parameters that require a gradient are trained.
        documents: A `DocumentStream` (``corpus.documents(tokenizer, max_length=64, long="chunk")``) or token ids in
            any shape that measurements take. They are read once, at the start, and kept as four bytes per token. They
            are shuffled, and shuffled anew when all have been read.
        config: How to train: ``optimizer``, ``learning_rate``, ``batch_size``, ``steps``, ``seed``, ``masking``, and
            which steps are recorded and measured. All other options belong to the toy.
        tokenizer: Says which ids are special; None takes that of the stream.
        measure: As in `train_toy`; it is called with the model, which every ``measure_*`` takes.
        progress: Show a progress bar; by default in a terminal or a notebook.
    """
    toy, text = text_config(model), TrainingText.read(documents, tokenizer)
    _check(config, text, toy.vocabulary_size, toy.max_length)
    with progress_bar(total=config.steps, unit="step", shown=progress) as bar:
        recorder = _Recorder(model, config, measure, bar)
        with generators_as_they_were():
            try:
                _Trainer(model, text, config, recorder).train()
            except KeyboardInterrupt:
                recorder.stopped = f"interrupted at step {recorder.step} of {config.steps}"
            finally:
                recorder.put_back()
                model.zero_grad()
                model.eval()
    table = torch.tensor([row for _, row in recorder.rows], dtype=torch.float64)
    return History(
        toy=toy,
        train=config,
        steps=torch.tensor([step for step, _ in recorder.rows], dtype=torch.int64),
        table=table.view(-1, len(recorder.columns)),
        columns=recorder.columns,
        measured={
            name: Series(torch.tensor(list(values)), torch.stack(list(values.values())))
            for name, values in recorder.measured.items()
        },
        tensors={name: value.cpu() for name, value in recorder.kept.items()},
        last_step=recorder.step,
        stopped=recorder.stopped,
        provenance={
            **{package: version(package) for package in ("topic-probe", "transformers", "torch")},
            "documents": text.fingerprint,
            "tokenizer": tokenizer_hash(text.tokenizer),
        },
    )


def _check(config: TrainConfig, text: TrainingText, size: int, max_length: int) -> None:
    """Refuse options of the toy, and text that the model has no embeddings or positions for."""
    for option in fields(config):
        if option.name not in OPTIONS and getattr(config, option.name) != option.default:
            raise ValueError(
                f"{option.name} is an option of the toy; training on text reads {', '.join(OPTIONS)}"
            )
    highest = max(int(text.ids.max()), vocabulary_size(text.tokenizer) - 1)
    if highest >= size:
        raise ValueError(
            f"the tokenizer has the ids 0..{highest}, but the model knows 0..{size - 1}; build it with "
            "TextConfig(vocabulary_size=len(tokenizer))"
        )
    if text.longest > max_length:
        raise ValueError(
            f"the longest document has {text.longest} tokens, but the model has positions for {max_length}; cut "
            "documents with corpus.documents(tokenizer, max_length=...)"
        )


class _Recorder:
    """What is kept of a training: rows, measurements, and the state that the last loss is of.

    Attributes:
        kept: The parameters by name at the last step that had a finite loss.
        step: That step.
    """

    def __init__(
        self, model: nn.Module, config: TrainConfig, measure: Measure | Mapping[str, Measure] | None, bar: Any
    ):
        self.model, self.config, self.bar = model, config, bar
        self.functions = functions_of(measure)
        self.parameters = {name: value.detach() for name, value in bert_parameters(model).items()}
        self.kept = {name: value.clone() for name, value in self.parameters.items()}
        self.watched = [name for name in self.parameters if name == "W_E" or is_attention(name)]
        self.turning = [name for name in self.watched if name.startswith("W_V")]
        norms, rotations = (
            (f"norm_{name}" for name in self.watched),
            (f"rotation_{name}" for name in self.turning),
        )
        self.columns = ("loss", *norms, *rotations)
        self.rows: list[tuple[int, list[float]]] = []
        self.measured: dict[str, dict[int, Tensor]] = {}
        self.directions: deque[list[Tensor]] = deque(maxlen=ROTATION_LAG + 1)
        self.step, self.stopped = 0, "finished"

    def record(self, step: int, loss: float) -> None:
        """A step with the loss of its batch, before the update."""
        if not math.isfinite(loss):
            self._diverge(step, loss)
            return
        torch._foreach_copy_(list(self.kept.values()), list(self.parameters.values()))
        self.step = step
        self.bar.update(min(step, 1))
        self.directions.append([_direction(self.parameters[name]) for name in self.turning])
        if self.config.records(step):
            self.rows.append((step, [loss, *self._norms(), *self._rotations()]))
        if self.config.measures(step):
            for prefix, function in self.functions.items():
                for name, value in named_numbers(prefix, function(step, self.model)):
                    self.measured.setdefault(name, {})[step] = value

    def put_back(self) -> None:
        """Give the model the state that is kept."""
        torch._foreach_copy_(list(self.parameters.values()), list(self.kept.values()))

    def _norms(self) -> list[float]:
        watched = [self.parameters[name] for name in self.watched]
        norms: list[float] = torch.stack(torch._foreach_norm(watched, 2, dtype=torch.float64)).tolist()
        return norms

    def _rotations(self) -> list[float]:
        """(1 − cosine)/2 between every W_V and itself ten steps before."""
        if len(self.directions) <= ROTATION_LAG:
            return [math.nan] * len(self.turning)
        cosines = [torch.dot(*pair) for pair in zip(self.directions[0], self.directions[-1], strict=True)]
        return [((1 - cosine) / 2).clamp(min=0).item() for cosine in cosines]

    def _diverge(self, step: int, loss: float) -> None:
        what = f"the loss of step {step} is {loss}"
        if step == 0:
            raise ValueError(f"{what}, before any update; look at the tensors the model starts with")
        self.stopped = f"diverged: {what}; the model is back at step {self.step} (try a lower learning_rate)"


def _direction(value: Tensor) -> Tensor:
    """A matrix as a vector of length 1; NaN for zeros."""
    flat = value.to(torch.float64).flatten()
    length: Tensor = torch.linalg.vector_norm(flat)
    return flat / length


class _Trainer(Trainer):  # type: ignore[misc]
    """A Trainer that writes nothing, says nothing, and records every step."""

    def __init__(self, model: nn.Module, text: TrainingText, config: TrainConfig, recorder: _Recorder):
        self.recorder = recorder
        arguments = TrainingArguments(
            output_dir=os.curdir,  # which there is, so that no folder is made
            # The loss of the one behind the last is that of the trained model; its update is undone.
            max_steps=config.steps + 1,
            per_device_train_batch_size=config.batch_size,
            seed=config.seed,
            use_cpu=next(model.parameters()).device.type == "cpu",
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        arguments._n_gpu = 1  # a batch is not for every GPU that can be seen
        masking = config.masking or Masking()
        collator = _Collator(
            text.tokenizer,
            mlm_probability=masking.p_mask,
            mask_replace_prob=1 - masking.p_keep - masking.p_random,
            random_replace_prob=masking.p_random,
            seed=config.seed,
        )
        optimizer = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        super().__init__(
            model,
            arguments,
            data_collator=collator,
            train_dataset=text,
            optimizers=(optimizer(trained, lr=config.learning_rate, fused=True), None),
        )
        self.remove_callback(PrinterCallback)

    def compute_loss(self, model: Any, inputs: Mapping[str, Tensor], *_: Any, **__: Any) -> Tensor:
        """The loss of transformers, but without predictions where none is asked for: most of a small model's time."""
        chosen = inputs["labels"] != -100
        states = model.bert(inputs["input_ids"], attention_mask=inputs["attention_mask"])[0]
        loss: Tensor = cross_entropy(model.cls(states[chosen]), inputs["labels"][chosen])
        return loss

    def training_step(self, *given: Any, **named: Any) -> Tensor:
        """Gradients of a batch, with a row of the history for the state that they are of."""
        loss: Tensor = super().training_step(*given, **named)
        self.recorder.record(self.state.global_step, float(loss))
        self.control.should_training_stop |= self.recorder.stopped != "finished"
        return loss


class _Collator(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """Batches that are masked anew where nothing was masked, because they have no loss."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        for _ in range(MOST_EMPTY_BATCHES):
            batch: dict[str, Any] = super().torch_call(examples)
            if bool((batch["labels"] != -100).any()):
                return batch
        raise ValueError(
            f"nothing was masked in {len(examples)} documents, {MOST_EMPTY_BATCHES} times in a row; raise "
            f"p_mask={self.mlm_probability}, batch_size or the length of the documents"
        )
