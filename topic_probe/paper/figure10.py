"""Figure 10: blocks in W_V also when attention is trained with it, and hardly a lower loss.

Keys, queries and values are trained together on one-hot embeddings (regime *attention*), on LDA documents, at a rate
of 0.01. Beside it W_V alone (Figure 2, without L2), whose loss is said to be only slightly greater (Section 5.2).

With SGD and cross-entropy these take two million steps and three: W_V has to grow until it makes logits of several
units, from gradients of 0.0004. With squared loss 100,000 are enough for W_V, and attention stays uniform.
"""

from topic_probe.measure.weights import WeightReport
from topic_probe.paper.figure2 import QUICK_WITHOUT_L2, WITHOUT_L2
from topic_probe.paper.recipe import Recipe, Run
from topic_probe.paper.toys import (
    agreement,
    blocks_and_losses,
    converged,
    each_training,
    little_loss,
    value_blocks,
    value_weights,
)
from topic_probe.paper.training import CE_ADAM, CE_SGD, SQ_ADAM, SQ_SGD, Setting, Trained, pair_setting

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


def _weights_beside_attention(trained: Trained, run: Run) -> WeightReport | None:
    return value_weights(trained, run) if trained.setting.regime == "attention" else None


RECIPE = Recipe(
    name="figure10",
    title="blocks in W_V when attention is trained too",
    source="Figure 10, Section 6.1",
    settings=SETTINGS,
    quick_settings=QUICK_SETTINGS,
    measure=each_training(_weights_beside_attention, agreement),
    claims=(value_blocks, little_loss("value", "attention", source="Section 5.2"), converged),
    figures=blocks_and_losses(WeightReport, "W_V", circuit="ov"),
)
