"""Ways to break sums over pairs of words, weights of heads, matrices, and what is done to heads and edges."""

from mutant import Mutant

WORDS = "topic_probe/measure/words.py"
PAIRS = "topic_probe/measure/pair_sums.py"
EMBEDDINGS = "topic_probe/measure/embeddings.py"
WEIGHTS = "topic_probe/measure/weights.py"
MATRIX = "topic_probe/measure/matrix.py"
EFFECTS = "topic_probe/measure/effects.py"
INTERVENTIONS = "topic_probe/measure/interventions.py"
OF_WORDS = "tests/measure/test_words.py"
OF_PAIRS = "tests/measure/test_pair_sums.py"
OF_EMBEDDINGS = "tests/measure/test_embeddings.py"
OF_WEIGHTS = "tests/measure/test_weights.py"
OF_MATRIX = "tests/measure/test_matrix.py"
OF_EFFECTS = "tests/measure/test_effects.py"
OF_INTERVENTIONS = "tests/measure/test_interventions.py"

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
    Mutant("effects with the wrong sign", EFFECTS, "outcome[:1] - outcome\n", "outcome - outcome[:1]\n",
           OF_INTERVENTIONS),
    Mutant("the sum of others instead of their mean", EFFECTS, "or [cell]].mean(1)", "or [cell]].sum(1)", OF_EFFECTS),
    Mutant("readouts that are sums where they are differences", EFFECTS, "signs = np.array(weights)[kinds]",
           "signs = np.abs(weights)[kinds]", OF_INTERVENTIONS),
    Mutant("p-values of sets of which there are too few", EFFECTS, "n_null[:, 0] >= _LEAST_OTHERS", "n_null[:, 0] >= 2",
           OF_EFFECTS),
    Mutant("places from the smallest effect on", EFFECTS, "np.argsort(-np.abs(", "np.argsort(np.abs(", OF_EFFECTS),
    Mutant("the smallest effects printed", EFFECTS, "key=abs, ascending=False", "key=abs, ascending=True", OF_EFFECTS),
    Mutant("the share of matched edges of one draw", EFFECTS, "n_cut * len(others[0])", "n_cut", OF_INTERVENTIONS),
    Mutant("states that are not centred", EFFECTS, "centred = states - mean", "centred = states", OF_INTERVENTIONS),
    Mutant("a mean state with padding", EFFECTS, "mask.sum(1)[:, None, None]", "mask.shape[1]", OF_INTERVENTIONS),
    Mutant("the loss of a causal model at the word itself", EFFECTS, "(logits[:, :-1], (0, 0, 1, 0))",
           "(logits[:, 1:], (0, 0, 0, 1))", OF_INTERVENTIONS),
    Mutant("means of a document's own half", INTERVENTIONS, "other = 1 - (batch.sources >> int(means[\"bit\"]) & 1)",
           "other = batch.sources >> int(means[\"bit\"]) & 1", OF_INTERVENTIONS),
    Mutant("the mean of a head of the first layer", INTERVENTIONS, "given[site][:, :, number]",
           "given[0][:, :, number]", OF_INTERVENTIONS),
    Mutant("the whole layer of the first head", INTERVENTIONS, "every.layer(every.site_of[head])", "every.layer(0)",
           OF_INTERVENTIONS),
    Mutant("a set compared with itself", INTERVENTIONS, "list(found)[1:]", "list(found)", OF_INTERVENTIONS),
    Mutant("random sets of layers with few of them", INTERVENTIONS, "n_others >= _ENOUGH_SETS", "n_others >= 2",
           OF_INTERVENTIONS),
    Mutant("a word's own position among the edges", INTERVENTIONS, "dtype=relations.dtype)) & ~itself",
           "dtype=relations.dtype))", OF_INTERVENTIONS),
    Mutant("the row of a word where the one before it predicts", INTERVENTIONS, "pad(part[:, 1:], (0, 0, 0, 1))",
           "pad(part[:, :-1], (0, 0, 0, 1))", OF_INTERVENTIONS),
    Mutant("stand-ins at any distance", INTERVENTIONS, "np.maximum(1, _NEAR * distance)",
           "np.maximum(99, _NEAR * distance)", OF_INTERVENTIONS),
    Mutant("edges cut for all other heads", INTERVENTIONS, "cut[:, None] & chosen[:, None, None]",
           "cut[:, None] & ~chosen[:, None, None]", OF_INTERVENTIONS),
]
