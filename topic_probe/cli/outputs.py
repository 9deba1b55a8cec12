"""Results on disk: whole or absent, and never in place of something that nobody asked to replace."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# All that commands write into the folders that they may be asked to replace.
_OURS = {
    "report.json", "topics.json", "fit.json", "arrays.safetensors", "claims.json", "claims.txt",
}  # fmt: skip
_OUR_FOLDERS = {"tables": (".json", ".csv"), "figures": (".svg", ".png")}


@contextmanager
def new_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill, put in its place when all went well and gone otherwise.

    It is made at once, so that a place that cannot be written to is known before anything is computed.
    """
    target = Path(path).expanduser().absolute()
    check_free(target, overwrite=overwrite)
    with _draft(target) as draft:
        draft.mkdir()
        yield draft
        check_free(target, overwrite=overwrite)  # another process may have been here meanwhile
        old = draft.with_name(f"{draft.name}.old")
        if target.exists():
            target.rename(old)
        try:
            draft.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def new_file(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A file to write, put in its place when all went well and gone otherwise."""
    target = Path(path).expanduser().absolute()

    def check() -> None:
        if target.is_dir():
            raise FileExistsError(f"{target} is a folder, a file is needed: name one in it")
        if target.exists() and not overwrite:
            raise FileExistsError(
                f"{target} exists and is not overwritten: choose another, or add --overwrite"
            )

    check()
    with _draft(target) as draft:
        draft.touch()
        yield draft
        check()
        draft.replace(target)


def check_free(path: str | Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds anything, unless it is to be replaced and holds nothing but results."""
    target = Path(path).expanduser().absolute()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file, a folder is needed: choose another path")
    if not target.exists() or not any(target.iterdir()):
        return
    if not overwrite:
        raise FileExistsError(
            f"{target} is not empty and is not overwritten: choose another folder, or add --overwrite"
        )
    foreign = next(
        (file for file in sorted(target.rglob("*")) if file.is_file() and not _is_ours(file)), None
    )
    if foreign is not None:
        raise FileExistsError(
            f"{target} holds {foreign.relative_to(target)}, which is no result of topic-probe and would be "
            "deleted: choose another folder"
        )


def _is_ours(file: Path) -> bool:
    return file.name in _OURS or file.suffix in _OUR_FOLDERS.get(file.parent.name, ())


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A place beside the target for what is being written; folders made on the way go too if it fails."""
    made = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        yield draft
    except BaseException:
        _remove(draft)
        for folder in made:
            _remove_empty(folder)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # somebody else has put something there
