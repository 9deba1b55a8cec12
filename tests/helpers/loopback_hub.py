"""A Hugging Face hub on this machine: what `huggingface_hub` and `datasets` ask of one, and all that can go wrong.

Repositories are files in memory, under commits and branches. As on the real hub, listings and files name their commit,
and what is refused says so in `X-Error-Code`. Every request is kept, and a test says which of them go wrong.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """What was asked: the path without host and query, and from where to where the bytes of a file are wanted."""

    method: str
    path: str
    start: int = 0
    end: int | None = None
    token: str | None = None


@dataclass
class Repository:
    """Files by commit, commits by branch, and who may have them."""

    kind: str
    name: str
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # what a gated repository wants


Trouble = Callable[[Request], Mapping[str, Any] | None]


class Hub:
    """The server; `endpoint` is what HF_ENDPOINT is set to.

    Attributes:
        requests: everything that was asked, in its order.
        trouble: of a request what goes wrong, None for nothing: ``{"status": 500}`` in place of an answer,
            ``{"drop": n}`` for a connection that ends after n bytes of the content.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.requests: list[Request] = []
        self.trouble: Trouble = lambda request: None
        hub = self

        class Handler(_Handler):
            served = hub

        self._handler = Handler
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._place = self._server.server_address
        self.endpoint = f"http://127.0.0.1:{self._place[1]}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Within, nothing listens."""
        self.__exit__()
        yield
        self._server = _Server(self._place, self._handler)
        self.__enter__()

    def put(
        self,
        kind: str,
        name: str,
        files: Mapping[str, bytes],
        *,
        branch: str = "main",
        commit: str | None = None,
        token: str | None = None,
    ) -> str:
        """A new commit of a repository ("models" or "datasets") at the tip of a branch; its hash."""
        repository = self.repositories.setdefault((kind, name), Repository(kind, name))
        repository.token = token
        if commit is None:
            content = b"".join(path.encode() + value for path, value in sorted(files.items()))
            commit = hashlib.sha1(f"{kind} {name} {len(repository.commits)}".encode() + content).hexdigest()
        repository.commits[commit] = dict(files)
        repository.branches[branch] = commit
        return commit

    @contextmanager
    def troubled(self, trouble: Trouble) -> Iterator[list[Request]]:
        """Within, requests go wrong as said; gives the requests that are made meanwhile."""
        before, self.trouble = len(self.requests), trouble
        asked: list[Request] = []
        try:
            yield asked
        finally:
            self.trouble = lambda request: None
            asked += self.requests[before:]


def first(n: int, of: Callable[[Request], bool], what: Mapping[str, Any]) -> Trouble:
    """Trouble with the first n requests of a kind."""
    left, lock = [n], threading.Lock()

    def trouble(request: Request) -> Mapping[str, Any] | None:
        with lock:
            if left[0] == 0 or not of(request):
                return None
            left[0] -= 1
            return what

    return trouble


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is nothing to report."""


_API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)(?:/(?P<what>[^/]+)(?:/(?P<rest>.*))?)?"
)
_FILE = re.compile(r"/(?P<set>datasets/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Requests are kept, not printed."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        end = int(asked[2]) + 1 if asked and asked[2] else None
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        request = Request(self.command, path, start, end, token)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.served.requests.append(request)
        self.ranged = asked is not None
        self.fails = self.served.trouble(request) or {}
        if "status" in self.fails:
            self._refuse(self.fails["status"], "made to fail")
        elif found := _API.fullmatch(path):
            self._api(found, request, parse_qs(url.query))
        elif found := _FILE.fullmatch(path):
            self._file(found, request)
        else:
            self._refuse(404, "there is no such page")

    do_HEAD = do_POST = do_GET

    # --- what is asked --------------------------------------------------------------------------------

    def _repository(self, kind: str, name: str, revision: str) -> tuple[Repository, str] | None:
        """A repository and the commit of a revision of it, or an answer that there is none."""
        repository = self.served.repositories.get((kind, name))
        if repository is None:
            # As to anyone who has not logged in: it may be private.
            self._refuse(401, "Invalid username or password.", **{"X-Error-Code": "RepoNotFound"})
            return None
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            self._refuse(404, f"Invalid rev id: {revision}", **{"X-Error-Code": "RevisionNotFound"})
            return None
        return repository, commit

    def _api(self, found: re.Match[str], request: Request, query: Mapping[str, list[str]]) -> None:
        what, rest = found["what"], found["rest"] or ""
        if what == "refs":
            if resolved := self._repository(found["kind"], found["name"], "main"):
                branches = resolved[0].branches.items()
                listed = [
                    {"name": name, "ref": f"refs/heads/{name}", "targetCommit": tip} for name, tip in branches
                ]
                self._json({"branches": listed, "converts": [], "tags": []})
            return
        revision, _, below = rest.partition("/")
        resolved = self._repository(found["kind"], found["name"], revision or "main")
        if resolved is None:
            return
        repository, commit = resolved
        files = repository.commits[commit]
        if what in (None, "revision"):
            gated = "manual" if repository.token else False
            siblings = [{"rfilename": path} for path in files]
            self._json(
                {
                    "id": repository.name, "sha": commit, "siblings": siblings, "private": False, "gated": gated,
                    "disabled": False, "downloads": 0, "likes": 0, "tags": [], "cardData": {},
                    "lastModified": "2024-01-01T00:00:00.000Z", "createdAt": "2024-01-01T00:00:00.000Z",
                }
            )  # fmt: skip
        elif what == "tree":
            if below and not any(path.startswith(f"{below}/") for path in files):
                self._refuse(404, "there is no such folder", **{"X-Error-Code": "EntryNotFound"})
            else:
                self._json(
                    _tree(files, below, recursive=query.get("recursive", ["false"])[0].lower() == "true")
                )
        elif what == "paths-info":
            wanted = self._wanted_paths()
            entries = {entry["path"]: entry for entry in _tree(files, "", recursive=True)}
            self._json([entries[path] for path in wanted if path in entries])
        else:
            self._refuse(404, f"no hub answers {what!r} here")

    def _wanted_paths(self) -> list[str]:
        if self.headers.get("Content-Type", "").startswith("application/json"):
            paths = json.loads(self.body)["paths"]
        else:
            paths = parse_qs(self.body.decode())["paths"]
        return [paths] if isinstance(paths, str) else paths

    def _file(self, found: re.Match[str], request: Request) -> None:
        kind = "datasets" if found["set"] else "models"
        resolved = self._repository(kind, found["name"], found["revision"])
        if resolved is None:
            return
        repository, commit = resolved
        if repository.token and request.token != repository.token:
            said = f"Access to {kind[:-1]} {repository.name} is restricted. You must be authenticated to access it."
            status = 401 if request.token is None else 403
            self._refuse(status, said, **{"X-Error-Code": "GatedRepo"})
            return
        named = {"X-Repo-Commit": commit}
        content = repository.commits[commit].get(found["path"])
        if content is None:
            self._refuse(404, "Entry not found", **{"X-Error-Code": "EntryNotFound"}, **named)
        else:
            self._content(request, content, {"ETag": f'"{_blob_id(content)}"', **named})

    # --- answers --------------------------------------------------------------------------------------

    def _content(self, request: Request, content: bytes, headers: Mapping[str, str]) -> None:
        if not self.ranged:
            self._answer(200, content, {"Accept-Ranges": "bytes", **headers})
        elif request.start >= len(content):
            self._refuse(416, "nothing is there", **{"Content-Range": f"bytes */{len(content)}"})
        else:
            part = content[request.start : request.end]
            span = f"bytes {request.start}-{request.start + len(part) - 1}/{len(content)}"
            self._answer(206, part, {"Content-Range": span, **headers})

    def _json(self, content: Any) -> None:
        self._answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, why: str, **headers: str) -> None:
        content = json.dumps({"error": why}).encode()
        self._answer(status, content, {"Content-Type": "application/json", "X-Error-Message": why, **headers})

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        n_sent = self.fails.get("drop")
        with suppress(OSError):  # the client may have hung up
            if n_sent is not None and (n_sent == 0 or self.command == "HEAD"):
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[:n_sent])
            if n_sent is not None:
                self.close_connection = True


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _tree(files: Mapping[str, bytes], below: str, *, recursive: bool) -> list[dict[str, Any]]:
    """Files and folders below a folder, as the hub lists them."""
    prefix = f"{below}/" if below else ""
    inside = {path: content for path, content in files.items() if path.startswith(prefix)}
    folders = sorted(
        {
            path.rsplit("/", depth)[0]
            for path in inside
            for depth in range(1, path[len(prefix) :].count("/") + 1)
        }
    )
    entries = [
        {"type": "directory", "oid": _blob_id(path.encode()), "size": 0, "path": path} for path in folders
    ]
    for path, content in inside.items():
        entries.append({"type": "file", "oid": _blob_id(content), "size": len(content), "path": path})
    return [entry for entry in entries if recursive or "/" not in entry["path"][len(prefix) :]]
