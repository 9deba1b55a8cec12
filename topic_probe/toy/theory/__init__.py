"""The paper's theory as running code, about worlds and masking schemes; no model is imported.

* :mod:`~topic_probe.toy.theory.value`: optimal W_V and E under uniform attention (Lemma 1, Theorems 1 and 2), and
  the loss of any other.
* :mod:`~topic_probe.toy.theory.attention`: the loss over attention weights (α, β), its optimum, Theorem 3's interval.
* :mod:`~topic_probe.toy.theory.effects`: what the head's output and some of its edges are worth.
* :mod:`~topic_probe.toy.theory.gradients`: how large the gradients are where training begins near zero.
* :mod:`~topic_probe.toy.theory.posterior`: the best possible predictor on documents of finite length.
* :mod:`~topic_probe.toy.theory.losses`: the lowest loss, of each regime on infinitely long documents, and of any
  predictor on finite ones.
"""

from topic_probe.toy.theory.attention import AttentionBounds as AttentionBounds
from topic_probe.toy.theory.attention import AttentionOptimum as AttentionOptimum
from topic_probe.toy.theory.attention import attention_bounds as attention_bounds
from topic_probe.toy.theory.attention import attention_landscape as attention_landscape
from topic_probe.toy.theory.attention import attention_loss as attention_loss
from topic_probe.toy.theory.attention import best_scale as best_scale
from topic_probe.toy.theory.attention import optimal_attention as optimal_attention
from topic_probe.toy.theory.attention import weighted_mean as weighted_mean
from topic_probe.toy.theory.effects import AblationEffect as AblationEffect
from topic_probe.toy.theory.effects import KnockoutEffect as KnockoutEffect
from topic_probe.toy.theory.effects import KnockoutPrediction as KnockoutPrediction
from topic_probe.toy.theory.effects import ablation_effect as ablation_effect
from topic_probe.toy.theory.effects import knockout_effect as knockout_effect
from topic_probe.toy.theory.gradients import InitialGradients as InitialGradients
from topic_probe.toy.theory.gradients import initial_gradients as initial_gradients
from topic_probe.toy.theory.losses import BayesLoss as BayesLoss
from topic_probe.toy.theory.losses import LossFloor as LossFloor
from topic_probe.toy.theory.losses import bayes_loss as bayes_loss
from topic_probe.toy.theory.losses import loss_floor as loss_floor
from topic_probe.toy.theory.posterior import BayesPrediction as BayesPrediction
from topic_probe.toy.theory.posterior import bayes_predictor as bayes_predictor
from topic_probe.toy.theory.value import OptimumCheck as OptimumCheck
from topic_probe.toy.theory.value import ValueConstants as ValueConstants
from topic_probe.toy.theory.value import check_lemma1 as check_lemma1
from topic_probe.toy.theory.value import check_theorem1 as check_theorem1
from topic_probe.toy.theory.value import embedding_bias as embedding_bias
from topic_probe.toy.theory.value import optimal_value as optimal_value
from topic_probe.toy.theory.value import optimal_value_constants as optimal_value_constants
from topic_probe.toy.theory.value import value_loss as value_loss
