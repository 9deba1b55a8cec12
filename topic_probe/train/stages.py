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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.ndimage import median_filter

from topic_probe.options import check_share, checked
from topic_probe.report import Report, provenance
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.theory import initial_gradients
from topic_probe.train.history import History
from topic_probe.train.toy import draw
from topic_probe.uncertainty import divide

if TYPE_CHECKING:
    import pandas as pd

# Fewer rows than this show no curve.
MIN_ROWS = 10

STARTED, FROM_ZERO, FLAT = 0.2, 0.05, 0.25
"""The 20 %, the 5 % and the 25 % of the rules."""

NO_PATTERN = "no two-stage pattern"

COLUMNS = (
    "value_start", "value_flat", "key_start", "query_start", "value_growth", "attention_change", "late_value_growth",
    "late_rotation",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class DynamicsReport(Report, kind="dynamics"):
    """The stages of a training, layer by layer.

    Attributes:
        layer: number of every layer.
        value_start: step from which W_V has started to grow; NaN if it never does. The next three likewise.
        value_flat: step from which W_V is flat.
        key_start: step from which W_K has started.
        query_start: step from which W_Q has started.
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

    figure: ClassVar[str] = "curves:stage_map"
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
            return NO_PATTERN
        return f"two stages in {len(having)} of {len(self.layer)} layers: {', '.join(having)}"

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every layer."""
        import pandas as pd

        names = ("layer", "two_stage", *COLUMNS)
        return pd.DataFrame({name: list(getattr(self, name)) for name in names})

    def _notes(self) -> list[str]:
        several = len(self.layer) > 1
        reasons = [
            f"layer {layer}: {reason}" if several else reason
            for layer, reason in zip(self.layer, self.reasons, strict=True)
            if reason is not None
        ]
        return [self.pattern, *reasons]


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
    layers = range(history.toy.n_layers)
    rows: list[dict[str, float]] = []
    for suffix in [""] if len(layers) == 1 else [f".{layer}" for layer in layers]:
        curves = {what: history.norms[f"W_{what}{suffix}"].numpy()[seen] for what in "VKQ"}
        found = _steps(steps[seen], curves, least)
        turned = history.rotations.get(f"W_V{suffix}")
        rotation = np.full(len(steps), np.nan) if turned is None else turned.numpy()
        rows.append({**found, **_sizes(found, steps[seen], curves, rotation[seen])})
    reasons = tuple(_why_not(**{name: row[name] for name in COLUMNS[:4]}) for row in rows)
    return DynamicsReport(
        layer=tuple(layers),
        two_stage=np.array([reason is None for reason in reasons]),
        reasons=reasons,
        provenance=provenance(
            model=history.toy.to_dict(),
            options={
                "until": until, "least": least, "training": history.train.to_dict(), "last_step": history.last_step,
                "stopped": history.stopped,
            },
            seed=history.train.seed,
        ),
        **{name: np.array([row[name] for row in rows]) for name in COLUMNS},
    )  # fmt: skip


def _steps(
    steps: Int64[np.ndarray, " row"], curves: Mapping[str, Float64[np.ndarray, " row"]], least: float
) -> dict[str, float]:
    """The steps at which the three tensors of a layer start, and from which W_V is flat."""
    width = 2 * (len(steps) // 100) + 1
    value, key, query = (median_filter(curves[what], width, mode="nearest") for what in "VKQ")
    value_start = _start(steps, value, least)
    return {
        "value_start": value_start,
        "value_flat": _flat_from(steps, value, value_start),
        "key_start": _start(steps, key, least),
        "query_start": _start(steps, query, least),
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
    if np.isnan(value_start):
        return "W_V never starts to grow"
    still = [name for name, start in (("W_K", key_start), ("W_Q", query_start)) if np.isnan(start)]
    first = np.fmin(key_start, query_start)
    growing = "W_V is not flat within the record"
    if still:
        flat = growing if np.isnan(value_flat) else f"W_V is flat from step {value_flat:.0f}"
        return f"{' and '.join(still)} never start{'s' * (len(still) == 1)} to grow, and {flat}"
    if np.isnan(value_flat):
        return f"{growing}, and goes on while W_K and W_Q grow from step {first:.0f} on"
    if first < value_flat:
        return f"W_K or W_Q starts at step {first:.0f}, before W_V is flat at step {value_flat:.0f}"
    return None


def _sizes(
    found: Mapping[str, float],
    steps: Int64[np.ndarray, " row"],
    curves: Mapping[str, Float64[np.ndarray, " row"]],
    rotation: Float64[np.ndarray, " row"],
) -> dict[str, float]:
    """How far W_V, W_K and W_Q of a layer go in either stage."""
    value, first = curves["V"], np.ones(len(steps), dtype=bool)
    if not np.isnan(found["value_flat"]):
        first = steps <= found["value_flat"]
    second = steps >= np.fmin(found["key_start"], found["query_start"])
    begins = int(second.argmax()) if second.any() else len(steps) - 1
    turned = rotation[second & np.isfinite(rotation)]
    return {
        "value_growth": float(divide(value[begins], value[0])),
        "attention_change": max(
            float(np.abs(divide(curves[what][first], curves[what][:1]) - 1).max()) for what in "KQ"
        ),
        "late_value_growth": float(divide(value[-1], value[begins])) if second.any() else np.nan,
        "late_rotation": float(turned.mean()) if len(turned) else np.nan,
    }


# What the argument of Section 8.1 is about: the tensors that begin as noise, and how those are given that do not.
_NOISE = ("W_K", "W_Q", "W_V")


@checked
def gradient_ratios(history: History) -> dict[str, float]:
    """How small the gradients of W_K and W_Q are beside that of W_V where training begins, measured and predicted.

    The argument of Section 8.1 for a first stage: ``W_K`` is |∂L/∂W_K| / |∂L/∂W_V| at step 0, ``W_Q`` the same of W_Q,
    and ``predicted`` what `theory.initial_gradients` says of both for the very documents of that step, ``noise`` being
    the standard deviation of the entries that the three tensors begin with. The prediction goes with the square of the
    noise; it is a mean over draws of it, which single draws scatter around.

    Args:
        history: of `train_toy` in regime *two-stage*, with ``TrainConfig(record_gradients=True)``; it may have no
            steps.

    Raises:
        ValueError: for other regimes, and where no gradients were recorded.

    Example:
        >>> toy = tp.build_toy(tp.ToyConfig(regime="two-stage", noise=0.01))
        >>> history = tp.train_toy(toy, tp.TrainConfig(loss="squared", steps=0, record_gradients=True))
        >>> ratios = tp.gradient_ratios(history)
        >>> 0.8 < ratios["W_K"] / ratios["predicted"] < 1.25
        True
    """
    toy, gradients = history.toy, history.gradients
    if (
        not isinstance(toy, ToyConfig)
        or toy.regime != "two-stage"
        or toy.trained is not None
        or toy.n_layers * toy.n_heads > 1
        or toy.residual
    ):
        raise ValueError(
            "the prediction is for one layer and head that begin with noise in W_K, W_Q and W_V and have one-hot "
            f"words and no biases, got regime {toy.regime!r} with other settings; use ToyConfig(regime='two-stage')"
        )
    if not gradients:
        raise ValueError("no gradients were recorded; train with TrainConfig(record_gradients=True)")
    first = draw(toy, history.train, 0).select(slice(history.train.batch_size))
    noise = toy.noise if toy.init == "near-zero" else 1 / math.sqrt(3 * toy.width)  # uniform in ±1/√d
    world, loss = history.train.world or toy.world, history.train.loss
    predicted = initial_gradients(world, first, loss=loss, attend=toy.attend).ratio(noise)
    sizes = {name: float(gradients[name][0]) for name in _NOISE}
    measured = {name: sizes[name] / sizes["W_V"] for name in ("W_K", "W_Q")}
    return {"noise": noise, "predicted": predicted, **measured}
