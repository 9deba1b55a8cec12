"""Ways to break sums over pairs of words, weights of heads, matrices, and what is done to heads and edges."""

from mutant import Mutant

WORDS = "topic_probe/measure/words.py"
MATCHED = "topic_probe/measure/matched.py"
EMBEDDINGS = "topic_probe/measure/embeddings.py"
WEIGHTS = "topic_probe/measure/weights.py"
MATRIX = "topic_probe/measure/matrix.py"
EFFECTS = "topic_probe/measure/effects.py"
ABLATION = "topic_probe/measure/ablation.py"
KNOCKOUT = "topic_probe/measure/knockout.py"
OUTCOMES = "topic_probe/measure/outcomes.py"
OF_WORDS = "tests/measure/test_words.py"
OF_MATCHED = "tests/measure/test_matched.py"
OF_EMBEDDINGS = "tests/measure/test_embeddings.py"
OF_WEIGHTS = "tests/measure/test_weights.py"
OF_MATRIX = "tests/measure/test_matrix.py"
OF_EFFECTS = "tests/measure/test_effects.py"
OF_ABLATION = "tests/measure/test_ablation.py"
OF_KNOCKOUT = "tests/measure/test_knockout.py"

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
    Mutant("effects with the wrong sign", EFFECTS, "(before - after)", "(after - before)", OF_ABLATION),
    Mutant("the sum of others instead of their mean", EFFECTS, "list(others)].mean(1, keepdims=True)",
           "list(others)].sum(1, keepdims=True)", OF_EFFECTS),
    Mutant("readouts that are sums where they are differences", OUTCOMES, "weights[kind] * divide(", "divide(",
           OF_EFFECTS),
    Mutant("the share of matched edges of one draw", EFFECTS, "n_cut * len(others[0])", "n_cut", OF_KNOCKOUT),
    Mutant("states that are not centred", OUTCOMES, "centred = states - mean", "centred = states", OF_ABLATION),
    Mutant("a mean state with padding", OUTCOMES, "mask.sum(1)[:, None, None]", "mask.shape[1]", OF_ABLATION),
    Mutant("the loss of a causal model at the word itself", OUTCOMES, "(logits[:, :-1], (0, 0, 1, 0))",
           "(logits[:, 1:], (0, 0, 0, 1))", OF_ABLATION),
    Mutant("means of a document's own half", ABLATION, "given = 1 - half if", "given = half if", OF_ABLATION),
    Mutant("the mean of a head of the first layer", ABLATION, "means[site][:, :, head]", "means[0][:, :, head]",
           OF_ABLATION),
    Mutant("a set compared with itself", ABLATION, "found.pop(each, None)", "found", OF_ABLATION),
    Mutant("heads that attend least", ABLATION, "np.argsort(-np.nan_to_num(ratio, nan=-np.inf)",
           "np.argsort(np.nan_to_num(ratio, nan=-np.inf)", OF_ABLATION),
    Mutant("a word's own position among the edges", KNOCKOUT, ".fill_diagonal_(False)", "", OF_KNOCKOUT),
    Mutant("the row of a word where the one before it predicts", KNOCKOUT, "rows = rows - 1", "rows = rows - 0",
           OF_KNOCKOUT),
    Mutant("stand-ins at any distance", KNOCKOUT, "np.maximum(1, _NEAR * distance)",
           "np.maximum(99, _NEAR * distance)", OF_KNOCKOUT),
    Mutant("edges cut for all other heads", KNOCKOUT, "torch.isin(torch.arange(n_heads)",
           "~torch.isin(torch.arange(n_heads)", OF_KNOCKOUT),
]
