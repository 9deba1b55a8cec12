"""Figure 1: inner products of trained word embeddings form blocks, one per topic, whatever the loss and optimizer.

All tensors are trained (regime *full*), on LDA documents, at a rate of 0.01. Beside it the same with only W_E trained
(regime *embedding*, Section 4), whose loss is said to be only slightly worse.

With SGD the loss first stays on a plateau, because the blocks grow exponentially from the noise of the
initialisation: about 15,000 steps with cross-entropy from W_E ~ N(0, 0.1²), and more from smaller ones. The blocks are
there at 30,000 steps, under attention that is still uniform; from about 80,000 attention turns to the topics, and the
loss is level from 200,000 on. With squared loss the blocks are there at 30,000, and attention stays uniform.

With squared loss and Adam the blocks are there at 300 steps, and by 3,000 they have given way to a diagonal, which
Section 6.1 calls a special case of blocks: attention has learned to look for the words of the topic by then, and a
word need not be like them any more. This is claimed of that training. The small L2-regularisation of the paper's
objective (equation 2) keeps the blocks, and the claim about blocks is made of a training with it. It is about other
words of the topic, because the diagonal of W_Eᵀ W_E consists of squares and stands out before any training.

One setting is not in the figure: W_E alone on documents as Theorem 1 has them, of uniform topics and very long, to see
W_Eᵀ W_E arrive at its conditions.
"""

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from topic_probe.contrast import Contrast
from topic_probe.measure.embeddings import measure_embeddings
from topic_probe.paper.checks import agreement_of, block_claim, converged_claims, loss_claims
from topic_probe.paper.claims import Claim
from topic_probe.paper.pictures import blocks_and_losses
from topic_probe.paper.recipe import NAMES, PAIRS, RecipeResult, Setting, choose, pair_setting, train_all
from topic_probe.toy.agreement import AgreementReport, world_topics
from topic_probe.toy.world import World

TITLE = "topics in trained word embeddings"
SOURCE = "Figure 1, Section 6.1"
CE_SGD, CE_ADAM, SQ_SGD, SQ_ADAM = PAIRS
WITH_L2 = ", L2"
LONG = ", long documents"
LONG_WORLD = World(topics_per_document=2, min_length=2000, max_length=2000)

SETTINGS: tuple[Setting, ...] = (
    pair_setting("full", CE_SGD, 250_000, seconds=335.0),
    pair_setting("full", CE_ADAM, 3_000, seconds=5.0),
    pair_setting("full", SQ_SGD, 100_000, seconds=134.0),
    pair_setting("full", SQ_ADAM, 3_000, seconds=5.0, suffix=WITH_L2, l2=1e-4),
    pair_setting("full", SQ_ADAM, 3_000, seconds=5.0),
    pair_setting("embedding", CE_SGD, 80_000, seconds=50.0),
    pair_setting("embedding", CE_ADAM, 3_000, seconds=2.0),
    pair_setting("embedding", SQ_SGD, 100_000, seconds=60.0),
    pair_setting("embedding", SQ_ADAM, 3_000, seconds=2.0),
    pair_setting("embedding", SQ_SGD, 1_500, seconds=5.0, suffix=LONG, learning_rate=0.3, world=LONG_WORLD),
)

# SGD at a higher rate does the same in fewer steps: what counts is the rate times the number of steps.
QUICK_SETTINGS: tuple[Setting, ...] = (
    pair_setting("full", CE_SGD, 400, seconds=0.6, learning_rate=1.0),
    pair_setting("full", CE_ADAM, 200, seconds=0.3),
    pair_setting("full", SQ_SGD, 500, seconds=0.7, learning_rate=0.2),
    pair_setting("full", SQ_ADAM, 200, seconds=0.3),
    pair_setting("embedding", CE_ADAM, 200, seconds=0.1),
    pair_setting("embedding", SQ_ADAM, 200, seconds=0.1),
    pair_setting("embedding", SQ_SGD, 200, seconds=0.7, suffix=LONG, learning_rate=1.0, world=LONG_WORLD),
)


def run(
    *,
    quick: bool = False,
    only: Iterable[str] | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = False,
) -> RecipeResult:
    """Train every setting, measure, and check the claims.

    Args:
        quick: the quick variant, some seconds.
        only: names of settings, in place of all; a claim about two settings needs both.
        seed: added to all seeds.
        folder: where checkpoints are kept, so that what was stopped goes on and what is done is not repeated.
        progress: show progress bars.
    """
    start = time.perf_counter()
    chosen = choose(QUICK_SETTINGS if quick else SETTINGS, only, seed)
    runs = train_all(chosen, folder=folder, progress=progress)
    agreements = {name: agreement_of(trained, quick=quick) for name, trained in runs.items()}
    embeddings = {
        name: measure_embeddings(trained.model(), world_topics(trained.setting.world), statistic="difference")
        for name, trained in runs.items()
        if trained.setting.toy.regime == "full"
    }
    diagonal = f"full, {NAMES['squared']}, {NAMES['adam']}" if not quick else None
    claims = [
        block_claim("W_Eᵀ W_E", report.dot, setting=name, source=SOURCE)
        for name, report in embeddings.items()
        if name != diagonal
    ]
    claims += [_diagonal_claim(name, report.dot) for name, report in embeddings.items() if name == diagonal]
    claims += converged_claims(runs, source=SOURCE, quick=quick)
    claims += [
        _theorem1_claim(name, report) for name, report in agreements.items() if report.theorem == "Theorem 1"
    ]
    claims += loss_claims(agreements, "embedding", "full", source="Section 4", quick=quick)
    return RecipeResult(
        recipe="figure1",
        title=TITLE,
        quick=quick,
        claims=tuple(claims),
        runs=tuple(runs.values()),
        reports={"embeddings": embeddings, "agreement": agreements},
        seconds=time.perf_counter() - start,
        draw=partial(blocks_and_losses, kind="embeddings", title="W_Eᵀ W_E", score="dot"),
    )


def _diagonal_claim(name: str, contrast: Contrast) -> Claim:
    """Blocks have given way to a diagonal, beside which they are small."""
    same, topic, different = (
        float(part) for part in (contrast.same_word, contrast.same_topic, contrast.different_topic)
    )
    assert contrast.interval is not None
    low, high = contrast.interval.tolist()
    return Claim(
        text="W_Eᵀ W_E has become a diagonal, the special case of blocks (same word − other words of the topic, ÷ "
        "those − different topics; about 10 at 300 steps)",
        source=SOURCE,
        paper="a special case of the block-wise optima",
        measured=(same - topic) / abs(topic - different),
        above=50.0,
        setting=name,
        detail=f"same word {same:.4f}, other words of the topic {topic:.4f}, different topics {different:.4f}; "
        f"difference of the last two {topic - different:.4f} [{low:.4f}, {high:.4f}]",
    )


def _theorem1_claim(name: str, report: AgreementReport) -> Claim:
    return Claim(
        text="With only W_E trained, W_Eᵀ W_E is near the optima (Frobenius distance to the nearest ÷ its norm)",
        source="Theorem 1",
        paper="0 on infinitely long documents",
        measured=report.family_distance,
        below=0.05 if name.endswith(LONG) else 0.25,
        setting=name,
        detail=f"largest residual of a condition {report.worst_residual:.4f}, of sums that are 1/a = 1.156 or 0",
    )
