"""Ways to break verdicts, numbers of recipes and the page of results."""

from mutant import Mutant

CLAIMS, TRAININGS = "topic_probe/paper/claims.py", "topic_probe/paper/trainings.py"
TOYS, STAGES = "topic_probe/paper/toys.py", "topic_probe/paper/two_stages.py"
TABLES, PRETRAINED = "topic_probe/paper/tables.py", "topic_probe/paper/pretrained.py"
PAGE, RECIPE = "topic_probe/show/results_page.py", "topic_probe/paper/recipe.py"
JUDGED, TRAINED = "tests/paper/test_claims.py", "tests/paper/test_trainings.py"
OF_TABLES, SHOWN = "tests/paper/test_tables.py", "tests/show/test_results_page.py"

MUTANTS = [
    Mutant(
        "the upper end of an interval is not looked at",
        CLAIMS,
        "return self.above < low and high < self.below",
        "return self.above < low and low < self.below",
        JUDGED,
    ),
    Mutant(
        "half an interval outside is a failure",
        CLAIMS,
        "return high <= self.above or low >= self.below",
        "return low <= self.above or high >= self.below",
        JUDGED,
    ),
    Mutant("an interval is that of one seed", CLAIMS, "/ math.sqrt(len(numbers))", "/ 1.0", JUDGED),
    Mutant("a spread is over n and not n - 1", CLAIMS, "numbers.std(ddof=1)", "numbers.std()", JUDGED),
    Mutant("an interval is one-sided", CLAIMS, "(1 + LEVEL) / 2", "LEVEL", JUDGED),
    Mutant(
        "a control passes by its mean alone",
        CLAIMS,
        "bound.holds(mean, mean) and _no_difference(",
        "bound.holds(mean, mean) or _no_difference(",
        JUDGED,
    ),
    Mutant("a control that differs passes", CLAIMS, "return low <= 0 <= high", "return True", JUDGED),
    Mutant(
        "a control that passes is not told",
        CLAIMS,
        'elif any(control["passes"] for control in controls.values()):',
        "elif False:",
        JUDGED,
    ),
    Mutant(
        "a claim without a control that was measured holds",
        CLAIMS,
        "elif claim.controls and not controls:",
        "elif False:",
        JUDGED,
    ),
    Mutant(
        "shuffled labels may reach as much",
        CLAIMS,
        'elif not all(one["beyond"] for one in found):',
        "elif False:",
        JUDGED,
    ),
    Mutant(
        "one seed beyond shuffled labels is enough",
        CLAIMS,
        "(rows[name] > rows[bound.beyond]).all()",
        "(rows[name] > rows[bound.beyond]).any()",
        JUDGED,
    ),
    Mutant(
        "of several intervals the last counts",
        CLAIMS,
        'float(rows[f"{name} low"].min())',
        'float(rows[f"{name} low"].max())',
        JUDGED,
    ),
    Mutant(
        "the best training is the verdict", CLAIMS, '"verdict": min((panel', '"verdict": max((panel', JUDGED
    ),
    Mutant(
        "what needs more steps is judged after few",
        CLAIMS,
        'return self.never or (self.whole_only if quick else "")',
        "return self.never",
        JUDGED,
    ),
    Mutant(
        "the query of a claim is not asked",
        CLAIMS,
        "        if claim.of:\n            own = own.query(claim.of)",
        "        if not claim.of:\n            own = own.query(claim.of)",
        JUDGED,
    ),
    Mutant(
        "the diagonal is part of a block",
        TRAININGS,
        "divide((entries * ~itself) @ of_topic",
        "divide(entries @ of_topic",
        TRAINED,
    ),
    Mutant(
        "rounding makes a block",
        TRAININGS,
        "ROUNDING * np.abs(means).max(axis=1)",
        "0 * np.abs(means).max(axis=1)",
        TRAINED,
    ),
    Mutant(
        "a pair of a word with itself is one of its topic",
        TRAININGS,
        "relations = itself, together & ~itself, ~together",
        "relations = itself, together, ~together",
        TRAINED,
    ),
    Mutant(
        "documents without topics have topics",
        TRAININGS,
        "alpha=None, topics_per_document=world.n_topics)",
        "alpha=None, topics_per_document=1)",
        TRAINED,
    ),
    Mutant(
        "what a control freezes is trained",
        TRAININGS,
        'regime="attention", trained=("W_K", "W_Q"))',
        'regime="attention")',
        TRAINED,
    ),
    Mutant(
        "keys begin large with queries",
        TRAININGS,
        'begins=usual_tensors("W_Q"))',
        'begins=usual_tensors("W_Q", "W_K"))',
        TRAINED,
    ),
    Mutant(
        "values of other topics are those of the topics",
        TRAININGS,
        'return {"W_V": W_V[order][:, order]}',
        'return {"W_V": W_V}',
        TRAINED,
    ),
    Mutant(
        "a gain is compared with the broken training",
        TOYS,
        'freer = freer[freer["control"] == ""]',
        'freer = freer[freer["control"] != "other"]',
        TRAINED,
    ),
    Mutant(
        "blocks are measured without the diagonal of Theorem 2",
        TOYS,
        '((v - 1) * found["same topic"] + found["same word"]) / v',
        'found["same topic"] * (v - 1) / v',
        "tests/paper/test_recipes.py",
    ),
    Mutant(
        "a delay is that of the wrong tensor",
        STAGES,
        '(("", "W_K"), (PLACEBO, "W_V"))',
        '(("", "W_V"), (PLACEBO, "W_V"))',
        TRAINED,
    ),
    Mutant(
        "the share of growth is taken where growth is over",
        STAGES,
        "made[name] >= 0.05",
        "made[name] >= 0.95",
        TRAINED,
    ),
    Mutant(
        "a slope is that of the numbers themselves",
        STAGES,
        'np.log(group["noise"]), np.log(',
        'np.log(group["noise"]), np.square(',
        TRAINED,
    ),
    Mutant(
        "shuffles give what they add up to",
        PRETRAINED,
        "divide(same, n_same), divide(rest, n_rest)",
        "divide(same, n_same), divide(rest + same, n_rest + n_same)",
        OF_TABLES,
    ),
    Mutant(
        "the limit of shuffles is their middle",
        PRETRAINED,
        "np.quantile(divide(same, different), 0.975)",
        "np.quantile(divide(same, different), 0.5)",
        OF_TABLES,
    ),
    Mutant(
        "every seed has one fit",
        PRETRAINED,
        "passes=settings.passes, seed=seed,",
        "passes=settings.passes, seed=run.seed,",
        OF_TABLES,
    ),
    Mutant(
        "as many pairs as words are the most frequent",
        TABLES,
        "max(1, comb(int(topics.sizes.max()), 2))",
        "max(1, int(topics.sizes.max()))",
        OF_TABLES,
    ),
    Mutant(
        "the quick variant judges the fewest pairs",
        TABLES,
        "[max(found, key",
        "[min(found, key",
        OF_TABLES,
    ),
    Mutant(
        "what did not come out is left out",
        PAGE,
        'if claim["verdict"] not in ("holds", "not checked")',
        'if claim["verdict"] == "error"',
        SHOWN,
    ),
    Mutant(
        "a range has its ends the wrong way round",
        RECIPE,
        "first, last = shown.format(low), shown.format(high)",
        "last, first = shown.format(low), shown.format(high)",
        "tests/paper/test_recipes.py",
    ),
]
