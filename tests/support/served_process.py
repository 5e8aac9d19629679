"""`culet serve` in a process of its own, with the built-in model unless another is named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from culet.builtin import MODEL_PATH

_PATIENCE_SECONDS = 120


class Served:
    """Attributes:
    url: where it answers.
    lines: of its log so far.
    """

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append(line.rstrip("\n"))

    def wait_for_ready(self) -> None:
        self.wait_until(lambda: self.process.poll() is not None or self._is_healthy())
        assert self.process.poll() is None, self.lines

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=_PATIENCE_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    def said(self, part: str) -> bool:
        return any(part in line for line in self.lines)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.01)

    def wait(self) -> int:
        """The exit code, once the process has ended and all of its log is here."""
        code = self.process.wait(_PATIENCE_SECONDS)
        self._reader.join(_PATIENCE_SECONDS)
        return code

    def chat(self, max_tokens: int = 8, **options: Any) -> httpx.Response:
        """A question that the built-in model knows the answer of."""
        return httpx.post(f"{self.url}/v1/chat/completions", json=question(max_tokens, **options),
                          timeout=_PATIENCE_SECONDS)  # fmt: skip


def question(max_tokens: int, **options: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "What is the capital of France?"}
    return {"messages": [message], "max_tokens": max_tokens, "temperature": 0, **options}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def served(
    *options: str,
    model: Path = MODEL_PATH,
    port: int | None = None,
    before: Sequence[str] = (),
    **settings: Any,
) -> Iterator[Served]:
    """A server that answers; it is killed at the end, if it still runs.

    Args:
        before: a command that starts the rest of its arguments, such as a shell with a limit.
        settings: of `subprocess.Popen`.
    """
    port = port or free_port()
    command = [*before, sys.executable, "-m", "culet", "serve", str(model), "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*command, *options], text=True, env=environment, **{"stderr": subprocess.PIPE, **settings}
    )
    server = Served(process, port)
    try:
        server.wait_for_ready()
        yield server
    finally:
        process.kill()
        server.wait()
        if process.stderr is not None:
            process.stderr.close()
