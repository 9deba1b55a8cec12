"""Which model there is at which step: the checkpoints of a training, wherever they are kept."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from topic_probe.lens.opening import load_tokenizer, open_model
from topic_probe.options import check_whole, checked
from topic_probe.remote import fetch_model
from topic_probe.series.files import read_json, tensor_files, tensors_of
from topic_probe.train.history import History

# How steps are written in names: step1000, checkpoint-500, global_step20, step_20k. The last number of a name counts.
_STEP = re.compile(r"(\d+)(k|M)?(?![\d])")
_TIMES = {None: 1, "k": 1_000, "M": 1_000_000}


@dataclass(frozen=True)
class Checkpoint:
    """A model at a step of its training.

    Attributes:
        step: the step.
        name: a folder, or the name of a repository on the Hugging Face hub.
        revision: its commit, branch or tag there.
        history: the training that kept it in memory, in place of files.
    """

    step: int
    name: str
    revision: str | None = None
    history: History | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name} at {self.revision}"

    def open(self, **options: Any) -> Any:
        """The model, hooked; options are those of `open_model`."""
        if self.history is not None:
            return open_model(self._rebuilt(self.history), **options)
        return open_model(self.name, revision=self.revision, **options)

    def folder(self) -> Path | None:
        """The folder with its files, which come from the hub first where they are there; None without files."""
        if self.history is not None:
            return None
        folder = Path(self.name).expanduser()
        return folder if folder.is_dir() else fetch_model(self.name, self.revision)

    def tokenizer(self) -> Any:
        """The tokenizer beside the model; None where there is none."""
        folder = self.folder()
        return None if folder is None else load_tokenizer(str(folder))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the weights with its name, one after the other, in whatever files they lie."""
        folder = self.folder()
        if folder is None:
            yield from sorted(self._in_memory().items())
            return
        for file in tensor_files(folder):
            yield from tensors_of(file)

    def _in_memory(self) -> dict[str, Tensor]:
        assert self.history is not None
        prefix = _prefix_of_tensors(self.history)
        found = {}
        for name, last in self.history.tensors.items():
            series = self.history.measured[f"{prefix}{name}"]
            found[name] = series.values[series.steps.tolist().index(self.step)].to(last.dtype)
        return found

    def _rebuilt(self, history: History) -> Any:
        return replace(history, tensors=self._in_memory()).model()


@dataclass(frozen=True)
class Checkpoints(Sequence[Checkpoint]):
    """The checkpoints of one training, in the order of their steps; nothing is opened until it is needed.

    Attributes:
        entries: every checkpoint.

    Example:
        >>> series = tp.Checkpoints.from_revisions("EleutherAI/pythia-14m", [0, 512, 1000])
        >>> series
        3 checkpoints, steps 0 to 1000: EleutherAI/pythia-14m at step0 … EleutherAI/pythia-14m at step1000
        >>> series.without([512]).steps
        [0, 1000]
    """

    entries: tuple[Checkpoint, ...]

    def __post_init__(self) -> None:
        entries = tuple(sorted(self.entries, key=lambda entry: entry.step))
        if not entries:
            raise ValueError("a series needs at least one checkpoint, got none")
        for entry in entries:
            check_whole("step", entry.step, 0)
        for entry, following in pairwise(entries):
            if entry.step == following.step:
                raise ValueError(f"step {entry.step} is given twice: {entry} and {following}")
        object.__setattr__(self, "entries", entries)

    @classmethod
    @checked
    def from_folders(cls, folders: Mapping[int, Any] | os.PathLike[str] | str) -> "Checkpoints":
        """Folders that `save_pretrained` has written.

        Args:
            folders: step → folder; or a folder that holds such folders, each with its step at the end of its name, as
                transformers' Trainer writes them (``checkpoint-500``).
        """
        if not isinstance(folders, Mapping):
            folders = _folders_in(Path(folders).expanduser())
        for step, folder in folders.items():
            if not (Path(folder).expanduser() / "config.json").is_file():
                raise FileNotFoundError(
                    f"step {step}: there is no {Path(folder) / 'config.json'}; give folders that save_pretrained has "
                    "written"
                )
        return cls(tuple(Checkpoint(_whole(step), os.fspath(folder)) for step, folder in folders.items()))

    @classmethod
    @checked
    def from_revisions(
        cls, name: str, steps: Collection[int] | Mapping[int, str], *, pattern: str = "step{step}"
    ) -> "Checkpoints":
        """Revisions of one repository on the Hugging Face hub, as those of Pythia.

        Args:
            name: OWNER/NAME.
            steps: the steps; or step → what stands for it in the pattern.
            pattern: how a revision is called.
        """
        return cls(tuple(Checkpoint(step, name, text) for step, text in _named(pattern, steps).items()))

    @classmethod
    @checked
    def from_repositories(cls, pattern: str, steps: Collection[int] | Mapping[int, str]) -> "Checkpoints":
        """A repository on the Hugging Face hub for every step, as those of MultiBERTs.

        Args:
            pattern: how they are called, such as ``"google/multiberts-seed_0-step_{step}k"``.
            steps: the steps; or step → what stands for it in the pattern: ``{20_000: "20", 40_000: "40"}``.
        """
        return cls(tuple(Checkpoint(step, text) for step, text in _named(pattern, steps).items()))

    @classmethod
    @checked
    def from_manifest(cls, file: str | os.PathLike[str], *, name: str | None = None) -> "Checkpoints":
        """What a file lists.

        Args:
            file: JSON, ``{step: folder}`` or ``[{"step": …, "folder": …}, {"step": …, "name": …, "revision": …}, …]``,
                folders being meant from where the file lies. Or lines of text, each a revision with its step in its
                name (``step1000-tokens4B``), as OLMo lists its own.
            name: the repository of such revisions.
        """
        path = Path(file).expanduser()
        if path.suffix == ".json":
            content = read_json(path, b'{"list": %b}' % path.read_bytes())["list"]
            return cls(tuple(_listed(path, content)))
        if name is None:
            raise ValueError(f"{path} lists revisions: say of which repository with name=OWNER/NAME")
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        named = [line for line in lines if line and not line.startswith("#")]
        return cls(tuple(Checkpoint(_step_of(line, first=True), name, line) for line in named))

    @classmethod
    @checked
    def from_history(cls, history: History) -> "Checkpoints":
        """The states of a toy, or of a BERT that was trained here, at every step at which they were kept.

        Args:
            history: of a training with ``measure=tp.toy_tensors`` (of a BERT ``measure=lambda model:
                dict(model.named_parameters())``) and ``measure_every`` or ``measure_steps``.
        """
        steps = history.measured[f"{_prefix_of_tensors(history)}{next(iter(history.tensors))}"].steps
        return cls(tuple(Checkpoint(step, f"state {step}", history=history) for step in steps.tolist()))

    @property
    def steps(self) -> list[int]:
        """The step of every checkpoint."""
        return [entry.step for entry in self.entries]

    def without(self, steps: Collection[int]) -> "Checkpoints":
        """The series without some of its checkpoints, as without those that `check_checkpoints` has flagged."""
        if unknown := sorted(set(steps) - set(self.steps)):
            raise ValueError(f"there is no step {unknown[0]}; there are {self.steps}")
        return replace(self, entries=tuple(entry for entry in self.entries if entry.step not in steps))

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, place: Any) -> Any:
        return replace(self, entries=self.entries[place]) if isinstance(place, slice) else self.entries[place]

    def __repr__(self) -> str:
        first, last = self.entries[0], self.entries[-1]
        return f"{len(self)} checkpoints, steps {first.step} to {last.step}: {first} … {last}"


def _whole(step: Any) -> int:
    """A step, which JSON has as a text."""
    if isinstance(step, str) and step.isdecimal():
        step = int(step)
    return check_whole("step", step, 0)


def _named(pattern: str, steps: Collection[int] | Mapping[int, str]) -> dict[int, str]:
    """Step → the pattern with it."""
    if "{step}" not in pattern:
        raise ValueError(f"the pattern needs {{step}} where a step stands, got {pattern!r}")
    texts = steps if isinstance(steps, Mapping) else {step: str(_whole(step)) for step in steps}
    if len(texts) != len(steps):
        raise ValueError(f"a step is given twice among {list(steps)!r:.200}")
    return {_whole(step): pattern.replace("{step}", str(text)) for step, text in texts.items()}


def _step_of(name: str, *, first: bool = False) -> int:
    """The step in a name: its last number, or that behind "step" where further ones follow."""
    behind = re.search(r"step[-_]?(\d+)(k|M)?(?!\d)", name) if first else None
    found = [behind] if behind else list(_STEP.finditer(name))
    if not found:
        raise ValueError(f"{name!r} has no number in its name that could be its step")
    return int(found[-1][1]) * _TIMES[found[-1][2]]


def _folders_in(root: Path) -> dict[int, Path]:
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    folders: dict[int, Path] = {}
    for config in sorted(root.glob("*/config.json")):
        if not _STEP.search(config.parent.name):
            continue
        step = _step_of(config.parent.name)
        if step in folders:
            raise ValueError(
                f"{folders[step]} and {config.parent} both name step {step}: give {{step: folder}}"
            )
        folders[step] = config.parent
    if not folders:
        raise FileNotFoundError(
            f"{root} holds no folders of checkpoints, such as checkpoint-500 with a config.json in it"
        )
    return folders


def _listed(path: Path, content: Any) -> Iterator[Checkpoint]:
    """The checkpoints that a manifest in JSON lists."""
    if isinstance(content, dict):
        content = [{"step": step, "folder": folder} for step, folder in content.items()]
    if not isinstance(content, list):
        raise ValueError(f"{path} must hold {{step: folder}} or a list of checkpoints")
    for entry in content:
        match entry:
            case {"step": step, "folder": str(folder), **more} if not more:
                place = path.parent / Path(folder).expanduser()
                if not place.is_dir():
                    raise FileNotFoundError(f"{path} names the folder {place}, which does not exist")
                yield Checkpoint(_whole(step), str(place))
            case {"step": step, "name": str(name), "revision": str(revision), **more} if not more:
                yield Checkpoint(_whole(step), name, revision)
            case {"step": step, "name": str(name), **more} if not more:
                yield Checkpoint(_whole(step), name)
            case _:
                raise ValueError(
                    f'{path} must list {{"step": …, "folder": …}} or {{"step": …, "name": …, "revision": …}}, it has '
                    f"{entry!r:.100}"
                )


def _prefix_of_tensors(history: History) -> str:
    """What stands before the names of a model's tensors among what was measured while it was trained."""
    first = next(iter(history.tensors))
    for name in history.measured:
        prefix = name.removesuffix(first)
        if name.endswith(first) and all(f"{prefix}{other}" in history.measured for other in history.tensors):
            return prefix
    raise ValueError(
        "this training has kept no states on its way: train with measure=tp.toy_tensors (of a BERT measure=lambda "
        "model: dict(model.named_parameters())) and measure_every= or measure_steps="
    )
