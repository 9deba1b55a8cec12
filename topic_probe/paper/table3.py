"""Table 3: trained attention goes to words of the same topic.

The models are those of Figure 10: keys, queries and values trained together on one-hot embeddings. Attention is
measured on fresh documents, and relative to uniform attention, which is 1.

What is checked is Theorem 3's quantity: same word and other words of the same topic pooled, over other topics. The
ratio of *other* words of the topic stands beside it; long training can give a word so much attention to itself that
this one falls below 1.

With SGD attention comes last. With cross-entropy it turns to the topics after about a million steps. With squared loss
and a rate of 0.01 it does not: once W_V is at its optimum, all that attention could still gain is at the one masked
position in five that shows a word, and the gradients of W_K and W_Q are so small that 100,000 steps leave both where
they were. At a rate of 30, which the biases would not bear (regime *two-stage* has none), it does in 60,000 steps, the
way of 180 million at 0.01. There a word then attends to itself so much that other words of its topic get less than
words of other topics.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.paper.claims import Claim
from topic_probe.paper.figure10 import ATTENTION, QUICK_ATTENTION
from topic_probe.paper.recipe import Recipe, RecipeResult, Run
from topic_probe.paper.toys import EVALUATION_SEED, each_training
from topic_probe.paper.training import SQ_SGD, Setting, Trained, pair_setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAST: dict[str, Any] = {"learning_rate": 30.0, "init": "usual", "suffix": ", rate 30"}

SETTINGS: tuple[Setting, ...] = (
    *(setting for setting in ATTENTION if setting.pair != SQ_SGD),
    pair_setting("two-stage", SQ_SGD, 60_000, seconds=80.0, **FAST),
)
# Only Adam gets there in some hundred steps.
QUICK_SETTINGS = tuple(setting for setting in QUICK_ATTENTION if setting.train.optimizer == "adam")


def _attention(trained: Trained, run: Run) -> AttentionReport:
    world = trained.setting.world
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    documents = world.documents(100 if run.quick else 500, generator=generator)
    return measure_attention(trained.model(), world.topics, documents, n_permutations=0)


_STATEMENT = Claim(
    text="A word attends more to words of its topic, itself included, than to words of other topics (ratio)",
    source="Table 3, Section 6.1",
    paper="more attention to words of the same topic",
    above=1.1,
)


def _to_the_topic(result: RecipeResult) -> Iterator[Claim]:
    reports = result.of(AttentionReport)
    for trained in result.runs:
        name, norms = trained.setting.name, trained.history.norms
        mean = reports[name].overall
        moved = ", ".join(f"‖{name}‖ {norms[name][0]:.2f} → {norms[name][-1]:.2f}" for name in ("W_K", "W_Q"))
        detail = (
            f"attention relative to uniform: same word {float(mean.same_word):.3f}, other words of the topic "
            f"{float(mean.same_topic):.3f}, other topics {float(mean.different_topic):.3f}; ratio of other words "
            f"{float(mean.ratio):.3f}; {moved}"
        )
        yield replace(_STATEMENT, measured=float(mean.topic_ratio), setting=name, detail=detail)
    yield (
        replace(_STATEMENT, setting="SGD", not_checked=_SGD_IS_SLOW) if result.quick else _AT_THE_PAPERS_RATE
    )


_SGD_IS_SLOW = "the quick variant stops before SGD has turned attention to topics"
_AT_THE_PAPERS_RATE = replace(
    _STATEMENT,
    setting="attention, squared, SGD, at a rate of 0.01",
    not_checked="it would take 180 million steps",
)


def _figure(result: RecipeResult) -> "dict[str, Figure]":
    """Mean attention by relation, setting by setting."""
    from topic_probe.show.figures import relation_bars

    means = {name: report.overall for name, report in result.of(AttentionReport).items()}
    ax = relation_bars(means, title="attention, uniform attention being 1", label="mean attention")
    return {"attention": ax.get_figure(root=True)}  # type: ignore[dict-item]


RECIPE = Recipe(
    name="table3",
    title="attention between words of one topic",
    source="Table 3, Section 6.1",
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    measure=each_training(_attention),
    claims=(_to_the_topic,),
    figures=_figure,
)
