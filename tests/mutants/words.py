"""Ways to break sums over pairs of words, weights of heads, and matrices."""

from mutant import Mutant

WORDS = "topic_probe/measure/words.py"
MATCHED = "topic_probe/measure/matched.py"
EMBEDDINGS = "topic_probe/measure/embeddings.py"
WEIGHTS = "topic_probe/measure/weights.py"
MATRIX = "topic_probe/measure/matrix.py"
OF_WORDS = "tests/measure/test_words.py"
OF_MATCHED = "tests/measure/test_matched.py"
OF_EMBEDDINGS = "tests/measure/test_embeddings.py"
OF_WEIGHTS = "tests/measure/test_weights.py"
OF_MATRIX = "tests/measure/test_matrix.py"

# fmt: off
MUTANTS = [
    Mutant("a mean of rows that divides by rows left out, too", WORDS, "mean = total / n\n",
           "mean = total / len(table)\n",
           OF_WORDS),
    Mutant("the last components instead of the leading ones", WORDS, "[:, -remove_components:]",
           "[:, :remove_components]", OF_WORDS),
    Mutant("words resampled in the last of their topics", WORDS, "np.minimum.at(lowest",
           "np.maximum.at(lowest", OF_WORDS),
    Mutant("rows of zero that count in the mean", WORDS, "[part.isfinite().all(1) & part.any(1)]",
           "[part.isfinite().all(1)]", OF_WORDS),
    Mutant("one end of each pair instead of both", WORDS, "sums += sums if right is left else",
           "sums += 0 if right is left else", OF_WORDS),
    Mutant("pairs of a word's own forms among those of its topic", WORDS, "sharing - own - near,", "sharing - own,",
           OF_WORDS),
    Mutant("cosines without the norm", WORDS, '"cosine": self.rows / self.norms',
           '"cosine": self.rows / 1 ** self.norms',
           OF_WORDS),
    Mutant("a word with itself in the squares, once too small", WORDS, "every - own**2", "every - own", OF_WORDS),
    Mutant("a pair met in each of its topics", WORDS, "(of_pairs / in_common)", "of_pairs", OF_WORDS),
    Mutant("squares of pairs within a topic among those elsewhere", WORDS, "(squares - sharing) + within",
           "(squares - 0 * sharing) + within", OF_WORDS),
    Mutant("cosines of states and dot products exchanged", EMBEDDINGS, "contrast[number :: len(SCORES)]",
           "contrast[1 - number :: len(SCORES)]", OF_EMBEDDINGS),
    Mutant("states divided by their squared norm", EMBEDDINGS, "masked_fill(~usable, 1)[..., None]",
           "masked_fill(~usable, 1)[..., None] ** 2", OF_EMBEDDINGS),
    Mutant("squares of one kind of pairs of states", EMBEDDINGS, "of_relation[..., 1:].sum(2",
           "of_relation[..., 2:].sum(2",
           OF_EMBEDDINGS),
    Mutant("a topic's words counted by their forms", EMBEDDINGS, "[words.form.numpy()[entry], topic]", "[entry, topic]",
           OF_EMBEDDINGS),
    Mutant("OV the other way round", WEIGHTS, "(weights.W_V, weights.W_O.mT)", "(weights.W_O.mT, weights.W_V)",
           OF_WEIGHTS),
    Mutant("a second moment taken for the variance", WEIGHTS, "squares - mean**2", "squares", OF_WEIGHTS),
    Mutant("pairs of a head met from one end twice", WORDS, "word_sums(words, right, left * chosen)",
           "word_sums(words, left, right * chosen)", OF_WEIGHTS),
    Mutant("the circuit of an encoder that scores no words", WEIGHTS, '== ("ov", "encoder")', '== ("ov", "nowhere")',
           OF_WEIGHTS),
    Mutant("columns that are not in the order of rows", MATRIX, "matrices[:, order][:, :, order]",
           "matrices[:, order]", OF_MATRIX),
    Mutant("pairs that co-occur as often as the limit, one bin lower", MATCHED, 'side="right") + 1', 'side="left") + 1',
           OF_MATCHED),
    Mutant("words permuted whatever their frequency", MATCHED, "np.flatnonzero(highest == number)",
           "np.flatnonzero(highest > -1)", OF_MATCHED),
    Mutant("pairs of permuted words of one kind alone", MATCHED, "sums[..., [1, 4]] + sums[..., [2, 5]] - same",
           "sums[..., [2, 5]] - same", OF_MATCHED),
    Mutant("pairs of different topics that weigh as many as they are", MATCHED,
           "np.where(both, divide(counts[:, 1], counts[:, 2]), 0.0)", "1.0 * both", OF_MATCHED),
    Mutant("squares by relation", MATCHED, "7 * bins + 6, values.square()", "7 * bins + 6, values", OF_MATCHED),
    Mutant("the distance of the next bin", MATCHED, "self.edges, right=True)", "self.edges)", OF_MATCHED),
    Mutant("a head for all in sums by source", MATCHED, "found.sum(3))", "found[..., 0])", OF_MATCHED),
]
