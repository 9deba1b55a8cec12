"""How tables are printed: no wider than a screen, with the answer first."""

import math
import textwrap
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 100

# Of a contrast: how sure its number is, of how many pairs; then what it is made of. Columns of one group are shown
# together or not at all.
_ANSWERS = (
    ("interval",), ("p_value",), ("q_value",), ("effect_size",), ("n_pairs",),
    ("same_topic", "different_topic"), ("ratio",), ("topic_ratio",), ("difference",), ("same_word", "n_same_word"),
)  # fmt: skip
_STATISTICS = ("ratio", "topic_ratio", "difference")


def as_text(frame: "pd.DataFrame", *, wide: bool = False, max_rows: int | None = None) -> str:
    """A table as text, numbers to four digits, in lines of at most `WIDTH` letters.

    Where it does not fit, the number that has an interval comes first, then the interval, p, q, effect size and numbers
    of pairs (same topic/different topic), and the columns for which there is no room are named below.

    Args:
        frame: the table.
        wide: show all columns as they stand in the table.
        max_rows: of more rows, some in the middle are left out.
    """
    text = _text(frame, max_rows)
    if wide or _width(text) <= WIDTH:
        return text
    statistic = next((name for name in _STATISTICS if f"{name}_low" in frame), _STATISTICS[0])
    table = _joined(frame, statistic)
    shown: list[str] = []
    for columns in _groups([*table.columns], statistic):
        if _width(_text(table[[*shown, *columns]], max_rows)) <= WIDTH:
            shown += columns
    hidden = ", ".join(name for name in table.columns if name not in shown)
    if not hidden:  # what did not fit is in the joined columns
        return _text(table, max_rows)
    note = f"(further columns, in to_dataframe() and with --wide: {hidden})"
    return f"{_text(table[shown], max_rows)}\n{textwrap.fill(note, WIDTH)}"


def number(value: float) -> str:
    """A number to four digits."""
    return f"{value:.4g}"


def width_of(frame: "pd.DataFrame") -> int:
    """How many letters wide the whole table is."""
    return _width(_text(frame, None))


def _text(frame: "pd.DataFrame", max_rows: int | None) -> str:
    return frame.to_string(index=False, float_format=number, max_rows=max_rows)


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))


def _joined(frame: "pd.DataFrame", statistic: str) -> "pd.DataFrame":
    """The ends of the interval of a number in one column, and the numbers of pairs, same topic / different topic."""
    table = frame.copy()
    if f"{statistic}_low" in frame:
        ends = zip(table.pop(f"{statistic}_low"), table.pop(f"{statistic}_high"), strict=True)
        table["interval"] = [
            "NaN" if math.isnan(low) else f"[{number(low)}, {number(high)}]" for low, high in ends
        ]
    if {"n_same_topic", "n_different_topic"} <= {*frame}:
        pairs = zip(table.pop("n_same_topic"), table.pop("n_different_topic"), strict=True)
        table["n_pairs"] = [f"{same:.15g}/{different:.15g}" for same, different in pairs]
    return table


def _groups(columns: list[str], statistic: str) -> list[list[str]]:
    """The columns, those that matter most first: what a row is about, the answer, and what a report adds."""
    answers = [[statistic], *([name for name in names if name != statistic] for names in _ANSWERS)]
    known = {name for names in answers for name in names}
    places = list(takewhile(lambda name: name not in known, columns))
    further = [name for name in columns if name not in known and name not in places]
    groups = [*([name] for name in places), *answers, *([name] for name in further)]
    return [names for names in groups if names and set(names) <= set(columns)]
