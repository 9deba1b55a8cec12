"""What a training was told to do, and what it recorded."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from topic_probe.storage import (
    check_schema,
    checksum,
    read_json,
    read_safetensors,
    to_json,
    to_safetensors,
    write_directory,
)
from topic_probe.toy.lean import LOSSES
from topic_probe.toy.masking import Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.world import World
from topic_probe.train.bert import TextConfig, build_bert

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

OPTIMIZERS = ("sgd", "adam")
FORWARDS = ("auto", "lean", "hooked")
FORMAT, SCHEMA = "topic_probe history", 1
_JSON, _ARRAYS = "report.json", "arrays.safetensors"


@dataclass(frozen=True)
class TrainConfig:
    """How to train a toy transformer, or a BERT on text; which tensors are trained is the model's.

    Step t is the state after t updates.

    Attributes:
        loss: ``cross_entropy``, or ``squared``: squared distance to the one-hot word, summed over the vocabulary.
        optimizer: ``sgd`` or ``adam`` (0.9, 0.999, 1e-8).
        learning_rate: Step size.
        l2: λ of equation 2; λ‖θ‖² over the trained tensors is added to the loss.
        batch_size: Documents per step.
        steps: Number of updates.
        seed: Of documents and masks; the global generators are not touched.
        world: Documents of a toy; None takes the model's.
        masking: Corruption; None takes the model's (the paper's for a BERT).
        n_documents: None draws fresh documents for every step; a number makes a fixed set of so many, of which
            every step takes ``batch_size`` at random, or all of them in order if there are no more than that.
            Text is such a set in any case; None is all of it.
        remask: With a fixed set: mask anew at every step (False masks the set once).
        record_every: Steps between two rows of the history. The last step has a row in any case.
        measure_every: Steps between two measurements; None measures at the start and at the end only.
        measure_steps: Further steps to measure at.
        forward: ``auto`` computes the loss in the lean form where that can express the model, else through the
            hooked forward; ``lean`` and ``hooked`` insist.
    """

    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    l2: float = 0.0
    batch_size: int = 40
    steps: int = 1000
    seed: int = 0
    world: World | None = None
    masking: Masking | None = None
    n_documents: int | None = None
    remask: bool = True
    record_every: int = 1
    measure_every: int | None = None
    measure_steps: Sequence[int] = ()
    forward: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "measure_steps", tuple(self.measure_steps))
        for name, choices in (("loss", LOSSES), ("optimizer", OPTIMIZERS), ("forward", FORWARDS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name, least in (("batch_size", 1), ("steps", 0), ("record_every", 1)):
            _check_whole(name, getattr(self, name), least)
        for name in ("n_documents", "measure_every"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 1)
        _check_whole("seed", self.seed, 0)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if not (math.isfinite(self.l2) and self.l2 >= 0):
            raise ValueError(f"l2 is the weight of a penalty and must be at least 0, got {self.l2}")
        late = [step for step in self.measure_steps if not 0 <= step <= self.steps]
        if late:
            raise ValueError(f"measure_steps must lie in 0..steps={self.steps}, got {late}")

    def records(self, step: int) -> bool:
        """Whether the history has a row for a step."""
        return step % self.record_every == 0 or step == self.steps

    def measures(self, step: int) -> bool:
        """Whether a step is measured."""
        regular = self.measure_every is not None and step % self.measure_every == 0
        return regular or step in (0, self.steps) or step in self.measure_steps

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON; :meth:`from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """The config that :meth:`to_dict` wrote."""
        world, masking = values["world"], values["masking"]
        return cls(
            **{
                **values,
                "world": None if world is None else World(**world),
                "masking": None if masking is None else Masking(**masking),
            }
        )


@dataclass(frozen=True)
class Series:
    """Values of one quantity at some steps: [step] for numbers, [step, ...] for arrays."""

    steps: Int64[Tensor, "step"]
    values: Float64[Tensor, "step ..."]


@dataclass(frozen=True, repr=False)
class History:
    """What happened during a training.

    Row t is about the state after t updates: the loss on the batch of that step, and the norms of that state.

    Attributes:
        toy: The model's config; a `TextConfig` where a BERT was trained on text.
        train: The training's config.
        steps: Step of every row.
        table: The numbers of every row, one column for each of ``columns``.
        columns: ``loss`` (without penalty), ``penalty`` (λ‖θ‖²), ``norm_W_E`` and so on (Frobenius), and
            ``rotation_W_V``: (1 − cosine)/2 between W_V and W_V ten steps before, in [0, 1] (NaN in the first
            ten steps or for a W_V of zeros; several layers have a column each).
        measured: What ``measure`` returned, by name.
        tensors: The named tensors at the end, in the paper's orientation; after a divergence, those of the last
            state with a finite loss. The model holds the same. Of a BERT these are all its parameters.
        last_step: The step those tensors are of.
        stopped: Why the training ended: ``finished``, or a sentence about an interruption or divergence.
        empty_batches: Batches with nothing masked, drawn again.
        provenance: Versions of what computed this, and the form of the forward pass.
    """

    toy: ToyConfig | TextConfig
    train: TrainConfig
    steps: Int64[Tensor, "row"]
    table: Float64[Tensor, "row column"]
    columns: tuple[str, ...]
    measured: Mapping[str, Series]
    tensors: Mapping[str, Tensor]
    last_step: int
    stopped: str = "finished"
    empty_batches: int = 0
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, column: str) -> Float64[Tensor, "row"]:
        """One column of the table."""
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        return self.table[:, self.columns.index(column)]

    @property
    def loss(self) -> Float64[Tensor, "row"]:
        """Loss without penalty, in every row."""
        return self["loss"]

    @property
    def norms(self) -> dict[str, Float64[Tensor, "row"]]:
        """Frobenius norm of every tensor (of a BERT: W_E, and W_K, W_Q, W_V of every layer), in every row."""
        return self._columns("norm_")

    @property
    def rotations(self) -> dict[str, Float64[Tensor, "row"]]:
        """(1 − cosine)/2 to ten steps before, of every trained W_V, in every row."""
        return self._columns("rotation_")

    def _columns(self, prefix: str) -> dict[str, Float64[Tensor, "row"]]:
        return {c.removeprefix(prefix): self[c] for c in self.columns if c.startswith(prefix)}

    def model(self) -> nn.Module:
        """The trained model, a new one at every call."""
        if isinstance(self.toy, TextConfig):
            return build_bert(self.toy, tensors=self.tensors)
        return build_toy(self.toy, tensors=self.tensors)

    def plot(self, ax: "Axes | None" = None, **options: Any) -> "Axes":
        """The norms of W_K, W_Q and W_V against steps with the stages of `measure_dynamics`; several layers as panels.

        `topic_probe.show.figures` has the losses and rotations too.
        """
        # By name: what draws stands above what trains.
        axes: Axes = import_module("topic_probe.show.figures").plot(self, ax, **options)
        return axes

    def to_dataframe(self) -> "pd.DataFrame":
        """A row per recorded or measured step; measured numbers are columns too (arrays are left out)."""
        import pandas as pd

        frame = pd.DataFrame(self.table.numpy(), columns=list(self.columns), index=self.steps.numpy())
        for name, series in self.measured.items():
            if series.values.ndim == 1:
                column = pd.Series(series.values.numpy(), index=series.steps.numpy(), name=name)
                frame = frame.join(column, how="outer")
        return frame.rename_axis("step").reset_index()

    def __repr__(self) -> str:
        lines = [
            f"History of {self.toy.regime!r} training: {self.train.loss}, {self.train.optimizer} "
            f"{self.train.learning_rate}, step {self.last_step} of {self.train.steps}; {self.stopped}"
        ]
        if len(self):
            lines.append(f"loss {self.loss[0]:.4f} -> {self.loss[-1]:.4f}")
            lines += [f"|{name}| {n[0]:.4f} -> {n[-1]:.4f}" for name, n in self.norms.items()]
        return "\n".join(lines)

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """The folder with the history (JSON and safetensors), whole or absent.

        A folder that holds anything is only replaced with ``overwrite=True``, and only if it is a saved history.
        """
        about, tensors = self.pack()
        packed = to_safetensors({name: tensor.numpy() for name, tensor in tensors.items()})
        described = to_json({**about, "arrays_sha256": checksum(packed)})
        return write_directory(directory, {_JSON: described, _ARRAYS: packed}, overwrite=overwrite)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "History":
        """The history that :meth:`save` wrote.

        FileNotFoundError or ValueError name the file that is missing, corrupt, of a newer version, or no history.
        """
        path = Path(directory).expanduser() / _JSON
        about = read_json(path)
        if about.get("format") != FORMAT:
            raise ValueError(f"{path} is not a saved history")
        check_schema(about, path, newest=SCHEMA)
        arrays = read_safetensors(path.with_name(_ARRAYS), sha256=about.get("arrays_sha256"))
        return cls.unpack(about, {name: torch.from_numpy(array.copy()) for name, array in arrays.items()})

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """JSON content and tensors that together hold everything; :meth:`unpack` reads them."""
        about = {
            "format": FORMAT,
            "schema": SCHEMA,
            "toy": self.toy.to_dict(),
            "train": self.train.to_dict(),
            "columns": self.columns,
            "measured": list(self.measured),
            "last_step": self.last_step,
            "stopped": self.stopped,
            "empty_batches": self.empty_batches,
            "provenance": dict(self.provenance),
        }
        tensors = {"steps": self.steps, "table": self.table}
        for i, series in enumerate(self.measured.values()):
            tensors.update({f"measured.{i}.steps": series.steps, f"measured.{i}.values": series.values})
        tensors.update({f"tensor.{name}": value for name, value in self.tensors.items()})
        return about, tensors

    @classmethod
    def unpack(cls, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "History":
        """The history that :meth:`pack` took apart."""
        measured = {
            name: Series(tensors[f"measured.{i}.steps"], tensors[f"measured.{i}.values"])
            for i, name in enumerate(about["measured"])
        }
        prefix = "tensor."
        return cls(
            toy=_model_config(about["toy"]),
            train=TrainConfig.from_dict(about["train"]),
            steps=tensors["steps"],
            table=tensors["table"],
            columns=tuple(about["columns"]),
            measured=measured,
            tensors={n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)},
            last_step=about["last_step"],
            stopped=about["stopped"],
            empty_batches=about["empty_batches"],
            provenance=about["provenance"],
        )


def _model_config(values: Mapping[str, Any]) -> ToyConfig | TextConfig:
    return ToyConfig.from_dict(values) if "world" in values else TextConfig(**values)


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
