"""Small models trained with transformers' own Trainer, and how far they have come on text that they have not seen."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, SequentialSampler

from topic_probe.lens.huggingface import attention_implementation
from topic_probe.lens.running import generators_as_they_were
from topic_probe.notices import quiet_transformers
from topic_probe.options import check_number, check_value, check_whole, checked, settle_fields
from topic_probe.storage import draft
from topic_probe.train.architectures import (
    Architecture,
    Row,
    SmallConfig,
    Task,
    build_small,
)
from topic_probe.train.tasks import TrainingText

NEEDED = 0.5
"""Nats below the unigram entropy from which a model counts as trained far enough to be interpreted."""

# So many checkpoints are written, of which the last one stays.
_CHECKPOINTS = 10


Precision = Literal["float32", "bfloat16"]


def fast_precision() -> Precision:
    """bfloat16 where the processor multiplies it itself: a training takes less than half of the time there.

    Others work it out from float32, which takes longer.
    """
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions cannot tell
    own = any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if own and torch.backends.mkldnn.is_available() else "float32"  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class SmallTraining:
    """How a small model is trained: AdamW, the rate rising at first and falling to zero.

    Attributes:
        steps: updates.
        batch_size: documents of an update.
        learning_rate: the highest.
        warmup: share of the steps in which the rate rises.
        weight_decay: of AdamW, on matrices.
        seed: of the weights, the order of the documents and what is masked.
        precision: of the products of matrices; weights, updates and what is measured are float32.
    """

    steps: int = 4000
    batch_size: int = 16
    learning_rate: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    seed: int = 0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        settle_fields(self)
        check_value("precision", self.precision, Precision)
        for name in ("steps", "batch_size"):
            check_whole(name, getattr(self, name))
        check_whole("seed", self.seed, 0)
        check_number("learning_rate", self.learning_rate)
        check_number("weight_decay", self.weight_decay, zero=True)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps, at least 0 and below 1, got {self.warmup}")


class Rows(Dataset[Row]):
    """The rows of a training in their order, each a function of its number and the seed alone.

    So a training that is taken up again reads what it would have read, whatever was drawn meanwhile. Every pass has
    another order of the documents and other masks.
    """

    def __init__(self, text: TrainingText, task: Task, n: int, *, seed: int) -> None:
        self.text, self.task, self.n, self.seed = text, task, n, seed

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int) -> Row:
        past, place = divmod(number, len(self.text))
        document = _order(len(self.text), self.seed, past)[place]
        ids = self.text.ids[self.text.starts[document] : self.text.starts[document + 1]]
        return self.task.row(ids, np.random.default_rng([self.seed, number]))


@lru_cache(maxsize=2)
def _order(n: int, seed: int, past: int) -> np.ndarray:
    return np.random.default_rng([seed, past, n]).permutation(n)


@checked
def train_small(
    architecture: Architecture,
    text: TrainingText,
    config: SmallConfig | None = None,
    training: SmallTraining | None = None,
    *,
    folder: str | Path,
    callbacks: Sequence[Any] = (),
    progress: bool | None = None,
) -> nn.Module:
    """A small model trained with transformers' Trainer, in evaluation mode; of ELECTRA an `ElectraPair`.

    It trains on the CPU, where the same seed gives the same weights, prints nothing, and leaves the global generators
    as they were. The folder keeps checkpoints: what was stopped goes on there and comes out as if it had not been.

    Args:
        architecture: which model.
        text: documents with their tokenizer, of the kind that `TOKENIZERS` names or another; longer documents are cut.
        config: how large the model is; None: four layers of width 128.
        training: how long, and how; None: 4,000 steps.
        folder: for checkpoints of this training alone.
        callbacks: further callbacks of Trainer, such as a `TopicProbe`.
        progress: show Trainer's progress bar; by default not.
    """
    from transformers.trainer_callback import PrinterCallback

    config, training = config or SmallConfig(), training or SmallTraining()
    model = build_small(architecture, text.tokenizer, config, seed=training.seed)
    task = Task(architecture, text.tokenizer, config.max_length)
    rows = Rows(text, task, training.steps * training.batch_size, seed=training.seed)
    place = Path(folder).expanduser()
    _check_same(place, {"architecture": architecture, "config": asdict(config), "training": asdict(training)})
    with generators_as_they_were(), quiet_transformers(progress=bool(progress)):
        trainer = _trainer(model, task, rows, training, place, callbacks, progress=bool(progress))
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=_last_whole(place))
    return model.eval()


def _trainer(
    model: nn.Module,
    task: Task,
    rows: Rows,
    training: SmallTraining,
    folder: Path,
    callbacks: Sequence[Any],
    *,
    progress: bool,
) -> Any:
    if find_spec("accelerate") is None:  # the error comes late otherwise, and names another remedy
        raise ImportError("Trainer of transformers needs accelerate: pip install 'topic-probe[train]'")
    from transformers import Trainer, TrainingArguments

    class _Ours(Trainer):  # type: ignore[misc]
        """Trainer with the loss of a task, on rows in their order."""

        def compute_loss(self, model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> Any:
            if training.precision == "float32":
                return task.loss(model, inputs)
            # Plain attention: torch's kernel for processors takes twice as long in bfloat16 as its products do.
            with attention_implementation(model, "eager"), torch.autocast("cpu", torch.bfloat16):
                return task.loss(model, inputs)

        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(rows)

    steps, batch_size = training.steps, training.batch_size
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=batch_size, seed=training.seed,
        learning_rate=training.learning_rate, lr_scheduler_type="linear", adam_beta2=0.98,
        warmup_steps=round(training.warmup * steps), weight_decay=training.weight_decay, max_grad_norm=1.0,
        save_steps=max(1, steps // _CHECKPOINTS), save_total_limit=1, logging_strategy="no",
        report_to=[], disable_tqdm=not progress, use_cpu=True, remove_unused_columns=False,
        dataloader_pin_memory=False, optim="adamw_torch_fused",
    )  # fmt: skip
    return _Ours(
        model=model,
        args=arguments,
        train_dataset=rows,
        processing_class=task.tokenizer,
        callbacks=list(callbacks),
    )


def _check_same(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuse the checkpoints of another training; note what this one is."""
    note = folder / "training.json"
    if not note.exists():
        with draft(note, file=True) as new:
            new.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    elif json.loads(note.read_text(encoding="utf-8")) != facts:
        raise ValueError(
            f"{folder} has checkpoints of a training with other settings: choose another folder, or delete it to start "
            "over"
        )


def _last_whole(folder: Path) -> str | None:
    """The last checkpoint that was written to its end: its state is what Trainer writes last."""
    whole = {}
    for place in folder.glob("checkpoint-*"):
        try:
            state = json.loads((place / "trainer_state.json").read_text(encoding="utf-8"))
            whole[int(state["global_step"])] = str(place)
        except (OSError, ValueError, KeyError):
            continue
    return whole[max(whole)] if whole else None


# --- how far it has come ----------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """How well a model predicts tokens that it does not see, of text that it was not trained on.

    Attributes:
        loss: nats a token: of those that a mask stands for, of GPT-2 of every next one, of BART of what its masks hide.
        entropy: of how often the tokens of the text occur, in nats. No model that knows only this has a lower loss,
            not even one that has counted this very text.
        tokens: that were predicted.
        found: loss of ELECTRA's discriminator; NaN for others.
        guessed: entropy of how often a token was replaced there, the loss of a discriminator that knows only this.
    """

    loss: float
    entropy: float
    tokens: int
    found: float = math.nan
    guessed: float = math.nan

    @property
    def gain(self) -> float:
        """Nats a token that the model knows beyond how often each token occurs."""
        return self.entropy - self.loss

    @property
    def far_enough(self) -> bool:
        """Whether it may be interpreted; a discriminator has to beat guessing as well."""
        return bool(self.gain >= NEEDED and not self.found >= self.guessed)

    def __str__(self) -> str:
        return f"held-out loss {self.loss:.3f}, {self.gain:.2f} nats below the unigram entropy of {self.entropy:.3f}"


@checked
def held_out(
    model: nn.Module, architecture: Architecture, text: TrainingText, *, length: int = 128, seed: int = 0
) -> HeldOut:
    """How far a model has come, on documents that it was not trained on, each masked once.

    Args:
        model: as `train_small` gives it.
        architecture: which it is.
        text: documents of the model's tokenizer.
        length: tokens that documents are cut to.
        seed: of the masks; the global generators stay as they are.
    """
    task, mode = Task(architecture, text.tokenizer, length), model.training
    sums = np.zeros(5)
    with generators_as_they_were(), torch.no_grad():
        torch.manual_seed(seed)
        model.eval()
        for batch in _batches(Rows(text, task, len(text), seed=seed)):
            told, positions = task.predicted(model, batch), int(batch["attention_mask"].sum())
            if len(told.targets):
                sums[:2] += float(told.loss) * len(told.targets), len(told.targets)
            if told.found is not None:
                sums[2:] += float(told.found) * positions, told.replaced * positions, positions
        model.train(mode)
    words = text.ids[~np.isin(text.ids, text.tokenizer.all_special_ids)]
    told_apart = {}
    if sums[4]:
        share = sums[3] / sums[4]
        told_apart = {"found": sums[2] / sums[4], "guessed": _entropy(np.array([share, 1 - share]))}
    return HeldOut(sums[0] / sums[1], _entropy(np.bincount(words) / len(words)), int(sums[1]), **told_apart)


def _batches(rows: Rows, size: int = 32) -> Iterator[Row]:
    for start in range(0, len(rows), size):
        some = [rows[number] for number in range(start, min(start + size, len(rows)))]
        yield {name: torch.stack([row[name] for row in some]) for name in some[0]}


def _entropy(shares: np.ndarray) -> float:
    known = shares[shares > 0]
    return float(-(known * np.log(known)).sum())
