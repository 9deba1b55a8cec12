"""One recipe per figure and table of the paper: settings, a run, and what must be seen as checked claims.

Every recipe is a module with ``SETTINGS`` and ``QUICK_SETTINGS`` (what is trained, with its number of steps and
measured time) and ``run(quick=False, only=None, seed=0, folder=None, progress=False) -> RecipeResult``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topic_probe.paper.claims import Claim as Claim
from topic_probe.paper.claims import claims_table as claims_table
from topic_probe.paper.claims import claims_to_dataframe as claims_to_dataframe

if TYPE_CHECKING:
    from topic_probe.paper.recipe import RecipeResult

# Name -> what the paper shows there. The module of the same name has the recipe.
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
}


def reproduce(name: str, **options: Any) -> "RecipeResult":
    """The result of a recipe by its name; options are those of its ``run``."""
    if name not in RECIPES:
        raise ValueError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    result: RecipeResult = import_module(f"topic_probe.paper.{name}").run(**options)
    return result
