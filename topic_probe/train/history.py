"""What a training was told to do, and what it recorded."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from topic_probe.options import check_number, check_whole, settle_fields
from topic_probe.report import Report, decode, encode
from topic_probe.toy.model import ToyConfig, build_toy, stand_for
from topic_probe.toy.world import Loss, Masking, World
from topic_probe.train.bert import TextConfig, build_bert

if TYPE_CHECKING:
    import pandas as pd

OptimizerName = Literal["sgd", "adam"]


@dataclass(frozen=True)
class TrainConfig:
    """How to train a toy transformer, or a BERT on text; which tensors are trained is the model's.

    Step t is the state after t updates.

    Attributes:
        loss: ``cross_entropy``, or ``squared``: squared distance to the one-hot word, summed over the vocabulary.
        optimizer: ``sgd`` or ``adam`` (0.9, 0.999, 1e-8).
        learning_rate: Step size.
        l2: λ of equation 2; λ‖θ‖² over the trained tensors is added to the loss.
        batch_size: Documents per step, fresh ones for a toy.
        steps: Number of updates.
        seed: Of documents and masks; the global generators are not touched.
        world: Documents of a toy; None takes the model's.
        masking: Corruption; None takes the model's (the paper's for a BERT).
        record_every: Steps between two rows of the history. The last step has a row in any case.
        record_gradients: Give every row the norms of the gradients of that step, too.
        schedule: Alternating optimisation (Section 8.1): phases, gone through in turn and then from the first again,
            each a number of steps and the tensors that move in them, ``((400, ("W_V",)), (100, ("W_K", "W_Q")))``.
            All others keep their value, and their moments under Adam. ``W_K`` stands for that of every layer. Empty:
            all trained tensors move in every step.
        measure_every: Steps between two measurements; None measures at the start and at the end only.

    Example:
        >>> config = tp.TrainConfig(steps=5, record_every=2)
        >>> [step for step in range(6) if config.records(step)]
        [0, 2, 4, 5]
    """

    loss: Loss = "cross_entropy"
    optimizer: OptimizerName = "sgd"
    learning_rate: float = 0.01
    l2: float = 0.0
    batch_size: int = 40
    steps: int = 1000
    seed: int = 0
    world: World | None = None
    masking: Masking | None = None
    record_every: int = 1
    measure_every: int | None = None
    record_gradients: bool = False
    schedule: Sequence[Sequence[Any]] = ()

    def __post_init__(self) -> None:
        settle_fields(self)
        if not all(isinstance(phase, Sequence) and len(phase) == 2 for phase in self.schedule):
            raise ValueError(
                f"schedule needs pairs of a number of steps and names, got {self.schedule!r:.100}"
            )
        schedule = tuple((check_whole("steps of a phase", n), tuple(names)) for n, names in self.schedule)
        object.__setattr__(self, "schedule", schedule)
        for name, least in (("batch_size", 1), ("steps", 0), ("record_every", 1), ("seed", 0)):
            check_whole(name, getattr(self, name), least)
        if self.measure_every is not None:
            check_whole("measure_every", self.measure_every)
        check_number("learning_rate", self.learning_rate)
        check_number("l2", self.l2, zero=True, why="the weight of a penalty")

    def records(self, step: int) -> bool:
        """Whether the history has a row for a step."""
        return step % self.record_every == 0 or step == self.steps

    def measures(self, step: int) -> bool:
        """Whether a step is measured."""
        regular = self.measure_every is not None and step % self.measure_every == 0
        return regular or step in (0, self.steps)

    def moves(self, name: str, step: int) -> bool:
        """Whether the update after a step moves a tensor.

        Example:
            >>> config = tp.TrainConfig(schedule=((10, ("W_V",)), (5, ("W_K", "W_Q"))))
            >>> [config.moves("W_V", step) for step in (0, 9, 10, 14, 15)]
            [True, True, False, False, True]
        """
        if not self.schedule:
            return True
        ends = list(accumulate(length for length, _ in self.schedule))
        _, entries = self.schedule[bisect(ends, step % ends[-1])]
        return stand_for(entries, name)


@dataclass(frozen=True)
class Series:
    """Values of one quantity at some steps: [step] for numbers, [step, ...] for arrays."""

    steps: Int64[Tensor, "step"]
    values: Float64[Tensor, "step ..."]


@dataclass(frozen=True, eq=False, repr=False)
class History(Report, kind="history"):
    """What happened during a training.

    Row t is about the state after t updates: the loss on the batch of that step, and the norms of that state.

    Attributes:
        toy: The model's config; a `TextConfig` where a BERT was trained on text.
        train: The training's config.
        steps: Step of every row.
        table: The numbers of every row, one column for each of ``columns``.
        columns: ``loss`` (without λ‖θ‖²), ``norm_W_E`` and so on (Frobenius), and ``rotation_W_V``: (1 − cosine)/2
            between W_V and W_V ten steps before, in [0, 1] (NaN in the first ten steps or for a W_V of zeros; several
            layers have a column each). With ``record_gradients`` also ``gradient_W_V`` and so on for trained tensors:
            the norm of the gradient of that row's loss.
        measured: What ``measure`` returned, by name.
        tensors: The named tensors at the last step, in the paper's orientation; of a BERT all its parameters.
        last_step: The step those tensors are of.
        stopped: Why the training ended: ``finished``, or a sentence about an interruption or divergence.
        provenance: Versions of what computed this.
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
        return self._under("norm_")

    @property
    def rotations(self) -> dict[str, Float64[Tensor, "row"]]:
        """(1 − cosine)/2 to ten steps before, of every trained W_V, in every row."""
        return self._under("rotation_")

    @property
    def gradients(self) -> dict[str, Float64[Tensor, "row"]]:
        """Frobenius norm of the loss's gradient in every trained tensor, in every row; empty if not recorded."""
        return self._under("gradient_")

    def _under(self, prefix: str) -> dict[str, Float64[Tensor, "row"]]:
        return {name.removeprefix(prefix): self[name] for name in self.columns if name.startswith(prefix)}

    def model(self) -> nn.Module:
        """The trained model, a new one at every call."""
        if isinstance(self.toy, TextConfig):
            return build_bert(self.toy, tensors=self.tensors)
        return build_toy(self.toy, tensors=self.tensors)

    def to_dataframe(self) -> "pd.DataFrame":
        """A row per recorded or measured step; measured numbers are columns too (arrays are left out)."""
        import pandas as pd

        frame = pd.DataFrame(self.table.numpy(), columns=list(self.columns), index=self.steps.numpy())
        for name, series in self.measured.items():
            if series.values.ndim == 1:
                column = pd.Series(series.values.numpy(), index=series.steps.numpy(), name=name)
                frame = frame.join(column, how="outer")
        return frame.rename_axis("step").reset_index()

    def _notes(self) -> list[str]:
        return [
            f"{self.toy.regime!r} training: {self.train.loss}, {self.train.optimizer} {self.train.learning_rate}, "
            f"step {self.last_step} of {self.train.steps}; {self.stopped}"
        ]

    def _tables(self) -> "dict[str, pd.DataFrame]":
        ends = self.to_dataframe().iloc[[0, -1]] if len(self) else self.to_dataframe()
        return {"History, its first and last row": ends}

    def _to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays: dict[str, np.ndarray] = {}
        measured = {name: (series.steps, series.values) for name, series in self.measured.items()}
        plain = {"toy": asdict(self.toy), "train": asdict(self.train), "measured": measured}
        return encode(vars(self) | plain, arrays, self.kind), arrays

    @classmethod
    def _from_saved(cls, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "History":
        saved = decode(content, arrays)
        toy, train = (_with_parts(saved[name]) for name in ("toy", "train"))
        whole = {
            "toy": ToyConfig(**toy) if "world" in toy else TextConfig(**toy),
            "train": TrainConfig(**train),
            "measured": {name: Series(*series) for name, series in saved["measured"].items()},
        }
        return cls(**{**saved, **whole})


def _with_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config whose world and masking are values, too."""
    parts = {name: part for name, part in (("world", World), ("masking", Masking)) if values.get(name)}
    return {**values, **{name: part(**values[name]) for name, part in parts.items()}}
