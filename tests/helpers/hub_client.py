"""Runs functions of a test file in processes that know no hub but the one on this machine.

The packages read HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE when they are imported. So one program is started with these,
imports what takes seconds, and forks for every call: ``python hub_client.py FILE``.
"""

import importlib.util
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a function gave back, or the names of the classes of its error and what it said.

    Attributes:
        seconds: how long it would have taken, had it slept as long as it wanted to.
    """

    value: Any
    error: str
    kinds: tuple[str, ...]
    trace: str
    seconds: float


class Client:
    """Calls functions of a test file, each in a process of its own."""

    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        closed = "http://127.0.0.1:9"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HF_") and "proxy" not in name.lower()
        }
        settings = {
            **inherited,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), closed),
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",  # what is forked holds no threads
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **environment,
        }
        self._program = subprocess.Popen(
            [sys.executable, __file__, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings
        )

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Outcome:
        """What a function does in a process of its own."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        pickle.dump((function.__name__, arguments, options), self._program.stdin)
        self._program.stdin.flush()
        outcome: Outcome = pickle.load(self._program.stdout)  # noqa: S301 (of a program of our own)
        return outcome

    def close(self) -> None:
        """End the program."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.close()
        self._program.stdout.close()
        assert self._program.wait(60) == 0


def _only_this_machine(event: str, arguments: tuple[Any, ...]) -> None:
    """Ends the process where anything reaches for another host."""
    asked = arguments[1][0] if event == "socket.connect" and isinstance(arguments[1], tuple) else None
    asked = arguments[0] if event == "socket.getaddrinfo" else asked
    if asked is not None and asked not in ("127.0.0.1", b"127.0.0.1"):
        sys.stderr.write(f"this test asked {asked!r}\n")
        os._exit(7)


_slept: list[float] = []


def _hurry() -> None:
    """Lets everything sleep a thousandth of what it asks for, and the clock go on as if it had slept all of it."""
    sleep, monotonic = time.sleep, time.monotonic

    def slept(seconds: float) -> None:
        _slept.append(seconds)
        sleep(seconds / 1000)

    time.sleep = slept
    time.monotonic = lambda: monotonic() + sum(_slept)


def _run(function: Callable[..., Any], arguments: Any, options: Any) -> Outcome:
    value, error, kinds, trace = None, "", (), ""
    began = time.monotonic()
    _slept.clear()
    try:
        value = function(*arguments, **options)
    except BaseException as raised:
        error, kinds = str(raised), tuple(kind.__name__ for kind in type(raised).__mro__)
        trace = traceback.format_exc()
    return Outcome(value, error, kinds, trace, time.monotonic() - began)


def _serve(file: str) -> None:
    _hurry()
    spec = importlib.util.spec_from_file_location("calls", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["calls"] = importlib.util.module_from_spec(spec)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    spec.loader.exec_module(module)
    module.prepare()
    sys.addaudithook(_only_this_machine)
    while True:
        try:
            name, arguments, options = pickle.load(sys.stdin.buffer)  # noqa: S301 (of the test)
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            pickle.dump(_run(getattr(module, name), arguments, options), answers)
            answers.flush()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            died = Outcome(None, f"the process ended with {code}", ("SystemExit",), "", 0.0)
            pickle.dump(died, answers)
            answers.flush()


if __name__ == "__main__":
    import hub_client  # under this name the test knows what is given back

    hub_client._serve(sys.argv[1])
