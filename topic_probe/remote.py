"""Files of models on the Hugging Face hub: all of one commit, and an error that says what to do where none come."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What is downloaded beside weights.
_SMALL = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""Where the weights of a model are: whatever is there first is what transformers would load."""


def fetch_model(name: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """The folder on this machine with the files of OWNER/NAME, all of the commit that is the folder's name.

    Where the hub does not answer, it is the commit of an earlier download. OSError where nothing comes.
    """
    from huggingface_hub import snapshot_download

    remedy = f"Without a network, fetch the files elsewhere (`hf download {name} --local-dir FOLDER`) and open these"
    with hub_errors(name, remedy):
        known = snapshot_download(name, revision=revision, allow_patterns=_SMALL, ignore_patterns="*/*")
        folder = Path(known)
        for pattern in WEIGHTS if weights else ():
            snapshot_download(name, revision=folder.name, allow_patterns=pattern, ignore_patterns="*/*")
            if any(folder.glob(pattern)):
                break
    return folder


@contextmanager
def hub_errors(name: str, remedy: str) -> Iterator[None]:
    """Context manager: whatever goes wrong becomes an OSError that names what was asked for and says what to do."""
    try:
        yield
    except Exception as error:  # of whatever package below
        said = " ".join(str(error).split()) or type(error).__name__
        raise OSError(
            f"cannot load {name!r} from the Hugging Face hub: {said} — names there are OWNER/NAME, and what is private "
            f"or gated needs a login (`hf auth login`). {remedy}."
        ) from error
