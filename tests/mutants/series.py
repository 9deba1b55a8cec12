"""Ways to break the series of checkpoints: onsets, their order, and what is followed."""

from mutant import Mutant

CURVES, MEASURED = "topic_probe/series/curves.py", "topic_probe/series/measured.py"
CHECKPOINTS = "topic_probe/series/checkpoints.py"
_ONSETS, _WHOLE = "tests/series/test_onsets.py", "tests/series/test_whole.py"
_CHECK, _PROBE = "tests/series/test_checkpoints.py", "tests/series/test_probe.py"

# fmt: off
MUTANTS = [
    Mutant("two checkpoints in a row make an onset", CURVES, "IN_A_ROW = 3", "IN_A_ROW = 2", _ONSETS),
    Mutant("curves that fall have no p-value", CURVES, "np.maximum(rows.min(-1), -rows.max(-1)).max(initial=0.0)",
           "rows.min(-1).max(initial=0.0)", _ONSETS),
    Mutant("bands are as wide for one curve as for many", CURVES, "* max(int(called.sum()), 1) / max(1, len(known))",
           "* 1.0", _ONSETS),
    Mutant("draws are normal however few words there are", CURVES,
           "return np.asarray(moved * student_scale(self.degrees, uniform)[:, None])", "return np.asarray(moved)",
           _ONSETS),
    Mutant("a change leaves out what moved the untrained value", CURVES,
           "moved = estimate[later] - estimate[np.repeat(known[:1], len(later))]",
           "moved = replace(estimate[later], value=estimate.value[later] - estimate.value[known[0]])", _ONSETS),
    Mutant("the trainings of a mean bring no doubt", CURVES, "mean.crossed(*over_seeds(values).factors)", "mean",
           _ONSETS),
    Mutant("states are those of the first layer", CURVES, 'return list(range(n)) if by == "layer" else [n - 1]',
           'return list(range(n)) if by == "layer" else [0]', _WHOLE),
    Mutant("infinite weights pass", CHECKPOINTS, "not bool(parameter.isfinite().all())",
           "bool(parameter.isnan().any())", _CHECK),
    Mutant("copies are no reason", CHECKPOINTS, "if others and not not_moved_yet:", "if others and not_moved_yet:",
           _CHECK),
    Mutant("a probe measures at every even step instead of powers of two", MEASURED, "return step & (step - 1) == 0",
           "return step % 2 == 0 or step == 1", _PROBE),
]
# fmt: on
