"""Training a small BERT on real text, with the norms of its tensors recorded (Figure 5)."""

import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import count
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import DataCollatorForLanguageModeling

from topic_probe.options import checked
from topic_probe.text.documents import read_documents
from topic_probe.topics.lookup import tokenizer_hash, vocabulary_size
from topic_probe.toy.world import Masking
from topic_probe.train.bert import TextConfig, bert_parameters, is_attention
from topic_probe.train.history import History, TrainConfig
from topic_probe.train.toy import Measure, Recorder, optimize


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

    Args:
        model: From `build_bert`.
        documents: A `DocumentStream` (``corpus.documents(tokenizer, max_length=64, long="chunk")``) or token ids in
            any shape that measurements take. They are read once, at the start, and shuffled whenever all have been
            used.
        config: How to train; ``loss`` and ``world`` belong to the toy.
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
    special, masking = tokenizer.all_special_ids, config.masking or Masking()
    ids = [document.ids.numpy().astype(np.int32) for document in read_documents(documents)]
    rows = [row for row in ids if not np.isin(row, special).all()]
    if not rows or masking.p_mask == 0:
        raise ValueError("no word is to be predicted: there is no document with one, or p_mask is 0")
    _check(config, toy, rows, tokenizer)
    leaves = dict(bert_parameters(model))
    watched = {
        name: leaf.detach()[None] for name, leaf in leaves.items() if name == "W_E" or is_attention(name)
    }
    collator = DataCollatorForLanguageModeling(
        tokenizer,
        mlm_probability=masking.p_mask,
        mask_replace_prob=1 - masking.p_keep - masking.p_random,
        random_replace_prob=masking.p_random,
        seed=config.seed,
    )
    recorder = Recorder(config, watched, leaves, measure)
    optimize(leaves, _losses(model, rows, collator, config), recorder, lambda _: model, progress)
    model.zero_grad()
    packages = ("topic-probe", "transformers", "torch")
    provenance = {
        **{package: version(package) for package in packages},
        "documents": hashlib.sha256(b" ".join(row.tobytes() for row in rows)).hexdigest(),
        "tokenizer": tokenizer_hash(tokenizer),
    }
    tensors = {name: leaf.detach().cpu().clone() for name, leaf in leaves.items()}
    return History(toy, config, tensors=tensors, provenance=provenance, **recorder.of(0))


def _check(config: TrainConfig, toy: TextConfig, rows: list[np.ndarray], tokenizer: Any) -> None:
    """Refuse options of the toy, and text that the model has no embeddings or positions for."""
    if config.loss != "cross_entropy" or config.world is not None:
        raise ValueError("a BERT is trained on text, by cross-entropy; world and loss are options of the toy")
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


def _losses(
    model: Any, rows: list[np.ndarray], collator: Any, config: TrainConfig
) -> Iterator[Float[Tensor, "model"]]:
    """The loss of one batch after another; documents are shuffled anew whenever all have been used."""
    generator, device = torch.Generator(), next(model.parameters()).device
    for epoch in count():
        order = torch.randperm(len(rows), generator=generator.manual_seed(config.seed + epoch))
        for chosen in torch.split(order, config.batch_size):
            batch = collator([{"input_ids": rows[i]} for i in chosen.tolist()]).to(device)
            masked = batch["labels"] != -100
            if not masked.any():
                continue
            # Without predictions where none is asked for, which take most of a small model's time.
            states = model.bert(batch["input_ids"], attention_mask=batch["attention_mask"])[0]
            yield cross_entropy(model.cls(states[masked]), batch["labels"][masked])[None]
