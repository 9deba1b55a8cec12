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

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from topic_probe.measure.attention import AttentionReport, measure_attention
from topic_probe.paper.checks import EVALUATION_SEED
from topic_probe.paper.claims import Claim
from topic_probe.paper.figure10 import ATTENTION, QUICK_ATTENTION
from topic_probe.paper.recipe import (
    NAMES,
    PAIRS,
    RecipeResult,
    Setting,
    TrainedToy,
    choose,
    pair_setting,
    train_all,
)
from topic_probe.toy.agreement import world_topics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "attention between words of one topic"
SOURCE = "Table 3, Section 6.1"
SQ_SGD = PAIRS[2]
TEXT = "A word attends more to words of its topic, itself included, than to words of other topics (ratio)"
PAPER = "more attention to words of the same topic"

FAST: dict[str, Any] = {"learning_rate": 30.0, "init": "usual", "suffix": ", rate 30"}

SETTINGS: tuple[Setting, ...] = (
    *(setting for setting in ATTENTION if setting.pair != SQ_SGD),
    pair_setting("two-stage", SQ_SGD, 60_000, seconds=80.0, **FAST),
)
# Only Adam gets there in some hundred steps.
QUICK_SETTINGS = tuple(setting for setting in QUICK_ATTENTION if setting.train.optimizer == "adam")


def run(
    *,
    quick: bool = False,
    only: Iterable[str] | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = False,
) -> RecipeResult:
    """Train every setting, measure, and check the claims; arguments as in `topic_probe.paper.figure1.run`."""
    start = time.perf_counter()
    chosen = choose(QUICK_SETTINGS if quick else SETTINGS, only, seed)
    runs = train_all(chosen, folder=folder, progress=progress)
    reports = {name: _attention(trained, n_documents=100 if quick else 500) for name, trained in runs.items()}
    claims = [_claim(trained, reports[name]) for name, trained in runs.items()]
    reason = (
        "the quick variant stops before SGD has turned attention to topics"
        if quick
        else "it would take 180 million steps"
    )
    setting = "SGD" if quick else f"attention, {NAMES['squared']}, {NAMES['sgd']}, at a rate of 0.01"
    claims.append(Claim(TEXT, SOURCE, PAPER, above=1.1, setting=setting, not_checked=reason))
    return RecipeResult(
        recipe="table3",
        title=TITLE,
        quick=quick,
        claims=tuple(claims),
        runs=tuple(runs.values()),
        reports={"attention": reports},
        seconds=time.perf_counter() - start,
        draw=draw,
    )


def draw(result: RecipeResult) -> "dict[str, Figure]":
    """Mean attention by relation, setting by setting."""
    from topic_probe.show.figures import relation_bars

    means = {name: report.overall for name, report in result.reports["attention"].items()}  # type: ignore[attr-defined]
    ax = relation_bars(means, title="attention, uniform attention being 1", label="mean attention")
    return {"attention": ax.get_figure(root=True)}  # type: ignore[dict-item]


def _attention(trained: TrainedToy, *, n_documents: int) -> AttentionReport:
    world = trained.setting.world
    documents = world.documents(n_documents, generator=torch.Generator().manual_seed(EVALUATION_SEED))
    return measure_attention(trained.model(), world_topics(world), documents, n_permutations=0)


def _claim(trained: TrainedToy, report: AttentionReport) -> Claim:
    found, norms = report.overall, trained.history.norms
    moved = ", ".join(f"‖{name}‖ {norms[name][0]:.2f} → {norms[name][-1]:.2f}" for name in ("W_K", "W_Q"))
    return Claim(
        text=TEXT,
        source=SOURCE,
        paper=PAPER,
        measured=float(found.topic_ratio),
        above=1.1,
        setting=trained.setting.name,
        detail=f"attention relative to uniform: same word {float(found.same_word):.3f}, other words of the topic "
        f"{float(found.same_topic):.3f}, other topics {float(found.different_topic):.3f}; ratio of other words "
        f"{float(found.ratio):.3f}; {moved}",
    )
