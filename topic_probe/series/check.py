"""Whether the checkpoints of a series are what their steps say: repeated and changed ones are found."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from topic_probe.notices import progress_bar
from topic_probe.options import checked
from topic_probe.report import Report, provenance
from topic_probe.series.checkpoints import Checkpoint, Checkpoints
from topic_probe.series.files import sha256_of_file, sha256_of_tensor
from topic_probe.storage import read_json
from topic_probe.topics.lookup import tokenizer_hash

if TYPE_CHECKING:
    import pandas as pd

# What may differ between configurations of one model.
_NO_MATTER = {"transformers_version", "_name_or_path", "_commit_hash", "torch_dtype", "dtype"}
# What a tokenizer was last told to do with long and short texts, which is no part of it.
_PASSING = ("truncation", "padding")
# Files of a checkpoint that have nothing to do with its tokenizer; of a training some differ from step to step.
_NO_TOKENIZER = re.compile(
    r"\.(safetensors|bin|pt|pth|h5|msgpack|onnx|gguf|index\.json)$|^(trainer_state|generation_config)\.json$"
)
_TEXT = (
    "Same words, DIFFERENT tokenizers: naïve café, 1,024 bassoonists re-tuned antidisestablishmentarianism!"
)


@dataclass(frozen=True, eq=False, repr=False)
class CheckpointReport(Report, kind="checkpoints"):
    """What is wrong with the checkpoints of a series.

    Attributes:
        steps: the step of every checkpoint.
        sources: where each comes from.
        reasons: why a checkpoint is no point of a curve; empty where nothing is wrong with it.
        weights: SHA-256 over all tensors of each, whatever files they lie in; empty where it could not be read.
        provenance: versions.
    """

    steps: Int64[np.ndarray, " checkpoint"]
    sources: tuple[str, ...]
    reasons: tuple[str, ...]
    weights: tuple[str, ...]
    provenance: Mapping[str, Any]

    @property
    def flagged(self) -> dict[int, str]:
        """Step → reason, of those with which something is wrong."""
        return {step: why for step, why in zip(self.steps.tolist(), self.reasons, strict=True) if why}

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every checkpoint."""
        import pandas as pd

        return pd.DataFrame(
            {
                "step": self.steps,
                "wrong": [why or "" for why in self.reasons],
                "weights": [digest[:12] for digest in self.weights],
                "source": self.sources,
            }
        )

    def _tables(self) -> "dict[str, pd.DataFrame]":
        """Reasons stand below, where there is room for them."""
        table = self.to_dataframe()
        table["wrong"] = ["yes" if why else "" for why in table["wrong"]]
        return {type(self).__name__: table}

    def _notes(self) -> list[str]:
        if not self.flagged:
            return [f"nothing is wrong with these {len(self.steps)} checkpoints"]
        return [
            f"{len(self.flagged)} of {len(self.steps)} checkpoints are no points of a curve",
            *(f"step {step}: {why}" for step, why in self.flagged.items()),
        ]


@dataclass
class _Seen:
    """What is kept of a checkpoint: of its tensors, by name, their checksums and shapes."""

    tensors: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    config: dict[str, Any] | None = None
    tokenizer: tuple[str, str] | None = None
    broken: list[str] = field(default_factory=list)

    @property
    def sha256(self) -> str:
        if not self.tensors:
            return ""
        every = json.dumps(sorted(self.tensors.items()))
        return hashlib.sha256(every.encode()).hexdigest()


# What is known of tokenizers, by the files that they are read from.
_Tokenizers = dict[tuple[tuple[str, str], ...], tuple[str, str] | None]


@checked
def check_checkpoints(series: Checkpoints, *, progress: bool | None = None) -> CheckpointReport:
    """Which checkpoints of a series are not what their steps say, with the reason.

    Public series are broken more often than they look: branches that serve the weights of another step, folders that
    were copied, a tokenizer that changed. Every checkpoint is read once, tensor by tensor, so that the memory needed is
    that of one tensor; models are not built, and nothing in their files is executed. Flagged are:

    * **repeated weights**: all tensors are bit for bit those of another step, in whatever files they lie. Which step
      they belong to cannot be known, so none of these checkpoints is a point of a curve; leave out those that you know
      to be wrong with ``series.without``. Where weights have not moved yet, the first checkpoint stays.
    * **another configuration, vocabulary, tokenizer or set of tensors** than most have.
    * what cannot be read, and NaN or infinity among weights.

    Weights of another step or training that are in the series only once are not recognised.

    Args:
        series: the checkpoints. Those of the hub are fetched whole.
        progress: whether to show a progress bar; by default in a terminal or a notebook.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> toy = tp.build_toy(tp.ToyConfig(regime="value", world=world, init="near-zero"))
        >>> config = tp.TrainConfig(steps=4, measure_every=1, learning_rate=0.1)
        >>> history = tp.train_toy(toy, config, measure=tp.toy_tensors)
        >>> tp.check_checkpoints(tp.Checkpoints.from_history(history)).flagged
        {}
    """
    tokenizers: _Tokenizers = {}
    seen = [_look_at(entry, tokenizers) for entry in progress_bar(series, shown=progress, unit="checkpoint")]
    reasons: list[list[str]] = [list(one.broken) for one in seen]
    for judge in (_other_configuration, _other_tokenizer, _other_tensors):
        for number, why in judge(seen).items():
            reasons[number].append(why)
    for number, other in _copies(seen).items():
        reasons[number].append(f"copy of step {series.steps[other]}")
    return CheckpointReport(
        steps=np.array(series.steps),
        sources=tuple(map(str, series)),
        reasons=tuple("; ".join(whys) for whys in reasons),
        weights=tuple(one.sha256 for one in seen),
        provenance=provenance(),
    )


# --- what is kept of a checkpoint ---------------------------------------------------------------------


def _look_at(entry: Checkpoint, tokenizers: _Tokenizers) -> _Seen:
    seen = _Seen()
    try:
        folder = entry.folder()
        if folder is not None:
            seen.config = read_json(folder / "config.json")
            beside = _beside_weights(folder)
            if beside not in tokenizers:
                tokenizers[beside] = _known_by(entry.tokenizer())
            seen.tokenizer = tokenizers[beside]
        infinite = []
        for name, tensor in entry.tensors():
            seen.tensors[name], seen.shapes[name] = sha256_of_tensor(tensor), tuple(tensor.shape)
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                infinite.append(name)
        if infinite:
            seen.broken.append(f"NaN or infinity in {len(infinite)} tensors, such as {infinite[0]}")
    except (FileNotFoundError, ValueError) as error:  # a hub that does not answer is no fault of a checkpoint
        seen.broken.append(f"cannot be read: {error}")
        seen.tensors.clear()
    return seen


def _beside_weights(folder: Path) -> tuple[tuple[str, str], ...]:
    """All small files of a checkpoint by their checksums: where they are the same, so is the tokenizer."""
    files = (
        file for file in sorted(folder.iterdir()) if file.is_file() and not _NO_TOKENIZER.search(file.name)
    )
    return tuple((file.name, sha256_of_file(file)) for file in files)


def _known_by(tokenizer: Any) -> tuple[str, str] | None:
    """A tokenizer by its vocabulary, and by all that it does to a text; a slow one by what it makes of one text."""
    if tokenizer is None:
        return None
    inside = getattr(tokenizer, "backend_tokenizer", None)
    if inside is None:
        return tokenizer_hash(tokenizer), str(tokenizer(_TEXT)["input_ids"])
    does = {name: part for name, part in json.loads(inside.to_str()).items() if name not in _PASSING}
    return tokenizer_hash(tokenizer), json.dumps(does, sort_keys=True)


# --- what is wrong ------------------------------------------------------------------------------------


def _unlike_most(values: Mapping[int, Hashable], why: Callable[[Any, Any, int], str]) -> dict[int, str]:
    """Those whose value is another one than most have (of equally many: than the first has), with the reason."""
    if not values:
        return {}
    counts = Counter(values.values())
    usual = max(values.values(), key=lambda value: counts[value])  # max takes the first of equals
    return {n: why(value, usual, counts[usual]) for n, value in values.items() if value != usual}


def _other_configuration(seen: Sequence[_Seen]) -> dict[int, str]:
    def why(own: str, usual: str, n: int) -> str:
        one, other = json.loads(own), json.loads(usual)
        differs = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
        shown = ", ".join(
            f"{name} {one.get(name)!r:.60}, not {other.get(name)!r:.60}" for name in differs[:3]
        )
        return f"another configuration than {n} others: {shown}"

    known = {number: one.config for number, one in enumerate(seen) if one.config is not None}
    texts = {
        number: json.dumps({k: v for k, v in config.items() if k not in _NO_MATTER}, sort_keys=True)
        for number, config in known.items()
    }
    return _unlike_most(texts, why)


def _other_tokenizer(seen: Sequence[_Seen]) -> dict[int, str]:
    def why(own: Any, usual: Any, n: int) -> str:
        what = "vocabulary" if own[0] != usual[0] else "tokenizer (of the same vocabulary)"
        return f"another {what} than {n} others"

    return _unlike_most({n: one.tokenizer for n, one in enumerate(seen) if one.tokenizer is not None}, why)


def _other_tensors(seen: Sequence[_Seen]) -> dict[int, str]:
    def why(own: Any, usual: Any, n: int) -> str:
        lacks, more = sorted(set(usual) - set(own)), sorted(set(own) - set(usual))
        shown = [
            f"{what} {name} {list(shape)}"
            for what, found in (("no", lacks), ("has", more))
            for name, shape in found[:1]
        ]
        return f"other tensors than {n} others ({len(lacks)} missing, {len(more)} more): {', '.join(shown)}"

    known = {number: tuple(sorted(one.shapes.items())) for number, one in enumerate(seen) if one.tensors}
    return _unlike_most(known, why)


def _copies(seen: Sequence[_Seen]) -> dict[int, int]:
    """Checkpoints with the weights of others, each with the first of these.

    The first checkpoint is none where the next ones have its weights: they have not moved yet.
    """
    found = {}
    for number, one in enumerate(seen):
        others = [n for n, other in enumerate(seen) if n != number and other.tensors == one.tensors]
        not_moved_yet = number == 0 and others == list(range(1, len(others) + 1))
        if one.tensors and others and not not_moved_yet:
            found[number] = others[0]
    return found
