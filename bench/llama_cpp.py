"""Drives llama.cpp's own programs: its logits file, and its server on the loopback interface."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from http_load import free_port, serving
from processes import run

BIN_DIR_HELP = "folder of llama.cpp's programs; bench/README.md says how to build them"


@dataclass(frozen=True)
class LogitsFile:
    """What `llama-perplexity --save-all-logits` wrote.

    Attributes:
        tokens: [chunks, ctx] ids as tokenised; the first of each chunk was evaluated as BOS.
        log_probs: [chunks, rows, vocab] of positions ctx // 2 to ctx - 2, stored in 16 bits between
            a row's largest value and 16 below it (perplexity.cpp, `log_softmax`).
    """

    tokens: NDArray[np.int32]
    log_probs: NDArray[np.float32]


def read_logits_file(path: Path) -> LogitsFile:
    data = np.memmap(path, np.uint8, mode="r")
    assert bytes(data[:8]) == b"_logits_", path
    num_ctx, num_vocab, num_chunks = (int(v) for v in data[8:20].view(np.int32))
    end = 20 + num_chunks * num_ctx * 4
    tokens = data[20:end].view(np.int32).reshape(num_chunks, num_ctx).copy()
    num_rows = num_ctx - 1 - num_ctx // 2
    row_words = 2 * ((num_vocab + 1) // 2) + 4
    rows = data[end:].view(np.uint16).reshape(num_chunks, num_rows, row_words)
    head = np.ascontiguousarray(rows[:, :, :4]).view(np.float32)
    log_probs = rows[:, :, 4 : 4 + num_vocab] * head[:, :, :1] + head[:, :, 1:2]
    return LogitsFile(tokens, log_probs.astype(np.float32))


def save_logits(
    bin_dir: Path, model: Path, text: Path, out: Path, num_ctx: int, num_chunks: int, threads: int
) -> LogitsFile:
    """Run `llama-perplexity` over `text` and read what it wrote."""
    command = [bin_dir / "llama-perplexity", "-m", model, "-f", text, "-c", num_ctx, "-b", num_ctx]
    command += ["--chunks", num_chunks, "-t", threads, "--save-all-logits", out]
    run(command)
    return read_logits_file(out)


class Server:
    """A running llama-server."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self._base + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def greedy(self, ids: list[int], num_tokens: int) -> list[int]:
        """Ids of the greedy continuation of `ids`."""
        body = {"prompt": ids, "n_predict": num_tokens, "temperature": 0, "return_tokens": True}
        return [int(i) for i in self.post("/completion", body)["tokens"]]

    def top_log_probs(self, ids: list[int], count: int) -> dict[int, float]:
        """The `count` most probable next tokens of `ids` with their log-probabilities."""
        body = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": count}
        answer = self.post("/completion", body)["completion_probabilities"][0]
        return {int(t["id"]): float(t["logprob"]) for t in answer["top_logprobs"]}


@contextmanager
def running_server(bin_dir: Path, model: Path, threads: int, num_ctx: int) -> Iterator[Server]:
    """llama-server on a free port of the loopback interface, ended on leaving."""
    port = free_port()
    command = [bin_dir / "llama-server", "-m", model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", str(threads), "-c", str(num_ctx), "--parallel", "1", "--no-webui"]
    with serving(command, port):
        yield Server(port)
