"""Arguments are read off source as Python would tell them, and nothing of the source runs."""

import sys
from pathlib import Path

import pytest

from topic_probe.cli.signatures import Argument, arguments_of

SOURCES = {
    "__init__.py": "",
    "kinds.py": """
from typing import Literal

Level = Literal["token", "word"]
Deep = Literal["deep"]
PINNED = ("name", "0a1b")
SHARES: tuple[float, ...] = (0.5, 1.0)
""",
    "inner/__init__.py": "from house.inner.deep import Box as Box\n",
    "inner/deep.py": '''
class Box:
    """A box."""

    @overload
    @classmethod
    def of(cls, thing: int, **options: int): ...
    @overload
    @classmethod
    def of(
        cls, thing: str, **options: int
    ): ...
    @classmethod
    def of(cls, thing, *, size: int = 3):
        """A box.

        Args:
            size: How large. It matters.
        """
''',
    "work.py": '''
raise RuntimeError("this file is read, it must not run")

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional

import torch

from house import kinds
from house.kinds import PINNED, SHARES
from house.kinds import Level as HowFine
from topic_probe.options import Group, shares

if TYPE_CHECKING:
    from house.kinds import Deep

Head = int | str | tuple[int, int]
Order = Literal["topic", "position"]


def work(
    thing: Any,
    level: HowFine = "token",
    other: kinds.Level | None = None,
    *,
    n: int = 1_000,
    rate: float = 1e-2,
    fast: bool = False,
    name: "str | None" = None,
    folder: str | os.PathLike[str] | None = None,
    path: Optional[Path] = None,
    ids: Sequence[int] = (),
    heads: Iterable[Head] | Head | None = None,
    orders: Sequence[Order] | None = None,
    prior: Literal["flat", "auto"] | float | Sequence[float] = "flat",
    rules: Mapping[str, str] | None = None,
    commit: str = PINNED[1],
    deep: "Deep | None" = None,
    shares: Sequence[float] = SHARES,
    dtype: torch.dtype | None = torch.float32,
    **more: Any,
) -> None:
    """Work.

    A paragraph. Args: this is none.

    Args:
        thing: What is worked on.
        level: "token" or "word"; a colon: and a
            second line (with ``marks``). A second sentence.
        n: Number of things, e.g. 5, by default many.
        name: The name. None takes that of `thing`.
        folder: A folder, by default none; nothing else.
        path: LDA's path; None: here.
        deep: None: all; how deep to look.
        ids: P(word) of these (:data:`PINNED`).
        **more: All others.

    Returns:
        rate: this is no argument.
    """


@dataclass(frozen=True)
class Common(Group):
    """A group.

    Attributes:
        seed: not this one.
    """

    kind: ClassVar[str] = "common"
    seed: Annotated[int, "seed of "
        "everything"] = 7
    level: Annotated[kinds.Level | None, "how fine; by default what is there"] = None


@shares
def shared(model: Any, *, own: bool = True, common: Common) -> None:
    """Shared.

    Args:
        model: A model.
        own: Its own.
    """


@dataclass
class Config:
    """A config.

    Attributes:
        width: How wide.
        rules: What rules.
    """

    width: int | None = None
    rules: Mapping[str, str] = field(default_factory=dict)
    depth: int = field(default=2, repr=False)

    def method(self) -> int:
        return 1
''',
}


@pytest.fixture(scope="module", autouse=True)
def house(tmp_path_factory):
    """A package of sources on the path."""
    folder = tmp_path_factory.mktemp("sources")
    for name, source in SOURCES.items():
        file = folder / "house" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    del sys.modules["house"]


def test_every_argument_is_read_with_its_kind_default_choices_and_sentence():
    found = arguments_of("house.work:work")
    both = ("token", "word")
    path = (str, Path)
    assert list(found.values()) == [
        Argument("thing", "what is worked on"),
        Argument(
            "level",
            '"token" or "word"; a colon: and a second line (with marks)',
            "token",
            "token",
            choices=both,
        ),
        Argument("other", choices=both),
        Argument("n", "number of things, e.g. 5", 1000, "1,000", (int,)),
        Argument("rate", "", 0.01, "0.01", (float,)),
        Argument("fast", "", False, "no", (bool,)),
        Argument("name", "the name", shown="that of thing"),
        Argument("folder", "a folder; nothing else", shown="none", types=path),
        Argument("path", "LDA's path", shown="here", types=(Path,)),
        Argument("ids", "P(word) of these", (), "", (int,), many=True),
        Argument("heads", types=(int, str), many=True),
        Argument("orders", choices=("topic", "position"), many=True),
        Argument("prior", "", "flat", "flat", (str, float), choices=("flat", "auto")),
        Argument("rules", many=True, pairs=True),
        Argument("commit", "", "0a1b", "0a1b"),
        Argument("deep", "how deep to look", shown="all", choices=("deep",)),
        Argument("shares", "", (0.5, 1.0), "0.5 1.0", (float,), many=True),
        Argument("dtype", "", "torch.float32", "torch.float32"),
        Argument("more", "all others"),
    ]


def test_options_of_groups_stand_behind_a_functions_own():
    assert list(arguments_of("house.work:shared").values()) == [
        Argument("model", "a model"),
        Argument("own", "its own", True, "yes", (bool,)),
        Argument("seed", "seed of everything", 7, "7", (int,)),
        Argument("level", "how fine", shown="what is there", choices=("token", "word")),
    ]


def test_fields_of_a_dataclass_are_its_arguments():
    assert list(arguments_of("house.work:Config").values()) == [
        Argument("width", "how wide", types=(int,)),
        Argument("rules", "what rules", many=True, pairs=True),
        Argument("depth", "", 2, "2", (int,)),
    ]


def test_methods_are_found_where_a_package_takes_their_class_from():
    assert list(arguments_of("house.inner:Box.of").values()) == [
        Argument("thing"),
        Argument("size", "how large", 3, "3", (int,)),
    ]


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(LookupError, match=r"house\.work has no 'play'"):
        arguments_of("house.work:play")
    with pytest.raises(LookupError, match=r"house\.inner\.deep has no 'Box\.to'"):
        arguments_of("house.inner:Box.to")
