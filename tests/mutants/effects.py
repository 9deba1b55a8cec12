"""Ways to break what is done to heads and edges, what is looked at, and the statistics of effects."""

from mutant import Mutant

EFFECTS = "topic_probe/measure/effects.py"
INTERVENTIONS = "topic_probe/measure/interventions.py"
OF_EFFECTS = "tests/measure/test_effects.py"
OF_INTERVENTIONS = "tests/measure/test_interventions.py"

# fmt: off
MUTANTS = [
    Mutant("effects with the wrong sign", EFFECTS, "outcome[:1] - outcome\n", "outcome - outcome[:1]\n",
           OF_INTERVENTIONS),
    Mutant("the sum of others instead of their mean", EFFECTS, "or [cell]].mean(1)", "or [cell]].sum(1)", OF_EFFECTS),
    Mutant("readouts that are sums where they are differences", EFFECTS, "signs = np.array(weights)[kinds]",
           "signs = np.abs(weights)[kinds]", OF_INTERVENTIONS),
    Mutant("p-values of sets of which there are too few", EFFECTS, "n_null[:, 0] >= _LEAST_OTHERS", "n_null[:, 0] >= 2",
           OF_EFFECTS),
    Mutant("places from the smallest effect on", EFFECTS, "np.argsort(-np.abs(", "np.argsort(np.abs(", OF_EFFECTS),
    Mutant("the smallest effects printed", EFFECTS, "key=abs, ascending=False", "key=abs, ascending=True", OF_EFFECTS),
    Mutant("the share of matched edges of one draw", EFFECTS, "n_cut * len(others), 1", "n_cut, 1", OF_INTERVENTIONS),
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
    Mutant("random sets of layers with few of them", INTERVENTIONS, "n_others < _ENOUGH_SETS", "n_others < 2",
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
