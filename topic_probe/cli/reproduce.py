"""``topic-probe reproduce NAME|all``: the figures and tables of the paper, claim by claim."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topic_probe.cli.console import plain, warn
from topic_probe.cli.inputs import CORPORA, CORPUS_HELP, open_corpus, open_tokenizer, quiet_transformers
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out, mapping
from topic_probe.paper import RECIPES, recipe_named, reproduce

if TYPE_CHECKING:
    from topic_probe.paper.recipe import Recipe

ALL, PAGE, OUT = "all", "index.html", "reproduced"

# The options that every recipe has.
RUN = Call("topic_probe.paper.recipe:run_recipe", filled=("recipe", "progress", "options"))
# The options that only some recipes have: taken as they are.
_SETTINGS = {"settings": "an object, which only Python can pass"}
SOME = (
    Call("topic_probe.paper.table1:measure", ("table", "run", "models", "corpus"), _SETTINGS),
    Call("topic_probe.paper.table2:measure", ("run", "models", "corpus"), _SETTINGS),
    Call("topic_probe.paper.figure3:measure", ("run", "models", "words")),
    Call("topic_probe.paper.figure5:measure", ("run", "corpus", "tokenizer")),
)
_EPILOG = """recipes:
{recipes}

example:
  topic-probe reproduce figure1 --quick
  topic-probe reproduce table1 --models BERT=./bert-base-uncased --corpus wikipedia
  topic-probe reproduce figure3 --models BERT=./bert-base-uncased --words "frog toad lizard" "mozart beethoven"
  topic-probe reproduce figure5 --quick --tokenizer ./bert-base-uncased"""


def add_to(parser: Parser) -> None:
    """What the command takes."""
    recipes = "\n".join(f"  {name:<10} {what}" for name, what in RECIPES.items())
    add_command(parser, run, usage="reproduce NAME|all", epilog=_EPILOG.format(recipes=recipes))
    parser.add_argument(
        "name", metavar="NAME", choices=(*RECIPES, ALL), help="a figure or table (below), or all"
    )
    add_out(parser, f"folder for results and their page (default: {OUT})", default=OUT)
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="LABEL=MODEL",
        default=argparse.SUPPRESS,
        help="models in place of the paper's, for recipes that measure pretrained ones",
    )
    parser.add_argument("--corpus", metavar="CORPUS", default=argparse.SUPPRESS, help=CORPUS_HELP)
    parser.add_argument(
        "--words",
        nargs="+",
        metavar="LIST",
        default=argparse.SUPPRESS,
        help="lists of words that belong together, each in quotes, for figure3; a list has the name of its first word",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="TOKENIZER",
        default=argparse.SUPPRESS,
        help="name or folder of the tokenizer that reads the texts of figure5",
    )
    add_options(parser, {"recipe": (RUN, *SOME), "documents": CORPORA})


def run(parsed: argparse.Namespace) -> int:
    """Run one recipe or all, save results as they come, write the page."""
    names = list(RECIPES) if parsed.name == ALL else [parsed.name]
    recipes = {name: recipe_named(name) for name in names}
    options = _inputs(parsed)
    for call in (RUN, *SOME):
        options |= call.arguments(parsed)
    _check(parsed, recipes, options)
    out = Path(parsed.out).expanduser()
    outcomes: dict[str, dict[str, Any]] = {}
    try:
        for number, (name, recipe) in enumerate(recipes.items(), 1):
            _announce(name, recipe, f"{number} of {len(names)}", quick=options.get("quick", False))
            outcomes[name] = _one(parsed, name, recipe, options, out / name)
    except KeyboardInterrupt as stop:
        saved = _saved(outcomes)
        _write_page(out, saved)
        kept = f"finished and kept in {out}: {', '.join(saved)}" if saved else "nothing was finished"
        why = f"{stop}; {kept}; {_checkpoints(options.get('folder'))}"
        raise KeyboardInterrupt(why.removeprefix("; ")) from stop
    page = _write_page(out, _saved(outcomes))
    parsed.console.answer(_summary(outcomes, page), {"recipes": outcomes, "page": page and str(page)})
    return 0 if all(about.get("passed") for about in outcomes.values()) else 1


def _saved(outcomes: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, about in outcomes.items() if "saved" in about]


def _checkpoints(folder: str | None) -> str:
    """Where an interrupted run goes on from."""
    if not folder:
        return "give --folder DIR to go on next time"
    return (
        f"checkpoints are in {folder}" if Path(folder).expanduser().exists() else "there is no checkpoint yet"
    )


def _inputs(parsed: argparse.Namespace) -> dict[str, Any]:
    """Models, words, tokenizer and texts, where they were named."""
    inputs: dict[str, Any] = {}
    if "models" in parsed:
        labelled = [entry for entry in parsed.models if "=" in entry]
        inputs["models"] = mapping(parsed.models, "--models") if labelled else parsed.models
    if "words" in parsed:
        inputs["words"] = _word_lists(parsed.words)
    if "tokenizer" in parsed:
        inputs["tokenizer"] = open_tokenizer(parsed.tokenizer)
    if "corpus" in parsed:
        inputs["corpus"] = open_corpus(parsed)
    elif given := [option for call in CORPORA for option in call.given(parsed)]:
        raise ValueError(f"{given[0]} needs texts: name them with --corpus")
    return inputs


def _word_lists(texts: list[str]) -> dict[str, list[str]]:
    """Lists of words by their first words."""
    lists = [text.split() for text in texts]
    names = [words[0] for words in lists if words]
    if len(set(names)) < len(lists):
        raise ValueError(f"--words takes lists in quotes that begin with different words, got {texts}")
    return dict(zip(names, lists, strict=True))


def _check(parsed: argparse.Namespace, recipes: "dict[str, Recipe]", options: dict[str, Any]) -> None:
    """Refuse what cannot go well before anything is computed."""
    from topic_probe import storage

    if parsed.name == ALL and "only" in options:
        raise ValueError("--only names settings of one recipe: name the recipe in place of all")
    for option in options:
        if not any(option in recipe.options for recipe in recipes.values()):
            raise ValueError(f"{parsed.name} takes no --{option.replace('_', '-')}")
    out = Path(parsed.out).expanduser()
    for name in recipes:
        storage.check_free(out / name, overwrite=parsed.overwrite)
    if (out / PAGE).exists() and not any((out / name / "claims.json").is_file() for name in RECIPES):
        raise FileExistsError(
            f"{out / PAGE} is no page of topic-probe and is not overwritten: choose another --out"
        )


def _announce(name: str, recipe: "Recipe", place: str, *, quick: bool) -> None:
    seconds = sum(setting.seconds for setting in recipe.trainings(quick))
    minutes = f", about {max(1, round(seconds / 60))} min" if seconds > 60 else ""
    warn(f"({place}) {RECIPES[name]}{minutes}", name)


def _one(
    parsed: argparse.Namespace, name: str, recipe: "Recipe", options: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """What came out of a recipe, which is saved; where all are run, also why one crashed."""
    from topic_probe import storage

    start = time.perf_counter()
    fitting = {option: value for option, value in options.items() if option in recipe.options}
    try:
        with (
            storage.draft(folder, overwrite=parsed.overwrite) as draft,
            quiet_transformers(progress=parsed.console.progress),
        ):
            result = reproduce(name, progress=parsed.console.progress, **fitting)
            result.save(draft)
    except Exception as error:
        if parsed.name != ALL or parsed.debug:
            raise
        warn(f"{type(error).__name__}: {error}", f"{name} failed")
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - start}
    parsed.console.remark(f"{result}\n")
    return {
        "title": result.title,
        "passed": result.passed,
        "claims": plain([claim.to_dict() for claim in result.claims]),
        "seconds": time.perf_counter() - start,
        "saved": str(folder),
    }


def _summary(outcomes: dict[str, dict[str, Any]], page: Path | None) -> str:
    lines = []
    for name, about in outcomes.items():
        verdicts = [claim["verdict"] for claim in about.get("claims", ())]
        counts = ", ".join(
            f"{verdicts.count(verdict)} {verdict}"
            for verdict in dict.fromkeys(("passed", "failed", *verdicts))
        )
        lines.append(
            f"{name:<10} {counts if verdicts else 'crashed: ' + about['error']}, {about['seconds']:.0f} s"
        )
    return "\n".join([*lines, f"open {page} in a browser"] if page else lines)


def _write_page(out: Path, saved: list[str]) -> Path | None:
    """The page over everything that is saved; None where nothing is."""
    if not saved:
        return None
    from topic_probe.show.results_page import report_page

    return report_page(out).save(out / PAGE, overwrite=True).resolve()
