"""The arguments of a function as its source says them: nothing is imported, so that help needs no torch.

An argument's type, default and sentence stand once, in the function, in a dataclass or in a group of options that
several functions share (`topic_probe.options`). They are read with `ast`; names such as ``Level`` or ``WIKIPEDIA[2]``
are followed to where they are defined, through the imports of the package.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_SEVERAL = {"Sequence", "Iterable", "Collection", "Set", "list", "tuple", "set", "frozenset"}
_PAIRS = {"Mapping", "dict"}
_PLAIN: dict[str, type] = {
    "bool": bool, "int": int, "float": float, "str": str, "Any": str, "Path": Path, "PathLike": Path,
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """An argument of a function.

    Attributes:
        name: Its name.
        help: The first sentence about it, without what that says about its default.
        default: Its default; None also where it has none.
        shown: Its default as a text; for None what that stands for, in the words of the docstring.
        types: What a single value may be: bool, int, float, str, Path. Objects that a text must name are str.
        choices: The texts that its type lists.
        many: Whether it takes several values.
        pairs: Whether it takes names with values.
    """

    name: str
    help: str = ""
    default: Any = None
    shown: str = ""
    types: tuple[type, ...] = (str,)
    choices: tuple[str, ...] = ()
    many: bool = False
    pairs: bool = False


@cache
def arguments_of(function: str) -> dict[str, Argument]:
    """The arguments of ``module:name``, or ``module:Class.method``, by name; of a dataclass its fields."""
    module, _, dotted = function.partition(":")
    module, source = _find(module, dotted)
    node = None if source is None else ast.parse(source).body[0]
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        raise LookupError(f"{module} has no {dotted!r}")
    entries = _entries(ast.get_docstring(node) or "")
    arguments = {
        name: _argument(module, name, annotation, default, entries.get(name, ""))
        for name, annotation, default in _declared(node)
    }
    if "shares" in map(_last, node.decorator_list):
        for name, annotation, default in _declared(node):
            if default is None and annotation is not None and _is_group(module, annotation):
                del arguments[name]
                arguments |= arguments_of(f"{module}:{_last(annotation)}")
    return arguments


def _is_group(module: str, annotation: ast.expr) -> bool:
    """Whether an annotation names a group of options that functions share."""
    _, source = _find(module, _last(annotation))
    node = None if source is None else ast.parse(source).body[0]
    return isinstance(node, ast.ClassDef) and "Group" in map(_last, node.bases)


def _declared(
    node: ast.ClassDef | ast.FunctionDef,
) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    """Name, annotation and default of fields, or of parameters; a method's first one is not given."""
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and _last(part.annotation) != "ClassVar":
                yield ast.unparse(part.target), part.annotation, part.value
        return
    given = node.args
    no_defaults = [None] * (len(given.args) - len(given.defaults))
    defaults = [*no_defaults, *given.defaults, *given.kw_defaults, None, None]
    parameters = [*given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    for parameter, default in zip(parameters, defaults, strict=True):
        if parameter is not None and parameter.arg not in ("self", "cls"):
            yield parameter.arg, parameter.annotation, default


def _argument(
    module: str, name: str, annotation: ast.expr | None, default: ast.expr | None, entry: str
) -> Argument:
    if isinstance(annotation, ast.Subscript) and _last(annotation) == "Annotated":
        entry = ast.literal_eval(_items(annotation)[1])
    values = list(_values(module, annotation))
    single = [value for value in values if not isinstance(value, list)]
    several = [value for listed in values if isinstance(listed, list) for value in listed]
    many = bool(several) and set(single) <= set(several)
    kept = several if many else single
    text, unset = _said(entry)
    value = _constant(module, default)
    return Argument(
        name,
        help=text,
        default=value,
        shown=unset if value is None else _readable(value),
        types=tuple(dict.fromkeys(value if value in _PLAIN.values() else str for value in kept)),
        choices=tuple(value for value in kept if isinstance(value, str)),
        many=many or dict in kept,
        pairs=dict in kept,
    )


# --- where names are defined ---------------------------------------------------------------------------


@cache
def _find(module: str, name: str) -> tuple[str, str | None]:
    """The module of a definition that has a dotted name in a module, and its source.

    None for a whole module, and for what does not come from the package.
    """
    first, _, inside = name.partition(".")
    if first not in _imports(module):
        return module, _statement(module, name)
    origin, original = _imports(module)[first]
    if origin.partition(".")[0] != module.partition(".")[0]:
        return module, None
    part = f"{origin}.{original}"
    if _source(part):
        return _find(part, inside) if inside else (part, None)
    return _find(origin, f"{original}.{inside}".rstrip("."))


# The lines of a statement after its first one: empty, deeper inside, or closing a bracket.
_MORE = r"(?:(?:{margin}[ )\]}}].*)?\n)*"
_STATEMENT = (
    rf"(?m)^(?:{{margin}}@.*\n{_MORE})*{{margin}}(?:(?:def|class) (\w+)|(\w+)(?:: .*?)? = ).*\n{_MORE}"
)
_IMPORT = rf"(?m)^(?:from .*|if TYPE_CHECKING:)\n{_MORE}".format(margin="")


def _statement(module: str, name: str) -> str | None:
    """The source of a function, class or constant, or of what stands in a class: to parse whole files takes long."""
    text: str | None = _source(module)
    for depth, part in enumerate(name.split(".")):
        statements = re.finditer(_STATEMENT.format(margin="    " * depth), text or "")
        # As in Python, the last one counts: those before it say which types go together (overload).
        text = next(iter([each[0] for each in statements if part in each.groups()][::-1]), None)
    return text and textwrap.dedent(text)


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """What a module takes from others: its name here → module, name there."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(ast.parse("".join(re.findall(_IMPORT, _source(module)))))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@cache
def _source(module: str) -> str:
    """The source of a module, empty if it is none; only its package is imported, which loads nothing by itself."""
    package, *inside = module.split(".")
    path = Path(import_module(package).__path__[0], *inside)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _assigned(module: str, node: ast.expr) -> tuple[str, ast.expr | None]:
    """What a name stands for, and the module whose names that uses; None for functions, classes and what is unknown."""
    place, source = _find(module, ast.unparse(node))
    statement = None if source is None else ast.parse(source).body[0]
    return place, statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None


def _last(node: ast.expr) -> str:
    """The last part of a dotted name, of a type that has others in brackets too."""
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node).rpartition(".")[2]


def _items(node: ast.Subscript) -> list[ast.expr]:
    """What stands in brackets."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


# --- types and defaults --------------------------------------------------------------------------------


def _values(module: str, node: ast.expr | None) -> Iterator[Any]:
    """What an annotation allows: types, the texts of a Literal, a list for several values, dict for names with values.

    None is left out: it is what an argument is that is not given.
    """
    match node:
        case ast.Constant(value=str(text)):  # an annotation in quotes
            yield from _values(module, ast.parse(text, mode="eval").body)
        case ast.Constant():
            pass
        case ast.BinOp(left, _, right):
            yield from _values(module, left)
            yield from _values(module, right)
        case ast.Subscript() if _last(node) == "Literal":
            yield from map(ast.literal_eval, _items(node))
        case ast.Subscript() if _last(node) in ("Annotated", "Optional"):
            yield from _values(module, _items(node)[0])
        case ast.Subscript() if _last(node) in _SEVERAL:
            # What stands deeper than a list of values, no shell can pass.
            yield [value for value in _values(module, _items(node)[0]) if not isinstance(value, list)]
        case ast.Subscript() if _last(node) in _PAIRS:
            yield dict
        case ast.Name() | ast.Attribute() if _last(node) not in _PLAIN:
            place, value = _assigned(module, node)
            yield from (str,) if value is None else _values(place, value)
        case _:
            yield str if node is None else _PLAIN.get(_last(node), str)


def _constant(module: str, node: ast.expr | None) -> Any:
    """The value of a default; as it is written where only running the program would say."""
    match node:
        case None:
            return None
        case ast.Name() | ast.Attribute():
            place, value = _assigned(module, node)
            return ast.unparse(node) if value is None else _constant(place, value)
        case ast.Subscript(value, index):
            return _constant(module, value)[ast.literal_eval(index)]
        case ast.Call() if _last(node.func) == "field":
            values = {keyword.arg: keyword.value for keyword in node.keywords}
            return _constant(module, values.get("default"))
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _readable(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(_readable, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


# --- docstrings ----------------------------------------------------------------------------------------


def _entries(docstring: str) -> dict[str, str]:
    """What the sections ``Args:`` and ``Attributes:`` say about every name."""
    entries: dict[str, str] = {}
    name, inside = "", False
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            inside = line in ("Args:", "Attributes:")
        elif inside and (start := re.match(r" {4}\*{0,2}(\w+): (.*)", line)):
            name = start[1]
            entries[name] = start[2]
        elif inside and name:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries


# What None stands for: "by default all", "; None: all", ". None takes all".
_UNSET = re.compile(
    r"[;,.]?\s?(?:\bNone(?::|\sis|\stakes|\smeans)|\bby\sdefault(?:\sat|\son)?)\s(?P<words>.+?)(?=[;.](?:\s|$)|$)"
)


def _said(entry: str) -> tuple[str, str]:
    """The first sentence of an entry, and what it says that None stands for."""
    text = re.sub(r" \(:\w+:`[^`]*`\)", "", entry)
    text = re.sub(r"(?::\w+:)?[`*]+([^`*]*)[`*]+", r"\1", text)
    unset = _UNSET.search(text)
    if unset:
        text = (text[: unset.start()] + text[unset.end() :]).lstrip("; ")
    sentence = re.split(r"(?<!e\.g)(?<!i\.e)\.(?= |$)", text, maxsplit=1)[0]
    if re.match(r"[A-Z]([a-z]| )", sentence):
        sentence = sentence[0].lower() + sentence[1:]
    return sentence, unset["words"] if unset else ""
