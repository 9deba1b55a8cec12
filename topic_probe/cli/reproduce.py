"""``topic-probe reproduce NAME ...|all``: the figures and tables of the paper, claim by claim."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topic_probe.cli.console import (
    Console,
    WrongUsageError,
    only_answers_on_stdout,
    plain,
    quiet_transformers,
    warn,
)
from topic_probe.cli.inputs import CORPORA, CORPUS_HELP, PAGE, open_corpus, open_tokenizer
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out, mapping
from topic_probe.paper import RECIPES, recipe_named

if TYPE_CHECKING:
    from topic_probe.paper.recipe import RecipeResult

ALL, OUT, PICTURES = "all", "reproduced", "pictures"
RUN = Call("topic_probe.paper.recipe:run_recipe", filled=("recipe", "progress", "options"))

# Recipes that measure the same thing, which is done once where they run in one process.
TOGETHER = (("figure10", "table3"),)

_EPILOG = """recipes:
{recipes}

example:
  topic-probe reproduce figure1 --quick
  topic-probe reproduce table1 --models BERT=./bert-base-uncased --corpus wikipedia
  topic-probe reproduce figure3 --models BERT=./bert-base-uncased --words "frog toad lizard" "mozart beethoven"
  topic-probe reproduce figure5 --quick --tokenizer ./bert-base-uncased"""


def add_to(parser: Parser) -> None:
    """What the command takes."""
    recipes = "\n".join(f"  {name}" for name in RECIPES)
    add_command(parser, run, usage="reproduce NAME ...|all", epilog=_EPILOG.format(recipes=recipes))
    parser.add_argument(
        "names", metavar="NAME", nargs="+", choices=(*RECIPES, ALL), help="figures and tables (below), or all"
    )
    add_out(parser, f"folder for results and their page (default: {OUT})", default=OUT)
    parser.add_argument("-v", "--verbose", action="store_true", help="print every training of every claim")
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="so many recipes at a time, each in a process (default: 1)",
    )
    inputs = {
        "--models": (
            "LABEL=MODEL",
            "models in place of the paper's, for recipes that measure pretrained ones",
        ),
        "--corpus": ("CORPUS", CORPUS_HELP),
        "--words": ("LIST", "lists of words that belong together, each in quotes, for figure3"),
        "--tokenizer": ("TOKENIZER", "name or folder of the tokenizer that reads the texts of figure5"),
    }
    for flag, (metavar, what) in inputs.items():
        many = "+" if flag in ("--models", "--words") else None
        parser.add_argument(flag, nargs=many, metavar=metavar, default=argparse.SUPPRESS, help=what)
    add_options(parser, {"recipe": (RUN,), "documents": CORPORA})


def run(parsed: argparse.Namespace) -> int:
    """Run recipes, save results as they come, write the page."""
    from topic_probe import storage
    from topic_probe.paper.recipe import own_options, summary

    names = list(RECIPES) if ALL in parsed.names else list(dict.fromkeys(parsed.names))
    out = Path(parsed.out).expanduser()
    if parsed.jobs < 1:
        raise WrongUsageError(f"--jobs is at least 1, got {parsed.jobs}")
    known = {option for name in names for option in own_options(recipe_named(name))}
    inputs = _inputs(parsed)
    for option in inputs:
        if option not in known:
            raise WrongUsageError(f"{', '.join(names)} takes no --{option}")
    for name in names:
        storage.check_free(out / name, overwrite=parsed.overwrite)
    if (out / PAGE).exists() and not any(storage.kind_of(out / name) == "recipe" for name in RECIPES):
        raise FileExistsError(
            f"{out / PAGE} is no page of topic-probe and is not overwritten: choose another --out"
        )
    results: dict[str, RecipeResult] = {}
    errors: dict[str, str] = {}
    try:
        for name, outcome in _outcomes(parsed, names, inputs):
            if isinstance(outcome, str):
                errors[name] = outcome
                warn(outcome, f"{name} failed")
            else:
                results[name] = outcome
                outcome.save(out / name, overwrite=parsed.overwrite)
                _write_pictures(outcome, out / PICTURES)
                if parsed.verbose:
                    parsed.console.remark(f"{outcome}\n")
    except KeyboardInterrupt as stop:
        if results:
            _write_page(out)
        kept = f"finished and kept in {out}: {', '.join(results)}" if results else "nothing was finished"
        raise KeyboardInterrupt(f"{stop}; {kept}".removeprefix("; ")) from stop
    ordered = [results[name] for name in names if name in results]
    page = _write_page(out) if ordered else None
    lines = [
        *summary(ordered),
        "",
        *_counts(ordered),
        *(f"{name}: {error}" for name, error in errors.items()),
    ]
    if page is not None:
        lines.append(f"pictures: {page}")
    document = {
        name: {"claims": result.claims, "seconds": result.seconds} for name, result in results.items()
    }
    parsed.console.answer(
        "\n".join(lines), {"recipes": plain(document), "errors": errors, "page": page and str(page)}
    )
    return 1 if errors else 0


def _outcomes(
    parsed: argparse.Namespace, names: Sequence[str], inputs: Mapping[str, Any]
) -> "Iterator[tuple[str, RecipeResult | str]]":
    """The result of every recipe as it comes, or what went wrong with one of several."""
    groups = [tuple(name for name in group if name in names) for group in TOGETHER]
    alone = [(name,) for name in names if not any(name in group for group in groups)]
    tasks = [group for group in (*groups, *alone) if group]
    if parsed.jobs == 1 or len(tasks) == 1:
        for number, task in enumerate(tasks, 1):
            warn(", ".join(task), f"{number} of {len(tasks)}")
            yield from _run(parsed, task, inputs, several=len(names) > 1)
        return
    given = {name: value for name, value in vars(parsed).items() if name != "console"}
    with ProcessPoolExecutor(parsed.jobs, get_context("spawn")) as pool:
        for number, found in enumerate(pool.map(_apart, [given] * len(tasks), tasks), 1):
            warn(", ".join(tasks[number - 1]), f"{number} of {len(tasks)}")
            yield from found


def _apart(given: Mapping[str, Any], task: Sequence[str]) -> "list[tuple[str, RecipeResult | str]]":
    """The outcomes of recipes in a process of their own."""
    parsed = argparse.Namespace(**given)
    with only_answers_on_stdout(debug=parsed.debug) as answers:
        parsed.console = Console(answers, json=parsed.json)
        return list(_run(parsed, task, _inputs(parsed), several=True))


def _run(
    parsed: argparse.Namespace, task: Sequence[str], inputs: Mapping[str, Any], *, several: bool
) -> "Iterator[tuple[str, RecipeResult | str]]":
    """The outcomes of recipes that go together."""
    from topic_probe.paper.recipe import own_options, run_recipe

    progress = parsed.console.progress
    for name in task:
        recipe = recipe_named(name)
        own = {option: value for option, value in inputs.items() if option in own_options(recipe)}
        try:
            with quiet_transformers(progress=progress), RUN.blamed(parsed):
                yield name, run_recipe(recipe, progress=progress, **own, **RUN.arguments(parsed))
        except Exception as error:
            if not several or parsed.debug:
                raise
            yield name, f"{type(error).__name__}: {error}"


def _inputs(parsed: argparse.Namespace) -> dict[str, Any]:
    """Models, words, tokenizer and texts, where they were named."""
    inputs: dict[str, Any] = {}
    if "models" in parsed:
        labelled = any("=" in entry for entry in parsed.models)
        inputs["models"] = mapping(parsed.models, "--models") if labelled else parsed.models
    if "words" in parsed:
        lists = [text.split() for text in parsed.words]
        inputs["words"] = {words[0]: words for words in lists if words}
        if len(inputs["words"]) < len(lists):
            raise WrongUsageError(
                f"--words takes lists in quotes that begin with different words, got {parsed.words}"
            )
    if "tokenizer" in parsed:
        inputs["tokenizer"] = open_tokenizer(parsed.tokenizer)
    if "corpus" in parsed:
        inputs["corpus"] = open_corpus(parsed)
    elif given := [option for call in CORPORA for option in call.given(parsed)]:
        raise WrongUsageError(f"{given[0]} needs texts: name them with --corpus")
    return inputs


def _counts(results: "Sequence[RecipeResult]") -> list[str]:
    """How many claims have which verdict, and which were not checked, in a line each."""
    from topic_probe.paper.claims import VERDICTS

    found = [claim for result in results for claim in result.claims]
    verdicts = [claim["verdict"] for claim in found]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in reversed(VERDICTS) if kind in verdicts)
    unchecked = ", ".join(claim["id"] for claim in found if claim["verdict"] == "not checked")
    lines = [counts + (f" ({unchecked}: the page says why)" if unchecked else "")] if found else []
    for result in results:
        for what, why in list(result.missing.items())[:1]:
            lines.append(f"{result.recipe}: {what}: {why}")
    return lines


def _write_pictures(result: "RecipeResult", folder: Path) -> None:
    """The figures of a recipe as files, to be shown elsewhere."""
    from topic_probe.show.style import svg_of

    for number, figure in enumerate(result.figures().values(), 1):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{result.recipe}-{number}.svg").write_bytes(svg_of(figure))


def _write_page(out: Path) -> Path:
    """The page over everything that is saved."""
    from topic_probe.show.results_page import report_page

    return report_page(out).save(out / PAGE, overwrite=True).resolve()
