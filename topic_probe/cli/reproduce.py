"""``topic-probe reproduce NAME|all``: the figures and tables of the paper, claim by claim."""

import argparse
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from topic_probe.cli.console import Console, WrongUsageError, only_answers_on_stdout, plain, warn
from topic_probe.cli.inputs import CORPORA, CORPUS_HELP, PAGE, open_corpus, open_tokenizer
from topic_probe.cli.options import Call, Parser, add_command, add_options, add_out, mapping
from topic_probe.notices import quiet_transformers
from topic_probe.paper import RECIPES, recipe_named, reproduce

if TYPE_CHECKING:
    from topic_probe.paper.recipe import Recipe

ALL, OUT = "all", "reproduced"

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
_WORDS_HELP = (
    "lists of words that belong together, each in quotes, for figure3; a list has the name of its first word"
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
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="with all: so many recipes at a time, each in a process of its own (default: 1)",
    )
    inputs = {
        "--models": (
            "LABEL=MODEL",
            "models in place of the paper's, for recipes that measure pretrained ones",
        ),
        "--corpus": ("CORPUS", CORPUS_HELP),
        "--words": ("LIST", _WORDS_HELP),
        "--tokenizer": ("TOKENIZER", "name or folder of the tokenizer that reads the texts of figure5"),
    }
    for flag, (metavar, what) in inputs.items():
        many = "+" if flag in ("--models", "--words") else None
        parser.add_argument(flag, nargs=many, metavar=metavar, default=argparse.SUPPRESS, help=what)
    add_options(parser, {"recipe": (RUN, *SOME), "documents": CORPORA})


def run(parsed: argparse.Namespace) -> int:
    """Run one recipe or all, save results as they come, write the page."""
    recipes = {name: recipe_named(name) for name in (RECIPES if parsed.name == ALL else [parsed.name])}
    options = _options(parsed)
    out = Path(parsed.out).expanduser()
    _check(parsed, recipes, options, out)
    outcomes: dict[str, dict[str, Any]] = {}
    try:
        several = parsed.jobs > 1 and len(recipes) > 1
        results = (
            _side_by_side(parsed, list(recipes)) if several else _in_turn(parsed, list(recipes), options)
        )
        for name, outcome, said in results:
            outcomes[name] = outcome
            if said:
                parsed.console.remark(f"{said}\n")
    except KeyboardInterrupt as stop:
        _write_page(out, outcomes)
        saved = [name for name, about in outcomes.items() if "saved" in about]
        kept = f"finished and kept in {out}: {', '.join(saved)}" if saved else "nothing was finished"
        go_on = "give --folder DIR to go on next time"
        if folder := options.get("folder"):
            there = Path(folder).expanduser().exists()
            go_on = f"what was finished is in {folder}" if there else "nothing was finished yet"
        raise KeyboardInterrupt(f"{stop}; {kept}; {go_on}".removeprefix("; ")) from stop
    outcomes = {name: outcomes[name] for name in recipes}
    page = _write_page(out, outcomes)
    lines = [*(_line(name, about) for name, about in outcomes.items()), *_findings(outcomes)]
    text = "\n".join(lines)
    if page is not None:
        text += f"\nopen {page} in a browser"
    parsed.console.answer(text, {"recipes": outcomes, "page": page and str(page)})
    return 1 if any("error" in about for about in outcomes.values()) else 0


_Result = tuple[str, dict[str, Any], str]
"""A recipe, what came out of it, and that as a text; empty where it crashed."""


def _in_turn(parsed: argparse.Namespace, recipes: list[str], options: Mapping[str, Any]) -> Iterator[_Result]:
    """The results of one recipe after the other."""
    for number, name in enumerate(recipes, 1):
        yield _one(parsed, name, options, f"{number} of {len(recipes)}")


def _side_by_side(parsed: argparse.Namespace, recipes: list[str]) -> Iterator[_Result]:
    """The results of several recipes at a time, in processes, as they come."""
    context = get_context("spawn")
    stop = context.Event()
    given = {name: value for name, value in vars(parsed).items() if name != "console"}
    with ProcessPoolExecutor(parsed.jobs, context, _begin, (stop,)) as pool:
        runs = [
            pool.submit(_apart, given, name, f"{number} of {len(recipes)}")
            for number, name in enumerate(recipes, 1)
        ]
        try:
            for run in as_completed(runs):
                if (result := run.result()) is not None:
                    yield result
        except BaseException:
            stop.set()  # what waits in the queue can no longer be taken back
            raise


_stop: Any = None
_interrupted = False
"""Whether all processes are to stop; whether this one has heard of Ctrl-C between two recipes."""


def _begin(stop: Any) -> None:
    """Let a process stop in order at Ctrl-C, which reaches all of them."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, _take_note)


def _take_note(*_: Any) -> None:
    global _interrupted
    _interrupted = True


def _apart(given: Mapping[str, Any], name: str, place: str) -> _Result | None:
    """The result of a recipe in a process of its own; None where all are to stop."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if _interrupted or _stop.is_set():
            return None
        parsed = argparse.Namespace(**given)
        with only_answers_on_stdout(debug=parsed.debug) as answers:
            parsed.console = Console(answers, json=parsed.json)
            return _one(parsed, name, _options(parsed), place)
    except KeyboardInterrupt:
        _stop.set()  # before the next recipe is begun here
        raise
    finally:
        signal.signal(signal.SIGINT, _take_note)


def _options(parsed: argparse.Namespace) -> dict[str, Any]:
    """What recipes are given."""
    options = _inputs(parsed)
    for call in (RUN, *SOME):
        options |= call.arguments(parsed)
    return options


def _inputs(parsed: argparse.Namespace) -> dict[str, Any]:
    """Models, words, tokenizer and texts, where they were named."""
    inputs: dict[str, Any] = {}
    if "models" in parsed:
        labelled = [entry for entry in parsed.models if "=" in entry]
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


def _check(
    parsed: argparse.Namespace, recipes: "dict[str, Recipe]", options: dict[str, Any], out: Path
) -> None:
    """Refuse what cannot go well before anything is computed."""
    from topic_probe import storage

    if parsed.name == ALL and "only" in options:
        raise WrongUsageError("--only names settings of one recipe: name the recipe in place of all")
    if parsed.jobs < 1 or (parsed.jobs > 1 and parsed.name != ALL):
        raise WrongUsageError(f"--jobs is at least 1, and above 1 with all recipes alone, got {parsed.jobs}")
    for option in options:
        if not any(option in recipe.options for recipe in recipes.values()):
            raise WrongUsageError(f"{parsed.name} takes no --{option.replace('_', '-')}")
    for name in recipes:
        storage.check_free(out / name, overwrite=parsed.overwrite)
    if (out / PAGE).exists() and not any((out / name / "claims.json").is_file() for name in RECIPES):
        raise FileExistsError(
            f"{out / PAGE} is no page of topic-probe and is not overwritten: choose another --out"
        )


def _one(parsed: argparse.Namespace, name: str, options: Mapping[str, Any], place: str) -> _Result:
    """What came out of a recipe, which is saved; where all are run, also why one crashed."""
    from topic_probe import storage

    recipe, folder = recipe_named(name), Path(parsed.out).expanduser() / name
    seconds = sum(setting.seconds for setting in recipe.trainings(options.get("quick", False)))
    minutes = f", about {max(1, round(seconds / 60))} min" if seconds > 60 else ""
    warn(f"({place}) {RECIPES[name]}{minutes}", name)
    start, progress = time.perf_counter(), parsed.console.progress
    fitting = {option: value for option, value in options.items() if option in recipe.options}
    try:
        with (
            storage.draft(folder, overwrite=parsed.overwrite) as draft,
            quiet_transformers(progress=progress),
            RUN.blamed(parsed),
        ):
            result = reproduce(name, progress=progress, **fitting)
            result.save(draft)
    except Exception as error:
        if parsed.name != ALL or parsed.debug:
            raise
        why = f"{type(error).__name__}: {error}"
        warn(why, f"{name} failed")
        return name, {"error": why, "seconds": time.perf_counter() - start}, ""
    outcome = {
        "title": result.title,
        "holds": result.holds,
        "claims": plain([claim.to_dict() for claim in result.claims]),
        "seconds": time.perf_counter() - start,
        "saved": str(folder),
    }
    return name, outcome, str(result)


def _line(name: str, about: dict[str, Any]) -> str:
    """What came out of a recipe, in short."""
    from topic_probe.report import VERDICTS

    verdicts = [claim["verdict"] for claim in about.get("claims", ())]
    kinds = dict.fromkeys(("holds", *VERDICTS))
    counts = ", ".join(
        f"{verdicts.count(kind)} {kind}" for kind in kinds if kind in verdicts or kind == "holds"
    )
    return f"{name:<10} {counts if verdicts else 'crashed: ' + about['error']}, {about['seconds']:.0f} s"


def _findings(outcomes: dict[str, dict[str, Any]]) -> list[str]:
    """The claims that do not hold or are no evidence, by what they say, each with the settings it is about."""
    from topic_probe.report import VERDICTS

    found: dict[tuple[str, str, str], list[str]] = {}
    for name, about in outcomes.items():
        for claim in about.get("claims", ()):
            if claim["verdict"] in ("does not hold", "not evidence"):
                found.setdefault((claim["verdict"], name, claim["text"]), []).append(
                    claim["setting"] or "all"
                )
    return [
        f"{verdict}: {name}: {shorten(text.rpartition(' (')[0] or text, 90)} ({'; '.join(settings)})"
        for (verdict, name, text), settings in sorted(
            found.items(), key=lambda one: VERDICTS.index(one[0][0])
        )
    ]


def _write_page(out: Path, outcomes: dict[str, dict[str, Any]]) -> Path | None:
    """The page over everything that is saved; None where nothing is."""
    if not any("saved" in about for about in outcomes.values()):
        return None
    from topic_probe.show.results_page import report_page

    return report_page(out).save(out / PAGE, overwrite=True).resolve()
