"""What a measurement hands back: a frozen record with its provenance, a table, and a way to disk and back."""

import json
import math
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from topic_probe import storage
from topic_probe.contrast import Contrast, dashed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from typing_extensions import Self

# Modules of this package whose reports may not have been imported yet when one is loaded.
_MODULES = {
    "matrix": "measure.matrix", "embeddings": "measure.embeddings", "attention": "measure.attention",
    "weights": "measure.weights", "matched": "measure.matched", "dynamics": "train.stages",
    "agreement": "toy.agreement", "landscape": "toy.landscape", "history": "train.history", "topic fit": "text.lda",
    "effects": "measure.effects",
    "co-occurrence": "text.cooccurrence", "comparison": "measure.comparison",
    "topics": "topics.topics", "series": "series.measured",
    "recipe": "paper.recipe",
}  # fmt: skip
_KINDS: dict[str, type["Report"]] = {}
_PACKAGES = ("topic-probe", "torch", "transformers", "transformer-lens", "numpy")


class Report(ABC):
    """Base of the frozen results of measurements.

    A subclass names its kind, ``class EmbeddingReport(Report, kind="embeddings")``, is decorated with
    ``@dataclass(frozen=True, eq=False, repr=False)`` and has a field ``provenance``. Its fields may be numbers, text,
    None, arrays, tensors, Contrasts, other reports, and tuples, lists and dicts of these.

    Attributes:
        kind: What it is on disk.
        provenance: Where its numbers come from.
    """

    kind: ClassVar[str]
    provenance: Mapping[str, Any]

    def __init_subclass__(cls, *, kind: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.kind = kind
        _KINDS[kind] = cls

    @abstractmethod
    def to_dataframe(self) -> "pd.DataFrame":
        """The numbers as a table, a row per thing that was measured."""

    def plot(self, ax: "Axes | None" = None, **options: Any) -> "Axes":
        """The main figure of this report, on ``ax`` or on a figure of its own; ``.figure.savefig(...)`` saves it.

        `topic_probe.figures` has the functions that draw. ValueError where a report has nothing to draw.
        """
        # By name, because a report knows nothing of figures: they are drawn by a layer above that knows all reports.
        axes: Axes = import_module("topic_probe.show.plots").plot(self, ax, **options)
        return axes

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """The folder with the report in a file, whole or absent; one that is there is replaced with ``overwrite``."""
        return storage.save(directory, self.kind, *self._to_saved(), overwrite=overwrite)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Self":
        """The report of this kind in a folder; `load_report` takes one of any kind."""
        report = load_report(directory)
        if not isinstance(report, cls):
            raise ValueError(f"{directory} holds {report.kind!r}, not {cls.kind!r}")
        return report

    def _to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON content and named arrays that together hold everything."""
        arrays: dict[str, np.ndarray] = {}
        return encode(_content(self), arrays, self.kind), arrays

    @classmethod
    def _from_saved(cls, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "Self":
        """The report that ``_to_saved`` took apart."""
        return cls(**decode(content, arrays))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report) or type(self) is not type(other):
            return NotImplemented
        (content, arrays), (others, other_arrays) = self._to_saved(), other._to_saved()
        # As text, where NaN equals NaN.
        return json.dumps(content, sort_keys=True) == json.dumps(others, sort_keys=True) and all(
            _same(array, other_arrays[name]) for name, array in arrays.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        tables = (f"{heading}\n{as_text(table)}" for heading, table in self._tables().items())
        return "\n\n".join(tables) + "".join(f"\n({note})" for note in self._notes())

    def _repr_html_(self) -> str:
        from html import escape

        tables = (
            f"<p><b>{escape(heading)}</b></p>"
            + dashed(table).to_html(index=False, float_format=_NUMBER, max_rows=20, border=0)
            for heading, table in self._tables().items()
        )
        return "".join([*tables, *(f"<p>{escape(note)}</p>" for note in self._notes())])

    def _tables(self) -> "dict[str, pd.DataFrame]":
        """The tables that are printed, each under its heading."""
        return {type(self).__name__: self.to_dataframe()}

    def _notes(self) -> list[str]:
        """Why numbers are missing and which; what intervals resample; how a model was read."""
        known = self.provenance
        contrasts = {name: value for name, value in _content(self).items() if isinstance(value, Contrast)}
        reasons: dict[str, list[str]] = {}
        for name, contrast in contrasts.items():
            if contrast.reason:
                reasons.setdefault(contrast.reason, []).append(name)
        missing = [
            reason if len(names) == len(contrasts) else f"{', '.join(names)}: {reason}"
            for reason, names in reasons.items()
        ]
        if n := sum(contrast.n_disagreements for contrast in contrasts.values()):
            kinds = " and ".join(known.get("options", {}).get("resample", ("sources",)))
            missing.append(
                f"p-value and interval disagree {n} times: a p-value says whether other groupings of the same words "
                f"would do as well, an interval how the number would vary with other {kinds}"
            )
        of_model = (known.get("model") or {}).get("notes", ())
        return [*about_trial(known), *missing, *_resampled(known), *of_model, *about_parts(known)]


def load_report(directory: str | os.PathLike[str]) -> Report:
    """The report in a folder that `Report.save` wrote, as the class it was; or of a folder of parts (``folder=``).

    The second is made of the parts that are there, whether others are missing or not, without model and documents.
    Nothing in the folder is executed. FileNotFoundError or ValueError name what is missing, damaged, or no report.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> report = tp.measure_landscape(world, tp.Masking(), alphas=np.array([1.0]), betas=np.array([1.0, 2.0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tp.load_report(report.save(f"{folder}/landscape")) == report
        True
    """
    if (Path(directory).expanduser() / storage.FILE).exists():
        kind, content, arrays = storage.load(directory)
        try:
            return report_class(kind, f"{directory} holds")._from_saved(content, arrays)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{directory} holds no {kind!r} ({error!r}): save it again") from error
    # By name, because what knows of sums of documents stands below.
    report: Report | None = import_module("topic_probe.measure.folder").report_of(Path(directory))
    if report is None:
        raise FileNotFoundError(f"{directory} does not exist or holds nothing that topic_probe has saved")
    return report


def report_class(kind: Any, where: str) -> type[Report]:
    """The class of a kind; only this package's own modules are ever imported, by names listed here."""
    if kind in _MODULES and kind not in _KINDS:
        import_module(f"topic_probe.{_MODULES[kind]}")
    if kind not in _KINDS:
        raise ValueError(f"{where} {kind!r}, which is no known report: known are {sorted(_KINDS)}")
    return _KINDS[kind]


# --- where numbers come from -------------------------------------------------------------------------


def provenance(
    topics: Any = None,
    *,
    model: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int | None = None,
    left_out: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Where a number comes from: model, topics, options, seed, what was left out and why, and versions."""
    known = {
        "model": model or {},
        "topics": None if topics is None else _describe(topics),
        "options": options or {},
        "seed": seed,
        "left_out": left_out or {},
        "versions": {"python": platform.python_version(), **{name: version_of(name) for name in _PACKAGES}},
    }
    plain: dict[str, Any] = json.loads(json.dumps(known, default=_plain))
    return plain


def _describe(topics: Any) -> dict[str, Any]:
    return {
        "fingerprint": topics.fingerprint,
        "tokenizer": topics.tokenizer_hash,
        "n_topics": topics.n_topics,
        "n_words": len(topics.words),
        "vocabulary_size": topics.vocabulary_size,
        "one_word": topics.one_word,
        "policy": topics.policy,
        "left_out": {reason: len(items) for reason, items in topics.left_out.items()},
    }


def _plain(value: Any) -> Any:
    """What JSON has no word for as what it has."""
    if isinstance(value, Mapping | set | frozenset):
        return dict(value) if isinstance(value, Mapping) else sorted(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


@cache  # reading a package's metadata takes as long as measuring a small model
def version_of(package: str) -> str | None:
    """The version of an installed package, without importing it; None for one that is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def about_trial(provenance: Mapping[str, Any]) -> list[str]:
    """That a report is of a trial run (``--quick``), if it is, and of how little."""
    few = [f"{n} {name.removeprefix('n_')}" for name, n in provenance.get("trial", {}).items()]
    return [f"a trial run of {' and '.join(few)} at most: leave out --quick for the whole"] if few else []


def about_parts(provenance: Mapping[str, Any]) -> list[str]:
    """How many parts of the documents a report is made of that was measured in a folder."""
    documents = provenance.get("documents")
    counted = documents if isinstance(documents, Mapping) else provenance
    if (parts := counted.get("parts")) is None:
        return []
    of = "parts, not at its end yet" if parts["of"] is None else f"of {parts['of']} parts"
    return [f"{parts['there']} {of}, {parts['texts_left_out']} texts left out"]


def _resampled(provenance: Mapping[str, Any]) -> list[str]:
    """What intervals over documents resample, and how many of it there are; nothing where there are none."""
    options, documents = provenance.get("options", {}), provenance.get("documents")
    counted = documents if isinstance(documents, Mapping) else options | provenance
    if "sources" not in counted:
        return []
    n = counted["sources"]
    what = f"{n:,} {'blocks of ' if counted['sources_in_blocks'] else ''}source{'s' * (n != 1)}"
    return [f"intervals resample {what}: a source is a text, or an article with all its pieces"]


# --- fields on disk ----------------------------------------------------------------------------------

# What JSON has no word for is marked: its class, what it is taken apart into, and how that is put together again.
_TYPE = "$type"
_MARKS: dict[str, tuple[type, Any, Any]] = {
    "tuple": (tuple, list, tuple),
    "tensor": (torch.Tensor, lambda tensor: tensor.numpy(force=True), torch.from_numpy),
    "contrast": (Contrast, lambda contrast: _content(contrast), lambda parts: Contrast(**parts)),
    "report": (
        Report,
        lambda report: [report.kind, _content(report)],
        lambda saved: report_class(saved[0], "it holds")(**saved[1]),
    ),
}


def encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """JSON content for a field; arrays go beside it, numbered, because keys with dots could give two one name."""
    for mark, (kind, parts_of, _) in _MARKS.items():
        if isinstance(value, kind):
            return {_TYPE: mark, "is": encode(parts_of(value), arrays, name)}
    if isinstance(value, np.ndarray | np.generic):
        name = f"{len(arrays)} {name}"
        arrays[name] = np.asarray(value)
        return {_TYPE: "array", "is": name}
    if isinstance(value, list):
        return [encode(item, arrays, f"{name}.{i}") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return {_TYPE: "dict", "is": encode([[*pair] for pair in value.items()], arrays, name)}
        return {key: encode(item, arrays, f"{name}.{key}") for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{name} holds a {type(value).__name__}, which a report cannot save: use numbers or arrays"
    )


def decode(value: Any, arrays: Mapping[str, Any]) -> Any:
    """What `encode` took apart."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get(_TYPE) == "array":
        return arrays[value["is"]][()]  # of no axes as a number
    parts = {key: decode(item, arrays) for key, item in value.items()}
    if _TYPE not in parts:
        return parts
    return dict(parts["is"]) if parts[_TYPE] == "dict" else _MARKS[parts[_TYPE]][2](parts["is"])


def _content(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Equality of arrays in which NaN equals NaN."""
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


# --- tables in print ---------------------------------------------------------------------------------

_NUMBER = "{:.4g}".format
# Of a contrast the answer is printed, not what it is made of; `to_dataframe` has all.
_ANSWERS = ("interval", "p_value", "q_value", "effect_size", "n_pairs")
_FURTHER = {
    "same_word", "same_topic", "different_topic", "n_same_word", "ratio", "topic_ratio", "difference",
    "effect_size_low", "effect_size_high",
}  # fmt: skip


def as_text(frame: "pd.DataFrame") -> str:
    """A table as text, numbers to four digits, in lines of a hundred letters; of a contrast the answer."""
    table = dashed(frame)
    table = _answers(table) if {"n_same_topic", "n_different_topic"} <= {*frame} else frame
    return str(table.to_string(index=False, float_format=_NUMBER, max_rows=20, line_width=100))


def _answers(frame: "pd.DataFrame") -> "pd.DataFrame":
    """What a row is about, its number with the interval, p, q, effect size and numbers of pairs, and what is added."""
    table = frame.copy()
    statistic = next((name for name in ("difference", "topic_ratio") if f"{name}_low" in frame), "ratio")
    if f"{statistic}_low" in frame:
        ends = zip(table.pop(f"{statistic}_low"), table.pop(f"{statistic}_high"), strict=True)
        table["interval"] = ["NaN" if math.isnan(low) else f"[{low:.4g}, {high:.4g}]" for low, high in ends]
    pairs = zip(table.pop("n_same_topic"), table.pop("n_different_topic"), strict=True)
    table["n_pairs"] = [f"{same:.15g}/{different:.15g}" for same, different in pairs]
    answers = [name for name in (statistic, *_ANSWERS) if name in table]
    return table[[name for name in table if name not in _FURTHER and name not in answers] + answers]
