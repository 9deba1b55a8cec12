"""Ways to break worlds, masking, the toy model and attention to words."""

from mutant import Mutant

MODEL, WORLD = (f"topic_probe/toy/{name}.py" for name in ("model", "world"))
MASKING = WORLD
WORDS = "topic_probe/toy/word_attention.py"
OF_MODEL, OF_WORLD, OF_MASKING, OF_WORDS = (
    f"tests/toy/test_{name}.py" for name in ("model", "world", "masking", "word_attention")
)
OF_TRAINING = "tests/train/test_toy.py"
OF_THEORY = "tests/toy/test_theory.py"

# fmt: off
MUTANTS = [
    Mutant("scores are divided by d and not by its root", MODEL,
           "queries.mT @ keys / math.sqrt(keys.shape[-2])", "queries.mT @ keys / keys.shape[-2]", OF_TRAINING),
    Mutant("queries without their bias", MODEL, ' + t["b_Q"][..., None]\n', "\n", OF_TRAINING),
    Mutant("counts do not weigh attention", MODEL,
           "of_tokens.flatten(0, 1)) + log_counts).softmax(-1)",
           "of_tokens.flatten(0, 1)) + log_counts.sign()).softmax(-1)", OF_TRAINING),
    Mutant("the squared loss has half of what it takes off for the word", MODEL,
           "- 2 * of_targets + 1", "- of_targets + 1", OF_TRAINING),
    Mutant("what a config leaves untrained of its regime is zero", MODEL,
           "(*regime.trained, *config.trained_tensors)", "config.trained_tensors", OF_MODEL),
    Mutant("the decoder has no bias", MODEL,
           "nn.functional.linear(hidden_states, self.weight, self.bias)",
           "nn.functional.linear(hidden_states, self.weight)", OF_MODEL),
    Mutant("the usual start is within 1/d", MODEL,
           "(2 * uniform - 1) / math.sqrt(", "(2 * uniform - 1) / float(", OF_MODEL),
    Mutant("words are kept as often as they should be random", MASKING,
           "level >= self.p_mask * self.p_keep)", "level >= self.p_mask * self.p_random)", OF_MASKING),
    Mutant("positions of padding are chosen", MASKING,
           "(level < self.p_mask) & documents.mask", "level < self.p_mask", OF_MASKING),
    Mutant("only [MASK] is hidden, and not what was chosen", MASKING,
           "self.mask & ~self.chosen", "self.mask & (self.shown != MASK_ID)", OF_MASKING),
    Mutant("kept words are not counted as genuine", MASKING,
           "return 1 - (1 - self.p_keep) * self.p_mask", "return 1 - self.p_mask", OF_THEORY),
    Mutant("the last word of a topic is never drawn", WORLD,
           "torch.randint(1, self.words_per_topic + 1, topics.shape",
           "torch.randint(1, self.words_per_topic, topics.shape", OF_WORLD),
    Mutant("a small gamma variable is boosted without its parameter", WORLD,
           "uniform.log_() / alpha", "uniform.log_()", OF_WORLD),
    Mutant("a topic beside itself has the moment of two topics", WORLD,
           "same = (alpha + 1) / (T", "same = alpha / (T", OF_THEORY),
    Mutant("documents never have the greatest length", WORLD,
           "torch.randint(self.min_length, self.max_length + 1, (n, 1)",
           "torch.randint(self.min_length, max(self.max_length, self.min_length + 1), (n, 1)", OF_WORLD),
    Mutant("rows and columns of attention are swapped where it is summed", WORDS,
           "(asked @ weights.T)", "(asked @ weights)", OF_WORDS),
    Mutant("squares of attention are scaled once", WORDS, "scale**2", "scale", OF_WORDS),
    Mutant("uniform attention is one of all positions", WORDS,
           "asked.sum(axis=1, keepdims=True)", "asking.sum(axis=1, keepdims=True)", OF_WORDS),
]
