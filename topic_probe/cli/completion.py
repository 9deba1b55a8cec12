"""``topic-probe completion bash|zsh|fish``: what can stand next on a command line, as the parser itself knows it.

Without words the command prints a script for a shell; the script gives it the words on the line, the last of which is
being completed, and reads what may stand there: first a line that says whether files may stand there too, then a line
for each candidate, its explanation behind a tab. Nothing but the parser is imported.
"""

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

from topic_probe.cli.inputs import BUILTIN_TOPICS, BUNDLED, STDIN, WIKIPEDIA
from topic_probe.cli.options import Parser

Shell = Literal["bash", "zsh", "fish"]
SCRIPTS: dict[Shell, str] = {
    "bash": """\
_topic_probe() {
    local current="${COMP_WORDS[COMP_CWORD]}" kind candidate
    COMPREPLY=()
    {
        read -r kind
        while IFS=$'\\t' read -r candidate _; do COMPREPLY+=("$candidate"); done
    } < <(topic-probe completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ $kind != files ]]; then
        compopt +o default 2>/dev/null
    elif (( ${#COMPREPLY[@]} )); then
        while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -f -- "$current")
    fi
}
complete -o default -F _topic_probe topic-probe""",
    "zsh": """\
#compdef topic-probe
_topic_probe() {
    local -a lines found
    local line
    lines=("${(@f)$(topic-probe completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${(@)lines[2,-1]}"; do
        [[ -n $line ]] && found+=("${${line//:/\\\\:}/$'\\t'/:}")
    done
    (( $#found )) && _describe -V topic-probe found
    [[ $lines[1] == files ]] && _files
}
compdef _topic_probe topic-probe""",
    "fish": """\
function __topic_probe
    set -l lines (topic-probe completion fish -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
    test (count $lines) -gt 1; and printf '%s\\n' $lines[2..-1]
    test "$lines[1]" = files; and __fish_complete_path (commandline -ct)
end
complete -c topic-probe -f -a '(__topic_probe)'""",
}
_EPILOG = """to have it in every shell, add a line to its start file:
  bash  ~/.bashrc                   eval "$(topic-probe completion bash)"
  zsh   ~/.zshrc, after compinit    eval "$(topic-probe completion zsh)"
  fish  ~/.config/fish/config.fish  topic-probe completion fish | source"""

# What a value is called in the help, where it is the name of a file or folder, and what else it may be.
_FILES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("MODEL", "TOKENIZER", "PATH", "DIR", "PAGE", "FILE", "FOLDER"), ()),
    "TOPICS": (*BUILTIN_TOPICS, STDIN),
    "CORPUS": (BUNDLED, WIKIPEDIA),
}
_LETTERS = 80


def add_to(parser: Parser) -> None:
    """What the command takes."""
    parser.usage = "topic-probe completion bash|zsh|fish"
    parser.epilog = _EPILOG
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help="bash, zsh or fish")
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run, json=False, progress=False, debug=False)


def run(parsed: argparse.Namespace) -> int:
    """Print the script of a shell, or what may stand at the end of a line."""
    if not parsed.words:
        parsed.console.answer(SCRIPTS[parsed.shell], {})
        return 0
    from topic_probe.cli import build_parser

    words = parsed.words[1:] if parsed.words[0] == "--" else parsed.words
    files, found = candidates(build_parser(), words)
    lines = [f"{text}\t{' '.join(what.split())[:_LETTERS]}".rstrip() for text, what in found]
    parsed.console.answer("\n".join(["files" if files else "words", *lines]), {})
    return 0


def candidates(parser: Parser, words: Sequence[str]) -> tuple[bool, list[tuple[str, str]]]:
    """Whether files may stand in place of the last word, and what else may, each with what it is.

    Bash gives ``--level=token`` as three words.
    """
    current = words[-1].removeprefix("=")
    parser, expected, place = _reached(parser, [word for word in words[:-1] if word != "="])
    options = parser._option_string_actions
    flag, sign, begun = current.partition("=")
    if sign and flag in options:
        files, values = _values(options[flag], begun)
        return files, [(f"{flag}={value}", what) for value, what in values]
    if current.startswith("-"):
        known = [(name, action) for name, action in options.items() if name.startswith("--")]
        return False, [(name, _said(action)) for name, action in known if name.startswith(current)]
    if expected is not None:
        return _values(expected, current)
    commands = _commands(parser)
    if commands is not None:
        named = [] if place else [(action.dest, _said(action)) for action in commands._choices_actions]
        return False, [(name, what) for name, what in named if name.startswith(current)]
    places = [action for action in parser._actions if not action.option_strings]
    if places and (place < len(places) or places[-1].nargs == "+"):
        return _values(places[min(place, len(places) - 1)], current)
    return False, []


def _reached(parser: Parser, words: Iterable[str]) -> tuple[Parser, argparse.Action | None, int]:
    """The parser of the command that stands there, the option that waits for a value, and how many arguments came."""
    expected, place = None, 0
    parser.prepare()
    for word in words:
        commands = _commands(parser)
        if word.startswith("--"):
            flag, given, _ = word.partition("=")
            action = parser._option_string_actions.get(flag)
            expected = None if given or action is None or action.nargs == 0 else action
        elif expected is not None:
            expected = expected if expected.nargs in ("*", "+") else None
        elif commands is not None and word in commands.choices:
            parser, place = commands.choices[word], 0
            parser.prepare()
        else:
            place += 1
    return parser, expected, place


def _commands(parser: Parser) -> Any:
    """What chooses a command, or a kind of one, if it is to be chosen."""
    return next(
        (action for action in parser._actions if action.choices and action.nargs == argparse.PARSER), None
    )


def _values(action: argparse.Action, begun: str) -> tuple[bool, list[tuple[str, str]]]:
    """Whether the value may be a file, and which values of a closed set begin so."""
    of_type = action.type.args[-1] if isinstance(action.type, partial) else ()
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    listed = [*map(str, action.choices or of_type), *_FILES.get(name, ())]
    return name in _FILES, [(value, "") for value in listed if value.startswith(begun)]


def _said(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")
