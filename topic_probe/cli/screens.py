"""What a report says in one screen: a sentence with its number, what it is made of, the strongest cells."""

from pathlib import Path
from typing import Any

_BAR = 12  # letters of the longest bar


def screen(report: Any, *, wide: bool = False) -> str:
    """The screen of a report; with ``wide`` its whole text."""
    sentence = _SENTENCES.get(report.kind)
    if wide:
        return str(report.to_dataframe().to_string(index=False))
    if sentence is None:
        return str(report)
    return "\n".join([*sentence(report), *_left_out(report)])


def _attention(report: Any) -> list[str]:
    """The ratio in a sentence, the three means, and heads towards and away from words of their topic."""
    overall = report.overall
    lines = [
        _about(report),
        f"A word attends {_times(overall)} as much to other words of its topic as to words of other topics",
        f"  same word {_number(overall.same_word)} | same topic {_number(overall.same_topic)} | "
        f"other topics {_number(overall.different_topic)}   (uniform attention is 1)",
    ]
    doubt = [_interval(overall.interval, "ratio") or f"no interval: {overall.reason}"]
    if overall.p_value is not None:
        doubt.append(f"random regroupings of the words do as well: p = {_number(overall.p_value)}")
    lines.append(f"  {'; '.join(doubt)}")
    if (matched := report.overall_matched.ratio) == matched:
        lines.append(f"  at equal distance {_number(matched)} ×")
    about = f"({report.about_coverage()})", f"({report.about_intervals()})"
    return [*lines, *_heads(report.heads.to_dataframe()), *about]


def _heads(table: Any) -> list[str]:
    """Heads whose interval lies above no difference, and below it, strongest first, side by side."""
    if "effect_size_low" not in table:
        table = table.assign(effect_size_low=float("nan"), effect_size_high=float("nan"))
    called = table["q_value"] < 0.05 if "q_value" in table else table["ratio"] != table["ratio"]
    sides = {
        "towards": table[table["effect_size_low"] > 0].sort_values("effect_size_low", ascending=False),
        "away": table[table["effect_size_high"] < 0].sort_values("effect_size_high"),
    }
    longest = table["effect_size"].abs().max()
    columns = []
    for name, rows in sides.items():
        column = [f"{name}: {len(rows)} of {len(table)} heads, {int(called[rows.index].sum())} with q < 0.05"]
        for row in rows.head(5).to_dict("records"):
            bar = "█" * max(1, round(_BAR * abs(row["effect_size"]) / longest))
            ratio, size = _number(row["ratio"]), _number(row["effect_size"])
            column.append(f"  {_label(row):8}{bar:{_BAR}} {ratio:>6} ×  d {size}")
        columns.append(column)
    height = max(map(len, columns))
    filled = [column + [""] * (height - len(column)) for column in columns]
    return [f"{left:48}{right}".rstrip() for left, right in zip(*filled, strict=True)]


def _embeddings(report: Any) -> list[str]:
    """The effect size of cosines in a sentence, then the table."""
    cosine = report.cosine
    return [
        _about(report),
        f"Words of a topic are {_number(cosine.effect_size)} standard deviations closer (cosine) than words of "
        "different topics",
        f"  {_interval(cosine.effect_size_interval, 'effect size') or 'no interval'}; "
        f"means {_number(cosine.same_topic)} and {_number(cosine.different_topic)}",
        "",
        str(report),
    ]


def _effects(report: Any) -> list[str]:
    """The largest effects, and what they are an effect on."""
    table = report.to_dataframe()
    largest = table.reindex(table["effect"].abs().sort_values(ascending=False).index).head(10)
    away = ((table["low"] > 0) | (table["high"] < 0)).sum() if "low" in table else 0
    return [
        _about(report),
        f"{away} of {len(table)} effects have an interval that leaves 0 out; the largest:",
        largest.to_string(index=False, float_format=lambda value: f"{value:.3g}"),
    ]


def _comparison(report: Any) -> list[str]:
    """What one model has more than the other, in a sentence for every measure, then the tables."""
    lines = []
    for row in report.to_dataframe("pair").to_dict("records"):
        equal = 1 if "÷" in row["what"] else 0
        sure = row["low"] > equal or row["high"] < equal
        number, low, high = (_number(row[name]) for name in ("number", "low", "high"))
        verdict = "a difference" if sure else "no difference that is sure"
        permuted = f"; regrouped words: p = {_number(row['p_permuted'])}" if "p_permuted" in row else ""
        lines.append(
            f"{row['measure']}, {row['what']}: {number} [{low}, {high}], {verdict} on these texts and words{permuted}"
        )
    return [*lines, "", str(report)]


_SENTENCES = {
    "attention": _attention, "embeddings": _embeddings, "effects": _effects, "comparison": _comparison,
}  # fmt: skip


def _about(report: Any) -> str:
    """Model, texts and topics."""
    counts = report.provenance
    documents = counts.get("documents") if isinstance(counts.get("documents"), dict) else counts
    model = (counts.get("model") or {}).get("name") or (counts.get("model") or {}).get("class") or "model"
    parts = [Path(str(model)).name]
    if n := documents.get("documents"):
        parts.append(f"{n:,} documents")
    if n := documents.get("sources"):
        parts.append(f"{n:,} sources with pairs")
    topics = counts.get("topics") or {}
    if "n_topics" in topics:
        parts.append(f"{topics['n_topics']} topics, {topics.get('n_words', 0):,} words")
    return " · ".join(parts)


def _left_out(report: Any) -> list[str]:
    left_out = report.provenance.get("left_out") or {}
    return (
        [f"(left out: {', '.join(f'{why} {n:,}' for why, n in left_out.items() if n)})"]
        if any(left_out.values())
        else []
    )


def _label(row: dict[str, Any]) -> str:
    stack = "" if row.get("stack", "self") == "self" else f"{row['stack']} "
    return f"{stack}L{row['layer']}H{row['head']}"


def _times(contrast: Any) -> str:
    return "–" if contrast.ratio != contrast.ratio else f"{_number(contrast.ratio)} ×"


def _interval(ends: Any, what: str) -> str:
    if ends is None or ends[0] != ends[0]:
        return ""
    return f"95 % interval of the {what} {_number(ends[0])} to {_number(ends[1])}"


def _number(value: Any) -> str:
    return "–" if value is None or value != value else f"{float(value):.3g}"
