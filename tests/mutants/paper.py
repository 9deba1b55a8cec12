"""Ways to break verdicts, numbers of recipes, figures and pages."""

from mutant import Mutant

CLAIMS = "topic_probe/paper/claims.py"
TOYS = "topic_probe/paper/toys.py"
FIGURE1 = "topic_probe/paper/figure1.py"
FIGURE2 = "topic_probe/paper/figure2.py"
FIGURE3 = "topic_probe/paper/figure3.py"
FIGURE4 = "topic_probe/paper/figure4.py"
FIGURE5 = "topic_probe/paper/figure5.py"
ROBUSTNESS = "topic_probe/paper/robustness.py"
PRETRAINED = "topic_probe/paper/pretrained.py"
TABLE1 = "topic_probe/paper/table1.py"
TABLE2 = "topic_probe/paper/table2.py"
HEADS = "topic_probe/show/heads.py"
OF_CLAIMS = "tests/paper/test_claims.py"
OF_TOYS = "tests/paper/test_toys.py"
OF_FIGURE1 = "tests/paper/test_figure1.py"
OF_FIGURE2 = "tests/paper/test_figure2.py"
OF_FIGURE3 = "tests/paper/test_figure3.py"
OF_FIGURE4 = "tests/paper/test_figure4.py"
OF_FIGURE5 = "tests/paper/test_figure5.py"
OF_ROBUSTNESS = "tests/paper/test_robustness.py"
OF_TABLE1 = "tests/paper/test_table1.py"
OF_TABLE2 = "tests/paper/test_table2.py"
OF_FIGURES = "tests/show/test_figures.py"
OF_RESULTS = "tests/show/test_results_page.py"

# fmt: off
MUTANTS = [
    Mutant("an interval that touches the bound is undecided and not outside", CLAIMS,
           "if low >= self.below or high <= self.above:", "if low > self.below or high < self.above:", OF_CLAIMS),
    Mutant("the number decides, not its interval", CLAIMS, "if not (self.above < low and high < self.below):",
           "if not (self.above < self.measured.value < self.below):", OF_CLAIMS),
    Mutant("a control of which the claim holds too is forgiven", CLAIMS,
           "self.controls_told and not self.controls_held", "self.controls_told or not self.controls_held",
           OF_CLAIMS),
    Mutant("over seeds the median", CLAIMS, "mean = float(given.mean())", "mean = float(np.median(given))",
           OF_CLAIMS),
    Mutant("a forgotten square root of n", CLAIMS, "math.sqrt(len(given))", "len(given)", OF_CLAIMS),
    Mutant("the gain is a share of what is possible for anybody, not for the regime", TOYS,
           "report.guess - report.loss, report.guess - report.floor",
           "report.guess - report.loss, report.guess - report.bayes", OF_TOYS),
    Mutant("all that went before, not the last tenth but one", TOYS, "history.loss[-2 * tenth : -tenth]",
           "history.loss[:-tenth]", OF_TOYS),
    Mutant("Theorem 3's mean counts the word itself twice", TOYS,
           '((v - 1) * seen["same_topic"] + seen["same_word"]) / v',
           '(v * seen["same_topic"] + seen["same_word"]) / v', OF_TOYS),
    Mutant("turning away from the mask counts as trained attention", TOYS,
           'max(abs(seen[name] / seen["different_topic"] - 1)', "max(abs(seen[name] - 1)", OF_TOYS),
    Mutant("the diagonal takes part in blocks", TOYS,
           "divide((entries * ~itself) @ of_topic, (~itself).astype(np.float64) @ of_topic)",
           "divide(entries @ of_topic, np.ones_like(entries) @ of_topic)", OF_TOYS),
    Mutant("of shuffled labels the mean, not the median", TOYS, "float(np.median([found[name] for found in every]))",
           "float(np.mean([found[name] for found in every]))", OF_TOYS),
    Mutant("a loss is compared with the floor, not with what the freer regime has", TOYS,
           'number(result, many, "guess").value - number(result, many, "loss").value',
           'number(result, many, "guess").value - number(result, many, "floor").value', OF_TOYS),
    Mutant("the first seed of a setting is left out", "topic_probe/paper/recipe.py",
           "first.shifted(seed) for seed in range(self.seeds)",
           "first.shifted(seed + 1) for seed in range(self.seeds)", "tests/paper/test_recipe.py"),
    Mutant("the share of documents counts those of five topics too", FIGURE1, "(held <= 4)", "(held <= 5)",
           OF_FIGURE1),
    Mutant("the diagonal is measured from different topics", FIGURE1, 'found["same word"] - found["same topic"]',
           'found["same word"] - found["different topics"]', OF_FIGURE1),
    Mutant("the height of blocks without the share of genuine words", FIGURE2, "* toy.masking.genuine_share * v",
           "* v", OF_FIGURE2),
    Mutant("blocks are averaged over all words in place of those of a topic", FIGURE2,
           "members @ (members / members.sum(axis=0)).T", "members @ (members / len(members)).T", OF_FIGURE2),
    Mutant("the limit of cosines is a variance", FIGURE3, "4 * math.sqrt(pairs / width)", "4 * (pairs / width)",
           OF_FIGURE3),
    Mutant("of keys and queries the one that grows more", FIGURE4, "float(attention[:, -1].min())",
           "float(attention[:, -1].max())", OF_FIGURE4),
    Mutant("stages upside down", FIGURE4, "until_flat / start,", "start / until_flat,", OF_FIGURE4),
    Mutant("the best layer in place of the worst", FIGURE5, "float(np.min([row[name] for row in rows]))",
           "float(np.max([row[name] for row in rows]))", OF_FIGURE5),
    Mutant("growth is counted from 0", FIGURE5, "float(curve[row] - curve[0]) / growth", "float(curve[row]) / growth",
           OF_FIGURE5),
    Mutant("guessing takes all words for equally frequent", ROBUSTNESS, "float(1 - frequencies.square().sum())",
           "float(1 - frequencies.mean())", OF_ROBUSTNESS),
    Mutant("layers are multiplied in the wrong order", ROBUSTNESS, "(W + identity) @ below", "below @ (W + identity)",
           OF_ROBUSTNESS),
    Mutant("what shuffles leave apart is divided by all pairs", PRETRAINED, "divide(whole - same, n_whole - n_same)",
           "divide(whole - same, n_whole)", OF_TABLE1),
    Mutant("documents come from the beginning of the corpus", PRETRAINED,
           "islice(islice(cut, 0, None, step), wanted)", "islice(islice(cut, 0, None, 1), wanted)",
           "tests/paper/test_pretrained.py"),
    Mutant("the difference of untrained embeddings in their own units", TABLE1, "float(contrast.difference) / itself",
           "float(contrast.difference)", OF_TABLE1),
    Mutant("one column of the table has the ratio at every distance", TABLE1, "attention.overall_matched.ratio if",
           "attention.overall.ratio if", OF_TABLE1),
    Mutant("the quotient of Table 2 upside down", TABLE2, '"quotient": divide(same, top)',
           '"quotient": divide(top, same)', OF_TABLE2),
    Mutant("cosines of vectors that were never normalised", TABLE2, "table = table / table.norm(dim=1, keepdim=True)",
           "table = table / 1.0", OF_TABLE2),
    Mutant("ratios below 1 have the colour of those above", "topic_probe/show/style.py", '[LESS, "#ffffff", MORE]',
           '[MORE, "#ffffff", LESS]', OF_FIGURES),
    Mutant("weights are marked on one side alone", HEADS, "(low > 0) | (high < 0)", "(low > 0)", OF_FIGURES),
    Mutant("bars of ratios stand on 1 and are a ratio high", "topic_probe/show/bars.py", "ratios[known] - 1, width",
           "ratios[known], width", "tests/show/test_bars.py"),
]
