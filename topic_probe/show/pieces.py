"""What is saved, file by file, as HTML: reports, trainings, topics, tables and figures."""

import base64
import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topic_probe.contrast import Contrast
from topic_probe.report import Report, load_report
from topic_probe.show.page import facts, table, text
from topic_probe.storage import read_json
from topic_probe.topics import Topics

# A page that is mailed: beyond these sizes a file is named instead of taken in.
MAX_JSON, MAX_FIGURE, MAX_ROWS = 20_000_000, 8_000_000, 200

_IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
# Files that hold what is shown already, in other words.
_TWINS = {"claims.txt", "arrays.safetensors"}


@dataclass(frozen=True)
class Piece:
    """Something that is shown on its own, such as a report, a table or a figure.

    Attributes:
        kind: What it is, as the page says it.
        name: Where it lies in the folder.
        html: How it is shown.
        columns: Names of numbers in it that the page defines.
        versions: Package → version that it was made with.
    """

    kind: str
    name: str
    html: str
    columns: tuple[str, ...] = ()
    versions: Mapping[str, Any] = field(default_factory=dict)


def kind_of(path: Path, names: Collection[str]) -> str:
    """What a file is by its name: something to show, a "twin" of what is shown anyway, or "foreign"."""
    stem, ending = path.stem, path.suffix.lower()
    if path.name in ("report.json", "topics.json", "fit.json"):
        return stem
    if ending in _IMAGES:
        # Of a picture that is there twice, the one that stays sharp.
        return "twin" if ending != ".svg" and f"{stem}.svg" in names else "figure"
    if ending == ".json" and path.parent.name == "tables":
        return "table"
    twin = (ending == ".csv" and f"{stem}.json" in names) or (ending == ".pdf" and f"{stem}.svg" in names)
    return "twin" if twin or path.name in _TWINS else "foreign"


def read_small_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, unless it is too large for a page."""
    _check_size(path, MAX_JSON)
    return read_json(path)


def _check_size(path: Path, limit: int) -> None:
    size = path.stat().st_size
    if size > limit:
        raise ValueError(f"its {size / 1e6:,.0f} MB are too much for a page")


def _report(path: Path, label: str, *, alone: bool) -> Piece:
    content = read_small_json(path)
    if content.get("format") == "topic_probe history":
        return _history(content, label)
    report = load_report(path.parent)
    frame = report.to_dataframe()
    columns = tuple(map(str, frame.columns))
    rows = [tuple(map(_plain, row)) for row in frame.itertuples(index=False, name=None)]
    provenance = dict(report.provenance)
    versions = provenance.pop("versions", None)
    parts = [
        _pooled(report),
        _picture(report, label) if alone else "",  # a recipe has drawn its own
        _rows_table(columns, rows, label=f"{report.kind} {label}"),
        *(f'<p class="quiet">{text(note)}</p>' for note in report._notes()),
        folded("Settings and provenance", facts(provenance)),
    ]
    return Piece(
        f"report: {report.kind}",
        label,
        "".join(parts),
        columns,
        versions if isinstance(versions, Mapping) else {},
    )


def _pooled(report: Report) -> str:
    """What a report says of everything together, where it says it apart from its table."""
    overall = getattr(report, "overall", None)
    if not isinstance(overall, Contrast) or overall.shape:
        return ""
    row = overall.row()
    return f"<p>Everything pooled:</p>{table(list(row), [list(row.values())], label='everything pooled')}"


def _picture(report: Report, label: str) -> str:
    """The report's own figure, where its class has one."""
    plot = getattr(report, "plot", None)
    if plot is None:
        return ""
    import matplotlib

    drawn = io.BytesIO()
    try:
        # Names inside a drawing are made up anew each time, unless they are salted.
        with matplotlib.rc_context({"svg.hashsalt": "topic_probe"}):
            plot().figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
    except Exception as error:  # a table without its figure is better than no page
        return f'<p class="quiet">No figure: {text(first_line(error))}</p>'
    return _image(drawn.getvalue(), ".svg", f"figure of {label}")


def _history(content: Mapping[str, Any], label: str) -> Piece:
    settings = {name: content[name] for name in ("toy", "train") if name in content}
    about = {"steps": content.get("last_step"), "ended": content.get("stopped"), **settings}
    versions = content.get("provenance")
    return Piece(
        "training",
        label,
        folded("Settings", facts(about)),
        versions=versions if isinstance(versions, Mapping) else {},
    )


def _topics(path: Path, label: str, *, alone: bool) -> Piece:
    _check_size(path, MAX_JSON)
    topics = Topics.load(path.parent)
    sizes = topics.sizes.tolist()
    rows = [(topics.label(topic, 8), topics.names[topic], size) for topic, size in enumerate(sizes)]
    about = {
        "topics": topics.n_topics,
        "words": len(topics.words),
        "vocabulary": topics.vocabulary_size,
        "how words came to topics": topics.policy or "not recorded",
        "left out": {reason: len(items) for reason, items in topics.left_out.items()},
        "fingerprint": topics.fingerprint,
    }
    shown = _rows_table(("topic", "name", "words"), rows, label=f"topics {label}")
    return Piece("topics", label, shown + folded("Settings and provenance", facts(about)))


def _fit(path: Path, label: str, *, alone: bool) -> Piece:
    content = read_small_json(path)
    about = {name: content.get(name) for name in ("vocabulary_size", "settings", "provenance")}
    return Piece("topic model", label, folded("Settings and provenance", facts(about)))


def _table(path: Path, label: str, *, alone: bool) -> Piece:
    _check_size(path, MAX_JSON)
    rows = json.loads(path.read_bytes())
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it holds no rows of a table")
    columns = list(dict.fromkeys(str(name) for row in rows for name in row))
    values = [[_plain(row.get(name)) for name in columns] for row in rows]
    return Piece("table", label, _rows_table(columns, values, label=f"table {path.stem}"), tuple(columns))


def _figure(path: Path, label: str, *, alone: bool) -> Piece:
    _check_size(path, MAX_FIGURE)
    return Piece("figure", label, _image(path.read_bytes(), path.suffix.lower(), f"figure {path.stem}"))


READERS = {"report": _report, "topics": _topics, "table": _table, "figure": _figure, "fit": _fit}


def _image(content: bytes, ending: str, name: str) -> str:
    # As an image, not as part of the page: scripts inside a picture do not run there, nor does it load anything.
    address = f"data:{_IMAGES[ending]};base64,{base64.b64encode(content).decode()}"
    return f'<figure><img src="{address}" alt="{text(name)}"></figure>'


def _plain(value: Any) -> Any:
    """A value of a table as something that `table` can show."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    return (
        json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)
    )


def first_line(error: BaseException) -> str:
    """What an error says, in a line."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def _rows_table(columns: Sequence[str], rows: list[Any], *, label: str) -> str:
    shown = table(columns, rows[:MAX_ROWS], label=label)
    if len(rows) <= MAX_ROWS:
        return shown
    return f"{shown}<p class=quiet>The first {MAX_ROWS:,} of {len(rows):,} rows.</p>"


def folded(name: str, inside: str, kind: str = "") -> str:
    """HTML behind its name, to be opened."""
    return f'<details class="{kind}"><summary>{text(name)}</summary>{inside}</details>'
