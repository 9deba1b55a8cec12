"""What a measurement hands back: a frozen record with its provenance, a table, and a way to disk and back."""

import math
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import torch

from topic_probe import storage
from topic_probe.contrast import Contrast
from topic_probe.options import checked
from topic_probe.tables import as_text, number

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
    "topics": "topics.topics", "checkpoints": "series.check", "series": "series.measured",
    "recipe": "paper.recipe",
}  # fmt: skip
_KINDS: dict[str, type["Report"]] = {}

Verdict = Literal["error", "does not hold", "undecided", "also without", "holds", "not checked"]
"""What may be said of a claim, in the order in which it is shown: what a reader must not miss comes first."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

_PACKAGES = ("topic-probe", "torch", "transformers", "transformer-lens", "numpy")


class Report(ABC):
    """Base of the frozen results of measurements.

    A subclass names its kind, ``class EmbeddingReport(Report, kind="embeddings")``, is decorated with
    ``@dataclass(frozen=True, eq=False, repr=False)`` and has a field ``provenance``. Its fields may be
    numbers, text, None, arrays, tensors, Contrasts, other reports, and tuples, lists and dicts of these; one that has
    others says in ``_to_saved`` and ``_from_saved`` how they are kept.

    Attributes:
        kind: What it is on disk.
        provenance: Where its numbers come from.
    """

    kind: ClassVar[str]
    provenance: Mapping[str, Any]

    def __init_subclass__(cls, *, kind: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = _KINDS.get(kind)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"the report kind {kind!r} already belongs to {known.__qualname__}: choose another"
            )
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
        """The folder with the report (JSON and safetensors), whole or absent.

        A folder that holds anything is only replaced with ``overwrite=True``, and only if it is a report.
        """
        content, arrays = self._to_saved()
        return storage.save(directory, self.kind, content, arrays, overwrite=overwrite)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Self":
        """The report of this kind in a folder; `load_report` takes one of any kind."""
        saved = storage.load(directory, cls.kind)
        try:
            return cls._from_saved(saved.content, saved.arrays)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{saved.path} does not describe a {cls.__name__} ({error}): save it again"
            ) from error

    def _to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON content and named arrays that together hold everything."""
        arrays: dict[str, np.ndarray] = {}
        return encode(_content(self), arrays, self.kind), arrays

    @classmethod
    def _from_saved(cls, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "Self":
        """The report that ``_to_saved`` took apart."""
        return cls(**decode(content, arrays))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return _equal(_content(self), _content(other))

    __hash__ = None  # type: ignore[assignment]

    def to_text(self, *, wide: bool = False) -> str:
        """What ``print`` shows: tables and notes to them; all columns of the tables with ``wide``."""
        tables = (
            f"{heading}\n{as_text(table, wide=wide, max_rows=20)}"
            for heading, table in self._tables().items()
        )
        notes = "".join(f"\n({note})" for note in self._notes())
        return "\n\n".join(tables) + notes

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        from html import escape

        tables = (
            f"<p><b>{escape(heading)}</b></p>"
            + table.to_html(index=False, float_format=number, max_rows=20, border=0)
            for heading, table in self._tables().items()
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"{''.join(tables)}{notes}"

    def _tables(self) -> "dict[str, pd.DataFrame]":
        """The tables that are shown, each under its heading."""
        return {type(self).__name__: self.to_dataframe()}

    def _notes(self) -> list[str]:
        """Why numbers are missing and which; what intervals resample; how a model was read."""
        contrasts = {name: value for name, value in _content(self).items() if isinstance(value, Contrast)}
        fields: dict[str, list[str]] = {}
        for name, contrast in contrasts.items():
            if contrast.reason:
                fields.setdefault(contrast.reason, []).append(name)
        reasons = [
            reason if len(names) == len(contrasts) else f"{', '.join(names)}: {reason}"
            for reason, names in fields.items()
        ]
        disagreements = sum(contrast.n_disagreements for contrast in contrasts.values())
        both = []
        if disagreements:
            kinds = self.provenance.get("options", {}).get("resample", ("sources",))
            both = [
                f"p-value and interval disagree {disagreements} times: {_TWO_QUESTIONS} {' and '.join(kinds)}"
            ]
        read = (self.provenance.get("model") or {}).get("notes", ())
        resampled, parts = _resampled(self.provenance), about_parts(self.provenance)
        trial = about_trial(self.provenance)
        return [*trial, *reasons, *resampled, *both, *read, *parts]


_TWO_QUESTIONS = (
    "a p-value says whether other groupings of the same words would do as well, an interval how the number would vary "
    "with other"
)


@checked
def load_report(directory: str | os.PathLike[str]) -> Report:
    """The report in a folder that `Report.save` wrote, as the class it was; or of a folder of parts (``folder=``).

    The second is made of the parts that are there, whether others are missing or not, without model and documents.
    Nothing in the folder is executed. FileNotFoundError or ValueError name the file that is missing,
    corrupt, of another version, or no report.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> world = tp.World(n_topics=4, words_per_topic=5, topics_per_document=2)
        >>> report = tp.measure_landscape(world, tp.Masking(), alphas=np.array([1.0]), betas=np.array([1.0, 2.0]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tp.load_report(report.save(f"{folder}/landscape")) == report
        True
    """
    kind = storage.kind_of(directory)
    if kind is None:
        # By name, because what knows of sums of documents stands below.
        report: Report | None = import_module("topic_probe.measure.folder").report_of(Path(directory))
        if report is None:
            raise FileNotFoundError(f"{directory} does not exist or holds nothing that topic_probe has saved")
        return report
    return report_class(kind, f"{directory} holds").load(directory)


def provenance(
    topics: Any = None,
    *,
    model: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int | None = None,
    left_out: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Where a number comes from: model, topics, options, seed, what was left out and why, and versions.

    Everything is plain JSON content. Packages are asked for their version without importing them; one that
    is not installed is None.
    """
    return {
        "model": _plain(model or {}),
        "topics": None if topics is None else _describe(topics),
        "options": _plain(options or {}),
        "seed": seed,
        "left_out": _plain(left_out or {}),
        "versions": {"python": platform.python_version(), **{name: version_of(name) for name in _PACKAGES}},
    }


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
    said = f"{parts['there']} parts, not at its end yet"
    if parts["of"] is not None:
        said = f"{parts['there']} of {parts['of']} parts"
    return [f"{said}, {parts['texts_left_out']} texts left out"]


def _resampled(provenance: Mapping[str, Any]) -> list[str]:
    """What intervals over documents resample, and how many of it there are; nothing where there are none."""
    options, documents = provenance.get("options", {}), provenance.get("documents")
    counted = documents if isinstance(documents, Mapping) else options | provenance
    if "sources" not in counted or not options.get("n_resamples"):
        return []
    n = counted["sources"]
    what = f"{n:,} {'blocks of ' if counted['sources_in_blocks'] else ''}source{'s' * (n != 1)}"
    return [f"intervals resample {what}: a source is a text, or an article with all its pieces"]


@cache  # reading a package's metadata takes as long as measuring a small model
def version_of(package: str) -> str | None:
    """The version of an installed package, None for one that is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    """JSON content that comes back from disk as it went: lists, dicts with text keys, plain numbers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _content(report: Report) -> dict[str, Any]:
    return {field.name: getattr(report, field.name) for field in fields(report)}  # type: ignore[arg-type]


def report_class(kind: Any, where: str) -> type[Report]:
    """The class of a kind; only this package's own modules are ever imported, by names listed here."""
    if kind in _MODULES and kind not in _KINDS:
        import_module(f"topic_probe.{_MODULES[kind]}")
    if kind not in _KINDS:
        raise ValueError(f"{where} {kind!r}, which is no known report: known are {sorted(_KINDS)}")
    return _KINDS[kind]


# --- fields on disk ----------------------------------------------------------------------------------


def encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """JSON content for a field; arrays go beside it under their name, "$" marks what JSON has no word for."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.generic):
        return encode(value.item(), arrays, name)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "is": str(value)}
    if isinstance(value, np.ndarray):
        # Numbered, because keys with dots could give two arrays one name.
        name = f"{len(arrays)} {name}"
        arrays[name] = value
        return {"$": "array", "name": name}
    if isinstance(value, torch.Tensor):
        return {"$": "tensor", "is": encode(value.numpy(force=True), arrays, name)}
    if isinstance(value, Contrast):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        parts |= {name: np.asarray(part) for name, part in parts.items() if isinstance(part, np.float64)}
        return {"$": "contrast", "fields": encode(parts, arrays, name)}
    if isinstance(value, Report):
        inner, own = value._to_saved()
        prefix = f"{len(arrays)} {name}/"
        arrays.update({f"{prefix}{key}": array for key, array in own.items()})
        return {"$": "report", "kind": value.kind, "fields": inner, "arrays": prefix}
    if isinstance(value, tuple | list):
        items = [encode(item, arrays, f"{name}.{number}") for number, item in enumerate(value)]
        return {"$": "tuple", "items": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        keys = list(value)
        if all(isinstance(key, str) and key != "$" for key in keys):
            return {key: encode(value[key], arrays, f"{name}.{key}") for key in keys}
        return {"$": "dict", "items": encode([[key, value[key]] for key in keys], arrays, name)}
    raise TypeError(
        f"{name} holds a {type(value).__name__}, which a report cannot save: use numbers or arrays"
    )


def decode(value: Any, arrays: Mapping[str, Any]) -> Any:
    """What `encode` took apart."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get("$"):
        case None:
            return {key: decode(item, arrays) for key, item in value.items()}
        case "float":
            return float(value["is"])
        case "array":
            return arrays[value["name"]]
        case "tensor":
            return torch.from_numpy(decode(value["is"], arrays))
        case "tuple":
            return tuple(decode(value["items"], arrays))
        case "dict":
            return {key: item for key, item in decode(value["items"], arrays)}  # noqa: C416
        case "contrast":
            return Contrast(**decode(value["fields"], arrays))
        case "report":
            prefix = value["arrays"]
            own = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
            return report_class(value["kind"], "it holds")._from_saved(value["fields"], own)
        case mark:
            raise ValueError(f"it holds the unknown mark {mark!r}")


def _equal(one: Any, other: Any) -> bool:
    """Equality in which NaN equals NaN and arrays are compared whole, also those inside of dataclasses."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _equal(one.numpy(force=True), other.numpy(force=True))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and type(one) is type(other):
        return len(one) == len(other) and all(map(_equal, one, other))
    if is_dataclass(one) and type(one) is type(other) and not isinstance(one, type):
        return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, float) and isinstance(other, float):
        return bool(one == other or (math.isnan(one) and math.isnan(other)))
    return bool(type(one) is type(other) and one == other)
