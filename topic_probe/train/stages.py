"""Does training fall into two stages, W_V first and W_K and W_Q after it (Section 5.1)? Read from recorded norms."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float64, Int64

from topic_probe.options import checked
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

# A tensor of zeros has no norm to compare with; it has started once it has this share of its largest norm.
SHARE_FROM_ZERO = 0.05

NO_PATTERN = "no two-stage pattern"


@dataclass(frozen=True)
class Stages:
    """When the norms of one layer start to grow, and when that of W_V stops; the rules are in `find_stages`.

    Attributes:
        value_start: step from which W_V has started; NaN if it never does. The others likewise.
        value_flat: step from which W_V is flat.
        key_start: of W_K.
        query_start: of W_Q.
        reason: why this is no two-stage pattern; None if it is one.
    """

    value_start: float
    value_flat: float
    key_start: float
    query_start: float
    reason: str | None

    @property
    def attention_start(self) -> float:
        """The first step at which W_K or W_Q has started, where stage 2 begins; NaN if neither does."""
        started = [step for step in (self.key_start, self.query_start) if not np.isnan(step)]
        return min(started, default=np.nan)


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
        provenance: model, training, the thresholds, versions.
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
        return (
            f"two stages in {len(having)} of {len(self.layer)} layers: {', '.join(having)}"
            if having
            else NO_PATTERN
        )

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every layer."""
        import pandas as pd

        names = (
            "layer", "two_stage", "value_start", "value_flat", "key_start", "query_start", "value_growth",
            "attention_change", "late_value_growth", "late_rotation",
        )  # fmt: skip
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
def measure_dynamics(
    history: History,
    *,
    until: int | None = None,
    started: float = 0.2,
    least: float = 0.0,
    flat: float = 0.25,
    smooth: int | None = None,
) -> DynamicsReport:
    """The stages of a training, from the norms of W_V, W_K and W_Q that its history recorded.

    The rules are those of `find_stages`, for every layer by itself, all its heads together. Tensors that were not
    trained are curves too: they never start.

    Args:
        history: of `train_toy` or `train_text`, with at least ten rows.
        until: look at the rows up to this step only; None: all.
        started: how far above its smallest norm a tensor has started.
        least: the share of its largest norm that it must have as well; say 0.05 where training begins so near to zero
            that 20 % above is still nothing.
        flat: how far from its norm a flat tensor may get.
        smooth: rows in the running median; None: a fiftieth of all rows.

    Raises:
        ValueError: for fewer than ten rows, or thresholds that are not positive.

    Example:
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=tp.World(n_topics=2, words_per_topic=2)))
        >>> stages = tp.measure_dynamics(tp.train_toy(toy, tp.TrainConfig(steps=20)))
        >>> stages.key_start.tolist(), stages.pattern  # keys and queries are frozen
        ([nan], 'no two-stage pattern')
    """
    rows = np.ones(len(history), dtype=bool) if until is None else history.steps.numpy() <= until
    steps, norms = history.steps.numpy()[rows], {n: v.numpy()[rows] for n, v in history.norms.items()}
    layers = range(history.toy.n_layers)
    names = ["" if len(layers) == 1 else f".{layer}" for layer in layers]
    every, sizes = [], []
    for name in names:
        curves = {what: norms[f"W_{what}{name}"] for what in "VKQ"}
        stages = find_stages(
            steps,
            value=curves["V"],
            key=curves["K"],
            query=curves["Q"],
            started=started,
            least=least,
            flat=flat,
            smooth=smooth,
        )
        turned = history.rotations.get(f"W_V{name}")
        every.append(stages)
        sizes.append(_sizes(stages, steps, curves, None if turned is None else turned.numpy()[rows]))
    growth, change, late_growth, late_rotation = np.array(sizes).T
    return DynamicsReport(
        layer=tuple(layers),
        value_start=np.array([stages.value_start for stages in every]),
        value_flat=np.array([stages.value_flat for stages in every]),
        key_start=np.array([stages.key_start for stages in every]),
        query_start=np.array([stages.query_start for stages in every]),
        two_stage=np.array([stages.reason is None for stages in every]),
        reasons=tuple(stages.reason for stages in every),
        value_growth=growth,
        attention_change=change,
        late_value_growth=late_growth,
        late_rotation=late_rotation,
        provenance=provenance(
            model=history.toy.to_dict(),
            options={
                "until": until, "started": started, "least": least, "flat": flat, "smooth": smooth,
                "training": history.train.to_dict(), "last_step": history.last_step, "stopped": history.stopped,
            },
            seed=history.train.seed,
        ),
    )  # fmt: skip


def find_stages(
    steps: Int64[np.ndarray, " row"],
    *,
    value: Float64[np.ndarray, " row"],
    key: Float64[np.ndarray, " row"],
    query: Float64[np.ndarray, " row"],
    started: float = 0.2,
    least: float = 0.0,
    flat: float = 0.25,
    smooth: int | None = None,
) -> Stages:
    """When W_V, W_K and W_Q start, when W_V is flat, and whether that makes two stages.

    Norms are first smoothed by a running median over a fiftieth of the rows, so single outliers and noise below the
    thresholds do not matter.

    * A tensor *starts* at the first step from which its norm stays more than 20 % above the smallest norm it had in
      the whole record (above 5 % of the largest, where the smallest is 0). A norm that never gets that far, or falls
      back in the end, never starts. How far it goes after its start does not matter, unless ``least`` asks for a share
      of the largest norm too.
    * W_V is *flat* from the first step since its start from which its norm stays within 25 % of what it is there,
      until the end of the record. To be called flat it has to stay so for at least as long as it took to get there;
      a record that ends sooner cannot tell, and steady growth never passes.
    * There are *two stages* if W_V starts, becomes flat, and W_K and W_Q both start, neither of them before W_V is
      flat.

    Args:
        steps: step of every row, increasing.
        value: norm of W_V in every row.
        key: norm of W_K.
        query: norm of W_Q.
        started: the 20 %.
        least: share of the largest norm that a norm must have besides.
        flat: the 25 %.
        smooth: rows in the running median (even numbers are rounded up); None: a fiftieth of them, at least 1.
    """
    if len(steps) < MIN_ROWS:
        raise ValueError(
            f"needed at least {MIN_ROWS} recorded rows to see a curve, got {len(steps)}; train longer, or record more "
            "often (TrainConfig(record_every=...))"
        )
    if not 0 <= least < 1:
        raise ValueError(f"least is a share of the largest norm and must lie in 0 … 1, got {least}")
    if not (started > 0 and flat > 0):
        raise ValueError(
            f"started and flat are shares of a norm and must be positive, got {started} and {flat}"
        )
    if smooth is not None and smooth < 1:
        raise ValueError(f"smooth is a number of rows and must be at least 1 (no smoothing), got {smooth}")
    if smooth is not None and smooth > len(steps):
        raise ValueError(
            f"smooth is a number of rows and must be at most {len(steps)}, all there are, got {smooth}"
        )
    window = max(1, len(steps) // 50) if smooth is None else smooth
    v, k, q = (_running_median(curve, window) for curve in (value, key, query))
    starts = [_start(curve, started, least) for curve in (v, k, q)]
    flattening = None if starts[0] is None else _flat_from(steps, v, starts[0], flat)
    rows = (starts[0], flattening, starts[1], starts[2])
    value_start, value_flat, key_start, query_start = (
        np.nan if row is None else float(steps[row]) for row in rows
    )
    reason = _why_not(value_start, value_flat, key_start, query_start)
    return Stages(value_start, value_flat, key_start, query_start, reason)


def _start(curve: Float64[np.ndarray, " row"], started: float, least: float) -> int | None:
    """The row from which the curve stays above its threshold."""
    share = least if curve.min() > 0 else max(least, SHARE_FROM_ZERO)
    threshold = max((1 + started) * curve.min(), share * curve.max())
    below = np.flatnonzero(curve <= threshold)
    first = int(below[-1]) + 1
    return first if first < len(curve) else None


def _flat_from(
    steps: Int64[np.ndarray, " row"], curve: Float64[np.ndarray, " row"], start: int, flat: float
) -> int | None:
    """The row from which the curve stays near what it is there, if the record is long enough to say so."""
    highest = np.maximum.accumulate(curve[::-1])[::-1]
    lowest = np.minimum.accumulate(curve[::-1])[::-1]
    near = (highest <= (1 + flat) * curve) & (lowest >= (1 - flat) * curve)
    long_enough = steps[-1] - steps >= steps - steps[start]
    rows = np.flatnonzero(near & long_enough & (np.arange(len(curve)) >= start))
    return int(rows[0]) if len(rows) else None


def _why_not(value_start: float, value_flat: float, key_start: float, query_start: float) -> str | None:
    """What is missing for two stages; None if nothing is."""
    if np.isnan(value_start):
        return "W_V never starts to grow"
    still = [n for n, start in (("W_K", key_start), ("W_Q", query_start)) if np.isnan(start)]
    first = min((start for start in (key_start, query_start) if not np.isnan(start)), default=np.nan)
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
    stages: Stages,
    steps: Int64[np.ndarray, " row"],
    curves: Mapping[str, Float64[np.ndarray, " row"]],
    rotation: Float64[np.ndarray, " row"] | None,
) -> tuple[float, float, float, float]:
    """Growth of W_V until stage 2, change of W_K and W_Q in stage 1, growth and rotation of W_V in stage 2."""
    has_second = not np.isnan(stages.attention_start)
    second = steps >= stages.attention_start
    row = int(second.argmax()) if has_second else len(steps) - 1
    value = curves["V"]
    growth = float(divide(value[row], value[0]))
    first_stage = np.ones_like(second) if np.isnan(stages.value_flat) else steps <= stages.value_flat
    changes = [np.abs(divide(curves[n][first_stage], curves[n][:1]) - 1) for n in "KQ"]
    change = float(np.max(changes))
    if not has_second:
        return growth, change, np.nan, np.nan
    turned = np.nan
    if rotation is not None and np.isfinite(rotation[second]).any():
        turned = float(np.nanmean(rotation[second]))
    return growth, change, float(divide(value[-1], value[row])), turned


def _running_median(curve: Float64[np.ndarray, " row"], window: int) -> Float64[np.ndarray, " row"]:
    """Medians over a window around every row; at the ends the window is as wide as it can be on both sides."""
    half = window // 2
    inside = (
        np.median(np.lib.stride_tricks.sliding_window_view(curve, 2 * half + 1), axis=1) if half else curve
    )
    smooth = curve.copy()
    smooth[half : len(curve) - half] = inside
    for row in range(1, half):
        smooth[row] = np.median(curve[: 2 * row + 1])
        smooth[-1 - row] = np.median(curve[-1 - 2 * row :])
    return smooth


# What the argument of Section 8.1 is about: the tensors that begin as noise, and how those are given that do not.
_NOISE = ("W_K", "W_Q", "W_V")
_GIVEN = {"W_E": "identity", "b_K": "zero", "b_Q": "zero", "b_V": "zero", "b_pred": "zero"}


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
        or toy.rules != _GIVEN
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
