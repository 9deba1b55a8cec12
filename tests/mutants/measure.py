"""Ways to break the measurement of attention and what stands around it."""

from mutant import Mutant

_ATTENTION, _ASK = "tests/measure/test_attention.py", "tests/measure/test_ask.py"
_SEVERAL, _FOLDER = "tests/measure/test_several_topics.py", "tests/measure/test_folder.py"
_VARIANCE, _MATCHED = "tests/measure/test_word_variance.py", "tests/measure/test_matched.py"
_COMPARISON = "tests/measure/test_comparison.py"

MUTANTS = [
    # --- pairs
    Mutant(
        "attention to words of several pieces is compared with the keys of words, not with all that a row may see",
        "topic_probe/measure/pairs.py",
        "uniform = self.between((visible.to(rows.dtype) / n_visible.clamp(min=1))[:, None])",
        "uniform = self.between(visible.to(rows.dtype)[:, None] / len(visible[0, 0]))",
        _ASK,
    ),
    Mutant(
        "a distance at which a bin begins falls into the bin below",
        "topic_probe/measure/pairs.py",
        "bin_of = torch.bucketize(torch.arange(batch.ids.shape[1]), _EDGES, right=True)",
        "bin_of = torch.bucketize(torch.arange(batch.ids.shape[1]), _EDGES, right=False)",
        _ASK,
    ),
    Mutant(
        "pairs that a mask forbids count",
        "topic_probe/measure/pairs.py",
        "return self.relations * (self.between(visible.float()[:, None])[:, 0] > 0)",
        "return self.relations",
        _ASK,
    ),
    Mutant(
        "include_self does the opposite",
        "topic_probe/measure/pairs.py",
        "if query is key and not include_self:",
        "if query is key and include_self:",
        _ATTENTION,
    ),
    Mutant(
        "a word that begins at a sink counts with what is left of it",
        "topic_probe/measure/pairs.py",
        "if word not in (-1, at_sink) and whole and place is not None:",
        "if word != -1 and whole and place is not None:",
        _ATTENTION,
    ),
    # --- ask
    Mutant(
        "a document with NaN takes its batch with it",
        "topic_probe/measure/ask.py",
        "if whole.any():",
        "if False:",
        _SEVERAL,
    ),
    Mutant(
        "what was added of a batch that did not fit stays",
        "topic_probe/measure/pairs.py",
        "        self.pending[name][(slice(None), *index) if by_source else index] += values",
        "        self.pending[name][(slice(None), *index) if by_source else index] += values\n"
        "        if not by_source:\n"
        "            sums[...] += self.pending.pop(name).numpy()",
        _ASK,
    ),
    Mutant(
        "a question gets the rows of another one",
        "topic_probe/measure/pairs.py",
        "self._rows = torch.searchsorted(rows, self.query.index)",
        "self._rows = torch.zeros_like(self.query.index)",
        _SEVERAL,
    ),
    # --- sums of attention
    Mutant(
        "squares around the mean come back without the cross term",
        "topic_probe/measure/attention_sums.py",
        "return around + mean * (2 * total - mean * n[:, None])",
        "return around + mean * (total - mean * n[:, None])",
        _ASK,
    ),
    Mutant(
        "rows without sinks are compared with uniform attention over sinks as well",
        "topic_probe/measure/attention_sums.py",
        "left, n_others = rest > _NOTHING, (visible & others[:, None]).sum(2)[:, None]",
        "left, n_others = rest > _NOTHING, visible.sum(2)[:, None]",
        _ATTENTION,
    ),
    Mutant(
        "the mass of sinks is divided by words instead of rows",
        "topic_probe/measure/attention_sums.py",
        'words.add("n_rows", heads, words.query.real.sum())',
        'words.add("n_rows", heads, words.query.is_word.sum())',
        _ASK,
    ),
    Mutant(
        "the null has one direction of every pair",
        "topic_probe/measure/attention_sums.py",
        "return there if back is None else there.add_(table.index_select(1, back))",
        "return there",
        _ASK,
    ),
    # --- permuted words
    Mutant(
        "permutations that are made again are other ones",
        "topic_probe/measure/permuted.py",
        "            generator.bit_generator.state = state\n",
        "",
        _ATTENTION,
    ),
    Mutant(
        "the different-topic mean of a permutation is divided by all pairs",
        "topic_probe/measure/permuted.py",
        "return divide(*same), divide(every[0] - same[0], every[1] - same[1])",
        "return divide(*same), divide(every[0] - same[0], every[1])",
        _ATTENTION,
    ),
    Mutant(
        "one head too few is said to lift a p-value from its floor",
        "topic_probe/measure/permuted.py",
        "together = math.floor(2 * n_tests / (CALLED * (n_permutations + 1))) + 1",
        "together = math.floor(2 * n_tests / (CALLED * (n_permutations + 1)))",
        _ATTENTION,
    ),
    # --- attention
    Mutant(
        "pairs of the same word are pairs of different topics in the null of a report",
        "topic_probe/measure/attention.py",
        "total, n = (part.sum(0)[:, 1:].sum(1, keepdims=True) for part in rows[:2])",
        "total, n = (part.sum(0).sum(1, keepdims=True) for part in rows[:2])",
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
        "topic_probe/measure/pool.py",
        "np.minimum(1, 2 * np.stack(",
        "np.minimum(1, np.stack(",
        _VARIANCE,
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
        "topic_probe/storage.py",
        "if with_arrays and checksum != _checksum(text, arrays):",
        "if with_arrays and len(checksum) != len(_checksum(text, arrays)):",
        _FOLDER,
    ),
    Mutant(
        "mass on special tokens is kept instead of dropped",
        "topic_probe/measure/attention_sums.py",
        "kinds = torch.stack([others, ~others], 2).to(rows.dtype)",
        "kinds = torch.stack([~others, others], 2).to(rows.dtype)",
        "tests/measure/test_attention.py",
    ),
    # --- the variance of words
    Mutant(
        "what belongs to a pair counts as two words",
        "topic_probe/measure/word_variance.py",
        "variance = variance - np.clip(signed.sum(1), 0, np.maximum(variance, 0)) / 2",
        "variance = variance - 0",
        _VARIANCE,
    ),
    Mutant(
        "words vary around nothing instead of the mean of their topic",
        "topic_probe/measure/word_variance.py",
        "found[:, 0][:, :, at] -= of_words[:, 0][:, :, at].mean(2, keepdims=True)",
        "pass",
        _VARIANCE,
    ),
    Mutant(
        "an effect size moves twice as much with its spread",
        "topic_probe/measure/word_variance.py",
        "half = divide(divide(same - different, spread), 2 * variance)",
        "half = divide(divide(same - different, spread), variance)",
        _VARIANCE,
    ),
    # --- reports are their sums
    Mutant(
        "the sum of two reports has the documents of one",
        "topic_probe/measure/attention.py",
        "return self._made(sums, self._progress + other._progress, {})",
        "return self._made(sums, self._progress, {})",
        _VARIANCE,
    ),
    # --- comparison
    Mutant(
        "permuted differences are those of one model",
        "topic_probe/measure/comparison.py",
        "null = [part.permuted[a] - part.permuted[b] for a, b in pairs]",
        "null = [part.permuted[a] for a, b in pairs]",
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
]
