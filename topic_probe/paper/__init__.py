"""The figures and tables of the paper, each a recipe: its settings, what is measured, its claims and its figures.

In order: `claims` has a claim and its verdict, `training` settings and what training them gives, `recipe` what a
recipe is and the one way in which all are run; `toys` has what recipes of toys share, `pretrained` models and texts.

To add one, write a module here with ``RECIPE = Recipe(*listed(NAME), ...)`` and a line in ``RECIPES`` below, which has
its title. Its ``measure`` goes from a `Run` to ``run.result(...)``; for toys it is `each_training` of what is measured
of each. Its claims are functions from that result to `Claim`s: the source's words, a bound that is written down before
the number is seen, and the same number where the claim must fail (``controls``). Its figures are a function of the same
result. Options of its own are keyword arguments of ``measure``.

A claim that does not hold stays, with what is known of the reason, and a claim of our own beside it says what holds
instead. The tests keep the list of all that is expected not to hold.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topic_probe.paper.recipe import Recipe, RecipeResult

# Name -> what the paper shows there. The module of the same name has the recipe, but for those below.
RECIPES = {
    "figure1": "topics in trained word embeddings",
    "figure2": "blocks in W_V under uniform attention",
    "figure3": "cosines of words that belong together",
    "figure4": "two stages of training",
    "figure5": "two stages of training in a BERT on real text",
    "figure10": "blocks in W_V when attention is trained too",
    "table1": "same-topic words in pretrained models",
    "table2": "words of the same topic beside words that merely co-occur",
    "table3": "attention between words of one topic",
    "table5": "same-topic words in pretrained models, several topics per word",
    "landscape": "the loss over attention weights, and where it is smallest",
    "robustness": "how blocks, attention and loss degrade outside the assumptions",
}

# Name -> the module of the recipe with which it shares what is trained or measured, and its name there.
BESIDE = {
    "figure10": ("figure2", "FIGURE10"),
    "table3": ("figure2", "TABLE3"),
    "table5": ("table1", "TABLE5"),
}


def listed(name: str) -> tuple[str, str]:
    """The name of a recipe and what the paper shows there, as the recipe itself begins."""
    return name, RECIPES[name]


def recipe_named(name: str) -> "Recipe":
    """The recipe of this name."""
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    module, constant = BESIDE.get(name, (name, "RECIPE"))
    recipe: Recipe = getattr(import_module(f"topic_probe.paper.{module}"), constant)
    return recipe


def reproduce(name: str, **options: Any) -> "RecipeResult":
    """A figure or table of the paper, reproduced: its claims, checked, with all that was trained and measured.

    Args:
        name: of the recipe: ``figure1`` … ``table5``, ``landscape``, ``robustness``.
        **options: of all recipes ``quick=False`` (seconds in place of up to hours), ``only=None`` (names of settings,
            or labels of models), ``seed=0`` (added to all seeds), ``folder=None`` (keeps finished trainings and what
            was measured, so that a second call goes on) and ``progress=None``; and those of a recipe's own, as
            ``models=None``, ``corpus=None``, ``settings=None``, ``thresholds=...``, ``twins=True`` of table1.
            `topic_probe.paper.recipe.run_recipe` and the ``measure`` of a recipe explain them.
    """
    from topic_probe.paper.recipe import run_recipe

    return run_recipe(recipe_named(name), **options)
