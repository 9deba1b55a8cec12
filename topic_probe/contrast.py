"""What same-topic and different-topic mean, and how sure an answer about them is.

The only place that knows the relations between two words, and the only one that turns sums and counts of
pairs into means, ratios, differences and their intervals. Everything here is float64 on the CPU; an
analyzer brings scores, this module brings the arithmetic.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int8, Int64
from torch import Tensor

from topic_probe.estimate import (
    MIN_UNITS,
    Compared,
    Estimate,
    Factor,
    Statistic,
    divide,
    jackknife,
    standard_deviation,
)
from topic_probe.options import check_value

if TYPE_CHECKING:
    import pandas as pd

NO_RELATION, SAME_WORD, SAME_TOPIC, DIFFERENT_TOPIC = 0, 1, 2, 3
RELATIONS = ("same_word", "same_topic", "different_topic")

# What a number may vary with, in the order of `Contrast.variance_shares`.
RESAMPLED = ("sources", "words", "fits")

NO_SAME_TOPIC = "no pair of different words shares a topic"
NO_DIFFERENT_TOPIC = "no pair of words comes from different topics"
NOT_POSITIVE = "the different-topic mean is not positive, so the ratio has no meaning: read the difference"
ALL_EQUAL = "the scores of all pairs are equal, so there is no effect size"

if TYPE_CHECKING:
    Numbers = np.ndarray
else:  # of one cell, numbers that are floats, too
    Numbers = Float64[np.ndarray, "*shape"] | np.float64

Ranking = Literal["evidence", "ratio", "topic_ratio", "difference", "effect_size"]


def word_relations(
    query: Int64[Tensor, "*batch query"], key: Int64[Tensor, "*batch key"], topics: Any
) -> Int8[Tensor, "*batch query key"]:
    """The relation of every query word to every key word, as a code on the device of the queries.

    ``SAME_WORD`` for forms of one word (equal entries, or entries that differ in case and space around them),
    ``SAME_TOPIC`` for different words that share at least one topic, ``DIFFERENT_TOPIC`` where both have topics and
    none is shared. An entry without a topic is in no relation, not even to itself: ``NO_RELATION``.

    Args:
        query: where the words stand in ``topics.words``, as `Topics.places` looks entries up; -1 without a topic.
        key: the same of the words that they are related to.
        topics: which words belong to which topic.
    """
    group, form = topics.group_of_word.to(query.device), topics.form_of_word.to(query.device)
    key = key.to(query.device)
    codes = torch.full((*query.shape, key.shape[-1]), DIFFERENT_TOPIC, dtype=torch.int8, device=query.device)
    codes[topics.incidence.sharing(group[query], group[key])] = SAME_TOPIC
    codes[form[query].unsqueeze(-1) == form[key].unsqueeze(-2)] = SAME_WORD
    # A place of -1 was read as that of some word.
    codes[(query < 0).unsqueeze(-1) | (key < 0).unsqueeze(-2)] = NO_RELATION
    return codes


@dataclass(frozen=True, eq=False)
class PairSums:
    """Sums of scores over pairs and numbers of pairs, by relation (last axis, in the order of RELATIONS).

    Any leading axes (heads, layers, permutations); ``counts`` may leave out or broadcast what all of them
    share. ``squares`` are summed over same-topic and different-topic pairs together; without them there is no effect
    size. Two parts of a corpus are put together with ``+``.
    """

    sums: Float64[np.ndarray, "*shape 3"]
    counts: Float64[np.ndarray, "*#shape 3"]
    squares: Numbers | None = None

    def __add__(self, other: "PairSums") -> "PairSums":
        unknown = self.squares is None or other.squares is None
        squares = None if unknown else np.asarray(self.squares + other.squares)  # type: ignore[operator]
        return PairSums(self.sums + other.sums, self.counts + other.counts, squares)

    def contrast(self, **uncertainty: Any) -> "Contrast":
        """The means of the three relations; ``interval``, ``p_value`` … are handed on to the Contrast."""
        counts = np.array(np.broadcast_to(self.counts, self.sums.shape))
        means = divide(self.sums, counts)
        numbers = [np.asarray(part[..., relation]) for part in (means, counts) for relation in range(3)]
        if self.squares is not None:
            total, n = (np.asarray(part[..., 1] + part[..., 2]) for part in (self.sums, counts))
            uncertainty["spread"] = standard_deviation(total, n, self.squares)
        return Contrast(*numbers, **uncertainty)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False, repr=False)
class Contrast:
    """Mean score of same-word, same-topic and different-topic pairs, with what follows from them.

    Every number is a float64 array of one common shape, and of an overall contrast a float. A mean without pairs is
    NaN and its count 0; what follows from it is NaN too, and ``reason`` says why (None where nothing is
    missing). ``interval`` [..., 2], ``p_value`` and ``q_value`` are about the number named by ``statistic``; ``note``
    says what the numbers themselves cannot, as why an interval is missing.

    A ratio is returned whenever its denominator is not 0. For scores that can be negative (dot products,
    weights) it only means something if the different-topic mean is positive; where it is not, ``reason``
    says so and ``difference`` is the number to read. ``effect_size`` needs no denominator that is well away from 0:
    it is the difference in units of ``spread``, the standard deviation of the scores of same-topic and
    different-topic pairs together, each pair counted once. It is NaN where ``spread`` is None, because nobody added up
    squares: in weights.

    ``variance_shares`` [..., 3] says how much of the variance behind ``interval`` is due to sources, words and fits of
    topics, where more than sources were resampled.

    ``index`` names the cells along the first axis (``{"layer": (0, 0, 1), "head": (0, 1, 0)}``); tables show it.

    Example:
        >>> import numpy as np
        >>> means, pairs = (3.0, 2.0, 1.0), (10.0, 30.0, 60.0)
        >>> contrast = tp.Contrast(*(np.array(number) for number in (*means, *pairs)))
        >>> float(contrast.ratio), float(contrast.topic_ratio)  # (3 · 10 + 2 · 30) / 40 ÷ 1
        (2.0, 2.25)
        >>> spread = np.array(0.5)  # the standard deviation of the scores of the 90 pairs of different words
        >>> numbers = [np.array(number) for number in (*means, *pairs)]
        >>> float(tp.Contrast(*numbers, spread=spread).effect_size)  # (2 − 1) ÷ ½
        2.0
        >>> nothing_to_compare = tp.Contrast(*(np.array(number) for number in (3.0, np.nan, 1.0, 10.0, 0.0, 60.0)))
        >>> float(nothing_to_compare.ratio), nothing_to_compare.reason
        (nan, 'no pair of different words shares a topic')
    """

    same_word: Numbers
    same_topic: Numbers
    different_topic: Numbers
    n_same_word: Numbers
    n_same_topic: Numbers
    n_different_topic: Numbers
    interval: Float64[np.ndarray, "*shape 2"] | None = None
    p_value: Numbers | None = None
    q_value: Numbers | None = None
    note: str | None = None
    statistic: Statistic = "ratio"
    index: Mapping[str, tuple[Any, ...]] | None = None
    spread: Numbers | None = None
    effect_size_interval: Float64[np.ndarray, "*shape 2"] | None = None
    variance_shares: Float64[np.ndarray, "*shape 3"] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):  # a 0-d array prints, is formatted and goes into JSON as no number does
            if np.ndim(value := getattr(self, field.name)) == 0 and isinstance(value, np.ndarray):
                object.__setattr__(self, field.name, value[()])

    @property
    def reason(self) -> str | None:
        """Why a number is missing or has no meaning: what the means and counts say, then the note."""
        cells = [
            (self.n_same_topic == 0, NO_SAME_TOPIC),
            (self.n_different_topic == 0, NO_DIFFERENT_TOPIC),
            (self.different_topic <= 0, NOT_POSITIVE),
        ]
        if self.spread is not None:
            compared = ~np.isnan(self.difference)
            cells.append((compared & (self.spread == 0), ALL_EQUAL))
        reasons = [why for where, why in cells if np.any(where)]
        return "; ".join(reasons + ([self.note] if self.note else [])) or None

    @property
    def ratio(self) -> Numbers:
        """Other words of the same topic ÷ words of different topics; 1 where topics make no difference."""
        return divide(self.same_topic, self.different_topic)[()]

    @property
    def topic_ratio(self) -> Numbers:
        """Same word and same topic, pooled by their numbers of pairs, ÷ words of different topics."""
        counts = self.n_same_word + self.n_same_topic
        # A mean over no pairs is NaN and must not hide the other one.
        sums = np.where(self.n_same_word > 0, self.same_word * self.n_same_word, 0.0)
        sums = sums + np.where(self.n_same_topic > 0, self.same_topic * self.n_same_topic, 0.0)
        return divide(divide(sums, counts), self.different_topic)[()]

    @property
    def difference(self) -> Numbers:
        """Other words of the same topic − words of different topics; 0 where topics make no difference."""
        return np.asarray(self.same_topic - self.different_topic)[()]

    @property
    def effect_size(self) -> Numbers:
        """The difference in standard deviations of pair scores; 0 where topics make no difference."""
        if self.spread is None:
            return np.full(self.shape, np.nan)[()]
        return divide(self.difference, self.spread)[()]

    def interval_of(self, number: str) -> Float64[np.ndarray, "*shape 2"]:
        """The interval of a number by its name: of the effect size and of ``statistic``; NaN of any other."""
        found = {self.statistic: self.interval, "effect_size": self.effect_size_interval}.get(number)
        return np.full((*self.shape, 2), np.nan) if found is None else found

    @property
    def n_disagreements(self) -> int:
        """In how many cells one of p-value (below 0.05) and interval speaks of an effect and the other does not."""
        if self.p_value is None or self.interval is None:
            return 0
        nothing = 0.0 if self.statistic == "difference" else 1.0
        low, high = self.interval[..., 0], self.interval[..., 1]
        known = ~np.isnan(self.p_value) & ~np.isnan(low)
        return int((known & ((self.p_value < 0.05) == ((low <= nothing) & (nothing <= high)))).sum())

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of all numbers; ``()`` for an overall contrast."""
        return self.same_word.shape

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an overall Contrast has no length: it is a single row")
        return self.shape[0]

    def __getitem__(self, index: Any) -> "Contrast":
        if not self.shape:
            raise IndexError("an overall Contrast has no axes to index: read its numbers directly")
        picked: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            picked[field.name] = np.asarray(value[index]) if isinstance(value, np.ndarray) else value
        first = index[0] if isinstance(index, tuple) else index
        if self.index is None or np.ndim(np.arange(len(self))[first]) != 1:
            return Contrast(**picked | {"index": None})
        names = {name: tuple(np.array(cells, dtype=object)[first]) for name, cells in self.index.items()}
        return Contrast(**picked | {"index": names})

    def top(self, n: int = 5, *, by: Ranking = "evidence", towards: bool | None = None) -> "Contrast":
        """The first n cells in `order`; with ``towards`` only those that turn towards words of their topic, or away.

        A cell turns towards them where its interval is above no difference, away where it is below: that of the effect
        size, or where that is not known that of ``statistic``.

        Example:
            >>> import numpy as np
            >>> same_topic, ones = np.array([1.0, 3.0, 2.0]), np.ones(3)
            >>> heads = tp.Contrast(ones, same_topic, ones, ones, ones, ones, index={"head": (0, 1, 2)})
            >>> heads.top(2, by="ratio").index, heads.top(2).ratio.tolist()
            ({'head': (1, 2)}, [3.0, 2.0])
        """
        order = self.order(by)
        if towards is not None:
            low, high = self._from_nothing[1].T
            order = order[(low > 0 if towards else high < 0)[order]]
        return self[order[:n]]

    def order(self, by: Ranking = "evidence") -> Int64[np.ndarray, " cell"]:
        """The cells that have a number, from first to last.

        "evidence" goes by the bound of the interval of the effect size that is nearer to no effect, which is 0 where
        the interval holds 0, and among equals (all, where there are no intervals) by the size of the effect: what is
        surely large comes first, in either direction. By ``statistic`` where no effect size is known. Everything else
        goes by that number, highest first: a ratio of tiny means is large by chance.
        """
        if len(self.shape) != 1:
            raise ValueError(f"top needs a row of cells, this contrast has shape {self.shape}")
        if check_value("by", by, Ranking) != "evidence":
            values = getattr(self, by)
            order = np.argsort(-values, kind="stable")
            return np.asarray(order[np.isfinite(values[order])])
        number, ends = self._from_nothing
        bound = np.nan_to_num(np.maximum(np.maximum(ends[:, 0], -ends[:, 1]), 0))
        order = np.lexsort((-np.abs(number), -bound))
        return np.asarray(order[np.isfinite(number[order])])

    @property
    def _from_nothing(self) -> tuple[np.ndarray, np.ndarray]:
        """The number that cells are ordered by, less what it is where topics make no difference, and its interval."""
        name = self.statistic if self.spread is None else "effect_size"
        nothing = 1.0 if name.endswith("ratio") else 0.0
        return np.asarray(getattr(self, name)) - nothing, self.interval_of(name) - nothing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Contrast):
            return NotImplemented
        return all(_same(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def columns(self) -> dict[str, np.ndarray]:
        """The flattened columns of a table of this contrast, one row per cell.

        Means, then ratio, topic_ratio, difference and, where squares are known, effect_size, then counts (whole where
        they are), then, where they exist, ``<statistic>_low`` and ``<statistic>_high``, ``effect_size_low`` and
        ``effect_size_high``, ``variance_sources``, ``variance_words`` and ``variance_fits``, ``p_value`` and
        ``q_value``.
        """
        names = [*RELATIONS, "ratio", "topic_ratio", "difference"]
        names += ["effect_size"] if self.spread is not None else []
        table = {name: np.ravel(getattr(self, name)) for name in names}
        table |= {f"n_{name}": _whole(np.ravel(getattr(self, f"n_{name}"))) for name in RELATIONS}
        for name, interval in ((self.statistic, self.interval), ("effect_size", self.effect_size_interval)):
            if interval is not None:
                low, high = interval[..., 0], interval[..., 1]
                table |= {f"{name}_low": np.ravel(low), f"{name}_high": np.ravel(high)}
        if self.variance_shares is not None:
            table |= {
                f"variance_{name}": np.ravel(self.variance_shares[..., n]) for n, name in enumerate(RESAMPLED)
            }
        for name in ("p_value", "q_value"):
            if getattr(self, name) is not None:
                table[name] = np.ravel(getattr(self, name))
        return table

    def row(self) -> dict[str, float]:
        """The numbers of an overall contrast by column name; of an array, pick a cell first."""
        if self.shape:
            raise ValueError(f"a row holds one contrast, this one has shape {self.shape}: index it first")
        return {name: column[0].item() for name, column in self.columns().items()}

    def to_dataframe(self, index: Mapping[str, Any] | None = None) -> "pd.DataFrame":
        """A row per cell, the columns of ``index`` (layer, head, …; as long as there are cells) first."""
        import pandas as pd

        return pd.DataFrame({**(index or self.index or {}), **self.columns()})

    def __repr__(self) -> str:
        axes = {f"axis {axis}": cells.ravel() for axis, cells in enumerate(np.indices(self.shape))}
        # By name, because reports hold contrasts.
        as_text = import_module("topic_probe.report").as_text
        table = as_text(self.to_dataframe(self.index or axes))
        return f"Contrast{self.shape or ''}\n{table}" + (f"\n({self.reason})" if self.reason else "")


def side_by_side(parts: Sequence[Contrast], index: Mapping[str, tuple[Any, ...]]) -> Contrast:
    """The cells of several contrasts one behind the other, named by ``index``; the note is that of the first."""
    joined: dict[str, Any] = {}
    for field in fields(Contrast):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], np.ndarray | np.float64):
            cells = [value if part.shape else value[None] for part, value in zip(parts, values, strict=True)]
            joined[field.name] = np.concatenate(cells)
        else:
            joined[field.name] = values[0]
    return Contrast(**joined | {"index": index})


def dashed(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table of contrasts as it is printed: "–" for a ratio whose denominator may be 0, with the difference."""
    table = table.copy()
    for name in ("ratio", "topic_ratio"):
        if {name, f"{name}_low", "difference"} <= {*table}:
            low, high = table[f"{name}_low"], table[f"{name}_high"]
            unclear = np.isinf(low) | np.isinf(high) | (low.isna() & (table["different_topic"] <= 0))
            if unclear.any():
                rows = zip(unclear, table[name], table["difference"], strict=True)
                table[name] = [
                    f"– (difference {less:.4g})" if open_ else f"{ratio:.4g}" for open_, ratio, less in rows
                ]
    return table


# ---------------------------------------------------------------------------- over sources


def contrast_of_sources(
    sums: Float64[np.ndarray, "source *shape 3"],
    counts: Float64[np.ndarray, "source *count_shape 3"],
    squares: Float64[np.ndarray, "source *shape"],
    *,
    statistic: Statistic = "ratio",
    confidence: float = 0.95,
    beside: Callable[[Compared, Estimate], Factor] | None = None,
) -> Contrast:
    """The contrast over all sources, with its intervals.

    ``beside`` gives what an estimate of ``statistic``, or of "effect_size", varies with beside sources.
    """
    total = PairSums(sums.sum(0), counts.sum(0), np.asarray(squares.sum(0)))
    estimate = estimate_of_sources(sums, counts, squares, statistic=statistic)
    effect_size = estimate_of_sources(sums, counts, squares, statistic="effect_size")
    shares = None
    if beside is not None:
        estimate = estimate.crossed(beside(statistic, estimate))
        effect_size = effect_size.crossed(beside("effect_size", effect_size))
        shares = _variance_shares(estimate)
    interval = estimate.interval(confidence)
    return total.contrast(
        note=no_interval_reason(interval, len(sums), "sources"),
        statistic=statistic,
        interval=interval,
        effect_size_interval=effect_size.interval(confidence),
        variance_shares=shares,
    )


def _variance_shares(estimate: Estimate) -> Float64[np.ndarray, "*cell 3"]:
    """How much of the variance is due to each of `RESAMPLED`; NaN where there is no interval."""
    parts = {factor.name: factor.share * factor.squares for factor in estimate.factors}
    nothing = np.where(np.isnan(estimate.df), np.nan, 0.0)
    of_each = np.stack([parts.get(name, 0.0) + nothing for name in RESAMPLED], -1)
    return divide(of_each, of_each.sum(-1, keepdims=True))


def estimate_of_sources(
    sums: Float64[np.ndarray, "source *shape 3"],
    counts: Float64[np.ndarray, "source *count_shape 3"],
    squares: Float64[np.ndarray, "source *shape"] | None = None,
    *,
    statistic: Compared = "ratio",
    positive: Any = None,
) -> Estimate:
    """A statistic of the pooled means as it varies with sources (`jackknife`).

    Numbers of pairs that heads share may stand once. Ratios are taken by their logarithms where no score is negative,
    or as ``positive`` says. Effect sizes need ``squares``.
    """
    missing = (1,) * (sums.ndim - counts.ndim)
    counts = np.broadcast_to(counts.reshape(len(counts), *missing, *counts.shape[1:]), sums.shape)
    check_value("statistic", statistic, Compared)
    (same, different), pairs = (
        (part[..., 1] + (part[..., 0] if statistic == "topic_ratio" else 0.0), part[..., 2])
        for part in (sums, counts)
    )

    def terms(same: Any, different: Any, n_same: Any, n_different: Any, *squares: Any) -> tuple[Any, Any]:
        above, below = divide(same, n_same), divide(different, n_different)
        if statistic == "effect_size":
            spread = standard_deviation(same + different, n_same + n_different, *squares)
            return divide(above - below, spread), None
        return (above - below, None) if statistic == "difference" else (above, below)

    if positive is None:
        positive = (np.minimum(same, different) >= 0).all(0, keepdims=True)
    more = [squares] if statistic == "effect_size" and squares is not None else []
    return jackknife(terms, (same, different, *pairs, *more), pairs, positive=positive)


def no_interval_reason(interval: Float64[np.ndarray, "*shape 2"], n_units: int, what: str) -> str | None:
    """Why cells of an interval are NaN, or None if all have one."""
    if not np.isnan(interval).any():
        return None
    if n_units < MIN_UNITS:
        few = f"{n_units} {what}"
        if n_units == 1 and what == "sources":
            few = "one text or article cannot show how others would differ"
        return f"no interval: {few}, at least {MIN_UNITS} are needed"
    return f"no interval where fewer than {MIN_UNITS} {what} have pairs or the different-topic mean is near 0"


def with_interval(value: float, interval: Float64[np.ndarray, "2"] | tuple[float, float]) -> str:
    """A number as people read it, with its interval if it has one."""
    low, high = interval
    return f"{value:.4g}" if np.isnan([low, high]).any() else f"{value:.4g} [{low:.4g}, {high:.4g}]"


# ---------------------------------------------------------------------------- matched


def matched_means(
    sums: Float64[np.ndarray, "*shape cell 3"],
    counts: Float64[np.ndarray, "*shape cell 3"],
    weights: Float64[np.ndarray, "*#shape cell"] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Same-topic mean, different-topic mean, numbers of pairs.

    Bins that hold both kinds weigh their number of same-topic pairs, or as given.
    """
    both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
    weights = np.where(both, counts[..., 1] if weights is None else weights, 0.0)
    means = np.nan_to_num(divide(sums, counts))
    total = weights.sum(-1)
    same, different = (divide((weights * means[..., relation]).sum(-1), total) for relation in (1, 2))
    n_same, n_different = (
        np.asarray(np.where(both, counts[..., relation], 0.0).sum(-1)) for relation in (1, 2)
    )
    return same, different, n_same, n_different


def matched_spread(
    sums: Float64[np.ndarray, "*shape cell 3"],
    counts: Float64[np.ndarray, "*shape cell 3"],
    squares: Float64[np.ndarray, "*shape cell"],
) -> Float64[np.ndarray, "*shape"]:
    """The standard deviation of the scores of all same-topic and different-topic pairs in bins that hold both kinds."""
    both = (counts[..., 1] > 0) & (counts[..., 2] > 0)
    parts = (sums[..., 1] + sums[..., 2], counts[..., 1] + counts[..., 2], squares)
    total, n, of_squares = (np.asarray(np.where(both, part, 0.0).sum(-1)) for part in parts)
    return standard_deviation(total, n, of_squares)


def matched_contrast(
    sums: Float64[np.ndarray, "*shape cell 3"],
    counts: Float64[np.ndarray, "*shape cell 3"],
    squares: Float64[np.ndarray, "*shape cell"],
    **uncertainty: Any,
) -> Contrast:
    """Means of bin means, bins weighed by their number of same-topic pairs; same-word pairs as they are.

    ``n_same_topic`` and ``n_different_topic`` count the pairs in bins that hold both kinds, ``spread`` is that of their
    scores; the last axis is as in `PairSums`.
    """
    same, different, n_same, n_different = matched_means(sums, counts)
    same_word, n_same_word = sums[..., 0].sum(-1), counts[..., 0].sum(-1)
    means, numbers = (divide(same_word, n_same_word), same, different), (n_same_word, n_same, n_different)
    return Contrast(*means, *numbers, spread=matched_spread(sums, counts, squares), **uncertainty)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second, equal_nan=True)
    if isinstance(first, np.float64) and isinstance(second, np.float64):
        return bool(np.array_equal(first, second, equal_nan=True))
    return bool(type(first) is type(second) and first == second)


def _whole(counts: np.ndarray) -> np.ndarray:
    """Counts as integers where all of them are (weighted ones are not)."""
    return counts.astype(np.int64) if np.array_equal(counts, np.round(counts)) else counts
