"""Everything that was saved in a folder as one page to read, mail and archive."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from topic_probe.options import checked
from topic_probe.report import version_of
from topic_probe.show.page import Page, make_page
from topic_probe.show.saved import SIGNS, TO_LOOK_AT, SavedFolder


@checked
def report_page(directory: str | os.PathLike[str], *, title: str | None = None) -> Page:
    """The page of everything in a folder that this package has saved, however deep it lies.

    Results of recipes, reports, histories, topics, tables and figures are shown; every other file, and every file
    that cannot be read, is named with the reason. Nothing from the folder is executed, and nothing outside it is read:
    links are not followed.

    Args:
        directory: the folder.
        title: the title of the page; by default the folder's name.

    Raises:
        FileNotFoundError: where there is no such folder.
        ValueError: where nothing in it was saved by this package.
    """
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {str(root)!r}: name one that results were saved in")
    folder = SavedFolder(root)
    folder.read()
    if not (folder.recipes or folder.pieces):
        named = "; ".join(f"{name}: {why}" for name, why in list(folder.problems.items())[:3])
        raise ValueError(
            f"{str(root)!r} holds nothing that topic_probe has saved: save a report with report.save(folder) or a "
            "recipe with result.save(folder), and name that folder or one above it"
            + (f" ({named})" if named else "")
        )
    columns = [
        (piece.kind.removeprefix("report: "), column)
        for piece in folder.all_pieces
        if piece.kind.startswith("report: ") and piece.table is not None
        for column in piece.table.columns
    ]
    meanings, pairs = terms(columns)
    seen = {claim.verdict for recipe in folder.recipes for claim in recipe.claims}
    return make_page(
        "report.html",
        title or f"Results in {root.resolve().name or root}",
        folder=folder,
        summary=_summary(folder),
        signs=SIGNS,
        to_look_at=[name for name in TO_LOOK_AT if name in seen],
        how_many=sum((recipe.verdicts() for recipe in folder.recipes), Counter[str]()),
        checks=any(recipe.chosen(check=True) for recipe in folder.recipes),
        about_pairs=_PAIRS if pairs else "",
        definitions={**(_CLAIMS if folder.recipes else {}), **meanings},
        versions=_versions(folder),
        own_version=version_of("topic-probe") or "unknown",
    )


def _summary(folder: SavedFolder) -> str:
    claims = ""
    for check, name in ((False, "claims"), (True, "checks of the code")):
        verdicts = sum((recipe.verdicts(check=check) for recipe in folder.recipes), Counter[str]())
        parts = [f"{count:,} {verdict}" for verdict in SIGNS if (count := verdicts[verdict])]
        claims += f"{sum(verdicts.values()):,} {name}: {', '.join(parts)}. " if parts else ""
    kinds = Counter(piece.kind.split(":")[0] for piece in folder.all_pieces)
    names = {"training": ("training", "trainings"), "topics": ("list of topics", "lists of topics")}
    held = [
        f"{count:,} {names.get(kind, (kind, kind + 's'))[count != 1]}"
        for kind, count in sorted(kinds.items())
    ]
    return claims + ", ".join(held) + ("." if held else "")


def _versions(folder: SavedFolder) -> dict[str, str]:
    """Which versions of which packages the results were made with; more than one of a package is seen at once."""
    used: dict[str, dict[str, None]] = {}
    for piece in folder.all_pieces:
        for package, number in piece.versions.items():
            used.setdefault(str(package), {})[str(number)] = None
    return {package: " and ".join(numbers) for package, numbers in used.items()}


# -------------------------------------------------------------------- what the numbers are


def terms(columns: Iterable[tuple[str, str]]) -> tuple[dict[str, str], bool]:
    """What the columns of reports mean, given as (kind of report, column), and whether pairs are among it.

    A name that means something else in one kind of report is listed with that kind.
    """
    listed = list(dict.fromkeys(columns))
    shared = {column for kind, column in listed if kind not in _OF_KIND}
    meanings = {name: meaning for name, meaning in _CONTRAST.items() if name in shared}
    pairs = bool(meanings)
    for kind, known in _OF_KIND.items():
        meanings |= {
            f"{column} ({kind})": known[column] for of, column in listed if of == kind and column in known
        }
    return meanings, pairs


_PAIRS = (
    "Every mean is over ordered pairs, pooled over documents. Attention is multiplied by the number of keys that its "
    "row may see, so that uniform attention is 1. A token without a topic, a special token, padding and a piece of a "
    "split word are in no pair. A dash stands where a number is undefined."
)

_CLAIMS = {
    "measured": "our number for what the claim is about, with its 95 % interval and what that is over: seeds of "
    "documents and initialisation, articles or words; a number without one is its own interval",
    "wanted": "the bounds within which the number has to lie",
    "controls": "the same number where the claim must fail, because something that it speaks of is broken there; the "
    "claim holds of a control if that number lies within the bounds",
    "the paper": "the paper's number, or its words",
    "ours": "a claim that the paper does not make; it says what is seen beside the paper's claims, or in place of one "
    "that does not hold",
    "checks of the code": "claims of pure theory, such as a constant against another way to it: they need no control, "
    "and are no evidence about anything trained or measured",
    "does not hold": "the whole interval lies outside the bounds",
    "not evidence": "the whole interval lies within the bounds, but so does a control, or no control could have told",
    "undecided": "the interval lies neither wholly within the bounds nor wholly outside, or the number is undefined",
    "not checked": "there is a reason why it was not looked at",
    "holds": "the whole interval lies within the bounds, and no control does",
}

_CONTRAST = {
    "same_word": "mean score of pairs of forms of one word (army, Army) that have topics; in attention a position with "
    "itself is among them unless include_self=False",
    "same_topic": "mean score of pairs of different words that share at least one topic",
    "different_topic": "mean score of pairs in which both have topics and none is shared",
    "ratio": "same_topic ÷ different_topic: 1 where topics make no difference",
    "topic_ratio": "same word and same topic pooled by their numbers of pairs, ÷ different_topic (the quantity of the "
    "paper's Theorem 3)",
    "difference": "same_topic − different_topic: 0 where topics make no difference; for scores that can be negative",
    "effect_size": "difference ÷ standard deviation of the scores of same-topic and different-topic pairs together: 0 "
    "where topics make no difference; unlike a ratio it is not large by chance where the means are tiny",
    "n_same_word": "number of pairs behind same_word; for several heads together it counts pairs of every head",
    "n_same_topic": "number of pairs behind same_topic",
    "n_different_topic": "number of pairs behind different_topic",
    "ratio_low": "lower end of the interval of the ratio, over other texts (attention, states) or words",
    "ratio_high": "upper end of that interval",
    "difference_low": "lower end of the interval of the difference",
    "difference_high": "upper end of that interval",
    "effect_size_low": "lower end of the interval of the effect size",
    "effect_size_high": "upper end of that interval",
    "p_value": "share of permuted topic labels (topic sizes kept) with a number as extreme",
    "q_value": "p-value corrected over heads (Benjamini–Hochberg)",
    "matched_ratio": "ratio with pairs compared at equal distance, because words of a topic may simply stand closer",
    "without_sinks_ratio": "ratio after special tokens are taken out of every row and the row is renormalised",
    "sink_mass": "share of attention that goes to special tokens",
    "standardised": "difference ÷ standard deviation of the head's scores over all ordered pairs of words",
    "coverage": "share of same-topic pairs in bins that hold pairs of both kinds",
    "surviving": "matched difference ÷ difference of all pairs: 1 where matching takes nothing away, 0 where it takes "
    "everything",
}

_OF_KIND: Mapping[str, Mapping[str, str]] = {
    "agreement": {
        "measured": "the number of the trained model, on fresh documents where it is a loss",
        "theory": "what theory says that it is, or at best can be",
        "difference": "measured − theory; of a loss to the Bayes-optimal one on the same documents, never negative",
        "standard_error": "of the difference, over documents",
    },
    "dynamics": {
        "two_stage": "W_V starts, then is flat, and only then W_K and W_Q start",
        "value_start": "step from which W_V has started to grow",
        "value_flat": "step from which W_V is flat",
        "key_start": "step from which W_K has started",
        "query_start": "step from which W_Q has started",
        "value_growth": "norm of W_V where stage 2 begins (or at the end) ÷ its first one",
        "attention_change": "largest relative change of the norms of W_K and W_Q until W_V is flat",
        "late_value_growth": "norm of W_V at the end ÷ where stage 2 begins",
        "late_rotation": "mean rotation of W_V in ten steps during stage 2, (1 − cosine)/2",
    },
}
