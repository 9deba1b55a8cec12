"""Names on the Hugging Face hub: which commit one means, what is tried again, and what is said when nothing comes.

Everything that is opened by a name goes through here first. The commit is asked for once, and all files are taken of
it, so that none is of another state of the repository. `Retry` says how long an answer that may pass is waited for;
what will not pass is an error at once.
"""

import asyncio
import gzip
import http.client
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from topic_probe.notices import warn

Kind = Literal["model", "dataset"]
T = TypeVar("T")

# Seconds within which the hub has to say something.
_ANSWER_WITHIN = 4


@dataclass(frozen=True)
class Retry:
    """How often what breaks on the way is tried again: a stream is opened again at the place where it broke.

    Attributes:
        attempts: Breaks in a row, with nothing read between them, after which it is given up.
        wait: Seconds before the first attempt; each further one waits twice as long, or as long as the hub asks for.
        longest: No wait is longer than this.
        sleep: What waits.
        patience: Seconds since something was read, after which it is given up, too. A package below may have waited
            and tried long before it says that a stream broke.
    """

    attempts: int = 6
    wait: float = 1.0
    longest: float = 60.0
    sleep: Callable[[float], object] = time.sleep
    patience: float = 300.0

    def seconds(self, breaks: int, error: BaseException) -> float:
        """The wait after so many breaks in a row, the last of which had this error."""
        asked = str(getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", ""))
        least = float(asked) if asked.isdecimal() else 0.0
        return min(self.longest, max(least, self.wait * 2.0 ** (breaks - 1)))


# What opens a name waits seven seconds in all, as the packages below wait, too.
_OPENING = Retry(attempts=3)


class Found(NamedTuple):
    """What a name on the hub means.

    Attributes:
        commit: The commit, None where neither the hub nor this machine knows it.
        online: Whether the hub has said so.
    """

    commit: str | None
    online: bool


# The small files of a repository: of a model all but its weights, of a data set what says where its texts are.
_SMALL = {
    "model": ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"],
    "dataset": ["README.md"],
}


def fetch(
    name: str, revision: str | None = None, *, kind: Kind, online: bool = False, token: Any = None
) -> Found:
    """The commit that a name on the hub means now, the small files of which are on this machine then.

    Small files are fetched here, because a package may take a file that it cannot get for one that is not there, and go
    on with another tokenizer or none.

    Args:
        name: OWNER/NAME.
        revision: a commit, branch or tag.
        kind: what it is a name of.
        online: whether the hub has to answer. Otherwise the commit that is on this machine will do.
        token: a login that a call brings; None: that of this machine.

    Raises:
        OSError: where there is no such name or revision, nobody may read it, or nothing comes.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    try:
        here = _commit_here(name, revision, kind)
    except HFValidationError as error:
        raise FileNotFoundError(
            f"cannot load {name!r}: there is no folder of this name, and the Hugging Face hub can have none: its names "
            "are OWNER/NAME, of letters, digits, '-', '_' and '.'"
        ) from error
    if constants.HF_HUB_OFFLINE:
        if online:
            raise refusal(OfflineModeIsEnabled(), name, revision, kind=kind)
        return Found(here, online=False)
    try:
        persistently(lambda: _ask(name, revision, kind, token))
        folder = persistently(
            lambda: snapshot_download(
                name,
                repo_type=kind,
                revision=revision,
                token=token,
                allow_patterns=_SMALL[kind],
                ignore_patterns=["*/*"],
            )
        )
    except Exception as error:
        if (broken := hub_error(error)) is None:
            raise
        if online or here is None or not is_transient(broken):
            raise refusal(broken, name, revision, kind=kind) from error
        warn(f"taking commit {here} of {name}, which is on this machine: {_what_came(broken)}", stacklevel=3)
        return Found(here, online=False)
    return Found(Path(folder).name, online=True)


# Where the weights of a model are: whatever is there first is what transformers would load.
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def fetch_weights(name: str, revision: str | None = None) -> Path:
    """The folder on this machine with all files of a model on the hub, of one commit; nothing of it is opened.

    Raises:
        OSError: where there is no such name or revision, nobody may read it, or nothing comes.
    """
    from huggingface_hub import snapshot_download

    commit, online = fetch(name, revision, kind="model")
    folder = None
    for pattern in WEIGHTS:
        try:
            folder = Path(
                persistently(
                    lambda pattern=pattern: snapshot_download(  # type: ignore[misc]
                        name,
                        revision=commit or revision,
                        allow_patterns=[*_SMALL["model"], pattern],
                        ignore_patterns=["*/*"],
                        local_files_only=not online,
                    )
                )
            )
        except Exception as error:
            if (broken := hub_error(error)) is None:
                raise
            raise refusal(broken, name, revision, kind="model") from error
        if any(folder.glob(pattern)):
            break
    assert folder is not None
    return folder


def _ask(name: str, revision: str | None, kind: Kind, token: Any) -> None:
    """An error at once where a name means nothing or nobody answers, which a download finds out after many tries."""
    from huggingface_hub import HfApi

    little: Any = ["sha"]  # of all that it could tell
    api = HfApi(token=token)
    api.repo_info(name, revision=revision, repo_type=kind, expand=little, timeout=_ANSWER_WITHIN)


def _commit_here(name: str, revision: str | None, kind: Kind) -> str | None:
    """The commit whose configuration an earlier download has left on this machine."""
    from huggingface_hub import try_to_load_from_cache

    described = {"model": "config.json", "dataset": "README.md"}[kind]
    place = try_to_load_from_cache(name, described, revision=revision, repo_type=kind)
    return Path(place).parent.name if isinstance(place, str) else None


def persistently(action: Callable[[], T]) -> T:
    """What an action gives, tried again while the hub fails in a way that may pass.

    A hub that cannot be reached at all is no reason to wait.
    """
    for breaks in count(1):
        try:
            return action()
        except Exception as error:
            broken = hub_error(error)
            if (
                broken is None
                or not is_transient(broken)
                or is_unreachable(broken)
                or breaks > _OPENING.attempts
            ):
                raise
            wait = _OPENING.seconds(breaks, broken)
            warn(f"{_what_came(broken)}; asked again in {wait:g} s", stacklevel=3)
        _OPENING.sleep(wait)
    raise AssertionError("it returns or raises")


# --- errors -----------------------------------------------------------------------------------------

_LASTING = (
    FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, gzip.BadGzipFile, ValueError,
)  # fmt: skip
_PASSING = (OSError, http.client.HTTPException, asyncio.TimeoutError)
_NETWORK_PACKAGES = {
    "aiohttp", "fsspec", "httpcore", "httpcore2", "httpx", "httpx2", "huggingface_hub", "requests", "urllib3",
}  # fmt: skip
_UNREACHABLE = {"ConnectError", "ConnectTimeout", "ProxyError", "OfflineModeIsEnabled"}


def is_transient(error: BaseException) -> bool:
    """Whether the same reading may succeed a little later: what breaks on the way, not what is wrong."""
    status = _status(error)
    if status is not None:
        return status in (408, 425, 429) or status >= 500
    if isinstance(error, _LASTING):
        return False
    return isinstance(error, _PASSING) or _package(error) in _NETWORK_PACKAGES


def is_unreachable(error: BaseException) -> bool:
    """Whether nothing was there to answer."""
    return not _UNREACHABLE.isdisjoint(_kinds(error))


def hub_error(error: BaseException) -> BaseException | None:
    """What the hub, or the way there, did to cause an error; None where the cause is another one.

    An answer tells most, and a package may have put words of its own around it. That a repository lacks a file is no
    fault of the hub.
    """
    causes = [cause for cause in _causes(error) if "RemoteEntryNotFoundError" not in _kinds(cause)]
    answers = [cause for cause in causes if _status(cause) is not None]
    broken = [cause for cause in causes if is_unreachable(cause) or _package(cause) in _NETWORK_PACKAGES]
    # datasets hides what it went by, and says of the hub only that it was not asked or not there.
    broken += [cause for cause in causes if isinstance(cause, ConnectionError) and "the Hub" in str(cause)]
    return next(iter([*answers, *reversed(broken)]), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()  # a chain may be a circle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__  # also where a package hides it


def _kinds(error: BaseException) -> set[str]:
    """The names of the classes of an error, which differ by package and version."""
    return {kind.__name__ for kind in type(error).__mro__}


def _package(error: BaseException) -> str:
    return type(error).__module__.split(".")[0]


def _status(error: BaseException) -> int | None:
    """The status of an answer of the hub, or of any other host."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return getattr(error, "status", None) if status is None and _package(error) == "aiohttp" else status


# --- what is said -----------------------------------------------------------------------------------

_ELSEWHERE = {
    "model": (
        "Without a network, fetch the files elsewhere (`hf download {name} --local-dir FOLDER`), copy the folder here "
        "and open it by its path."
    ),
    "dataset": (
        "Without a network, streaming=False reads what was downloaded before, Corpus.bundled() has real articles and "
        "Corpus.from_files reads your own; or fetch the data set elsewhere (`hf download {name} --repo-type dataset "
        "--local-dir FOLDER`), copy the folder here and pass it."
    ),
}


def refusal(broken: BaseException, name: str, revision: str | None, *, kind: Kind) -> OSError:
    """An error that says what was asked of the hub, what came, and what to do."""
    from huggingface_hub import constants

    said, status, kinds = f"cannot load {name!r}: {_what_came(broken)}", _status(broken), _kinds(broken)
    called, folder = {"model": ("model", ""), "dataset": ("data set", "datasets/")}[kind]
    page = f"{constants.ENDPOINT}/{folder}{name}"
    log_in = "log in (`hf auth login`, or a token in HF_TOKEN)"
    if "RevisionNotFoundError" in kinds:
        return FileNotFoundError(
            f"{said}: this {called} has no revision {revision!r}. Give a branch, a tag or a whole commit hash, which "
            f"{page}/commits/main lists, or none for the newest."
        )
    if "RepositoryNotFoundError" in kinds and "GatedRepoError" not in kinds:
        return FileNotFoundError(
            f"{said}: it has no {called} of this name that everybody may read. Names are OWNER/NAME, as on "
            f"{constants.ENDPOINT}; if it is private, {log_in}."
        )
    if status in (401, 403):
        return PermissionError(
            f"{said}: it gives the files of this {called} only to those who were granted access. Ask for it at "
            f"{page}, and {log_in}."
        )
    if status == 429:
        return ConnectionError(f"{said}: too much was asked of it. Wait some minutes, or {log_in}.")
    elsewhere = _ELSEWHERE[kind].format(name=name)
    if status is not None:
        return ConnectionError(f"{said}, which is no fault of yours: try again later. {elsewhere}")
    return ConnectionError(f"{said}. {elsewhere}")


def _what_came(broken: BaseException) -> str:
    """What the hub did, in a few words."""
    from huggingface_hub import constants

    hub = f"the Hugging Face hub at {constants.ENDPOINT}"
    if (status := _status(broken)) is not None:
        own_words = getattr(getattr(broken, "response", None), "headers", {}).get("X-Error-Message")
        return f"{hub} answers with {status}" + (f" ({own_words})" if own_words else "")
    if constants.HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, so {hub} is not asked, and the files are not on this machine"
    how = str(broken).strip().split("\n")[0] or type(broken).__name__
    return (
        f"{hub} cannot be reached ({how})"
        if is_unreachable(broken)
        else f"{hub} gives no whole answer ({how})"
    )
