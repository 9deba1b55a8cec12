"""What is in a folder of results, and what of it cannot be read and why."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from topic_probe.show.pieces import READERS, Piece, first_line, kind_of, read_small_json

MAX_FILES = 20_000
# What reading a file that is broken, or of somebody else, can end in.
_BROKEN = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
VERDICTS = ("passed", "failed", "not checked")


@dataclass(frozen=True)
class SavedRecipe:
    """The saved result of a recipe, with what lies in its folder."""

    name: str
    title: str
    quick: bool
    seconds: float
    claims: tuple[dict[str, Any], ...]
    place: str
    pieces: list[Piece]

    @property
    def verdicts(self) -> Counter[str]:
        """How many claims have which verdict."""
        return Counter(claim["verdict"] for claim in self.claims)


class SavedFolder:
    """What is in a folder, file by file; whatever cannot be shown is among the problems."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipes: list[SavedRecipe] = []
        self.pieces: list[Piece] = []
        self.problems: dict[str, str] = {}
        self.others: list[str] = []

    def read(self) -> None:
        """Takes in everything."""
        homes: list[tuple[Path, SavedRecipe]] = []
        for folder, names in self._folders():
            home = next((recipe for place, recipe in reversed(homes) if folder.is_relative_to(place)), None)
            if "claims.json" in names:
                names.remove("claims.json")
                recipe = self._tried(
                    folder / "claims.json", lambda path: _recipe(path, self._name(path.parent))
                )
                if recipe is not None:
                    homes.append((folder, recipe))
                    self.recipes.append(recipe)
                    home = recipe
            kept = self.pieces if home is None else home.pieces
            kept += self._pieces(folder, names, home)

    def _folders(self) -> Iterator[tuple[Path, list[str]]]:
        """Every folder with the names of its files, in an order that people expect."""
        seen = 0
        for place, folders, names in os.walk(self.root, followlinks=False):
            folder = Path(place)
            folders[:] = sorted((name for name in folders if self._belongs(folder / name)), key=_natural)
            held = sorted((name for name in names if self._belongs(folder / name)), key=_natural)
            seen += len(held)
            if seen > MAX_FILES:
                self.problems[self._name(folder)] = f"not read any further: more than {MAX_FILES:,} files"
                return
            yield folder, held

    def _belongs(self, path: Path) -> bool:
        if path.is_symlink():
            self.problems[self._name(path)] = "a link, which is not followed"
            return False
        return not path.name.startswith(".")

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _tried(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """What ``read`` makes of a file, or None with the problem written down."""
        try:
            return read(path)
        except _BROKEN as error:  # one file must not cost the page
            self.problems[self._name(path)] = first_line(error).replace(f"{path.parent}{os.sep}", "")
            return None

    def _pieces(self, folder: Path, names: list[str], home: SavedRecipe | None) -> Iterator[Piece]:
        base = self.root if home is None else self.root / home.place
        for name in names:
            path = folder / name
            kind = kind_of(path, names)
            if kind == "foreign":
                self.others.append(self._name(path))
            if kind not in READERS:
                continue
            label = (folder if kind in ("report", "topics", "fit") else path).relative_to(base).as_posix()
            label = folder.resolve().name if label == "." else label
            piece = self._tried(path, partial(READERS[kind], label=label, alone=home is None))
            if piece is not None:
                yield piece


def _recipe(path: Path, place: str) -> SavedRecipe:
    content = read_small_json(path)
    claims = content.get("claims")
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        raise ValueError("it holds no list of claims: it was not saved by a recipe")
    for claim in claims:
        if claim.get("verdict") not in VERDICTS:
            raise ValueError(
                f"a claim has the verdict {claim.get('verdict')!r}; known are {', '.join(VERDICTS)}"
            )
    seconds = content.get("seconds")
    return SavedRecipe(
        name=str(content.get("recipe", place)),
        title=str(content.get("title", "")),
        quick=content.get("quick") is True,
        seconds=float(seconds) if isinstance(seconds, int | float) else math.nan,
        claims=tuple(claims),
        place="" if place == "." else place,
        pieces=[],
    )


def _natural(name: str) -> tuple[Any, ...]:
    """Sorts figure2 before figure10."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)
