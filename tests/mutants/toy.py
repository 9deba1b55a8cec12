"""Ways to break worlds, masking, the toy model, what it is held against, and the theory."""

from mutant import Mutant

MODEL, WORLD, MASKING = (f"topic_probe/toy/{name}.py" for name in ("model", "world", "masking"))
WORDS, AGREEMENT, LANDSCAPE = (
    f"topic_probe/toy/{name}.py" for name in ("word_attention", "agreement", "landscape")
)
VALUE, ATTENTION, EFFECTS, INITIAL, LOSSES, POSTERIOR = (
    f"topic_probe/toy/theory/{name}.py"
    for name in ("value", "attention", "effects", "gradients", "losses", "posterior")
)
OF_MODEL, OF_WORLD, OF_MASKING, OF_WORDS, OF_AGREEMENT, OF_LANDSCAPE = (
    f"tests/toy/test_{name}.py"
    for name in ("model", "world", "masking", "word_attention", "agreement", "landscape")
)
OF_TRAINING = "tests/train/test_toy.py"
OF_THEORY, OF_EFFECTS = "tests/toy/test_theory.py", "tests/toy/theory/test_effects.py"
OF_INITIAL, OF_POSTERIOR = "tests/toy/theory/test_gradients.py", "tests/toy/theory/test_posterior.py"

# fmt: off
MUTANTS = [
    Mutant("scores are divided by d_a and not by its root", MODEL,
           "queries.mT @ keys / math.sqrt(keys.shape[-2])", "queries.mT @ keys / keys.shape[-2]", OF_TRAINING),
    Mutant("queries without their bias", MODEL, ' + t["b_Q"][..., None]\n', "\n", OF_TRAINING),
    Mutant("counts do not weigh attention", MODEL,
           "of_tokens.flatten(0, 1)) + log_counts).softmax(-1)",
           "of_tokens.flatten(0, 1)) + log_counts.sign()).softmax(-1)", OF_TRAINING),
    Mutant("the squared loss has half of what it takes off for the word", MODEL,
           "- 2 * of_targets + 1", "- of_targets + 1", OF_TRAINING),
    Mutant("the native scale is that of the whole width", MODEL,
           "block.attn.scale = scale", "block.attn.scale = math.sqrt(config.width)", OF_MODEL),
    Mutant("the decoder has no bias", MODEL,
           "nn.functional.linear(hidden_states, self.weight, self.bias)",
           "nn.functional.linear(hidden_states, self.weight)", OF_MODEL),
    Mutant("the usual start is within 1/d", MODEL,
           "(2 * uniform - 1) / math.sqrt(config.width)", "(2 * uniform - 1) / config.width", OF_MODEL),
    Mutant("words are kept as often as they should be random", MASKING,
           "level >= self.p_mask * self.p_keep)", "level >= self.p_mask * self.p_random)", OF_MASKING),
    Mutant("positions of padding are chosen", MASKING,
           "(level < self.p_mask) & documents.mask", "level < self.p_mask", OF_MASKING),
    Mutant("only [MASK] is hidden, and not what was chosen", MASKING,
           "self.mask & ~self.chosen", "self.mask & (self.shown != MASK_ID)", OF_MASKING),
    Mutant("kept words are not counted as genuine", MASKING,
           "return 1 - (1 - self.p_keep) * self.p_mask", "return 1 - self.p_mask", OF_THEORY),
    Mutant("the last word of a topic is never drawn", WORLD,
           "_whole(topics.shape, 1, self.words_per_topic + 1, generator)",
           "_whole(topics.shape, 1, self.words_per_topic, generator)", OF_WORLD),
    Mutant("a small gamma variable is boosted without its parameter", WORLD,
           "uniform.log_() / alpha", "uniform.log_()", OF_WORLD),
    Mutant("a topic beside itself has the moment of two topics", WORLD,
           "same = (alpha + 1) / (T", "same = alpha / (T", OF_THEORY),
    Mutant("documents never have the greatest length", WORLD,
           "_whole((n, 1), self.min_length, self.max_length + 1, generator)",
           "_whole((n, 1), self.min_length, max(self.max_length, self.min_length + 1), generator)", OF_WORLD),
    Mutant("rows and columns of attention are swapped where it is summed", WORDS,
           "(shown.asked @ weights.T)", "(shown.asked @ weights)", OF_WORDS),
    Mutant("squares of attention are scaled once", WORDS, "scale**2", "scale", OF_WORDS),
    Mutant("uniform attention is one of all positions", WORDS,
           "shown.asked.sum(axis=1, keepdims=True)", "shown.asking.sum(axis=1, keepdims=True)", OF_WORDS),
    Mutant("the mean output is also of the document itself", AGREEMENT,
           "(everything - total) / (n_positions - count.sum(dim=1, keepdim=True))",
           "everything / (n_positions + 0 * count.sum(dim=1, keepdim=True))", OF_AGREEMENT),
    Mutant("a bias is folded in by the share of masked words", AGREEMENT,
           "/ masking.mask_share if", "/ masking.p_mask if", OF_AGREEMENT),
    Mutant("the standard error forgets its root", AGREEMENT,
           "float(means.std()) / sqrt(len(means))", "float(means.std()) / len(means)", OF_AGREEMENT),
    Mutant("the excess of cross-entropy has the entropy in it", AGREEMENT,
           "torch.special.xlogy(posterior, posterior) - posterior", "-posterior", OF_AGREEMENT),
    Mutant("attention is not relative to the length of documents", AGREEMENT,
           'scores = pattern * rearrange(batch.mask.sum(dim=1), "document -> document 1 1 1").to(pattern.dtype)',
           "scores = pattern * batch.mask.shape[1]", OF_AGREEMENT),
    Mutant("the weighted mean takes all words of the topic for others", AGREEMENT,
           "(v - 1) / v * topic + word / v", "topic + word / v", OF_AGREEMENT),
    Mutant("weights of a toy are those of scores divided by d_a", LANDSCAPE,
           "queries / len(W_K) ** 0.5", "queries / len(W_K)", OF_LANDSCAPE),
    Mutant("a toy stands where its weighted mean is another", LANDSCAPE,
           "(v * mean - mask) / (v - 1)", "(v * mean - mask) / v", OF_LANDSCAPE),
    Mutant("words of one topic share 1/a without dividing it", VALUE,
           "different + c3 / world.words_per_topic", "different + c3", OF_THEORY),
    Mutant("c2 is not reduced by 1", VALUE, "c2 = 1 / shown - 1", "c2 = 1 / shown", OF_THEORY),
    Mutant("the bias of Theorem 1 adds what random words add", VALUE, ", -share, dtype", ", share, dtype", OF_THEORY),
    Mutant("the fitted u counts topics for words", VALUE,
           "* first) / (constants.c2**2 + n)", "* first) / (constants.c2**2 + T)", OF_THEORY),
    Mutant("random words are shown as often as topics are many", VALUE,
           "shown[1:] += masking.random_share(world)",
           "shown[1:] += masking.p_mask * masking.p_random / world.n_topics", OF_THEORY),
    Mutant("λ1 of Theorem 3 is twice as large", ATTENTION, "/ (2 * a) if a > 0", "/ a if a > 0", OF_THEORY),
    Mutant("a target beside a random word is not shared among topics", ATTENTION,
           "target=(1 / tau, near[1] / tau)", "target=(1 / tau, near[1])", OF_THEORY),
    Mutant("attention to [MASK] is not normalised", ATTENTION,
           "Z = seen + 1 - share", "Z = share + 1 - share", OF_THEORY),
    Mutant("cut before the softmax, attention goes nowhere", EFFECTS,
           "        without = without / left\n", "        pass\n", OF_EFFECTS),
    Mutant("random words never are of the document", EFFECTS,
           "1: masking.genuine_share + random * inside", "1: masking.genuine_share", OF_EFFECTS),
    Mutant("own topic means other words of it", EFFECTS,
           '"own_topic": slice(1, 1 + v)', '"own_topic": slice(2, 1 + v)', OF_EFFECTS),
    Mutant("the spread of a document lacks its mean", INITIAL,
           "skewed.T + overlaps.square()  #", "skewed.T  #", OF_INITIAL),
    Mutant("cross-entropy has the slope of squared loss", INITIAL,
           "_norm(every, overlaps, _centred), _norm(by_shown, spreads, _centred)",
           "_norm(every, overlaps, _words), _norm(by_shown, spreads, _words)", OF_INITIAL),
    Mutant("the entropy of shares in LDA is that of one word less", LOSSES,
           "torch.digamma(T * alpha + 1) - torch.digamma(alpha + 1)",
           "torch.digamma(T * alpha) - torch.digamma(alpha)", OF_THEORY),
    Mutant("random draws leave nothing to be guessed", LOSSES,
           "total = (1 - p_keep) * _entropy", "total = (1 - p_keep - masking.p_random) * _entropy", OF_THEORY),
    Mutant("the shown word is evidence twice", POSTERIOR, "keys % (n + 1)] -= 1", "keys % (n + 1)] -= 0", OF_POSTERIOR),
    Mutant("a kept word cannot have been drawn at random", POSTERIOR,
           "- 1] += masking.p_keep", "- 1] = masking.p_keep", OF_POSTERIOR),
]
