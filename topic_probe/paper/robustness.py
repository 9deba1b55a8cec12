"""Outside the assumptions: how blocks, attention and loss degrade when the data or the model are not the paper's.

Section 2.3 says that the main conclusions "remain robust even under settings that are more complex and realistic"; the
paper shows it for LDA and for a pretrained model. Here one thing at a time is changed about a base setting, which is
the paper's own: T = 10 topics of v = 10 words, LDA with α = 0.1, documents of 100 to 150 words, one layer of one head.

* Data: topics that lend each other words, Zipf's law within topics, T and v, topics per document (τ of them, or α), the
  length of documents. In each of these W_V is trained alone (*value*) and with keys and queries (*attention*), with
  both losses and Adam.
* Model: several heads, a residual stream, two layers (*attention*, cross-entropy, Adam). These are
  trained through the hooked model, in the whole variant only, for fewer steps on smaller batches; beside them one layer
  of one head, trained alike.

What is claimed at every point is what the other recipes claim at the base: a block for every topic in W_V, more
attention to words of the topic than to others, W_V near the optima under uniform attention. Where a claim breaks is
what is to be found out; how far along an axis it holds is said with its last point.

Where topics overlap, a word is lent by one topic and borrowed by another: its *own* topic is the one that lends it
(`World.block_of_word`), and at an overlap of half both are as likely. These worlds have two uniform topics in every
document, because the best possible loss is known for overlapping topics only if a document has a given number of them.

The optima that W_V is held against are those of Lemma 1; with Zipf's law or overlap its conditions are not those that
the paper prints, and the nearest minimiser of the same loss takes the place of the nearest member of its family. Losses
lie between guessing, which knows how frequent every word is, and the best that any predictor can do on documents of
this length. In a model of several layers blocks are looked for in the product of their W_V, with the identity added to
each where there is a residual stream: what all of them make of a shown word under uniform attention.

**What breaks.** Blocks are there at every overlap up to a half, for every T and v, every length from ten words on, and
with cross-entropy for every exponent of Zipf's law; with squared loss W_V trained alone begins to lose rare words at
1.5. They go where documents hardly differ: with squared loss and trained attention at τ = 9 and α = 3, where W_V alone
is also farther from the closed form than elsewhere. Attention to other words of the topic is above that to other topics
but for documents of ten words, with squared loss of twenty, and with cross-entropy documents of one topic. That a word
attends to its topic *and itself* is no sign of topics, because it attends to itself without any; and where attention is
strong, one shuffle of the labels has by chance a ratio as far from 1 as is claimed of the topics, which makes claims
about it no evidence. Of two layers without a residual stream neither W_V has blocks, only their product; with one the
last layer has them. Neither layer attends to the topics, and the loss is lower than that of one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from topic_probe.contrast import Contrast
from topic_probe.measure.attention import measure_attention
from topic_probe.paper import listed, toys
from topic_probe.paper.claims import Claim
from topic_probe.paper.recipe import Recipe, RecipeResult
from topic_probe.paper.training import CE_ADAM, NAMES, SQ_ADAM, Pair, Setting, pair_setting
from topic_probe.toy.masking import Loss
from topic_probe.toy.model import ToyConfig
from topic_probe.toy.theory.attention import weighted_mean
from topic_probe.toy.theory.losses import DRAWN_AT_ONCE, RegimeName, masked_documents
from topic_probe.toy.theory.value import nearest_value
from topic_probe.toy.world import World, overlapping_words, zipf_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --- what is changed ----------------------------------------------------------------------------------

BASE, TWO_TOPICS = World(), World(topics_per_document=2)
Changes = Mapping[str, Any]
Place = int | float | str


@dataclass(frozen=True)
class Axis:
    """One thing that is changed about the base setting.

    Attributes:
        label: What it is.
        points: What is changed at which place, of `ToyConfig` or `TrainConfig`; nothing at the base.
        logarithmic: Whether the places are drawn so.
        note: What has to be known to read what is claimed along it.
    """

    label: str
    points: Mapping[Place, Changes]
    logarithmic: bool = False
    note: str = ""

    @property
    def names(self) -> dict[Place, str]:
        """What each point is called in names of settings; one that lies on several axes has one name."""
        shared = {"base": {}, "τ = 2": {"world": TWO_TOPICS}}
        return {
            at: next(
                (name for name, changes in shared.items() if changes == point), f"{self.label} {_shown(at)}"
            )
            for at, point in self.points.items()
        }


def _shown(at: Place) -> str:
    return at if isinstance(at, str) else f"{at:g}"


def _worlds(label: str, worlds: Mapping[Place, World], *, logarithmic: bool = False, note: str = "") -> Axis:
    points: dict[Place, Changes] = {
        at: {} if world == BASE else {"world": world} for at, world in worlds.items()
    }
    return Axis(label, points, logarithmic, note)


def _overlapping(overlap: float) -> World:
    words = overlapping_words(BASE.n_topics, BASE.words_per_topic, overlap=overlap)
    return replace(TWO_TOPICS, word_probabilities=words) if overlap else TWO_TOPICS


def _zipf(exponent: float) -> World:
    words = zipf_words(BASE.n_topics, BASE.words_per_topic, exponent=exponent)
    return replace(BASE, word_probabilities=words) if exponent else BASE


def _length(words: int) -> World:
    base = (BASE.min_length + BASE.max_length) / 2
    return BASE if words == base else replace(BASE, min_length=words, max_length=words)


def _axes(
    *,
    topics_per_document: Sequence[int],
    overlap: Sequence[float],
    exponent: Sequence[float],
    alpha: Sequence[float],
    length: Sequence[int],
    n_topics: Sequence[int],
    words_per_topic: Sequence[int],
) -> tuple[Axis, ...]:
    """An axis for everything about the data, with these places on it."""
    return (
        _worlds("topics per document τ", {x: World(topics_per_document=x) for x in topics_per_document}),
        _worlds(
            "overlap of topics",
            {x: _overlapping(x) for x in overlap},
            note="a word's topic is the one that lends it to the next",
        ),
        _worlds("Zipf exponent", {x: _zipf(x) for x in exponent}),
        _worlds("Dirichlet α", {x: replace(BASE, alpha=x) for x in alpha}, logarithmic=True),
        _worlds("words per document", {x: _length(x) for x in length}, logarithmic=True),
        _worlds("number of topics T", {x: replace(BASE, n_topics=x) for x in n_topics}, logarithmic=True),
        _worlds(
            "words per topic v",
            {x: replace(BASE, words_per_topic=x) for x in words_per_topic},
            logarithmic=True,
        ),
    )


DATA = _axes(
    topics_per_document=(1, 2, 3, 5, 9),
    overlap=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    exponent=(0.0, 0.5, 1.0, 1.5),
    alpha=(0.03, 0.1, 0.3, 1.0, 3.0),
    length=(10, 20, 50, 125, 250),
    n_topics=(3, 5, 10, 20),
    words_per_topic=(2, 5, 10, 20),
)
QUICK_DATA = _axes(
    topics_per_document=(2, 9),
    overlap=(0.0, 0.5),
    exponent=(0.0, 1.5),
    alpha=(0.1,),
    length=(20, 125),
    n_topics=(5, 10),
    words_per_topic=(10,),
)
_SMALL: Changes = {"batch_size": 10}
MODEL = Axis(
    "model",
    {
        "1 layer": _SMALL,
        "2 heads": {**_SMALL, "n_heads": 2},
        "residual": {**_SMALL, "residual": True},
        "2 layers": {**_SMALL, "n_layers": 2},
        "2 layers, residual": {**_SMALL, "n_layers": 2, "residual": True},
    },
)
AXES = (*DATA, MODEL)
ALONE = Axis("", {"base": {}})
"""The base by itself, which claims have first."""

# --- settings -----------------------------------------------------------------------------------------

Kind = tuple[RegimeName, Pair]
KINDS: tuple[Kind, ...] = (
    ("value", CE_ADAM),
    ("value", SQ_ADAM),
    ("attention", CE_ADAM),
    ("attention", SQ_ADAM),
)
QUICK_KINDS: tuple[Kind, ...] = (("value", SQ_ADAM), ("attention", CE_ADAM))
DEEP: Kind = ("attention", CE_ADAM)
STEPS, QUICK_STEPS, DEEP_STEPS = 600, 200, 300
NEAR_ZERO: Changes = {"init": "near-zero", "noise": 0.001}
"""From there W_V alone finds what the data say and nothing else (`topic_probe.paper.figure2`)."""


def _name(kind: Kind, point: str) -> str:
    regime, (loss, optimizer) = kind
    return f"{regime}, {NAMES[loss]}, {NAMES[optimizer]}, {point}"


def _setting(kind: Kind, point: str, changes: Changes, steps: int, seconds: float) -> Setting:
    regime, pair = kind
    begin = NEAR_ZERO if regime == "value" else {}
    few_rows = {"record_every": max(1, steps // 10)}
    return pair_setting(
        regime, pair, steps, seconds=seconds, suffix=f", {point}", **begin, **changes, **few_rows
    )


def _settings(axes: Iterable[Axis], kinds: Iterable[Kind], steps: int, seconds: float) -> tuple[Setting, ...]:
    """Every point of these axes once; those of a world together, whose documents and best losses they share."""
    points = {name: axis.points[at] for axis in axes for at, name in axis.names.items()}
    return tuple(
        _setting(kind, name, changes, steps, seconds) for name, changes in points.items() for kind in kinds
    )


SETTINGS = (
    *_settings(DATA, KINDS, STEPS, seconds=1.0),
    *_settings((MODEL,), (DEEP,), DEEP_STEPS, seconds=5.0),
)
QUICK_SETTINGS = _settings(QUICK_DATA, QUICK_KINDS, QUICK_STEPS, seconds=0.2)

# --- measuring ----------------------------------------------------------------------------------------


def _toy(case: toys.Case) -> ToyConfig:
    assert isinstance(case.setting.toy, ToyConfig)
    return case.setting.toy


def _is_deep(toy: ToyConfig) -> bool:
    """Whether it has more than one layer of one head, so that measures of such a one do not apply."""
    return toy.n_layers > 1 or toy.n_heads > 1 or toy.residual


def _values(case: toys.Case) -> dict[str, float]:
    """How far W_V forms blocks: of several heads their sum, of several layers their product, and each by itself."""
    toy, tensors = _toy(case), case.trained.history.tensors
    layers = [tensors[name].double() for name in toy.tensor_names if name.startswith("W_V")]
    layers = [W if toy.n_heads == 1 else W.sum(dim=0) for W in layers]
    found = toys.blocks(_path(layers, residual=toy.residual).numpy(), case.topics)
    if toy.n_layers > 1:
        for layer, W in enumerate(layers):
            found[f"own topic first, layer {layer}"] = toys.blocks(W.numpy(), case.topics)["own topic first"]
    return found


def _path(layers: Sequence[Float64[Tensor, "to from"]], *, residual: bool) -> Float64[Tensor, "to from"]:
    """What all layers together make of a shown token where attention is uniform."""
    identity = torch.eye(len(layers[0]), dtype=torch.float64) * residual
    return reduce(lambda below, W: (W + identity) @ below, layers[1:], layers[0] + identity)


def _attention(case: toys.Case) -> dict[str, float]:
    """Attention between words where it is trained; of a deep toy all heads pooled, and each layer by itself."""
    toy = _toy(case)
    if toy.regime != "attention":
        return {}
    if not _is_deep(toy):
        seen = toys.between_words(case)
        return {
            "weighted mean": seen["weighted mean"],
            "other words": seen["other words"],
            "above other topics": 1 - 1 / seen["other words"],
        }
    generator = torch.Generator().manual_seed(toys.EVALUATION_SEED)
    drawn = masked_documents(toy.world, toy.masking, DRAWN_AT_ONCE, DRAWN_AT_ONCE, generator)
    shown = [ids[mask] for _, batch in drawn for ids, mask in zip(batch.shown, batch.mask, strict=True)]
    report = measure_attention(case.trained.model(), case.topics, shown, n_permutations=0, n_resamples=0)
    ratio = float(report.overall.ratio)
    found = {
        "weighted mean": _topic_mean(report.overall, toy.world),
        "other words": ratio,
        "above other topics": 1 - 1 / ratio,
    }
    if toy.n_layers > 1:
        for layer in range(toy.n_layers):
            found[f"weighted mean, layer {layer}"] = _topic_mean(report.layers[layer], toy.world)
    return found


def _topic_mean(seen: Contrast, world: World) -> float:
    """Theorem 3's weighted mean."""
    other, alpha, beta = (float(mean) for mean in (seen.different_topic, seen.same_topic, seen.same_word))
    return float(weighted_mean(world, alpha=alpha / other, beta=beta / other))


def guessing(world: World, loss: Loss) -> float:
    """The lowest loss without a look at the document: of guessing how frequent every word is."""
    frequencies = world.topic_words.mean(dim=0)
    if loss == "squared":
        return float(1 - frequencies.square().sum())
    return float(torch.special.entr(frequencies).sum())


def _losses(case: toys.Case) -> dict[str, float]:
    """The loss on fresh documents, on the scale from guessing to the best possible, and how far W_V is from optima."""
    report, toy = toys.agreement(case), _toy(case)
    guess = guessing(toy.world, case.setting.train.loss)
    found = {
        "loss": report.loss,
        "guess": guess,
        "best possible": report.bayes,
        "gain": (guess - report.loss) / (guess - report.bayes),
    }
    if case.setting.train.loss == "squared" and toy.regime == "value":
        W = case.trained.history.tensors["W_V"].double()
        nearest = nearest_value(W, toy.world, toy.masking)
        distance = float((W - nearest).norm() / nearest.norm())
        found |= {"distance to the optima": distance, "nearness to the optima": 1 - distance}
    return found


# --- claims -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statement:
    """What is claimed at every point.

    Attributes:
        claim: Its words and bounds, without the axis.
        quantity: The number that it is about.
        controls: Where it must fail.
        beside: Numbers to print with it.
    """

    claim: Claim
    quantity: str
    controls: Sequence[str]
    beside: Sequence[str] = ()


PAPER = "remain robust even under settings that are more complex and realistic"
BLOCKS = Statement(
    replace(toys.block_statement("W_V", "Section 2.3, Figures 2 and 10"), paper=PAPER),
    "own topic first",
    toys.OF_LABELS,
    ("effect size", "loss", "guess", "best possible"),
)
TO_THE_TOPIC = Statement(
    Claim(
        text="A word attends more to words of its topic, itself included, than to words of other topics (ratio)",
        source="Section 2.3, Table 3",
        paper=PAPER,
        above=toys.ABOVE_UNIFORM,
    ),
    "weighted mean",
    toys.OF_LABELS,
)
TO_OTHER_WORDS = replace(
    TO_THE_TOPIC,
    claim=replace(
        TO_THE_TOPIC.claim,
        text="A word attends more to other words of its topic than to words of other topics (ratio)",
    ),
    quantity="other words",
)
OPTIMA = Statement(toys.NEAR_OPTIMA, "distance to the optima", toys.OF_TRAINING)
STATEMENTS = (BLOCKS, TO_THE_TOPIC, TO_OTHER_WORDS, OPTIMA)


def _everywhere(result: RecipeResult) -> Iterator[Claim]:
    """Every statement at the base, and then along every axis, as far as its numbers were measured."""
    claimed: set[str] = set()
    for axis in (ALONE, *AXES):
        for statement in STATEMENTS:
            for kind in KINDS:
                yield from _along(result, axis, statement, kind, claimed)
        claimed |= {_name(kind, point) for kind in KINDS for point in axis.names.values()}


def _along(
    result: RecipeResult, axis: Axis, statement: Statement, kind: Kind, claimed: set[str]
) -> list[Claim]:
    """A statement at every point of an axis but for those claimed before; with the last point, where it holds."""
    claims = {
        at: _at(result, axis, statement, _name(kind, point))
        for at, point in axis.names.items()
        if toys.was_measured(result, _name(kind, point), statement.quantity)
    }
    own = [at for at, claim in claims.items() if claim.setting not in claimed]
    if axis is not ALONE and own:
        good = ", ".join(_shown(at) for at, claim in claims.items() if claim.verdict == "holds")
        last = claims[own[-1]]
        where = f"along this axis it holds at {good or 'no point'}"
        claims[own[-1]] = replace(last, detail="; ".join(part for part in (last.detail, where) if part))
    return [claims[at] for at in own]


def _at(result: RecipeResult, axis: Axis, statement: Statement, setting: str) -> Claim:
    beside = ", ".join(f"{what} {toys.number(result, setting, what)}" for what in statement.beside)
    text = "; ".join(part for part in (statement.claim.text, axis.note) if part)
    text = f"{axis.label}: {text}" if axis.label else text
    claim = replace(statement.claim, text=text, ours=axis is not ALONE)
    return toys.judged(claim, result, setting, statement.quantity, statement.controls, detail=beside)


def _layers(result: RecipeResult) -> Iterator[Claim]:
    """Which layer of two carries the topics: what is claimed of the whole model, claimed of each layer."""
    for name, setting in toys.trained_settings(result).items():
        assert isinstance(setting.toy, ToyConfig)
        for layer in range(setting.toy.n_layers if setting.toy.n_layers > 1 else 0):
            for statement in (BLOCKS, TO_THE_TOPIC):
                claim = replace(statement.claim, text=f"Layer {layer}: {statement.claim.text}", ours=True)
                yield toys.judged(
                    claim, result, name, f"{statement.quantity}, layer {layer}", statement.controls
                )


def _not_in_quick(result: RecipeResult) -> Iterator[Claim]:
    if result.quick:
        why = "several heads, layers and the residual stream take minutes"
        yield replace(BLOCKS.claim, text=f"{MODEL.label}: {BLOCKS.claim.text}", ours=True, not_checked=why)


# --- the figure ---------------------------------------------------------------------------------------

CURVES: Mapping[str, tuple[str, RegimeName]] = {
    "blocks in W_V: words that find their own topic first": ("own topic first", "attention"),
    "attention: 1 − other topics ÷ other words of the topic": ("above other topics", "attention"),
    "loss: from guessing (0) to the best possible (1)": ("gain", "attention"),
    "closed form: 1 − distance of W_V, trained alone": ("nearness to the optima", "value"),
}


def _curves(result: RecipeResult) -> list[dict[str, Any]]:
    """A row for every point of a curve, along the axes on which there is more than one."""
    return [row for axis in AXES for row in _along_axis(result, axis)]


def _along_axis(result: RecipeResult, axis: Axis) -> list[dict[str, Any]]:
    rows = [
        _row(result, axis, at, curve, kind, quantity)
        for curve, (quantity, regime) in CURVES.items()
        for kind in KINDS
        for at, point in axis.names.items()
        if kind[0] == regime and toys.was_measured(result, _name(kind, point), quantity)
    ]
    return rows if len({row["at"] for row in rows}) > 1 else []


def _row(
    result: RecipeResult, axis: Axis, at: Place, curve: str, kind: Kind, quantity: str
) -> dict[str, Any]:
    name = _name(kind, axis.names[at])
    shown = toys.number(result, name, quantity)
    broken = [toys.number(result, name, quantity, control).value for control in toys.OF_LABELS]
    return {
        "axis": axis.label,
        "logarithmic": axis.logarithmic,
        "at": at,
        "curve": curve,
        "variant": NAMES[kind[1][0]],
        "base": axis.names[at] == "base",
        "value": shown.value,
        "low": shown.low,
        "high": shown.high,
        "control": float(np.nanmax(broken)) if np.isfinite(broken).any() else float("nan"),
    }


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    from topic_probe.show.figures import robustness_panels

    return {"robustness": robustness_panels(_curves(result))}


RECIPE = Recipe(
    *listed("robustness"),
    source="Section 2.3",
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    controls=(toys.NO_TOPICS, toys.UNTRAINED, toys.SHUFFLED),
    measure=toys.each_training(_losses, of_labels=(_values, _attention)),
    claims=(_everywhere, _layers, _not_in_quick),
    figures=_figures,
)
