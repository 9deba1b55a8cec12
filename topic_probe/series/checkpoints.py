"""Which model there is at which step, and whether the checkpoints of a series are what their steps say.

A series is a mapping from steps to what `open_model` takes, or to a name on the Hugging Face hub with a revision.
"""

import gc
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from topic_probe.lens.opening import open_model
from topic_probe.options import check_whole, checked, progress_bar
from topic_probe.topics.lookup import tokenizer_hash

Series = Mapping[int, Any]

# What may differ between configurations of one model.
_NO_MATTER = {"transformers_version", "_name_or_path", "_commit_hash", "torch_dtype", "dtype"}


@checked
def checkpoints_in(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Step → folder, of the folders of checkpoints in one, such as ``checkpoint-500`` of transformers' Trainer.

    The step is the last number of a name, with k or M for thousands or millions.
    """
    root, found = Path(folder).expanduser(), dict[int, Path]()
    for config in sorted(root.glob("*/config.json")):
        if numbers := re.findall(r"(\d+)(k|M)?(?!\d)", config.parent.name):
            step = int(numbers[-1][0]) * {"": 1, "k": 1_000, "M": 1_000_000}[numbers[-1][1]]
            if step in found:
                raise ValueError(
                    f"{found[step]} and {config.parent} both name step {step}: give {{step: folder}}"
                )
            found[step] = config.parent
    if not found:
        raise FileNotFoundError(
            f"{root} holds no folders of checkpoints, such as checkpoint-500 with a config.json"
        )
    return dict(sorted(found.items()))


@checked
def revisions(
    name: str, steps: Collection[int], *, pattern: str = "step{step}"
) -> dict[int, tuple[str, str]]:
    """Step → name and revision, of checkpoints that are revisions of one repository on the hub, as those of Pythia.

    Example:
        >>> tp.revisions("EleutherAI/pythia-14m", [0, 512])
        {0: ('EleutherAI/pythia-14m', 'step0'), 512: ('EleutherAI/pythia-14m', 'step512')}
    """
    if "{step}" not in pattern:
        raise ValueError(f"the pattern needs {{step}} where a step stands, got {pattern!r}")
    return {step: (name, pattern.replace("{step}", str(step))) for step in steps}


def in_order(series: Series) -> dict[int, Any]:
    """The checkpoints of a series by their steps, from first to last."""
    if not isinstance(series, Mapping) or not series:
        raise TypeError(f"a series is a mapping from steps to models, of one at least, got {series!r:.100}")
    return {check_whole("step", step, 0): series[step] for step in sorted(series)}


def opened(source: Any, **options: Any) -> Any:
    """The hooked model of a checkpoint."""
    name, revision = source if isinstance(source, tuple) else (source, None)
    return open_model(name, revision=revision, **options)


def name_of(source: Any) -> str:
    """What a checkpoint is called: a model in memory by its class."""
    if isinstance(source, tuple):
        return " at ".join(source)
    return str(source) if isinstance(source, str | os.PathLike) else type(source).__name__


# --- whether they are what their steps say ------------------------------------------------------------


@checked
def check_checkpoints(series: Series, *, progress: bool | None = None) -> dict[int, str]:
    """Step → reason, of the checkpoints that are not what their steps say; one model is in memory at a time.

    Public series are broken more often than they look: branches that serve the weights of another step, folders that
    were copied, a tokenizer that changed. Flagged are:

    * **repeated weights**: all are bit for bit those of another step. Which step they belong to cannot be known, so
      none of these checkpoints is a point of a curve; leave out those that you know to be wrong. Where weights have not
      moved yet, the first checkpoint stays.
    * **another configuration, tokenizer or set of tensors** than most have.
    * what cannot be opened, and NaN or infinity among weights.

    Weights of another step or training that are in the series only once are not recognised.

    Args:
        series: step → what `open_model` takes, or (name, revision).
        progress: whether to show a progress bar; by default in a terminal or a notebook.

    Example:
        >>> world = tp.World(n_topics=2, words_per_topic=2)
        >>> series = {step: tp.build_toy(tp.ToyConfig(world=world), seed=step % 2) for step in (0, 1, 3)}
        >>> tp.check_checkpoints(series)
        {1: 'copy of step 3', 3: 'copy of step 1'}
    """
    series, known = in_order(series), []
    for source in progress_bar(series.values(), shown=progress, unit="checkpoint"):
        try:
            known.append(fingerprint(opened(source)))
        except Exception as error:  # of whatever package below
            known.append({"broken": f"cannot be opened: {error}"})
        gc.collect()  # hooked models refer to themselves, and the next one is to have their room
    wrong = what_is_wrong(list(series), known)
    return {step: why for step, why in zip(series, wrong, strict=True) if why}


def fingerprint(model: Any) -> dict[str, Any]:
    """By what a hooked model is known: checksums of weights, of names and shapes, configuration, tokenizer, NaN.

    Poolers are left out, because they are drawn anew where a checkpoint has none.
    """
    digest, shapes, broken = hashlib.sha256(), [], []
    for name, parameter in model.named_parameters():
        if "pooler" in name:
            continue
        shapes.append([name, str(parameter.dtype), *parameter.shape])
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        if not bool(parameter.isfinite().all()):
            broken.append(name)
    configs: Any = (getattr(module, "config", None) for module in model.modules())
    config: dict[str, Any] = next((own.to_dict() for own in configs if hasattr(own, "to_dict")), {})
    tokenizer = getattr(model, "tokenizer", None)
    return {
        "weights": digest.hexdigest(),
        "tensors": _sha256(shapes),
        "configuration": {name: str(value) for name, value in config.items() if name not in _NO_MATTER},
        "tokenizer": "" if tokenizer is None else _known_by(tokenizer),
        "broken": f"NaN or infinity in {len(broken)} tensors, such as {broken[0]}" if broken else "",
    }


def _known_by(tokenizer: Any) -> str:
    """A tokenizer by its vocabulary and by all that it does to a text, but for what it was last told of lengths."""
    inside = getattr(tokenizer, "backend_tokenizer", None)
    does = {} if inside is None else json.loads(inside.to_str())
    return _sha256([tokenizer_hash(tokenizer), {**does, "truncation": None, "padding": None}])


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def what_is_wrong(steps: Sequence[int], known: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why checkpoints with these fingerprints are no points of a curve; empty where nothing is wrong."""
    reasons = [[one["broken"]] if one["broken"] else [] for one in known]
    whole = {i: one for i, one in enumerate(known) if "weights" in one}
    for what in ("configuration", "tokenizer", "tensors"):
        values = [one[what] for one in whole.values()]
        usual = max(values, key=values.count, default=None)  # of equally many the first
        for i, one in whole.items():
            if one[what] != usual:
                reasons[i].append(
                    f"another {what} than {values.count(usual)} others{_differs(one[what], usual)}"
                )
    for i, one in whole.items():
        others = [j for j, other in whole.items() if j != i and other["weights"] == one["weights"]]
        not_moved_yet = i == 0 and others == list(range(1, len(others) + 1))
        if others and not not_moved_yet:
            reasons[i].append(f"copy of step {steps[others[0]]}")
    return ["; ".join(whys) for whys in reasons]


def _differs(one: Any, usual: Any) -> str:
    """In which entries configurations differ."""
    if not isinstance(one, Mapping):
        return ""
    names = [name for name in sorted({*one, *usual}) if one.get(name) != usual.get(name)]
    return ": " + ", ".join(
        f"{name} {one.get(name)!s:.60}, not {usual.get(name)!s:.60}" for name in names[:3]
    )
