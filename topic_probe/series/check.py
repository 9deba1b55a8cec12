"""Whether the checkpoints of a series are what their steps say: repeated, misplaced and changed ones are found."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from topic_probe.notices import progress_bar
from topic_probe.options import checked
from topic_probe.report import Report, provenance
from topic_probe.series.checkpoints import Checkpoint, Checkpoints
from topic_probe.series.files import sha256_of_file, sha256_of_tensor
from topic_probe.series.path import LEAST_COSINE, MAX_DETOUR, detour, off_the_path
from topic_probe.storage import read_json
from topic_probe.topics.vocabulary import tokenizer_hash

if TYPE_CHECKING:
    import pandas as pd

# Of every tensor so many sums under random signs are kept. Distances between such sums are those of the tensors to 3 %
# (√(1/2n)), and to less where several tensors add up. A prime, so that no column of a matrix falls into one sum.
_N_SUMS = 509
# Tensors of so few numbers may come back to the same ones by chance.
_LEAST_NUMBERS = 64
# A file with less of the weights than this is not judged by itself: too little in it to tell a path from noise.
_LEAST_SHARE = 0.01
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
        files: SHA-256 of its files with weights, by name.
        distances: between the weights of all pairs, to about 3 %; NaN for those without comparable weights. Integers
            and what never moves are left out.
        provenance: what was compared how, and versions.
    """

    figure: ClassVar[str] = "series:checkpoint_distances"
    steps: Int64[np.ndarray, " checkpoint"]
    sources: tuple[str, ...]
    reasons: tuple[str, ...]
    weights: tuple[str, ...]
    files: tuple[Mapping[str, str], ...]
    distances: Float64[np.ndarray, "checkpoint checkpoint"]
    provenance: Mapping[str, Any]

    @property
    def flagged(self) -> dict[int, str]:
        """Step → reason, of those with which something is wrong."""
        return {step: why for step, why in zip(self.steps.tolist(), self.reasons, strict=True) if why}

    def to_dataframe(self) -> "pd.DataFrame":
        """A row for every checkpoint."""
        import pandas as pd

        n = len(self.steps)
        previous = [self.distances[max(place - 1, 0), place] if place else np.nan for place in range(n)]
        ways = [detour(self.distances**2, k - 1, k, k + 1) if 0 < k < n - 1 else np.nan for k in range(n)]
        return pd.DataFrame(
            {
                "step": self.steps,
                "wrong": [why or "" for why in self.reasons],
                "weights": [digest[:12] for digest in self.weights],
                "to_previous": previous,
                "to_first": self.distances[0],
                "to_last": self.distances[-1],
                "detour": ways,
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
class _Tensor:
    """What is kept of a tensor of a checkpoint."""

    file: str
    shape: tuple[int, ...]
    sha256: str
    sums: Float64[np.ndarray, " sum"] | None
    same: bool  # one number over and over, as weights of norms are before they have moved

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass
class _Seen:
    """What is kept of a checkpoint."""

    files: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    config: dict[str, Any] | None = None
    tokenizer: tuple[str, str] | None = None
    broken: list[str] = field(default_factory=list)

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple(sorted((name, tensor.shape) for name, tensor in self.tensors.items()))

    @property
    def sha256(self) -> str:
        if not self.tensors:
            return ""
        every = json.dumps([[name, tensor.sha256] for name, tensor in sorted(self.tensors.items())])
        return hashlib.sha256(every.encode()).hexdigest()


# What is known of tokenizers, by the files that they are read from.
_Tokenizers = dict[tuple[tuple[str, str], ...], tuple[str, str] | None]


@checked
def check_checkpoints(series: Checkpoints, *, progress: bool | None = None) -> CheckpointReport:
    """Which checkpoints of a series are not what their steps say, with the reason.

    Public series are broken more often than they look: branches that serve the weights of another step, a single file
    of another one, lists out of order. Every checkpoint is read once, tensor by tensor, so that the memory needed is
    that of one tensor; models are not built, and nothing in their files is executed. Flagged are:

    * **repeated weights**: all tensors, or all of one file, are bit for bit those of another step, in whatever files
      they lie; single matrices, where they went away and came back. Of such copies the one stays that fits between its
      neighbours; where several fit, none does, but for the first checkpoint.
    * **off the path**: d(i − 1, i) + d(i, i + 1) > 3 d(i − 1, i + 1).
    * **out of order**: further on the way from the first to the last checkpoint than later ones. Of two that stand in
      each other's place both are.
    * **another configuration, vocabulary, tokenizer or set of tensors** than most have.
    * what cannot be read, and NaN or infinity among weights.

    A first or last checkpoint of another training has neighbours on one side only, and passes where it is no further
    than a long step would be.

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
    readable = [number for number, one in enumerate(seen) if one.tensors]
    for judge in (_other_configuration, _other_tokenizer):
        for number, why in judge(seen).items():
            reasons[number].append(why)
    other = _unlike_most({number: seen[number].shapes for number in readable}, _other_tensors)
    for number, why in other.items():
        reasons[number].append(why)
    like = [number for number in readable if number not in other and not seen[number].broken]
    distances = np.full((len(seen), len(seen)), np.nan)
    if like:
        tensors = [seen[number].tensors for number in like]
        steps = [series.steps[number] for number in like]
        moving = _moving(tensors)
        distances[np.ix_(like, like)] = np.sqrt(_squared(tensors, moving))
        for place, why in _misplaced(tensors, moving, steps).items():
            reasons[like[place]].append(why)
    return CheckpointReport(
        steps=np.array(series.steps),
        sources=tuple(map(str, series)),
        reasons=tuple("; ".join(whys) for whys in reasons),
        weights=tuple(one.sha256 for one in seen),
        files=tuple(one.files for one in seen),
        distances=distances,
        provenance=provenance(
            options={"max_detour": MAX_DETOUR, "least_cosine": LEAST_COSINE, "sums_of_a_tensor": _N_SUMS}
        ),
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
        for file, sha256, tensors in entry.files():
            seen.files[file] = sha256
            for name, tensor in tensors:
                seen.tensors[name] = _kept(file, name, tensor)
                if _has_no_numbers(tensor, seen.tensors[name].sums):
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


def _kept(file: str, name: str, tensor: Tensor) -> _Tensor:
    sums = _signed_sums(name, tensor) if tensor.is_floating_point() else None
    return _Tensor(file, tuple(tensor.shape), sha256_of_tensor(tensor), sums, _is_one_number(tensor))


def _is_one_number(tensor: Tensor) -> bool:
    """Whether all numbers are the same; those that are not mostly show it at once."""
    flat = tensor.reshape(-1)
    return all(bool((part == flat[0]).all()) for part in (flat[:_LEAST_NUMBERS], flat) if len(part))


def _has_no_numbers(tensor: Tensor, sums: Float64[np.ndarray, " sum"] | None) -> bool:
    """Whether NaN or infinity is among numbers; it is in their sums then, and so it is where these are too large."""
    return sums is not None and not np.isfinite(sums).all() and not bool(tensor.isfinite().all())


def _signed_sums(name: str, tensor: Tensor) -> Float64[np.ndarray, " sum"]:
    """Sums of a tensor's numbers under random signs, which are the same for every tensor of a name.

    A sign is a bit. What is added in the precision of the tensor are a few thousand numbers (float32 at least; torch
    adds them pairwise), and their sums in float64.
    """
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big"))
    sums = torch.zeros(_N_SUMS, dtype=torch.float64)
    for part in torch.split(tensor.detach().reshape(-1), _N_SUMS * 2**12):
        n, whole = len(part), len(part) - len(part) % _N_SUMS
        bits = np.unpackbits(np.frombuffer(generator.bytes(-(-n // 8)), np.uint8), count=n)
        signs = torch.from_numpy(bits).view(torch.int8) * 2 - 1
        signed = part.to(torch.promote_types(part.dtype, torch.float32)) * signs
        sums += signed[:whole].view(-1, _N_SUMS).sum(0)
        sums[: n - whole] += signed[whole:]
    if not bool(sums.isfinite().all()) and tensor.dtype != torch.float64 and bool(tensor.isfinite().all()):
        return _signed_sums(name, tensor.double())  # their sums alone are too large for float32
    return np.asarray(sums.numpy())


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


def _other_tensors(own: Any, usual: Any, n: int) -> str:
    lacks, more = sorted(set(usual) - set(own)), sorted(set(own) - set(usual))
    shown = [
        f"{what} {name} {list(shape)}"
        for what, found in (("no", lacks), ("has", more))
        for name, shape in found[:1]
    ]
    return f"other tensors than {n} others ({len(lacks)} missing, {len(more)} more): {', '.join(shown)}"


def _moving(tensors: Sequence[Mapping[str, _Tensor]]) -> list[str]:
    """The names of tensors that are not the same in all checkpoints."""
    return [
        name
        for name, first in tensors[0].items()
        if first.sums is not None and first.size and len({one[name].sha256 for one in tensors}) > 1
    ]


def _squared(
    tensors: Sequence[Mapping[str, _Tensor]], names: Iterable[str]
) -> Float64[np.ndarray, "state other"]:
    """Squared distances between all pairs, over some tensors."""
    total = np.zeros((len(tensors), len(tensors)))
    for name in names:
        sums = np.stack([one[name].sums for one in tensors])  # type: ignore[misc]
        for place in range(len(tensors)):
            total[place] += ((sums - sums[place]) ** 2).sum(1)
    return total


def _misplaced(
    tensors: Sequence[Mapping[str, _Tensor]], moving: Sequence[str], steps: Sequence[int]
) -> dict[int, str]:
    """Repeated and misplaced checkpoints, by all of their weights or by those of some files."""
    everything = sum(tensors[0][name].size for name in moving)
    blocks = [
        names
        for names in _blocks(tensors, moving)
        if sum(tensors[0][name].size for name in names) >= _LEAST_SHARE * everything
    ]
    found = [(names, off_the_path(_squared(tensors, names), steps)) for names in blocks]
    of_all = off_the_path(_squared(tensors, moving), steps)
    reasons = {}
    for place in range(len(tensors)):
        parts = [(names, whys[place]) for names, whys in found if place in whys]
        if place in of_all and len(parts) in (0, len(blocks)):
            reasons[place] = of_all[place]
        elif parts:
            of_parts = (f"{why} ({_called(tensors[place], names)})" for names, why in parts)
            reasons[place] = "; ".join(of_parts)
    return reasons


def _blocks(tensors: Sequence[Mapping[str, _Tensor]], moving: Sequence[str]) -> list[list[str]]:
    """The names of tensors that are always in one file together, apart from those that went away and came back."""

    def known_by(name: str) -> tuple[Any, ...]:
        of_steps = [one[name].sha256 for one in tensors]
        back = [digest for digest, _ in groupby(of_steps)]
        matrix = len(tensors[0][name].shape) > 1 and tensors[0][name].size >= _LEAST_NUMBERS
        returned = len(back) > len(set(back)) and matrix and not any(one[name].same for one in tensors)
        pattern = tuple(of_steps.index(digest) for digest in of_steps) if returned else ()
        return tuple(one[name].file for one in tensors), pattern

    by_key: dict[Any, list[str]] = {}
    for name in moving:
        by_key.setdefault(known_by(name), []).append(name)
    return list(by_key.values())


def _called(tensors: Mapping[str, _Tensor], names: Sequence[str]) -> str:
    files = sorted({tensors[name].file for name in names})
    n = len(names)
    return (
        f"{n} tensor{'s' * (n > 1)} in {' and '.join(Path(file).name for file in files)}, such as {names[0]}"
    )
