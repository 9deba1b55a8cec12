"""Ways to break the theory, what a toy is held against, and where it stands in the landscape."""

from mutant import Mutant

VALUE, ATTENTION, INITIAL, LOSSES, POSTERIOR = (
    f"topic_probe/toy/theory/{name}.py" for name in ("value", "attention", "gradients", "losses", "posterior")
)
AGREEMENT, LANDSCAPE = "topic_probe/toy/agreement.py", "topic_probe/toy/landscape.py"
OF_THEORY, OF_AGREEMENT, OF_LANDSCAPE = (
    f"tests/toy/test_{name}.py" for name in ("theory", "agreement", "landscape")
)
OF_INITIAL, OF_POSTERIOR = "tests/toy/theory/test_gradients.py", "tests/toy/theory/test_posterior.py"

# fmt: off
MUTANTS = [
    Mutant("words of one topic share 1/a without dividing it", VALUE,
           "same_topic=different + c3 / v", "same_topic=different + c3", OF_THEORY),
    Mutant("c2 is not reduced by 1", VALUE, "c2 = 1 / shown - 1", "c2 = 1 / shown", OF_THEORY),
    Mutant("the bias of Theorem 1 adds what random words add", VALUE,
           "bias[1:] = -masking.random_share", "bias[1:] = masking.random_share", OF_THEORY),
    Mutant("the fitted u counts topics for words", VALUE,
           "* first) / (constants.c2**2 + n)", "* first) / (constants.c2**2 + T)", OF_THEORY),
    Mutant("random words are shown as often as topics are many", VALUE,
           "seen[1:] += masking.random_share(world)",
           "seen[1:] += masking.p_mask * masking.p_random / world.n_topics", OF_THEORY),
    Mutant("attention that sees no chosen positions sees their [MASK]", VALUE,
           '    if attend == "unmasked":\n        return words', "    pass", OF_THEORY),
    Mutant("where [MASK] is not seen its column still counts", VALUE,
           "        first = torch.zeros_like(first)", "        pass", OF_THEORY),
    Mutant("in place of the head stands the sum of its outputs", VALUE,
           "masking, attend)).mean(dim=1)", "masking, attend)).sum(dim=1)", OF_THEORY),
    Mutant("λ1 of Theorem 3 is twice as large", ATTENTION, "/ (2 * a) if a > 0", "/ a if a > 0", OF_THEORY),
    Mutant("a target beside a random word is not shared among topics", ATTENTION,
           "target=(1 / tau, near[1] / tau)", "target=(1 / tau, near[1])", OF_THEORY),
    Mutant("another topic is in the document whatever else is", ATTENTION,
           "both = (t + pair * (e - t)) * tau / T", "both = (t + tau / T * (e - t)) * tau / T", OF_THEORY),
    Mutant("other words of the topic count the word itself", ATTENTION, "mates = v - 1", "mates = v", OF_THEORY),
    Mutant("attention is normalised as if the word were not among its topic", ATTENTION,
           "tau * v, v - 1, 1]", "tau * v, v, 1]", OF_THEORY),
    Mutant("the minimum is left where the loss is flat to rounding", ATTENTION,
           "for _ in range(4):", "for _ in range(0):", OF_THEORY),
    Mutant("the spread of a document lacks its mean", INITIAL,
           "skewed.T + overlaps.square()  #", "skewed.T  #", OF_INITIAL),
    Mutant("cross-entropy has the slope of squared loss", INITIAL,
           "words - shares / size, words_shown - shares_shown / size", "words, words_shown", OF_INITIAL),
    Mutant("gradients see positions that attention does not", INITIAL,
           "batch.counts(size, attend)", "batch.counts(size)", OF_INITIAL),
    Mutant("the entropy of shares in LDA is that of one word less", LOSSES,
           "torch.digamma(T * alpha + 1) - torch.digamma(alpha + 1)",
           "torch.digamma(T * alpha) - torch.digamma(alpha)", OF_THEORY),
    Mutant("random draws leave nothing to be guessed", LOSSES,
           "total = (1 - p_keep) * _entropy", "total = (1 - p_keep - masking.p_random) * _entropy", OF_THEORY),
    Mutant("documents in which nothing is seen have a loss", LOSSES,
           "rows = batch.visible(attend).any", "rows = batch.mask.any", OF_POSTERIOR),
    Mutant("the shown word is evidence twice", POSTERIOR, "keys % (n + 1)] -= 1", "keys % (n + 1)] -= 0", OF_POSTERIOR),
    Mutant("a kept word cannot have been drawn at random", POSTERIOR,
           "- 1] += masking.p_keep", "- 1] = masking.p_keep", OF_POSTERIOR),
    Mutant("words that were not chosen may be random", POSTERIOR,
           'Masking(p_mask=0.0) if attend == "unmasked" else masking', "masking", OF_POSTERIOR),
    Mutant("a set of topics may show words that it cannot", POSTERIOR,
           "logs.masked_fill(impossible, -torch.inf)", "logs", OF_POSTERIOR),
    Mutant("shares of topics forget how many words are genuine", POSTERIOR,
           "(alpha + means) * inverse", "(alpha + sizes) * inverse", OF_POSTERIOR),
    Mutant("a bias is folded in by the share of masked words", AGREEMENT,
           "bias / masking.mask_share", "bias / masking.p_mask", OF_AGREEMENT),
    Mutant("the standard error forgets its root", AGREEMENT,
           "float(means.std()) / sqrt(len(means))", "float(means.std()) / len(means)", OF_AGREEMENT),
    Mutant("the excess of cross-entropy has the entropy in it", AGREEMENT,
           "torch.special.xlogy(posterior, posterior) - posterior", "-posterior", OF_AGREEMENT),
    Mutant("the weighted mean takes all words of the topic for others", AGREEMENT,
           '(v - 1) * attention["same_topic"]', 'v * attention["same_topic"]', OF_AGREEMENT),
    Mutant("rows and columns of a toy's attention are swapped", LANDSCAPE,
           "token_attention(model).T[1:, 1:]", "token_attention(model)[1:, 1:]", OF_LANDSCAPE),
    Mutant("other words of a topic count the word itself", LANDSCAPE,
           "mates = words.masked_fill(~same | own, 0.0)", "mates = words.masked_fill(~same, 0.0)", OF_LANDSCAPE),
]
