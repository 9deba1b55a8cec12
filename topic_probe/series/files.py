"""The tensors in the files of a saved model, one at a time."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# In the order in which transformers looks for them.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def tensor_files(folder: Path) -> list[Path]:
    """The files that hold the weights of a folder that `save_pretrained` has written, as transformers would take them.

    Raises:
        FileNotFoundError: where there are none, or an index names one that is not there.
        ValueError: for an index that names no files of this folder.
    """
    for name in _WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            return [_shard(index, shard) for shard in _shards(index)]
    adapters = any(folder.glob("adapter_model.*"))
    hint = " (it holds adapters alone: merge them into their model and save that)" if adapters else ""
    raise FileNotFoundError(
        f"{folder} holds no weights{hint}: needed is {' or '.join(_WEIGHTS)}, or an index of several such files"
    )


def _shards(index: Path) -> list[str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index} has no weight_map from tensors to files: fetch or save it again")
    return sorted(set(names.values()))


def _shard(index: Path, name: str) -> Path:
    if Path(name).name != name:
        raise ValueError(f"{index} names the file {name!r}, which is not one beside it")
    file = index.with_name(name)
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing, though {index.name} beside it names it: fetch it again")
    return file


def tensors_of(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a file with its name, on the CPU, one after the other; nothing in it is executed.

    Raises:
        ValueError: for a file that is damaged, or holds something else than tensors by name.
    """
    if file.suffix == ".safetensors":
        yield from _safetensors(file)
        return
    state = _unpickled(file)
    for name in sorted(state):
        yield name, state[name]


def _safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt") as opened:
            for name in sorted(opened.keys()):
                yield name, opened.get_tensor(name)
    except SafetensorError as error:
        raise ValueError(
            f"{file} is not a whole safetensors file ({error}): fetch or save it again"
        ) from error


def _unpickled(file: Path) -> dict[str, Tensor]:
    """What torch has saved, read without running any code that may be in it, and without reading all of it at once."""
    # Files of before PyTorch 1.6 cannot be mapped into memory.
    for mapped in (True, False):
        try:
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
            break
        except Exception as error:
            if not mapped:
                raise ValueError(
                    f"{file} is no whole file of tensors alone ({_first_line(error)}): nothing else is read from such "
                    "a file, because it may run code; save the model with save_pretrained, as safetensors"
                ) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ValueError(
            f"{file} holds something else than tensors by their names: it is no state of a model"
        )
    return state


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def sha256_of_file(file: Path) -> str:
    """The checksum of all bytes of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(2**22):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_tensor(tensor: Tensor) -> str:
    """The checksum of a tensor's type, shape and bytes, in whatever file it lies."""
    digest = hashlib.sha256(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
    if tensor.numel():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_json(path: Path, raw: bytes | None = None) -> dict[str, Any]:
    """The object in a JSON file, or in what was read of it; ValueError names one that is damaged."""
    try:
        content = json.loads(path.read_bytes() if raw is None else raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not whole or not JSON ({error}): save it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, it holds a {type(content).__name__}")
    return content
