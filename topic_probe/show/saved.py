"""What is in a folder of results, piece by piece, and what of it cannot be read and why."""

import base64
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from topic_probe import storage
from topic_probe.contrast import Contrast
from topic_probe.measure.folder import PART
from topic_probe.report import Report, load_report
from topic_probe.show.page import Table, is_number
from topic_probe.show.style import svg_of
from topic_probe.topics import Topics

# A page that is mailed: beyond these sizes a file is named instead of shown.
MAX_FILES, MAX_JSON, MAX_FIGURE = 20_000, 20_000_000, 8_000_000
# What reading a file that is broken, or of somebody else, can end in.
_BROKEN = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
# Colour alone says nothing to some readers and printers.
SIGNS = {"does not hold": "✗", "not evidence": "⊘", "undecided": "?", "not checked": "○", "holds": "✓"}
"""The signs of all verdicts, in the order in which they are shown."""
# Those that no reader may miss.
TO_LOOK_AT = ("does not hold", "not evidence", "undecided")
_IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
# A file that holds what is shown already, in other words.
_TWIN = "claims.txt"
# A result that no page shows.
_NOT_SHOWN = "co-occurrence"


@dataclass(frozen=True)
class Picture:
    """An image as it stands in a page: its data as an address, and what it is."""

    address: str
    name: str


@dataclass(frozen=True)
class Piece:
    """Something that is shown on its own, such as a report, a table or a figure.

    Attributes:
        kind: What it is, as the page says it.
        name: Where it lies in the folder.
        pooled: What a report says of everything together, where it says it apart from its table.
        picture: The figure.
        table: The numbers.
        notes: What has to be known of them.
        settings: Settings and provenance.
        versions: Package → version that it was made with.
    """

    kind: str
    name: str
    pooled: Table | None = None
    picture: Picture | None = None
    table: Table | None = None
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SavedNumber:
    """A number as it was saved; ``value`` is a number, words, or None where it is undefined.

    Attributes:
        value: The number.
        interval: Its ends; None without one.
        of: What the interval is over.
    """

    value: Any
    interval: tuple[Any, Any] | None
    of: str


@dataclass(frozen=True)
class SavedClaim:
    """A claim as it was judged, with what it was judged by."""

    text: str
    source: str
    paper: str
    setting: str
    measured: SavedNumber
    wanted: str
    controls: Mapping[str, SavedNumber]
    detail: str
    why: str
    ours: bool
    check: bool
    verdict: str


@dataclass(frozen=True)
class SavedRecipe:
    """The saved result of a recipe, with what lies in its folder; of its claims what does not hold stands first."""

    name: str
    title: str
    quick: bool
    seconds: float
    claims: tuple[SavedClaim, ...]
    place: str
    pieces: list[Piece] = field(default_factory=list)

    def chosen(self, **kept: Any) -> dict[int, SavedClaim]:
        """The claims whose fields are these, by their numbers on the page: ``chosen(check=False)``."""
        return {
            number: claim
            for number, claim in enumerate(self.claims)
            if all(getattr(claim, name) == value for name, value in kept.items())
        }

    def verdicts(self, **kept: Any) -> Counter[str]:
        """How many of these claims have which verdict."""
        return Counter(claim.verdict for claim in self.chosen(**kept).values())

    def by_statement(self, **kept: Any) -> list[dict[int, SavedClaim]]:
        """These claims in groups that say the same, of different settings."""
        groups: dict[tuple[Any, ...], dict[int, SavedClaim]] = {}
        for number, claim in self.chosen(**kept).items():
            said = claim.text, claim.source, claim.paper, claim.ours, claim.check
            groups.setdefault(said, {})[number] = claim
        return list(groups.values())

    @property
    def folded(self) -> dict[str, list[Piece]]:
        """What lies in its folder beside figures and tables, by what it is and how often; trainings as one piece."""
        groups: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            if piece.kind not in ("figure", "table"):
                groups.setdefault(piece.kind, []).append(piece)
        return {
            f"{kind.capitalize()} ({len(group):,})": [_together(group)] if kind == "training" else group
            for kind, group in groups.items()
        }


def _together(trainings: Sequence[Piece]) -> Piece:
    """Trainings as one piece: a row for each with what differs between them, and the settings that all share."""
    import pandas as pd

    frame = pd.json_normalize([dict(one.settings or {}) for one in trainings])
    settings = {str(name): [None if value != value else value for value in frame[name]] for name in frame}
    # Where only some say more of something, as of a world, the others have no value for the whole of it.
    for name in [name for name in settings if any(other.startswith(f"{name}.") for other in settings)]:
        del settings[name]
    differs = [name for name, values in settings.items() if len(set(map(str, values))) > 1]
    names = [one.name.removeprefix("histories/") for one in trainings]
    rows = [tuple(map(_plain, row)) for row in zip(names, *(settings[name] for name in differs), strict=True)]
    table = Table("trainings", ("training", *differs), rows)
    shared = {name: values[0] for name, values in settings.items() if name not in differs}
    return Piece("training", "what differs between them", table=table, settings=shared)


class SavedFolder:
    """What is in a folder, file by file; whatever cannot be shown is among the problems."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipes: list[SavedRecipe] = []
        self.pieces: list[Piece] = []
        self.problems: dict[str, str] = {}
        self.others: list[str] = []

    @property
    def all_pieces(self) -> list[Piece]:
        """Those of recipes too."""
        return self.pieces + [piece for recipe in self.recipes for piece in recipe.pieces]

    def read(self) -> None:
        """Reads everything, folder by folder, in an order that people expect."""
        seen = 0
        homes: list[tuple[Path, SavedRecipe]] = []
        for place, folders, files in os.walk(self.root, followlinks=False):
            folder = Path(place)
            folders[:], names = self._belonging(folder, folders), self._belonging(folder, files)
            seen += len(names)
            if seen > MAX_FILES:
                self.problems[self._name(folder)] = f"not read any further: more than {MAX_FILES:,} files"
                return
            kinds = {name: _kind_of(folder / name, names) for name in names}
            if kinds.get(storage.MANIFEST) == "seal":
                changed = self._tried(
                    folder / storage.MANIFEST, lambda path: storage.damaged_files(path.parent)
                )
                for name in changed or ():
                    self.problems[self._name(folder / name)] = "it is gone, or was changed since it was saved"
            if kinds.get("claims.json") == "claims":
                recipe = self._tried(
                    folder / "claims.json", lambda path: _recipe(path, self._name(path.parent))
                )
                if recipe is not None:
                    homes.append((folder, recipe))
                    self.recipes.append(recipe)
            home = next((recipe for place, recipe in reversed(homes) if folder.is_relative_to(place)), None)
            self.others += [self._name(folder / name) for name, kind in kinds.items() if kind == "foreign"]
            for name, kind in kinds.items():
                if kind in _READERS:
                    self._add(folder / name, kind, home)

    def _belonging(self, folder: Path, names: list[str]) -> list[str]:
        """Those that are neither hidden nor links, figure2 before figure10."""
        for name in names:
            if (folder / name).is_symlink():
                self.problems[self._name(folder / name)] = "a link, which is not followed"
        own = [name for name in names if not name.startswith(".") and not (folder / name).is_symlink()]
        return sorted(
            own,
            key=lambda name: [
                (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)
            ],
        )

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _add(self, path: Path, kind: str, home: "SavedRecipe | None") -> None:
        """Add what a file shows to the pieces of its recipe, or to those of the folder."""
        base = self.root if home is None else self.root / home.place
        label = (path.parent if kind in ("result", "parts") else path).relative_to(base).as_posix()
        label = path.parent.resolve().name if label == "." else label
        piece = self._tried(path, partial(_READERS[kind], label=label, alone=home is None))
        if piece is not None:
            (self.pieces if home is None else home.pieces).append(piece)

    def _tried(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """What ``read`` makes of a file, or None with the problem written down."""
        if self._name(path) in self.problems:
            return None
        try:
            size = path.stat().st_size
            if size > (MAX_FIGURE if path.suffix.lower() in _IMAGES else MAX_JSON):
                raise ValueError(f"its {size / 1e6:,.0f} MB are too much for a page")
            return read(path)
        except _BROKEN as error:  # one file must not cost the page
            self.problems[self._name(path)] = _first_line(error).replace(f"{path.parent}{os.sep}", "")
            return None


def _kind_of(path: Path, names: Collection[str]) -> str:
    """What a file is by its name: something to show, a "twin" of what is shown anyway, or "foreign"."""
    stem, ending = path.stem, path.suffix.lower()
    if path.name == "claims.json":
        return "claims"
    if path.name == storage.MANIFEST:
        try:
            kind = storage.kind_of(path.parent) if path.stat().st_size <= MAX_JSON else None
        except ValueError:
            kind = None  # reading it says what is wrong
        return "seal" if kind == "recipe" else "foreign" if kind == _NOT_SHOWN else "result"
    if ending in _IMAGES:
        # Of a picture that is there twice, the one that stays sharp.
        return "twin" if ending != ".svg" and f"{stem}.svg" in names else "figure"
    if ending == ".json" and path.parent.name == "tables":
        return "table"
    if parts := sorted(name for name in names if re.fullmatch(PART, name)):
        # The report is that of all parts; what is found of all documents first lies beside them.
        return "parts" if path.name == parts[0] else "twin" if ending == ".safetensors" else "foreign"
    twin = (ending == ".csv" and f"{stem}.json" in names) or (ending == ".pdf" and f"{stem}.svg" in names)
    twin |= path.name == _TWIN or re.fullmatch(storage.ARRAYS, path.name) is not None
    return "twin" if twin else "foreign"


def _first_line(error: BaseException) -> str:
    """What an error says, in a line."""
    return str(error).strip().split("\n")[0] or type(error).__name__


# -------------------------------------------------------------------- what recipes save


def _recipe(path: Path, place: str) -> SavedRecipe:
    content = storage.read_json(path)
    claims = content.get("claims")
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        raise ValueError("it holds no list of claims: it was not saved by a recipe")
    seconds = content.get("seconds")
    return SavedRecipe(
        name=str(content.get("recipe", place)),
        title=str(content.get("title", "")),
        quick=content.get("quick") is True,
        seconds=float(seconds) if isinstance(seconds, int | float) else math.nan,
        claims=tuple(sorted(map(_claim, claims), key=lambda claim: list(SIGNS).index(claim.verdict))),
        place="" if place == "." else place,
    )


def _claim(content: Mapping[str, Any]) -> SavedClaim:
    if content.get("verdict") not in SIGNS:
        raise ValueError(f"a claim has the verdict {content.get('verdict')!r}; known are {', '.join(SIGNS)}")
    unchecked = bool(content.get("not_checked"))
    words = {name: str(content.get(name) or "") for name in ("text", "source", "paper", "wanted")}
    return SavedClaim(
        **words,
        setting=str(content.get("setting") or "all"),
        measured=_number({} if unchecked else content, "measured"),
        controls={
            name: _number(control, "value") for name, control in (content.get("controls") or {}).items()
        },
        detail="" if unchecked else str(content.get("detail") or ""),
        why=str(content.get("why") or ""),
        ours=content.get("ours") is True,
        check=content.get("check") is True,
        verdict=content["verdict"],
    )


def _number(content: Mapping[str, Any], name: str) -> SavedNumber:
    value, ends = content.get(name), (content.get("low"), content.get("high"))
    return SavedNumber(
        value if value is None or is_number(value) else str(value),
        ends if all(map(is_number, ends)) else None,
        str(content.get("of") or ""),
    )


# -------------------------------------------------------------------- what is shown of each file


def _result(path: Path, label: str, *, alone: bool) -> Piece:
    """The result that a folder holds, by its manifest."""
    folder, kind = path.parent, storage.kind_of(path.parent)
    if kind == "topics":
        return _topics(Topics.load(folder), label)
    if kind == "topic fit":
        fit = storage.load(folder, kind).content
        settings = {name: fit.get(name) for name in ("vocabulary_size", "settings", "provenance")}
        return Piece("topic model", label, settings=settings)
    if kind == "history":
        run = storage.load(folder, kind).content
        settings = {"steps": run.get("last_step"), "ended": run.get("stopped")}
        settings |= {name: run[name] for name in ("toy", "train") if name in run}
        return Piece("training", label, settings=settings, versions=_versions(run.get("provenance")))
    return _report(load_report(folder), label, alone=alone)


def _parts(path: Path, label: str, *, alone: bool) -> Piece:
    """The report of a folder of parts, by the first of them."""
    return _report(load_report(path.parent), label, alone=alone)


def _report(report: Report, label: str, *, alone: bool) -> Piece:
    frame = report.to_dataframe()
    heads = getattr(report, "heads", None)
    if isinstance(heads, Contrast) and heads.q_value is not None and len(heads) == len(frame):
        strongest = heads.order().tolist()
        frame = frame.reindex([*strongest, *frame.index.difference(strongest)])
    frame = frame[_numbers_first(list(frame.columns))]
    overall = getattr(report, "overall", None)
    pooled = overall.row() if isinstance(overall, Contrast) and not overall.shape else {}
    pooled = {name: pooled[name] for name in _numbers_first(list(pooled))}
    first = Table("everything pooled", tuple(pooled), [tuple(pooled.values())]) if pooled else None
    if report.kind == "comparison":  # whether models differ is not seen from their own intervals
        first = _table_of(report.to_dataframe("pair"), "what one model has more than another")  # type: ignore[call-arg]
    provenance = dict(report.provenance)
    versions = provenance.pop("versions", None)
    drawn = alone and report.figure is not None  # a recipe has drawn its own
    picture, trouble = _drawn(report, label) if drawn else (None, ())
    return Piece(
        f"report: {report.kind}",
        label,
        pooled=first,
        picture=picture,
        table=_table_of(frame, f"{report.kind} {label}"),
        notes=(*trouble, *report._notes()),
        settings=provenance,
        versions=_versions(versions),
    )


def _table_of(frame: Any, label: str) -> Table:
    rows = [tuple(map(_plain, row)) for row in frame.itertuples(index=False, name=None)]
    return Table(label, tuple(map(str, frame.columns)), rows)


def _numbers_first(columns: list[str]) -> list[str]:
    """What a row is about, then the number that is asked for with its interval, p and q, then all that is behind it."""
    if "same_word" not in columns:
        return columns
    asked = ("difference", "ratio") if "difference_low" in columns else ("ratio", "difference")
    of = {name: [name, f"{name}_low", f"{name}_high"] for name in (*asked, "effect_size")}
    wanted = [*of[asked[0]], "p_value", "q_value", *of["effect_size"], *of[asked[1]]]
    begin = columns[: columns.index("same_word")]
    first = [name for name in wanted if name in columns and name not in begin]
    return [*begin, *first, *(name for name in columns if name not in {*begin, *first})]


def _versions(content: Any) -> Mapping[str, Any]:
    return content if isinstance(content, Mapping) else {}


def _drawn(report: Report, label: str) -> tuple[Picture | None, tuple[str, ...]]:
    """The report's own figure, or why there is none."""
    try:
        axes: Any = report.plot()
        drawn = svg_of(axes.figure)
    except Exception as error:  # a table without its figure is better than no page
        return None, (f"No figure: {_first_line(error)}",)
    return _picture(drawn, ".svg", f"figure of {label}"), ()


def _picture(content: bytes, ending: str, name: str) -> Picture:
    address = f"data:{_IMAGES[ending]};base64,{base64.b64encode(content).decode()}"
    return Picture(address, name)


def _topics(topics: Topics, label: str) -> Piece:
    sizes = topics.sizes.tolist()
    rows = [(topics.label(topic, 8), size) for topic, size in enumerate(sizes)]
    settings = {
        "topics": topics.n_topics,
        "words": len(topics.words),
        "vocabulary": topics.vocabulary_size,
        "how words came to topics": topics.policy or "not recorded",
        "left out": {reason: len(items) for reason, items in topics.left_out.items()},
        "fingerprint": topics.fingerprint,
    }
    return Piece("topics", label, table=Table(f"topics {label}", ("topic", "words"), rows), settings=settings)


def _table(path: Path, label: str, *, alone: bool) -> Piece:
    rows = json.loads(path.read_bytes())
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it holds no rows of a table")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    values = [[_plain(row.get(name)) for name in columns] for row in rows]
    return Piece("table", label, table=Table(f"table {path.stem}", tuple(columns), values))


def _figure(path: Path, label: str, *, alone: bool) -> Piece:
    picture = _picture(path.read_bytes(), path.suffix.lower(), f"figure {path.stem}")
    return Piece("figure", label, picture=picture)


_READERS = {"result": _result, "parts": _parts, "table": _table, "figure": _figure}


def _plain(value: Any) -> Any:
    """A value of a table as something that a page can show."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    return (
        json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)
    )
