"""Ways to break the series of checkpoints: onsets, their order, and what is followed."""

from mutant import Mutant

_ONSETS, _WHOLE = "tests/series/test_onsets.py", "tests/series/test_whole.py"
_CHECK, _PROBE = "tests/series/test_check.py", "tests/series/test_probe.py"

MUTANTS = [
    Mutant(
        "two checkpoints in a row make an onset",
        "topic_probe/series/onsets.py",
        "IN_A_ROW = 3",
        "IN_A_ROW = 2",
        _ONSETS,
    ),
    Mutant(
        "the doubt between trainings is that of one more",
        "topic_probe/series/onsets.py",
        "between = (moved - moved.mean(0))[:, found] / np.sqrt(n * (n - 1))",
        "between = (moved - moved.mean(0))[:, found] / n",
        _ONSETS,
    ),
    Mutant(
        "curves that fall have no p-value",
        "topic_probe/series/onsets.py",
        "return float(np.maximum(rows.min(-1), -rows.max(-1)).max(initial=0.0))",
        "return float(rows.min(-1).max(initial=0.0))",
        _ONSETS,
    ),
    Mutant(
        "bands are as wide for one curve as for many",
        "topic_probe/series/onsets.py",
        "one, furthest, level = self.changes[number], self._furthest[number], 1 - self.of_bands",
        "one, furthest, level = self.changes[number], self._furthest[number], 1 - self.confidence",
        _ONSETS,
    ),
    Mutant(
        "curves that begin together are first each",
        "topic_probe/series/onsets.py",
        "shares = tied / np.maximum(tied.sum(1, keepdims=True), 1)",
        "shares = tied * 1.0",
        _ONSETS,
    ),
    Mutant(
        "draws are normal however few words there are",
        "topic_probe/series/onsets.py",
        "return np.asarray(moved * student_scale(change.degrees, self.uniform)[:, None])",
        "return np.asarray(moved)",
        _ONSETS,
    ),
    Mutant(
        "the doubt of the other training is forgotten in what is beyond it",
        "topic_probe/series/onsets.py",
        "units[:, :n] - units[:, n:], effective, curve.kind)",
        "units[:, :n], effective, curve.kind)",
        _ONSETS,
    ),
    Mutant(
        "a change leaves out what moved the untrained value",
        "topic_probe/series/onsets.py",
        "units = curve.units - curve.units[:, :, [against]]",
        "units = curve.units - 0 * curve.units[:, :, [against]]",
        _ONSETS,
    ),
    Mutant(
        "the p-value of a difference has one side",
        "topic_probe/series/onsets.py",
        "p_value = 2 * stdtr(found.degrees, -np.abs(found.standardised[0]))",
        "p_value = stdtr(found.degrees, -np.abs(found.standardised[0]))",
        _WHOLE,
    ),
    Mutant(
        "the jackknife is not scaled",
        "topic_probe/series/sums.py",
        "np.sqrt((n_sources - 1) / max(n_sources, 1))",
        "1.0",
        _ONSETS,
    ),
    Mutant(
        "states are those of the first layer",
        "topic_probe/series/sums.py",
        'return np.arange(n) if by == "layer" else np.array([n - 1])',
        'return np.arange(n) if by == "layer" else np.array([0])',
        _WHOLE,
    ),
    Mutant(
        "infinite weights pass",
        "topic_probe/series/check.py",
        "not bool(tensor.isfinite().all())",
        "bool(tensor.isnan().any())",
        _CHECK,
    ),
    Mutant(
        "a probe measures at every even step instead of powers of two",
        "topic_probe/series/probe.py",
        "return step & (step - 1) == 0",
        "return step % 2 == 0 or step == 1",
        _PROBE,
    ),
    Mutant(
        "the time of measuring is a share of the sum of both",
        "topic_probe/series/measured.py",
        "return float(self.measuring.sum() / trained.sum()) if trained.sum() > 0",
        "return float(self.measuring.sum() / (trained.sum() + self.measuring.sum())) if trained.sum() > 0",
        _PROBE,
    ),
]
