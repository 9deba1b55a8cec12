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

from collections.abc import Iterator

from topic_probe.measure.embeddings import EmbeddingReport, measure_embeddings
from topic_probe.paper.claims import Claim, interval_of
from topic_probe.paper.recipe import Recipe, RecipeResult, Run
from topic_probe.paper.toys import (
    agreement,
    block_claim,
    blocks_and_losses,
    converged,
    each_training,
    little_loss,
    means,
)
from topic_probe.paper.training import CE_ADAM, CE_SGD, SQ_ADAM, SQ_SGD, Setting, Trained, pair_setting
from topic_probe.toy.agreement import AgreementReport
from topic_probe.toy.world import World

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


_DIAGONAL = "full, squared, Adam"


def _embeddings(trained: Trained, _: Run) -> EmbeddingReport | None:
    if trained.setting.regime != "full":
        return None
    return measure_embeddings(trained.model(), trained.setting.world.topics, statistic="difference")


def _blocks(result: RecipeResult) -> Iterator[Claim]:
    """Blocks, and where training went on beyond them a diagonal, beside which they are small."""
    dots = {name: report.dot for name, report in result.of(EmbeddingReport).items()}
    diagonal = None if result.quick else dots.pop(_DIAGONAL, None)
    for name, dot in dots.items():
        yield block_claim("W_Eᵀ W_E", dot, setting=name, source=result.source)
    if diagonal is not None:
        low, high = interval_of(diagonal)
        blocks = float(diagonal.difference)
        yield Claim(
            text="W_Eᵀ W_E has become a diagonal, the special case of blocks (same word − other words of the topic, ÷ "
            "those − different topics; about 10 at 300 steps)",
            source=result.source,
            paper="a special case of the block-wise optima",
            measured=float(diagonal.same_word - diagonal.same_topic) / abs(blocks),
            above=50.0,
            setting=_DIAGONAL,
            detail=f"{means(diagonal)}; difference of the last two {blocks:.4f} [{low:.4f}, {high:.4f}]",
        )


def _theorem1(result: RecipeResult) -> list[Claim]:
    reports = {n: report for n, report in result.of(AgreementReport).items() if report.theorem == "Theorem 1"}
    return [
        Claim(
            text="With only W_E trained, W_Eᵀ W_E is near the optima (Frobenius distance to the nearest ÷ its norm)",
            source="Theorem 1",
            paper="0 on infinitely long documents",
            measured=report.family_distance,
            below=0.05 if name.endswith(LONG) else 0.25,
            setting=name,
            detail=f"largest residual of a condition {report.worst_residual:.4f}, of sums that are 1/a = 1.156 or 0",
        )
        for name, report in reports.items()
    ]


RECIPE = Recipe(
    name="figure1",
    title="topics in trained word embeddings",
    source="Figure 1, Section 6.1",
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    measure=each_training(_embeddings, agreement),
    claims=(_blocks, converged, _theorem1, little_loss("embedding", "full", source="Section 4")),
    figures=blocks_and_losses(EmbeddingReport, "W_Eᵀ W_E", score="dot"),
)
