"""A server on the loopback interface that speaks the routes of the Hugging Face hub we use."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """What is served, and what was asked for.

    Attributes:
        repos: files by repository.
        token: needed for `private` repositories.
        claimed_bytes: what the hub says of files' sizes, by name, where that isn't true.
        cut_after: bytes after which the next download is cut, once.
        requests: (method, path, Range header).
    """

    repos: Mapping[str, Mapping[str, bytes]]
    private: frozenset[str] = frozenset()
    token: str = "hf_secret"
    claimed_bytes: dict[str, int] = field(default_factory=dict)
    cut_after: int | None = None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.*)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        match = info or file
        repo = match[1] if match else ""
        allowed = repo in self.hub.repos and (
            repo not in self.hub.private
            or self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        )
        if not allowed:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        elif info:
            files = [
                {"rfilename": name, "size": self.hub.claimed_bytes.get(name, len(content))}
                for name, content in self.hub.repos[repo].items()
            ]
            body = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": files}
            self._send(200, json.dumps(body).encode(), {}, with_body)
        elif file and file[2] in self.hub.repos[repo]:
            self._send_file(self.hub.repos[repo][file[2]], with_body)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)

    def _send_file(self, content: bytes, with_body: bool) -> None:
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not span:
            self._send(200, content, headers, with_body)
            return
        begin = int(span[1])
        end = int(span[2]) + 1 if span[2] else len(content)
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        self._send(206, content[begin:end], headers, with_body)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not with_body:
            return
        if self.hub.cut_after is not None and len(body) > self.hub.cut_after:
            self.wfile.write(body[: self.hub.cut_after])
            self.wfile.flush()
            self.hub.cut_after = None
            self.close_connection = True
            return
        self.wfile.write(body)


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub on a free port, at `hub.url`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
