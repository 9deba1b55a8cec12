"""Does training fall into two stages, W_V first and W_K and W_Q after it (Section 5.1)? Read from recorded norms.

Norms are first smoothed by a running median over a fiftieth of the rows, so single outliers and noise below the
thresholds do not matter. Then, for every layer by itself, all its heads together:

* A tensor *starts* at the first step from which its norm stays more than 20 % above the smallest norm it had in the
  whole record (above 5 % of the largest, where the smallest is 0). A norm that never gets that far, or falls back in
  the end, never starts. How far it goes after its start does not matter, unless a share of the largest norm is asked
  for too.
* W_V is *flat* from the first step since its start from which its norm stays within 25 % of what it is there, until the
  end of the record. To be called flat it has to stay so for at least as long as it took to get there; a record that
  ends sooner cannot tell, and steady growth never passes.
* There are *two stages* if W_V starts, becomes flat, and W_K and W_Q both start, neither of them before W_V is flat.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.ndimage import median_filter

from topic_probe.estimate import divide
from topic_probe.options import check_share, checked
from topic_probe.report import Report, provenance
from topic_probe.train.history import History

if TYPE_CHECKING:
    import pandas as pd

# Fewer rows than this show no curve.
MIN_ROWS = 10

STARTED, FROM_ZERO, FLAT = 0.2, 0.05, 0.25
"""The 20 %, the 5 % and the 25 % of the rules."""

COLUMNS = (
    "value_start", "value_flat", "key_start", "query_start", "value_growth", "attention_change", "late_value_growth",
    "late_rotation",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class DynamicsReport(Report, kind="dynamics"):
    """The stages of a training, layer by layer.

    Attributes:
        layer: number of every layer.
        value_start: step from which W_V has started to grow; NaN if it never does. Likewise:
        value_flat: from which W_V is flat.
        key_start: from which W_K has started.
        query_start: from which W_Q has started.
        two_stage: W_V starts, then is flat, and only then W_K and W_Q start.
        reasons: why a layer shows no two-stage pattern; None where it does.
        value_growth: norm of W_V where stage 2 begins (where W_K or W_Q starts, or at the end) ÷ its first one.
        attention_change: largest relative change of the norms of W_K and W_Q from their first, until W_V is flat
            (until the end if it never is).
        late_value_growth: norm of W_V at the end ÷ where stage 2 begins; NaN without a stage 2.
        late_rotation: mean rotation of W_V in ten steps during stage 2, (1 − cosine)/2: W_V may go on turning at a
            constant norm. NaN without a stage 2 or where no rotation was recorded.
        provenance: model, training, options, versions.
    """

    layer: tuple[int, ...]
    value_start: Float64[np.ndarray, " layer"]
    value_flat: Float64[np.ndarray, " layer"]
    key_start: Float64[np.ndarray, " layer"]
    query_start: Float64[np.ndarray, " layer"]
    two_stage: Bool[np.ndarray, " layer"]
    reasons: tuple[str | None, ...]
    value_growth: Float64[np.ndarray, " layer"]
    attention_change: Float64[np.ndarray, " layer"]
    late_value_growth: Float64[np.ndarray, " layer"]
    late_rotation: Float64[np.ndarray, " layer"]
    provenance: Mapping[str, Any]

    @property
    def attention_start(self) -> Float64[np.ndarray, " layer"]:
        """The step at which the first of W_K and W_Q starts and stage 2 begins, layer by layer; NaN if neither does."""
        return np.asarray(np.fmin(self.key_start, self.query_start))

    @property
    def pattern(self) -> str:
        """``two stages``, ``no two-stage pattern``, or the layers that have two stages where not all do."""
        having = [str(layer) for layer, has in zip(self.layer, self.two_stage, strict=True) if has]
        if len(having) == len(self.layer):
            return "two stages"
        if not having:
            return "no two-stage pattern"
        return f"two stages in {len(having)} of {len(self.layer)} layers: {', '.join(having)}"

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every layer."""
        import pandas as pd

        names = ("layer", "two_stage", *COLUMNS)
        return pd.DataFrame({name: list(getattr(self, name)) for name in names})

    def _notes(self) -> list[str]:
        reasons = zip(self.layer, self.reasons, strict=True)
        return [
            self.pattern,
            *(f"layer {layer}: {reason}" for layer, reason in reasons if reason is not None),
        ]


@checked
def measure_dynamics(history: History, *, until: int | None = None, least: float = 0.0) -> DynamicsReport:
    """The stages of a training, from the norms of W_V, W_K and W_Q that its history recorded.

    The rules are at the top of this module. Tensors that were not trained are curves too: they never start.

    Args:
        history: of `train_toy` or `train_text`, with at least ten rows.
        until: look at the rows up to this step only; None: all.
        least: the share of its largest norm that a tensor must have besides to have started; say 0.05 where training
            begins so near to zero that 20 % above is still nothing.

    Raises:
        ValueError: for fewer than ten rows.

    Example:
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=tp.World(n_topics=2, words_per_topic=2)))
        >>> stages = tp.measure_dynamics(tp.train_toy(toy, tp.TrainConfig(steps=20)))
        >>> stages.key_start.tolist(), stages.pattern  # keys and queries are frozen
        ([nan], 'no two-stage pattern')
    """
    check_share("least", least)
    steps = history.steps.numpy()
    seen = steps <= (steps.max(initial=0) if until is None else until)
    if seen.sum() < MIN_ROWS:
        raise ValueError(
            f"needed at least {MIN_ROWS} recorded rows to see a curve, got {seen.sum()}; train longer, or record more "
            "often (TrainConfig(record_every=...))"
        )
    layers = tuple(range(history.toy.n_layers))
    rows = [_layer(history, "" if len(layers) == 1 else f".{layer}", seen, least) for layer in layers]
    return DynamicsReport(
        layer=layers,
        two_stage=np.array([row["reasons"] is None for row in rows]),
        reasons=tuple(row["reasons"] for row in rows),
        provenance=provenance(
            model=asdict(history.toy),
            options={
                "until": until, "least": least, "training": asdict(history.train), "last_step": history.last_step,
                "stopped": history.stopped,
            },
            seed=history.train.seed,
        ),
        **{name: np.array([row[name] for row in rows]) for name in COLUMNS},
    )  # fmt: skip


def _layer(history: History, suffix: str, seen: Bool[np.ndarray, " row"], least: float) -> dict[str, Any]:
    """The columns of one layer."""
    steps = history.steps.numpy()[seen]
    value, key, query = (history.norms[f"W_{what}{suffix}"].numpy()[seen] for what in "VKQ")
    width = 2 * (len(steps) // 100) + 1
    smooth = [median_filter(curve, width, mode="nearest") for curve in (value, key, query)]
    value_start, key_start, query_start = (_start(steps, curve, least) for curve in smooth)
    value_flat = _flat_from(steps, smooth[0], value_start)
    first = steps <= (steps[-1] if np.isnan(value_flat) else value_flat)
    second = steps >= np.fmin(key_start, query_start)
    begins = int(second.argmax()) if second.any() else len(steps) - 1
    rotations = history.rotations.get(f"W_V{suffix}", torch.full(history.steps.shape, np.nan)).numpy()[seen]
    turned = rotations[second & np.isfinite(rotations)]
    return {
        "value_start": value_start,
        "value_flat": value_flat,
        "key_start": key_start,
        "query_start": query_start,
        "reasons": _why_not(value_start, value_flat, key_start, query_start),
        "value_growth": float(divide(value[begins], value[0])),
        "attention_change": max(float(np.abs(divide(c[first], c[:1]) - 1).max()) for c in (key, query)),
        "late_value_growth": float(divide(value[-1], value[begins])) if second.any() else np.nan,
        "late_rotation": float(turned.mean()) if len(turned) else np.nan,
    }


def _start(steps: Int64[np.ndarray, " row"], curve: Float64[np.ndarray, " row"], least: float) -> float:
    """The step from which the curve stays above its threshold; NaN if it does not."""
    share = least if curve.min() > 0 else max(least, FROM_ZERO)
    threshold = max((1 + STARTED) * curve.min(), share * curve.max())
    below = np.flatnonzero(curve <= threshold)
    above = steps[below[-1] + 1 :]
    return float(above[0]) if len(above) else np.nan


def _flat_from(steps: Int64[np.ndarray, " row"], curve: Float64[np.ndarray, " row"], start: float) -> float:
    """The step from which the curve stays near what it is there; NaN if it does not, or too shortly to say so."""
    highest = np.maximum.accumulate(curve[::-1])[::-1]
    lowest = np.minimum.accumulate(curve[::-1])[::-1]
    near = (highest <= (1 + FLAT) * curve) & (lowest >= (1 - FLAT) * curve)
    long_enough = steps[-1] - steps >= steps - start
    flat = steps[near & long_enough & (steps >= start)]
    return float(flat[0]) if len(flat) else np.nan


def _why_not(value_start: float, value_flat: float, key_start: float, query_start: float) -> str | None:
    """What is missing for two stages; None if nothing is."""
    missing = []
    if np.isnan(value_start):
        missing.append("W_V never starts to grow")
    elif np.isnan(value_flat):
        missing.append("W_V is not flat within the record")
    starts = {"W_K": key_start, "W_Q": query_start}
    missing += [f"{name} never starts to grow" for name, start in starts.items() if np.isnan(start)]
    if (first := np.fmin(key_start, query_start)) < value_flat:
        missing.append(f"W_K or W_Q starts at step {first:.0f}, before W_V is flat at step {value_flat:.0f}")
    return "; ".join(missing) or None
