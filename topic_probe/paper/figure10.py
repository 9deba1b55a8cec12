"""Figure 10: blocks in W_V also when attention is trained with it, and hardly a lower loss.

Keys, queries and values are trained together on one-hot embeddings (regime *attention*), on LDA documents, at a rate
of 0.01. Beside it W_V alone (Figure 2, without L2), whose loss is said to be only slightly greater (Section 5.2).

With SGD and cross-entropy these take two million steps and three: W_V has to grow until it makes logits of several
units, from gradients of 0.0004. With squared loss 100,000 are enough for W_V, and attention stays uniform.
"""

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from topic_probe.measure.weights import measure_weights
from topic_probe.paper.checks import agreement_of, block_claim, converged_claims, loss_claims
from topic_probe.paper.figure2 import QUICK_WITHOUT_L2, WITHOUT_L2
from topic_probe.paper.pictures import blocks_and_losses
from topic_probe.paper.recipe import PAIRS, RecipeResult, Setting, choose, pair_setting, train_all
from topic_probe.toy.agreement import world_topics

TITLE = "blocks in W_V when attention is trained too"
SOURCE = "Figure 10, Section 6.1"
CE_SGD, CE_ADAM, SQ_SGD, SQ_ADAM = PAIRS

# Table 3 measures the attention of these.
ATTENTION: tuple[Setting, ...] = (
    pair_setting("attention", CE_SGD, 2_000_000, seconds=1850.0),
    pair_setting("attention", CE_ADAM, 5_000, seconds=5.0),
    pair_setting("attention", SQ_SGD, 100_000, seconds=92.0),
    pair_setting("attention", SQ_ADAM, 5_000, seconds=5.0),
)
SETTINGS: tuple[Setting, ...] = (*ATTENTION, *WITHOUT_L2)

QUICK_ATTENTION: tuple[Setting, ...] = (
    pair_setting("attention", CE_SGD, 400, seconds=0.4, learning_rate=20.0),
    pair_setting("attention", CE_ADAM, 300, seconds=0.3),
    pair_setting("attention", SQ_SGD, 400, seconds=0.4, learning_rate=0.3),
    pair_setting("attention", SQ_ADAM, 300, seconds=0.3),
)
QUICK_SETTINGS: tuple[Setting, ...] = (
    *QUICK_ATTENTION,
    *(setting for setting in QUICK_WITHOUT_L2 if setting.train.optimizer == "adam"),
)


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
    agreements = {name: agreement_of(trained, quick=quick) for name, trained in runs.items()}
    trained_attention = {name: t for name, t in runs.items() if t.setting.toy.regime == "attention"}
    weights = {
        name: measure_weights(trained.model(), world_topics(trained.setting.world), circuits=["ov"])
        for name, trained in trained_attention.items()
    }
    claims = [
        block_claim("W_V", report.heads[0], setting=name, source=SOURCE) for name, report in weights.items()
    ]
    claims += loss_claims(agreements, "value", "attention", source="Section 5.2", quick=quick)
    claims += converged_claims(runs, source=SOURCE, quick=quick)
    return RecipeResult(
        recipe="figure10",
        title=TITLE,
        quick=quick,
        claims=tuple(claims),
        runs=tuple(runs.values()),
        reports={"weights": weights, "agreement": agreements},
        seconds=time.perf_counter() - start,
        draw=partial(blocks_and_losses, kind="weights", title="W_V", circuit="ov"),
    )
