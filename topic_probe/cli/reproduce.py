"""``topic-probe reproduce NAME ...|all``: the figures and tables of the paper, claim by claim."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from topic_probe.cli.console import Output, WrongUsageError, only_answers_on_stdout, plain, warn
from topic_probe.cli.inputs import Texts, open_corpus, open_tokenizer
from topic_probe.cli.options import command, mapping
from topic_probe.paper import RECIPES, recipe_named

if TYPE_CHECKING:
    from topic_probe.paper.recipe import RecipeResult

OUT, PAGE, PICTURES = "reproduced", "index.html", "pictures"

# Recipes that measure the same thing, which is done once where they run in one process.
TOGETHER = (("figure10", "table3"),)

_EPILOGUE = f"""Recipes: {", ".join(RECIPES)}

Examples:
  topic-probe reproduce figure1 --quick
  topic-probe reproduce table1 --models BERT=./bert-base-uncased --corpus wikipedia
  topic-probe reproduce figure3 --models BERT=./bert-base-uncased --words "frog toad lizard" "mozart beethoven"
  topic-probe reproduce figure5 --quick --tokenizer ./bert-base-uncased"""


@dataclass(frozen=True)
class _Run:
    """What every process that runs recipes is told."""

    quick: bool
    seed: int
    bars: bool
    debug: bool
    inputs: Mapping[str, Any] = field(default_factory=dict)


@command(
    "The figures and tables of the paper: every claim, what was measured, where it must fail, its verdict.",
    shown=("quick", "verbose", "jobs", "models", "corpus", "words", "tokenizer", "seed", "out", "overwrite",
           "json"),
    epilogue=_EPILOGUE,
)  # fmt: skip
def reproduce(
    *names: Annotated[str, "figures and tables, or all"],
    quick: Annotated[bool, "smaller trainings and fewer seeds: minutes in place of an hour"] = False,
    verbose: Annotated[bool, "print every training of every claim"] = False,
    jobs: Annotated[int, "so many recipes at a time, each in a process"] = 1,
    models: Annotated[
        list[str] | None, "NAME=MODEL in place of the paper's, for recipes that measure pretrained ones"
    ] = None,
    words: Annotated[list[str] | None, "words that belong together, each list in quotes, for figure3"] = None,
    tokenizer: Annotated[
        str | None, "name or folder of the tokenizer that reads the texts of figure5"
    ] = None,
    seed: Annotated[int, "the first seed"] = 3000,
    documents: Texts,
    output: Output,
) -> int:
    """Runs recipes, saves results as they come, writes the page."""
    from topic_probe import storage
    from topic_probe.paper.recipe import own_options, summary

    chosen = _chosen(names)
    if jobs < 1:
        raise WrongUsageError(f"--jobs is at least 1, got {jobs}")
    out = Path(output.out or OUT).expanduser()
    inputs = {
        "models": _models(models),
        "words": None if words is None else _lists(words),
        "tokenizer": None if tokenizer is None else open_tokenizer(tokenizer),
        "corpus": open_corpus(documents),
    }
    inputs = {name: value for name, value in inputs.items() if value is not None}
    known = {option for name in chosen for option in own_options(recipe_named(name))}
    if unknown := [option for option in inputs if option not in known]:
        raise WrongUsageError(f"{', '.join(chosen)} takes no --{unknown[0]}")
    for name in chosen:
        storage.check_free(out / name, overwrite=output.overwrite)
    if (out / PAGE).exists() and not any(storage.kind_of(out / name) == "recipe" for name in RECIPES):
        raise FileExistsError(
            f"{out / PAGE} is no page of topic-probe and is not overwritten: choose another --out"
        )
    told = _Run(quick, seed, output.progress, output.debug, inputs)
    results: dict[str, RecipeResult] = {}
    errors: dict[str, str] = {}
    try:
        for name, outcome in _outcomes(told, chosen, jobs):
            if isinstance(outcome, str):
                errors[name] = outcome
                warn(outcome, f"{name} failed")
                continue
            results[name] = outcome
            outcome.save(out / name, overwrite=output.overwrite)
            _write_pictures(outcome, out / PICTURES)
    except KeyboardInterrupt as stop:
        if results:
            _write_page(out)
        kept = f"finished and kept in {out}: {', '.join(results)}" if results else "nothing was finished"
        raise KeyboardInterrupt(f"{stop}; {kept}".removeprefix("; ")) from stop
    ordered = [results[name] for name in chosen if name in results]
    page = _write_page(out) if ordered else None
    lines = [f"{result}\n" for result in ordered] if verbose else []
    lines += [*summary(ordered), "", *_counts(ordered), *(f"{name}: {why}" for name, why in errors.items())]
    lines += [f"pictures: {page}"] if page is not None else []
    about = {name: {"claims": result.claims, "seconds": result.seconds} for name, result in results.items()}
    output.answer("\n".join(lines), {"recipes": plain(about), "errors": errors, "page": page and str(page)})
    return 1 if errors else 0


def _chosen(names: Sequence[str]) -> list[str]:
    """The recipes that are meant; "figure 1" is figure1."""
    together = "\0".join(names).replace("figure\0", "figure").replace("table\0", "table")
    joined = together.split("\0")
    if joined == [""]:
        raise WrongUsageError(
            "reproduce needs figures and tables, or all: topic-probe reproduce figure1 --quick"
        )
    if unknown := [name for name in joined if name != "all" and name not in RECIPES]:
        raise WrongUsageError(
            f"there is no {unknown[0]!r} to reproduce: there are {', '.join(RECIPES)}, or all"
        )
    return list(RECIPES) if "all" in joined else list(dict.fromkeys(joined))


def _models(entries: list[str] | None) -> Any:
    if entries is None or not any("=" in entry for entry in entries):
        return entries
    return mapping(entries, "--models")


def _lists(texts: list[str]) -> dict[str, list[str]]:
    lists = [text.split() for text in texts if text.split()]
    found = {words[0]: words for words in lists}
    if len(found) < len(texts):
        raise WrongUsageError(f"--words takes lists in quotes that begin with different words, got {texts}")
    return found


# ---------------------------------------------------------------------------- running


def _outcomes(told: _Run, names: Sequence[str], jobs: int) -> "Iterator[tuple[str, RecipeResult | str]]":
    """The result of every recipe as it comes, or what went wrong with one of several."""
    groups = [tuple(name for name in group if name in names) for group in TOGETHER]
    alone = [(name,) for name in names if not any(name in group for group in groups)]
    tasks = [group for group in (*groups, *alone) if group]
    several = len(names) > 1
    if jobs == 1 or len(tasks) == 1:
        for number, task in enumerate(tasks, 1):
            warn(", ".join(task), f"{number} of {len(tasks)}")
            yield from _run(told, task, several)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        found = pool.map(_apart, [told] * len(tasks), tasks)
        for number, (task, outcomes) in enumerate(zip(tasks, found, strict=True), 1):
            warn(", ".join(task), f"{number} of {len(tasks)}")
            yield from outcomes


def _apart(told: _Run, task: Sequence[str]) -> "list[tuple[str, RecipeResult | str]]":
    """The outcomes of recipes in a process of their own."""
    with only_answers_on_stdout(debug=told.debug):
        return list(_run(told, task, several=True))


def _run(told: _Run, task: Sequence[str], several: bool) -> "Iterator[tuple[str, RecipeResult | str]]":
    """The outcomes of recipes that go together."""
    from topic_probe.lens.opening import quiet_transformers
    from topic_probe.paper.recipe import own_options, run_recipe

    for name in task:
        recipe = recipe_named(name)
        own = {option: value for option, value in told.inputs.items() if option in own_options(recipe)}
        try:
            with quiet_transformers(progress=told.bars):
                yield (
                    name,
                    run_recipe(
                        recipe,
                        quick=told.quick,
                        seed=told.seed,
                        progress=told.bars,
                        **own,
                    ),
                )
        except Exception as error:
            if not several or told.debug:
                raise
            yield name, f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------------- what is said and written


def _counts(results: "Sequence[RecipeResult]") -> list[str]:
    """How many claims have which verdict, which were not checked, and what was not measured, in a line each."""
    from topic_probe.paper.claims import VERDICTS

    found = [claim for result in results for claim in result.claims]
    verdicts = [claim["verdict"] for claim in found]
    counts = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in reversed(VERDICTS) if kind in verdicts)
    unchecked = ", ".join(claim["id"] for claim in found if claim["verdict"] == "not checked")
    lines = [counts + (f" ({unchecked}: the page says why)" if unchecked else "")] if found else []
    for result in results:
        lines += [f"{result.recipe}: {what}: {why}" for what, why in list(result.missing.items())[:1]]
    return lines


def _write_pictures(result: "RecipeResult", folder: Path) -> None:
    """The figures of a recipe as files, to be shown elsewhere."""
    from topic_probe.show.style import svg_of

    for number, figure in enumerate(result.figures().values(), 1):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{result.recipe}-{number}.svg").write_bytes(svg_of(figure))


def _write_page(out: Path) -> Path:
    import topic_probe as tp

    return tp.report_page(out).save(out / PAGE, overwrite=True).resolve()
