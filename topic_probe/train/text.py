"""Training a small BERT on real text by transformers' Trainer, with the norms of its tensors recorded (Figure 5)."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import DataCollatorForLanguageModeling, PrinterCallback, Trainer, TrainingArguments

from topic_probe.lens.running import generators_as_they_were
from topic_probe.options import checked, progress_bar
from topic_probe.text.documents import read_documents
from topic_probe.topics.lookup import tokenizer_hash, vocabulary_size
from topic_probe.toy.masking import Masking
from topic_probe.train.bert import TextConfig, bert_parameters, is_attention
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.toy import Measure, Recorder

OPTIONS = (
    "optimizer", "learning_rate", "batch_size", "steps", "seed", "masking", "record_every", "measure_every",
    "measure_steps",
)  # fmt: skip
"""What training on text reads of a `TrainConfig`; all else belongs to the toy."""


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
        model: From `build_bert`.
        documents: A `DocumentStream` (``corpus.documents(tokenizer, max_length=64, long="chunk")``) or token ids in
            any shape that measurements take. They are read once, at the start, and shuffled whenever all have been
            used.
        config: How to train: ``optimizer``, ``learning_rate``, ``batch_size``, ``steps``, ``seed``, ``masking``, and
            which steps are recorded and measured. All other options belong to the toy.
        tokenizer: Says which ids are special; None takes that of the stream.
        measure: As in `train_toy`; it is called with the model, which every ``measure_*`` takes.
        progress: Show a progress bar; by default in a terminal or a notebook.
    """
    toy = getattr(model, "text_config", None)
    if not isinstance(toy, TextConfig):
        raise TypeError(
            f"needed a BERT from build_bert, got {type(model).__name__}; train_toy trains the toy"
        )
    tokenizer = getattr(documents, "tokenizer", None) if tokenizer is None else tokenizer
    if tokenizer is None:
        raise ValueError(
            "it must be known which ids are special tokens: pass tokenizer=, or a stream from "
            "corpus.documents(tokenizer)"
        )
    rows = [document.ids.numpy().astype(np.int32) for document in read_documents(documents) if len(document)]
    _check(config, toy, rows, tokenizer)
    parameters = {name: parameter.detach()[None] for name, parameter in bert_parameters(model).items()}
    watched = {name: parameters[name] for name in parameters if name == "W_E" or is_attention(name)}
    recorder = Recorder(config, watched, parameters, measure)
    interrupted = False
    with progress_bar(total=config.steps, unit="step", shown=progress) as bar, generators_as_they_were():
        try:
            _Trainer(model, rows, tokenizer, config, recorder, bar).train()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            torch._foreach_copy_(list(parameters.values()), list(recorder.kept.values()))
            model.zero_grad()
            model.eval()
    packages = ("topic-probe", "transformers", "torch")
    provenance = {
        **{package: version(package) for package in packages},
        "documents": hashlib.sha256(b" ".join(row.tobytes() for row in rows)).hexdigest(),
        "tokenizer": tokenizer_hash(tokenizer),
    }
    recorded = recorder.history(0, interrupted=interrupted)
    return History(toy=toy, train=config, provenance=provenance, **recorded)


def _check(config: TrainConfig, toy: TextConfig, rows: list[np.ndarray], tokenizer: Any) -> None:
    """Refuse options of the toy, and text that the model has no embeddings or positions for."""
    for option in fields(config):
        if option.name not in OPTIONS and getattr(config, option.name) != option.default:
            raise ValueError(
                f"{option.name} is an option of the toy; training on text reads {', '.join(OPTIONS)}"
            )
    if not rows:
        raise ValueError("there is no document to train on")
    highest = max(vocabulary_size(tokenizer) - 1, *(int(row.max()) for row in rows))
    if highest >= toy.vocabulary_size:
        raise ValueError(
            f"the tokenizer has the ids 0..{highest}, but the model knows 0..{toy.vocabulary_size - 1}; build it with "
            "TextConfig(vocabulary_size=len(tokenizer))"
        )
    longest = max(map(len, rows))
    if longest > toy.max_length:
        raise ValueError(
            f"the longest document has {longest} tokens, but the model has positions for {toy.max_length}; cut "
            "documents with corpus.documents(tokenizer, max_length=...)"
        )


class _Trainer(Trainer):  # type: ignore[misc]
    """A Trainer that writes nothing, says nothing, and records every step."""

    def __init__(
        self,
        model: nn.Module,
        rows: list[np.ndarray],
        tokenizer: Any,
        config: TrainConfig,
        recorder: Recorder,
        bar: Any,
    ):
        self.recorder, self.bar = recorder, bar
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
            tokenizer,
            mlm_probability=masking.p_mask,
            mask_replace_prob=1 - masking.p_keep - masking.p_random,
            random_replace_prob=masking.p_random,
            seed=config.seed,
        )
        optimizer = torch.optim.Adam if config.optimizer == "adam" else torch.optim.SGD
        super().__init__(
            model,
            arguments,
            data_collator=collator,
            train_dataset=rows,
            optimizers=(optimizer(model.parameters(), lr=config.learning_rate, fused=True), None),
        )
        self.remove_callback(PrinterCallback)

    def compute_loss(self, model: Any, inputs: Mapping[str, Tensor], *_: Any, **__: Any) -> Tensor:
        """The loss of transformers, but without predictions where none is asked for: most of a small model's time."""
        chosen = inputs["labels"] != -100
        states = model.bert(inputs["input_ids"], attention_mask=inputs["attention_mask"])[0]
        loss: Tensor = cross_entropy(model.cls(states[chosen]), inputs["labels"][chosen])
        return loss

    def training_step(self, model: nn.Module, *given: Any, **named: Any) -> Tensor:
        """Gradients of a batch, with a row of the history for the state that they are of."""
        loss: Tensor = super().training_step(model, *given, **named)
        step = self.state.global_step
        if not self.recorder.record(step, loss[None]):
            self.control.should_training_stop = True
        elif self.recorder.config.measures(step):
            self.recorder.measure(0, model)
        self.bar.update(min(step, 1))
        return loss


class _Collator(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """Batches of rows of ids, masked anew where nothing was masked, because they have no loss."""

    def torch_call(self, examples: list[np.ndarray]) -> Any:
        special = self.tokenizer.all_special_ids
        rows = [{"input_ids": row, "special_tokens_mask": np.isin(row, special)} for row in examples]
        for _ in range(100):
            batch = super().torch_call(rows)
            if bool((batch["labels"] != -100).any()):
                return batch
        raise ValueError(
            f"nothing was masked in {len(examples)} documents, 100 times in a row; raise "
            f"p_mask={self.mlm_probability}, batch_size or the length of the documents"
        )
