"""Ways to break sums over pairs of words, weights of heads, and matrices."""

from mutant import Mutant

WORDS = "topic_probe/measure/words.py"
PAIRS = "topic_probe/measure/pair_sums.py"
EMBEDDINGS = "topic_probe/measure/embeddings.py"
WEIGHTS = "topic_probe/measure/weights.py"
MATRIX = "topic_probe/measure/matrix.py"
OF_WORDS = "tests/measure/test_words.py"
OF_PAIRS = "tests/measure/test_pair_sums.py"
OF_EMBEDDINGS = "tests/measure/test_embeddings.py"
OF_WEIGHTS = "tests/measure/test_weights.py"
OF_MATRIX = "tests/measure/test_matrix.py"

# fmt: off
MUTANTS = [
    Mutant("a mean of rows that divides by rows left out, too", WORDS, ".sum(0) / n\n", ".sum(0) / len(table)\n",
           OF_WORDS),
    Mutant("the last components instead of the leading ones", WORDS, "[:, -remove_components:]",
           "[:, :remove_components]", OF_WORDS),
    Mutant("words resampled in the last of their topics", WORDS, 'first, "amin"', 'first, "amax"', OF_WORDS),
    Mutant("rows of zero that count in the mean", WORDS, "[rows.isfinite().all(1) & rows.any(1)]",
           "[rows.isfinite().all(1)]", OF_WORDS),
    Mutant("one end of each pair instead of both", WORDS, "parts.append((2 * others", "parts.append((1 * others",
           OF_PAIRS),
    Mutant("pairs of a word's own forms in its ends", WORDS, "self.by_form(of_entry) + near.T",
           "self.by_form(of_entry)", OF_PAIRS),
    Mutant("cosines without the norm", PAIRS, "(1 / words.norms[order])", "(words.norms[order] ** 0)", OF_PAIRS),
    Mutant("pairs of forms counted as pairs of words of a topic", PAIRS, "n_within - sizes - near[2]",
           "n_within - sizes", OF_PAIRS),
    Mutant("a word with itself in the squares, once too small", PAIRS, "words.norms**4", "words.norms**2", OF_PAIRS),
    Mutant("a word met in each of its topics", PAIRS, "np.fill_diagonal(products, 0)",
           "np.fill_diagonal(products, np.diag(products))", OF_PAIRS),
    Mutant("half of a symmetric moment", PAIRS, "(np.triu(moments) + np.triu(moments, 1))", "np.triu(moments)",
           OF_PAIRS),
    Mutant("squares of pairs within a topic among those elsewhere", PAIRS, "sharing[entry]) - within",
           "sharing[entry])", OF_PAIRS),
    Mutant("the sums of a block of groups in the wrong order", PAIRS, "products[:, group - first,",
           "products[:, stop - 1 - group,", OF_PAIRS),
    Mutant("cosines of states and dot products exchanged", EMBEDDINGS, "contrast[number :: len(SCORES)]",
           "contrast[1 - number :: len(SCORES)]", OF_EMBEDDINGS),
    Mutant("states divided by their squared norm", EMBEDDINGS, "masked_fill(~usable, 1)[..., None]",
           "masked_fill(~usable, 1)[..., None] ** 2", OF_EMBEDDINGS),
    Mutant("OV the other way round", WEIGHTS, "(weights.W_V, weights.W_O.mT)", "(weights.W_O.mT, weights.W_V)",
           OF_WEIGHTS),
    Mutant("a second moment taken for the variance", WEIGHTS, "squares - (sums.sum(1) / n).square()",
           "squares.clone()", OF_WEIGHTS),
    Mutant("pairs of a head met from one end twice", WEIGHTS, "in ((a, b), (b, a)):", "in ((a, b), (a, b)):",
           OF_WEIGHTS),
    Mutant("the circuit of an encoder that scores no words", WEIGHTS, '== ("ov", "encoder")', '== ("ov", "nowhere")',
           OF_WEIGHTS),
    Mutant("columns that are not in the order of rows", MATRIX, "matrices[:, order][:, :, order]",
           "matrices[:, order]", OF_MATRIX),
    Mutant("words with themselves in means between topics", MATRIX, "per_topic, per_topic) - of_words[-1]",
           "per_topic, per_topic)", OF_MATRIX),
]
