"""What heads do with what they see (ours): known answers of the toy, and a pretrained model without heads and edges.

Where a head looks does not say what it does. The toy knows every answer. With Theorem 2's W_V under uniform attention
the squared loss is 1 − 1/(τv), and 1 − 1/(Tv) once the output of the head gives way to its mean. And beside a head
that attends to all words alike and writes that, a head that attends by topic and writes nothing has no effect, though
its ratio is the higher one: an instrument that ranks it first is broken.

Of pretrained models it is asked whether words of a topic come closer to each other *because* they read each other, and
because of the heads that attend most by topic. The outcome are centred cosines between the last states of words of one
document, same topic less different topics; what is taken out is compared with as much of the same kind elsewhere, and
all of it with an untrained twin and with shuffled labels, of which the same is measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor

from topic_probe.lens.sites import Inputs
from topic_probe.measure.ablation import measure_ablation
from topic_probe.measure.attention import measure_attention
from topic_probe.measure.effects import EffectReport
from topic_probe.measure.knockout import measure_knockout
from topic_probe.options import shares
from topic_probe.paper import listed
from topic_probe.paper.claims import Claim, Number
from topic_probe.paper.pretrained import (
    RANDOM,
    SHUFFLED,
    UNTRAINED,
    OnText,
    Prepared,
    exact_number,
    prepare_all,
    settings_table,
)
from topic_probe.paper.recipe import Recipe, RecipeResult, Run, Subject
from topic_probe.toy.masking import MASK_ID, Masking
from topic_probe.toy.model import ToyConfig, build_toy
from topic_probe.toy.theory import ablation_effect, optimal_value
from topic_probe.toy.world import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = ("bert",)
THRESHOLD = 0.001
"""Words per topic ÷ vocabulary size, the middle one of Table 1."""
TOPICAL_HEADS = 6
"""How many of the heads that attend most by topic are taken out together."""

TOY = "toy"
TRAP = "toy, two heads"


@dataclass(frozen=True)
class Effort:
    """How much is measured of a pretrained model.

    Attributes:
        n_documents: Documents at most.
        n_sets: Sets of heads of the same layers that the topical ones are compared with.
        n_cuts: Cuts of other edges.
    """

    n_documents: int
    n_sets: int
    n_cuts: int


WHOLE_EFFORT, QUICK_EFFORT = Effort(400, 40, 10), Effort(16, 4, 2)


# --- documents and models of which the answers are known ----------------------------------------------


@dataclass(frozen=True)
class ExactToy:
    """Documents with the frequencies of theory: every word of every τ topics as often, one of each masked.

    Attributes:
        world: Uniform topics.
        times: How often every word stands in its documents; the first of these is masked.
    """

    world: World
    times: int = 5

    @property
    def masking(self) -> Masking:
        """The masking that the documents have."""
        return Masking(p_mask=1 / self.times, p_keep=0.0, p_random=0.0)

    def documents(self) -> list[list[int]]:
        """A document for every set of topics."""
        v, tau = self.world.words_per_topic, self.world.topics_per_document
        assert tau is not None
        return [
            [1 + topic * v + word for topic in topics for word in range(v) for _ in range(self.times)]
            for topics in combinations(range(self.world.n_topics), tau)
        ]

    def shown(self) -> list[list[int]]:
        """The documents as a model sees them."""
        return [
            [MASK_ID if place % self.times == 0 else word for place, word in enumerate(ids)]
            for ids in self.documents()
        ]

    def squared_loss(self, model: Any, inputs: Inputs) -> Float64[Tensor, " batch"]:
        """The paper's squared loss at the masked places of every document."""
        ids, target = inputs.ids.clone(), inputs.ids[:, :: self.times]
        ids[:, :: self.times] = MASK_ID
        scores = model(ids, attention_mask=inputs.mask.long())[:, :: self.times].double()
        expected = torch.nn.functional.one_hot(target, scores.shape[-1])
        losses: Tensor = (scores - expected).square().sum(-1).mean(-1)
        return losses

    def model(self, n_heads: int = 1) -> Any:
        """A toy with Theorem 2's W_V under uniform attention.

        A second head attends by topic, and its W_V is 0.
        """
        n = self.world.vocabulary_size
        zero, eye = torch.zeros(n, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
        topic = torch.full((n,), -1)
        topic[1:] = self.world.block_of_word
        by_topic = ((topic[:, None] == topic) & (topic >= 0)).double()
        value = optimal_value(self.world, self.masking)
        tensors: dict[str, Tensor] = {"W_E": eye, "W_K": zero, "W_Q": zero, "W_V": value}
        if n_heads == 2:
            tensors |= {
                "W_K": torch.stack([zero, by_topic]),
                "W_Q": torch.stack([zero, 2 * n**0.5 * eye]),
                "W_V": torch.stack([value, zero]),
            }
        bias = torch.zeros(tensors["W_K"].shape[:-1], dtype=torch.float64)
        tensors |= dict.fromkeys(("b_K", "b_Q", "b_V"), bias)
        tensors["b_pred"] = torch.zeros(n, dtype=torch.float64)
        config = ToyConfig(regime="full", world=self.world, n_heads=n_heads, dtype="float64")
        return build_toy(config, tensors=tensors)


EXACT = ExactToy(World(n_topics=10, words_per_topic=10, topics_per_document=2))


# --- measuring ------------------------------------------------------------------------------------------


@shares
def measure(
    run: Run,
    *,
    given: OnText,
) -> RecipeResult:
    """Known answers of the toy, and what pretrained models lose without topical heads and edges.

    Args:
        run: the options that all recipes have.
    """
    effort = QUICK_EFFORT if run.quick else WHOLE_EFFORT
    reports = list(_toys())
    subjects: dict[str, Subject] = {}
    rows: list[dict[str, Any]] = []
    for one in prepare_all(run, given, default=MODELS, twins=True):
        if not isinstance(one, Prepared):
            subjects[one.label] = one
            continue
        subjects[one.label] = one.subject(THRESHOLD)
        for control in ("",) if one.random else ("", SHUFFLED):
            for what, report in _measured(one, run, effort, control):
                rows.append({"model": one.label, "control": control, "what": what, **_numbers(report)})
                if not control:
                    reports.append((f"{one.label}, {what}", report))
    tables = {"toy": _toy_table(dict(reports))}
    if rows:
        tables |= {"effects": rows, "settings": settings_table(given.settings_of(run), seed=run.seed)}
    return run.result(reports, subjects=subjects, tables=tables)


EDGES, HEADS = "edges within topics", "topical heads"


def _measured(one: Prepared, run: Run, effort: Effort, control: str) -> Iterator[tuple[str, EffectReport]]:
    topics = one.topics(THRESHOLD)
    if control:
        topics = topics.shuffled(run.seed)
    step = max(1, len(one.documents) // effort.n_documents)
    documents = list(one.documents)[::step][: effort.n_documents]
    options: dict[str, Any] = {"seed": run.seed, "progress": run.progress}
    yield EDGES, measure_knockout(one.model, topics, documents, n_matched=effort.n_cuts, **options)
    yield (
        HEADS,
        measure_ablation(
            one.model, topics, documents, heads=TOPICAL_HEADS, n_matched=effort.n_sets, **options
        ),
    )


def _numbers(report: EffectReport) -> dict[str, float]:
    """What claims are made of."""
    (low, high), (own_low, own_high) = report.beyond_interval[0, 0], report.interval[0, 0]
    numbers = {
        "outcome": report.outcome[0], "effect": report.effect[0, 0], "low": own_low, "high": own_high,
        "beyond": report.beyond[0, 0], "beyond_low": low, "beyond_high": high, "detectable": report.detectable[0, 0],
        "p_value": report.p_value[0, 0], "sources": report.provenance["documents"]["sources"],
    }  # fmt: skip
    return {name: float(value) for name, value in numbers.items()}


def _toys() -> Iterator[tuple[str, EffectReport]]:
    for name, n_heads in ((TOY, 1), (TRAP, 2)):
        yield name, measure_ablation(
            EXACT.model(n_heads), EXACT.world.blocks, EXACT.documents(), outcome=EXACT.squared_loss, special_ids=(),
            reference=EXACT.shown(), n_matched=0,
        )  # fmt: skip


def _toy_table(reports: Mapping[str, EffectReport]) -> list[dict[str, Any]]:
    """Where the toys' heads look, and what they do."""
    rows = []
    for name, n_heads in ((TOY, 1), (TRAP, 2)):
        attention = measure_attention(
            EXACT.model(n_heads), EXACT.world.blocks, EXACT.documents(), special_ids=(), n_permutations=0
        )
        for head, (effect, ratio) in enumerate(
            zip(reports[name].effect[0], attention.heads.ratio, strict=True)
        ):
            rows.append(
                {"toy": name, "head": head, "ratio": float(ratio), "effect_on_loss": 0.0 - float(effect)}
            )
    return rows


# --- claims -----------------------------------------------------------------------------------------

_EXACT = 1e-12


def _known(result: RecipeResult) -> Iterator[Claim]:
    rows = {(row["toy"], row["head"]): row for row in result.tables["toy"]}
    world = EXACT.world
    expected = ablation_effect(world, EXACT.masking).effect
    claim = Claim(
        text="Mean ablation of a head with Theorem 2's W_V under uniform attention costs (1/v)(1/τ − 1/T)",
        source="Theorem 2", ours=True, check=True, setting=TOY,
        measured=Number(rows[TOY, 0]["effect_on_loss"]), above=expected - _EXACT, below=expected + _EXACT,
    )  # fmt: skip
    yield claim
    yield replace(
        claim,
        text="The same beside a head that attends by topic and writes nothing",
        setting=TRAP,
        measured=Number(rows[TRAP, 0]["effect_on_loss"]),
        detail=f"ratio {rows[TRAP, 0]['ratio']:.3f}",
    )
    yield replace(
        claim,
        text="The head that attends by topic and writes nothing has no effect",
        setting=TRAP,
        measured=Number(rows[TRAP, 1]["effect_on_loss"]),
        above=-_EXACT,
        below=_EXACT,
        detail=f"ratio {rows[TRAP, 1]['ratio']:.3f}",
    )


_CAUSES = {
    EDGES: Claim(
        text="Words of a topic come closer because they read each other: cutting these edges parts them more than "
        "cutting as many others at the same distance (difference of effects on same − different cosine)",
        ours=True, above=0.0,
    ),
    HEADS: Claim(
        text=f"The {TOPICAL_HEADS} heads that attend most by topic bring them together more than as many others of "
        "their layers (difference of effects on same − different cosine)",
        ours=True, above=0.0,
    ),
}  # fmt: skip


def _causes(result: RecipeResult) -> Iterator[Claim]:
    rows = {(row["model"], row["control"], row["what"]): row for row in result.tables.get("effects", ())}
    for label, subject in result.subjects.items():
        if subject.random:
            continue
        for what, claim in _CAUSES.items():
            if subject.missing:
                yield replace(claim, setting=label, not_checked=subject.missing)
                continue
            row = rows[label, "", what]
            broken = {
                SHUFFLED: rows.get((label, SHUFFLED, what)),
                UNTRAINED: rows.get((label + RANDOM, "", what)),
            }
            yield replace(
                claim,
                setting=label,
                measured=Number(
                    row["beyond"], row["beyond_low"], row["beyond_high"], f"{row['sources']:.0f} sources"
                ),
                controls={
                    name: exact_number(own["beyond"]) for name, own in broken.items() if own is not None
                },
                detail=f"effect {row['effect']:.4f} of {row['outcome']:.4f}; {row['detectable']:.4f} could be seen",
            )


# --- figures ----------------------------------------------------------------------------------------


def _figures(result: RecipeResult) -> "dict[str, Figure]":
    """What was taken out of the models, each beside what it is compared with."""
    from topic_probe.show.effects import effect_forest
    from topic_probe.show.style import panels

    reports: Sequence[tuple[str, EffectReport]] = [
        (name, report) for name, report in result.of(EffectReport).items() if name not in (TOY, TRAP)
    ]
    if not reports:
        return {}

    def draw(ax: Any, name: str, report: EffectReport) -> None:
        effect_forest(report, ax, title=name)

    drawn = [lambda ax, name=name, report=report: draw(ax, name, report) for name, report in reports]
    return {"causes": panels(drawn, columns=1, size=(7.0, 1.5), title=result.title)}


RECIPE = Recipe(
    *listed("causes"),
    source="ours",
    measure=measure,
    claims=(_known, _causes),
    figures=_figures,
)
