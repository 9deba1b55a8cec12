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
    declared = _fields(node) if isinstance(node, ast.ClassDef) else _parameters(node)
    entries = _entries(ast.get_docstring(node) or "")
    arguments = {
        name: _argument(module, name, annotation, default, entries.get(name, ""))
        for name, annotation, default in declared
    }
    for group, place in _groups(module, node).items():
        del arguments[group]
        arguments |= arguments_of(place)
    return arguments


_Declared = Iterator[tuple[str, ast.expr | None, ast.expr | None]]


def _parameters(node: ast.FunctionDef) -> _Declared:
    """Name, annotation and default of the parameters of a function; a method's first one is not given."""
    given = node.args
    no_defaults = [None] * (len(given.args) - len(given.defaults))
    defaults = [*no_defaults, *given.defaults, *given.kw_defaults, None, None]
    for parameter, default in zip(
        [*given.args, *given.kwonlyargs, given.vararg, given.kwarg], defaults, strict=True
    ):
        if parameter is not None and parameter.arg not in ("self", "cls"):
            yield parameter.arg, parameter.annotation, default


def _fields(node: ast.ClassDef) -> _Declared:
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and _last(part.annotation) != "ClassVar":
            yield _dotted(part.target), part.annotation, part.value


def _groups(module: str, node: ast.ClassDef | ast.FunctionDef) -> dict[str, str]:
    """The groups of options that a function shares with others: name of the parameter → class."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and _last(decorator.func) == "shares":
            return {
                keyword.arg: f"{module}:{_last(keyword.value)}"
                for keyword in decorator.keywords
                if keyword.arg
            }
    return {}


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
    if _file(part).is_file():
        return _find(part, inside) if inside else (part, None)
    return _find(origin, f"{original}.{inside}".rstrip("."))


# The lines of a statement after its first one: empty, deeper inside, or closing a bracket.
_MORE = r"(?:(?:{margin}[ )\]}}].*)?\n)*"
_STATEMENT = r"^(?:{margin}@.*\n{more})*{margin}(?:(?:def|class) (\w+)|(\w+)(?:: .*?)? = ).*\n{more}"
_IMPORT = r"^(?:from .*|if TYPE_CHECKING:)\n{more}"


@cache
def _pattern(pattern: str, margin: str = "") -> re.Pattern[str]:
    return re.compile(pattern.format(margin=margin, more=_MORE.format(margin=margin)), re.MULTILINE)


def _statement(module: str, name: str) -> str | None:
    """The source of a function, class or constant, or of what stands in a class: to parse whole files takes long."""
    text: str | None = _source(module)
    for depth, part in enumerate(name.split(".")):
        statements = _pattern(_STATEMENT, "    " * depth).finditer(text or "")
        text = next((each[0] for each in statements if part in each.groups()), None)
    return text and textwrap.dedent(text)


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """What a module takes from others: its name here → module, name there."""
    source = "".join(_pattern(_IMPORT).findall(_source(module)))
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@cache
def _source(module: str) -> str:
    return _file(module).read_text(encoding="utf-8")


@cache
def _file(module: str) -> Path:
    """The source of a module; only the package that it stands in is imported, which loads nothing by itself."""
    package, *inside = module.split(".")
    path = Path(import_module(package).__path__[0], *inside)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _dotted(node: ast.AST | None) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.AST | None) -> str:
    """The last part of a dotted name, of a type that has others in brackets too."""
    return _dotted(node.value if isinstance(node, ast.Subscript) else node).rpartition(".")[2]


def _items(node: ast.Subscript) -> list[ast.expr]:
    """What stands in brackets."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


# --- types and defaults --------------------------------------------------------------------------------


def _values(module: str, node: ast.expr | None) -> Iterator[Any]:
    """What an annotation allows: types, the texts of a Literal, a list for several values, dict for names with values.

    None is left out: it is what an argument is that is not given.
    """
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):  # an annotation in quotes
            yield from _values(module, ast.parse(node.value, mode="eval").body)
    elif isinstance(node, ast.BinOp):
        yield from _values(module, node.left)
        yield from _values(module, node.right)
    elif isinstance(node, ast.Subscript):
        yield from _generic(module, node)
    else:
        yield from _named(module, node)


def _generic(module: str, node: ast.Subscript) -> Iterator[Any]:
    name, items = _last(node), _items(node)
    if name == "Literal":
        yield from (ast.literal_eval(item) for item in items)
    elif name in ("Annotated", "Optional"):
        yield from _values(module, items[0])
    elif name in _SEVERAL:
        # What stands deeper than a list of values, no shell can pass.
        yield [value for value in _values(module, items[0]) if not isinstance(value, list)]
    else:
        yield dict if name in _PAIRS else _PLAIN.get(name, str)


def _named(module: str, node: ast.expr | None) -> Iterator[Any]:
    name = _dotted(node)
    last = name.rpartition(".")[2]
    place, value = _assigned(module, name) if name and last not in _PLAIN else (module, None)
    if value is None:
        yield _PLAIN.get(last, str)
    else:
        yield from _values(place, value)


def _constant(module: str, node: ast.expr | None) -> Any:
    """The value of a default; as it is written where only running the program would say."""
    if node is None:
        return None
    if isinstance(node, ast.Name | ast.Attribute):
        place, value = _assigned(module, _dotted(node))
        if value is not None:
            return _constant(place, value)
    if isinstance(node, ast.Subscript):
        return _constant(module, node.value)[ast.literal_eval(node.slice)]
    if isinstance(node, ast.Call) and _last(node.func) == "field":
        values = {keyword.arg: keyword.value for keyword in node.keywords}
        return _constant(module, values["default"]) if "default" in values else None
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


def _assigned(module: str, name: str) -> tuple[str, ast.expr | None]:
    """What a name stands for, and the module whose names that uses; None for functions, classes and what is unknown."""
    place, source = _find(module, name)
    if source is None or re.match(r"@|class |def ", source):
        return place, None
    statement = ast.parse(source).body[0]
    assert isinstance(statement, ast.Assign | ast.AnnAssign)
    return place, statement.value


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
