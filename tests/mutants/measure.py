"""Ways to break the measurement of attention and what stands around it."""

from mutant import Mutant

_ATTENTION, _SCORES = "tests/measure/test_attention.py", "tests/measure/test_scores.py"
_ACCUMULATORS, _FOLDER = "tests/measure/test_accumulators.py", "tests/measure/test_folder.py"
_DOUBT, _MATCHED = "tests/measure/test_doubt.py", "tests/measure/test_matched.py"
_COMPARISON = "tests/measure/test_comparison.py"

MUTANTS = [
    # --- scores
    Mutant(
        "attention to words of several pieces is compared with the keys of words, not with all that a row may see",
        "topic_probe/measure/scores.py",
        "(self.visible / n_visible.clamp(min=1)[..., None])",
        "(self.visible / self.visible.sum(-1, keepdim=True).clamp(min=1))",
        _ATTENTION,
    ),
    Mutant(
        "a distance at which a bin begins falls into the bin below",
        "topic_probe/measure/scores.py",
        "return torch.bucketize(distance, _EDGES, right=True)",
        "return torch.bucketize(distance, _EDGES, right=False)",
        _ACCUMULATORS,
    ),
    Mutant(
        "squares around the mean come back without the cross term",
        "topic_probe/measure/scores.py",
        "return around + mean * (2 * total - mean * n[:, None])",
        "return around + mean * (total - mean * n[:, None])",
        _SCORES,
    ),
    Mutant(
        "pairs that a mask forbids count",
        "topic_probe/measure/scores.py",
        "return self.pairs.relations * self.seen",
        "return self.pairs.relations",
        _SCORES,
    ),
    Mutant(
        "include_self does the opposite",
        "topic_probe/measure/scores.py",
        "if query is key and not include_self:",
        "if query is key and include_self:",
        _ATTENTION,
    ),
    # --- accumulators
    Mutant(
        "rows without sinks are compared with uniform attention over sinks as well",
        "topic_probe/measure/accumulators.py",
        "rows.relative(pieces, rows.n_visible - rows.n_visible_sinks, factor)",
        "rows.relative(pieces, rows.n_visible, factor)",
        _SCORES,
    ),
    Mutant(
        "the mass of sinks is divided by words instead of rows",
        "topic_probe/measure/accumulators.py",
        "sum(len(words.positions) for words in query)",
        "sum(len(words) for words in query)",
        _SCORES,
    ),
    Mutant(
        "the last batch replaces sums by distance",
        "topic_probe/measure/accumulators.py",
        "self.sums[name][scores.cells, : scores.pairs.n_bins] += values",
        "self.sums[name][scores.cells, : scores.pairs.n_bins] = values",
        _ATTENTION,
    ),
    # --- nulls
    Mutant(
        "the null has one direction of every pair",
        "topic_probe/measure/nulls.py",
        'return there.add_(table.index_select(1, index["back"])) if "back" in index else there',
        "return there",
        _SCORES,
    ),
    Mutant(
        "the different-topic mean of a permutation is divided by all pairs",
        "topic_probe/measure/nulls.py",
        "return divide(same, n_same), divide(every[0] - same, every[1] - n_same)",
        "return divide(same, n_same), divide(every[0] - same, every[1])",
        _ATTENTION,
    ),
    Mutant(
        "one head too few is said to lift a p-value from its floor",
        "topic_probe/measure/nulls.py",
        "together = math.floor(sides * n_tests / (_CALLED * (n + 1))) + 1",
        "together = math.floor(sides * n_tests / (_CALLED * (n + 1)))",
        _ATTENTION,
    ),
    # --- attention
    Mutant(
        "pairs of the same word are pairs of different topics in the null of a report",
        "topic_probe/measure/attention.py",
        "(part.sum(0)[:, 1:].sum(1, keepdims=True) for part in (of_groups, counts))",
        "(part.sum(0).sum(1, keepdims=True) for part in (of_groups, counts))",
        _ATTENTION,
    ),
    Mutant(
        "the matched number of all heads is that of the first",
        "topic_probe/measure/attention.py",
        "of_all_heads = [part.sum(0) for part in by_distance]",
        "of_all_heads = [part[0] for part in by_distance]",
        _ATTENTION,
    ),
    Mutant(
        "layers of the same number in two stacks are one",
        "topic_probe/measure/heads.py",
        'names = list(zip(index["stack"], index["layer"], strict=True))',
        'names = list(index["layer"])',
        "tests/measure/test_heads.py",
    ),
    Mutant(
        "matched means weigh bins by pairs of different topics",
        "topic_probe/contrast.py",
        "weights = np.where(both, counts[..., 1] if weights is None else weights, 0.0)",
        "weights = np.where(both, counts[..., 2] if weights is None else weights, 0.0)",
        _ATTENTION,
    ),
    Mutant(
        "the spread of matched scores holds bins of one kind",
        "topic_probe/contrast.py",
        "total, n, of_squares = (np.asarray(np.where(both, part, 0.0).sum(-1)) for part in parts)",
        "total, n, of_squares = (np.asarray(part.sum(-1)) for part in parts)",
        _ATTENTION,
    ),
    Mutant(
        "the p-value of fits is their mean, not twice that",
        "topic_probe/measure/doubt.py",
        "p_value = np.asarray(np.minimum(1, 2 * mean))",
        "p_value = np.asarray(mean)",
        _DOUBT,
    ),
    # --- folder
    Mutant(
        "only the documents of the last part are counted",
        "topic_probe/measure/folder.py",
        "total = progress if number == there[0] else total + progress",
        "total = progress",
        _FOLDER,
    ),
    Mutant(
        "a model is known by the beginning of its weights",
        "topic_probe/measure/folder.py",
        "digest.update(content.numpy())",
        "digest.update(content.numpy()[:64])",
        _FOLDER,
    ),
    Mutant(
        "a changed number in a part goes unnoticed",
        "topic_probe/measure/folder.py",
        "if arrays and sha256 != _sha256(text, found):",
        "if arrays and len(sha256) != len(_sha256(text, found)):",
        _FOLDER,
    ),
    # --- doubt
    Mutant(
        "what belongs to a pair counts as two words",
        "topic_probe/measure/doubt.py",
        "variance = of_words - np.clip(of_ends, 0, np.maximum(of_words, 0)) / 2",
        "variance = of_words",
        _DOUBT,
    ),
    Mutant(
        "words vary around nothing instead of the mean of their topic",
        "topic_probe/measure/doubt.py",
        "own[:, 0] -= own[:, 0].mean(2, keepdims=True)",
        "own[:, 0] -= 0 * own[:, 0].mean(2, keepdims=True)",
        _DOUBT,
    ),
    Mutant(
        "the spread of fits holds what sources make of it",
        "topic_probe/measure/doubt.py",
        "variance = (of_fits - noise) * k / (k - 1)",
        "variance = of_fits * k / (k - 1)",
        _DOUBT,
    ),
    Mutant(
        "an effect size moves twice as much with its spread",
        "topic_probe/measure/doubt.py",
        "half = divide(number, 2 * variance)",
        "half = divide(number, variance)",
        _DOUBT,
    ),
    Mutant(
        "degrees of freedom of words go by pairs instead of their squares",
        "topic_probe/measure/doubt.py",
        "return float((pairs**2).sum() ** 2 / (pairs**4).sum())",
        "return float(pairs.sum() ** 2 / (pairs**2).sum())",
        _DOUBT,
    ),
    # --- comparison
    Mutant(
        "permuted differences are those of one model",
        "topic_probe/measure/comparison.py",
        "permutation_p_value(values[a] - values[b], part.permuted[a] - part.permuted[b]) for a, b in pairs",
        "permutation_p_value(values[a] - values[b], part.permuted[a]) for a, b in pairs",
        _COMPARISON,
    ),
    Mutant(
        "permuted ratios stand beside logarithms",
        "topic_probe/measure/comparison.py",
        "return np.asarray(np.log(ratio)) if logarithm else ratio",
        "return ratio",
        _COMPARISON,
    ),
    Mutant(
        "differences of layers are those of their first heads",
        "topic_probe/measure/comparison.py",
        "[np.array(layer_starts(index)) for index in indices], layers)",
        '[np.arange(len(layers["layer"])) for index in indices], layers)',
        _COMPARISON,
    ),
    Mutant(
        "each vocabulary has permutations of its own",
        "topic_probe/measure/comparison.py",
        "names=_names_of(side.topics),",
        "names=None,",
        _COMPARISON,
    ),
    # --- matched
    Mutant(
        "pairs of words are counted in both directions",
        "topic_probe/measure/matched.py",
        "return np.asarray(total.reshape(shape) / 2)",
        "return np.asarray(total.reshape(shape))",
        _MATCHED,
    ),
    Mutant(
        "intervals of words do not weigh bins",
        "topic_probe/measure/matched.py",
        "np.where(both, np.nan_to_num(divide(counts[..., 1], counts[..., 2])), 0.0)",
        "np.where(both, 1.0, 0.0)",
        _MATCHED,
    ),
    Mutant(
        "forms of one word are pairs in permutations",
        "topic_probe/measure/matched.py",
        "once &= form[first] != form[second]",
        "once &= first != second",
        _MATCHED,
    ),
    Mutant(
        "labels are permuted among words of any frequency",
        "topic_probe/measure/matched.py",
        "strata, form = self.bins.strata(self.words), self.words.form.numpy()",
        "strata, form = [np.arange(self.words.n_forms)], self.words.form.numpy()",
        _MATCHED,
    ),
]
