"""The reference as pages: every public name with its signature and docstring."""

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import topic_probe as tp

HEAD = """# Reference

Written from the docstrings. `import topic_probe as tp` comes before everything.
"""
GROUPS = {
    "Topics": ["Topics", "fit_topics", "TopicFit"],
    "Text": ["Corpus", "DocumentStream", "Document", "encode_texts", "Cooccurrence", "count_cooccurrence"],
    "Models": ["open_model", "random_init", "check_model", "ModelCheck"],
    "Series": ["checkpoints_in", "revisions", "check_checkpoints", "measure_series", "TopicProbe", "SeriesReport"],
    "Measurements": ["measure_", "Contrast", "load_report", "Report"],
    "To look at": ["show_attention", "show_heads", "report_page", "Page"],
    "The toy world": [
        "World", "Masking", "ToyConfig", "build_toy", "toy_tensors", "TrainConfig", "train_toy", "History",
        "TextConfig", "build_bert", "word_tokenizer", "train_text", "theory",
    ],
    "The paper": ["reproduce"],
}  # fmt: skip


def reference() -> dict[str, str]:
    """A page for each group of names, by the name of its file, and ``reference`` that leads to them."""
    names = [name for name in tp.__all__ if not name.startswith("_")]
    pages, contents = {}, []
    for title, wanted in [*GROUPS.items(), ("More", names)]:
        chosen = list(dict.fromkeys(name for entry in wanted for name in names if fits(name, entry)))
        names = [name for name in names if name not in chosen]
        if not chosen:
            continue
        file = f"reference_{title.lower().replace(' ', '_')}"
        described = [text for name in chosen for text in describe(f"tp.{name}", getattr(tp, name), "##")]
        pages[file] = "\n".join([f"# {title}\n", *described])
        listed = ", ".join(f"`{name}`" for name in chosen)
        contents.append(f"* [{title}]({file}.md): {listed}")
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    pages["reference"] = "\n".join([HEAD, *contents, "", toctree, ""])
    return pages


def fits(name: str, entry: str) -> bool:
    """Whether a public name belongs to an entry of a group: itself, its prefix, or the report of a measurement."""
    return (
        name == entry
        or (entry.endswith("_") and name.startswith(entry))
        or (entry == "Report" and name.endswith("Report"))
    )


def describe(name: str, value: Any, level: str) -> Iterator[str]:
    """A heading, the signature, the docstring, and the same for what is inside."""
    if isinstance(value, ModuleType):
        yield f"{level} `{name}`\n\n{docstring(value)}\n"
        for inner in public_names(value):
            yield from describe(f"{name}.{inner}", getattr(value, inner), f"{level}#")
        return
    yield f"{level} `{name}`\n"
    if callable(value):
        yield f"```python\n{name.split('.')[-1]}{signature(value)}\n```\n"
    yield f"{docstring(value)}\n"
    if inspect.isclass(value):
        for inner, member in vars(value).items():
            if not inner.startswith("_") and is_documented(member):
                yield from describe_member(f"{name}.{inner}", member, f"{level}#")


def public_names(module: ModuleType) -> list[str]:
    """Functions and classes that a module offers: those it lists, or all that it holds."""
    names = getattr(module, "__all__", vars(module))
    offered = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return sorted(
        name for name, value in offered.items() if inspect.isfunction(value) or inspect.isclass(value)
    )


def is_documented(member: Any) -> bool:
    """Methods and properties with a docstring; fields are in the docstring of their class."""
    function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
    return inspect.isfunction(function) and bool(function.__doc__)


def describe_member(name: str, member: Any, level: str) -> Iterator[str]:
    """A method, or a property, which has no signature."""
    function = getattr(member, "__func__", None)
    if function is None and not inspect.isfunction(member):
        yield f"{level} `{name}`\n\n{docstring(member)}\n"
    else:
        method = function or member
        short = ".".join(name.split(".")[-2:]) if isinstance(member, classmethod) else name.split(".")[-1]
        yield f"{level} `{name}`\n\n```python\n{short}{signature(method, bound=True)}\n```\n\n{docstring(method)}\n"


def signature(value: Any, *, bound: bool = False) -> str:
    """The signature, an argument in a line where it is long."""
    found = inspect.signature(value)
    parameters = list(found.parameters.values())[1 if bound else 0 :]
    text = str(found.replace(parameters=parameters))
    text = re.sub(r"<factory>|<object object at 0x[0-9a-f]+>", "...", text).replace("topic_probe.", "")
    if len(text) <= 100:
        return text
    inner = str(found.replace(parameters=[], return_annotation=found.return_annotation)).removeprefix("()")
    lines, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            lines.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        lines.append(re.sub(r"<factory>", "...", str(parameter)).replace("topic_probe.", ""))
    return "(\n" + "".join(f"    {line},\n" for line in lines) + ")" + inner.replace("topic_probe.", "")


def docstring(value: Any) -> str:
    """The docstring with the sections of Google's style as lists, and its example, which stands last, as a program."""
    text, _, example = (inspect.getdoc(value) or "").partition("\nExample:\n")
    lines, section = [], False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", line):
            lines += [f"**{line.removesuffix(':')}**", ""]
            section = True
        elif section and (item := re.match(r" {4}(\*{0,2}[\w.]+):\s*(.*)", line)):
            lines.append(f"* `{item[1]}`: {item[2]}")
        elif section and line.startswith(" "):
            lines.append("  " + line.strip())
        else:
            section = section and not line.strip()
            lines.append(line)
    prose = re.sub(r"``([^`]+)``", r"`\1`", "\n".join(lines))
    return f"{prose}\n\n**Example**\n\n{paragraphs(inspect.cleandoc(example))}" if example else prose


def paragraphs(example: str) -> str:
    """An example with its sentences as such, and what is typed and printed as a program."""
    parts = re.split(r"\n\n", example)
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in parts)
