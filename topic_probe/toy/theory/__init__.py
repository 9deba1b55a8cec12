"""The paper's theory as running code, about worlds and masking schemes; no model is imported.

============  ==========================================  ======================================================
in the paper  function                                    what it is
============  ==========================================  ======================================================
Lemma 1       `check_lemma1`                              all W_V of least squared loss under uniform attention:
                                                          Σ_topic W_ij = u_i v + [own topic] / a
Theorem 1     `check_theorem1`, `embedding_bias`          the same of W_Eᵀ W_E, with b = −p_m p_r / (a n)
Theorem 2     `optimal_value`, `optimal_value_constants`  the W_V of least norm: three values, by c1, c2, c3
Equation 1    `value_loss`, `ablation_effect`             E|W x̄ + b − x|² = E|W x̄ + b − p|² + 1 − E|p|²
Assumption 2  `attention_loss`, `weighted_mean`           the loss over (α, β): cᵀ Γ c / Z² − 2 c·h / Z + 1
Theorem 3     `attention_bounds`                          λ1 (τ − 1) < (v − 1)/v · α + β/v < λ2 T
Appendix D.5  `optimal_attention`                         the minimum over (α, β), numerically
Section 8.1   `initial_gradients`                         ∂L/∂W_V and ∂L/∂W_K near zero: of size 1 and σ²
ours          `loss_floor`                                the least loss on endless documents: 1 − E|p|²,
                                                          E[H(p)], and those of q given the shown token
ours          `bayes_predictor`, `bayes_loss`             P(word | document) on finite documents
============  ==========================================  ======================================================

With ``attend="unmasked"`` attention does not see positions that were chosen for prediction: what is attended to is the
document's own words. Assumption 2 and Theorem 3 are about attention to all positions.
"""

from topic_probe.toy.theory.attention import AttentionBounds as AttentionBounds
from topic_probe.toy.theory.attention import AttentionOptimum as AttentionOptimum
from topic_probe.toy.theory.attention import attention_bounds as attention_bounds
from topic_probe.toy.theory.attention import attention_loss as attention_loss
from topic_probe.toy.theory.attention import optimal_attention as optimal_attention
from topic_probe.toy.theory.attention import weighted_mean as weighted_mean
from topic_probe.toy.theory.gradients import InitialGradients as InitialGradients
from topic_probe.toy.theory.gradients import initial_gradients as initial_gradients
from topic_probe.toy.theory.losses import BayesLoss as BayesLoss
from topic_probe.toy.theory.losses import LossFloor as LossFloor
from topic_probe.toy.theory.losses import bayes_loss as bayes_loss
from topic_probe.toy.theory.losses import loss_floor as loss_floor
from topic_probe.toy.theory.posterior import bayes_predictor as bayes_predictor
from topic_probe.toy.theory.value import OptimumCheck as OptimumCheck
from topic_probe.toy.theory.value import ValueConstants as ValueConstants
from topic_probe.toy.theory.value import ablation_effect as ablation_effect
from topic_probe.toy.theory.value import check_lemma1 as check_lemma1
from topic_probe.toy.theory.value import check_theorem1 as check_theorem1
from topic_probe.toy.theory.value import embedding_bias as embedding_bias
from topic_probe.toy.theory.value import optimal_value as optimal_value
from topic_probe.toy.theory.value import optimal_value_constants as optimal_value_constants
from topic_probe.toy.theory.value import value_loss as value_loss
