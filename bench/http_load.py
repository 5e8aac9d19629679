"""Throughput of an OpenAI-compatible server on the loopback interface, and servers to measure."""

from __future__ import annotations

import http.client
import json
import random
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_START_SECONDS = 180.0
_WORDS = (
    "river stone lamp green seven market paper winter glass road music apple north quiet".split()
)


@contextmanager
def serving(command: Sequence[str | Path], port: int) -> Iterator[None]:
    """A server that answers /health on `port`, ended on leaving; `SystemExit` if it fails to."""
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_healthy(port, process)
        yield
    finally:
        process.terminate()
        process.wait()


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when `process` answers on `port`; `SystemExit` if it ends first or takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while not _healthy(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{process.args!r} did not start")
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def throughput(port: int, concurrency: int, num_requests: int, num_tokens: int) -> float:
    """Generated tokens per second over `num_requests` completions, `concurrency` at a time.

    Prompts are random words, all different, so that no cache helps; answers are whole, so that the
    client costs little of the cores it shares with the server.
    """
    prompts = [_prompt(seed) for seed in range(num_requests)]
    post(port, _prompt(-1), 4)  # warm
    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as executor:
        counts = list(executor.map(lambda prompt: post(port, prompt, num_tokens), prompts))
    return sum(counts) / (time.perf_counter() - start)


def post(port: int, prompt: str, num_tokens: int) -> int:
    """Tokens of one completion."""
    body = {
        "model": "model", "prompt": prompt, "max_tokens": num_tokens, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status != 200:
        raise SystemExit(f"the server on port {port} answered {answer.status}: {found}")
    return int(found["usage"]["completion_tokens"])


def _prompt(seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(_WORDS) for _ in range(64))


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
