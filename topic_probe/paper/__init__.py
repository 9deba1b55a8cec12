"""The figures and tables of the paper, each a recipe: what is trained or measured, its claims and its pictures.

`claims` has a claim and how it is judged, `recipe` what a recipe is and what comes out, `trainings` trainings as rows
and numbers of a trained toy. `toys` has Figures 1, 2 and 10, Table 3, the theorems and robustness, `two_stages` Figures
4 and 5, `tables` Tables 1, 2 and 5 and Figure 3 of pretrained models, which `pretrained` opens.

To add a claim, write a sentence, its bounds and what must break it into the tuple of its recipe. Write the bound down
before you see the number, and let it stay where it does not hold.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topic_probe.paper.recipe import Recipe, RecipeResult

# Name -> the module with its recipe, in the order in which the paper shows them.
RECIPES = {
    "figure1": "toys",
    "figure2": "toys",
    "figure10": "toys",
    "table3": "toys",
    "figure4": "two_stages",
    "theorems": "toys",
    "table1": "tables",
    "figure3": "tables",
    "table2": "tables",
    "table5": "tables",
    "figure5": "two_stages",
    "robustness": "toys",
}


def recipe_named(name: str) -> "Recipe":
    """The recipe of this name."""
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    module = import_module(f"topic_probe.paper.{RECIPES[name]}")
    recipe: Recipe = getattr(module, f"RECIPE_{name.upper()}")
    return recipe


def reproduce(name: str, **options: Any) -> "RecipeResult":
    """A figure or table of the paper, reproduced: its claims, judged, with all numbers and what pictures need.

    Args:
        name: of the recipe: ``figure1`` … ``table5``, ``theorems``, ``robustness``.
        **options: of all recipes ``quick=False`` (seconds in place of minutes or hours), ``seed=3000`` (the first of
            its seeds) and ``progress=None``; of those on real text ``models=None``, ``corpus=None``,
            ``tokenizer=None``, ``words=None``.
    """
    from topic_probe.paper.recipe import run_recipe

    return run_recipe(recipe_named(name), **options)
