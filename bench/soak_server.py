"""Hours of mixed load on `culet serve`: no wrong answer, no lost one, nothing that grows.

    python bench/soak_server.py [MODEL] [--minutes 120] [--concurrency 16] [-- SERVE OPTION...]

First every question is asked alone; then client processes ask them over and over, chats, tools,
schemas, plain completions, over three APIs, whole and streamed. Between them are cancelled streams,
connections dropped before the answer, and requests that must be refused. Every half minute a client
process is killed and another started. After a fifth of the time the server's resident memory may
grow by 2% and its threads and open files not at all; at the end nothing may be running, and the
server must end within ten seconds when told to. Prints one JSON line; exit status 1 where a promise
is broken. Load goes to this machine's own loopback address only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from culet.builtin import MODEL_PATH
from http_load import free_port, wait_until_healthy
from soak_answers import Question, ask, questions, send

NUM_PROCESSES = 4
NUM_QUESTIONS = 320
GROWTH_ALLOWED = 0.02
RESTART_SECONDS = 30.0
SAMPLE_SECONDS = 10.0
END_SECONDS = 10.0
REFUSED: tuple[tuple[str, bytes], ...] = (
    ("/v1/chat/completions", b"{"),
    ("/v1/chat/completions", b'{"messages": 3}'),
    ("/v1/completions", b'{"prompt": "a", "max_tokens": -1}'),
    ("/v1/messages", b'{"messages": []}'),
    ("/api/chat", b"[]"),
)


class Client:
    """One process's threads: each asks until the process is killed or the file says to end."""

    def __init__(self, port: int, expected: Path, out: Path, seed: int) -> None:
        self._port = port
        self._expected: list[tuple[str, dict[str, Any], dict[str, str]]] = json.loads(
            expected.read_text(encoding="utf-8")
        )
        self._out = open(out, "a", buffering=1, encoding="utf-8")
        self._seed = seed

    def run(self, num_threads: int) -> None:
        threads = [
            threading.Thread(target=self._work, args=(random.Random(self._seed * 100 + i),))
            for i in range(num_threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, rng: random.Random) -> None:
        while not Path(self._out.name + ".end").exists():
            chance = rng.random()
            path, body, right = rng.choice(self._expected)
            question = Question(path, body)
            begin = time.monotonic()
            try:
                if chance < 0.75:
                    what, wrong = "asked", self._ask(question, right)
                elif chance < 0.88:
                    what, wrong = "cancelled", self._cancel(question, rng)
                elif chance < 0.94:
                    what, wrong = "dropped", self._drop(question)
                else:
                    what, wrong = "refused", self._refused(rng)
            except Exception as error:
                what, wrong = "lost", f"{question.key}: {error!r}"
            row = {"what": what, "seconds": time.monotonic() - begin, "wrong": wrong}
            self._out.write(json.dumps(row) + "\n")

    def _ask(self, question: Question, right: dict[str, str]) -> str:
        found = ask(self._port, question)
        return "" if found == right else f"{question.key}: {right} became {found}"

    def _cancel(self, question: Question, rng: random.Random) -> str:
        body = question.body | {"stream": True}
        connection, answer = send(self._port, Question(question.path, body))
        for _ in range(rng.randint(0, 6)):
            answer.readline()
        connection.close()
        return "" if answer.status == 200 else f"{question.key}: status {answer.status}"

    def _drop(self, question: Question) -> str:
        body = json.dumps(question.body).encode()
        head = f"POST {question.path} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as raw:
            raw.sendall(head.encode() + body)
        return ""

    def _refused(self, rng: random.Random) -> str:
        path, body = rng.choice(REFUSED)
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", body)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=900) as answer:
                return f"{path} {body!r} was answered with {answer.status}"
        except urllib.error.HTTPError as error:
            return "" if error.code in (400, 422) else f"{path} {body!r} gave {error.code}"


class Clients:
    """Client processes; one of them at a time is killed and replaced."""

    def __init__(self, port: int, folder: Path, concurrency: int) -> None:
        self._port, self._folder = port, folder
        self._threads = max(1, concurrency // NUM_PROCESSES)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.num_started = 0
        for _ in range(NUM_PROCESSES):
            self._processes.append(self._start())

    def restart_one(self) -> None:
        number = random.randrange(NUM_PROCESSES)
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = self._start()

    def end(self) -> None:
        for number in range(self.num_started):
            (self._folder / f"client-{number}.jsonl.end").touch()
        for process in self._processes:
            process.wait()

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for path in self._folder.glob("client-*.jsonl"):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue  # its writer was killed in the middle
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        number, self.num_started = self.num_started, self.num_started + 1
        command = [sys.executable, __file__, "--client", str(self._threads)]
        command += ["--port", str(self._port), "--seed", str(number)]
        command += ["--expected", str(self._folder / "expected.json")]
        return subprocess.Popen([*command, "--out", str(self._folder / f"client-{number}.jsonl")])


def sample(pid: int) -> tuple[int, int, int]:
    """Resident bytes, threads and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    resident, threads = int(values["VmRSS"].split()[0]) << 10, int(values["Threads"])
    return resident, threads, len(os.listdir(f"/proc/{pid}/fd"))


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=900) as answer:
        text = answer.read().decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def step_quantile_ms(found: dict[str, float], share: float) -> float:
    """Upper edge of the histogram bucket in which that share of the steps' times ends."""
    total = found["culet_step_seconds_count"]
    prefix = 'culet_step_seconds_bucket{le="'
    edges = sorted(
        (float(name[len(prefix) : -2]), count)
        for name, count in found.items()
        if name.startswith(prefix)
    )
    return next(1e3 * edge for edge, count in edges if count >= share * total)


def watch(pid: int, clients: Clients, minutes: float) -> list[tuple[int, int, int]]:
    """Let the load run; samples from a fifth of the time on."""
    samples = []
    begin = time.monotonic()
    restart_at = begin + RESTART_SECONDS
    while (now := time.monotonic()) < begin + 60 * minutes:
        time.sleep(min(SAMPLE_SECONDS, 6 * minutes))
        if now >= begin + 12 * minutes:
            samples.append(sample(pid))
        if now >= restart_at:
            clients.restart_one()
            restart_at = now + RESTART_SECONDS
    return samples


def growth(samples: list[tuple[int, int, int]]) -> tuple[list[float], list[float], list[str]]:
    tenth = max(1, len(samples) // 10)
    first, last = (
        [median(column) for column in zip(*part, strict=True)]
        for part in (samples[:tenth], samples[-tenth:])
    )
    faults = []
    if last[0] > first[0] * (1 + GROWTH_ALLOWED):
        faults.append(f"resident memory grew from {first[0]} to {last[0]} bytes")
    if last[1] > first[1]:
        faults.append(f"threads grew from {first[1]} to {last[1]}")
    if last[2] > max(s[2] for s in samples[: 3 * tenth]) + 4:  # connections come and go
        faults.append(f"open files grew from {first[2]} to {last[2]}")
    return first, last, faults


def end(server: subprocess.Popen[bytes]) -> list[str]:
    begin = time.monotonic()
    server.send_signal(signal.SIGTERM)
    code, took = server.wait(60), time.monotonic() - begin
    if code == 0 and took <= END_SECONDS:
        return []
    return [f"the server ended with {code} in {took:.1f} s"]


def soak(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    port = free_port()
    command = [sys.executable, "-m", "culet", "serve", str(args.model), "--port", str(port)]
    command += ["--ctx", "512", "--max-seqs", str(args.concurrency), *args.options]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until_healthy(port, server)
        return load(args, folder, port, server)
    finally:
        server.kill()


def load(
    args: argparse.Namespace, folder: Path, port: int, server: subprocess.Popen[bytes]
) -> dict[str, Any]:
    """Everything that happens to a running server, to its end; the row to print."""
    asked = questions(NUM_QUESTIONS, args.seed)
    expected = [(q.path, q.body, ask(port, q)) for q in asked]
    refused = [row for row in expected if "status" in row[2]]
    if refused:
        raise SystemExit(f"a question was refused: {refused[0]}")
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    clients = Clients(port, folder, args.concurrency)
    try:
        samples = watch(server.pid, clients, args.minutes)
    finally:
        clients.end()
    first, last, faults = growth(samples)
    rows = clients.rows()
    faults += [row["wrong"] for row in rows if row["wrong"]][:20]
    found = metrics(port)
    busy = {n: found[f"culet_{n}"] for n in ("running", "waiting", "http_open_answers")}
    if any(busy.values()):
        faults.append(f"after the last request: {busy}")
    faults += end(server)
    seconds = sorted(row["seconds"] for row in rows if row["what"] == "asked")
    return {
        "what": "server soak",
        "minutes": args.minutes,
        "requests": dict(Counter(row["what"] for row in rows)),
        "clients_started": clients.num_started,
        "steps": found["culet_steps_total"],
        "step_p50_ms": step_quantile_ms(found, 0.5),
        "step_p99_ms": step_quantile_ms(found, 0.99),
        "request_p50_s": seconds[len(seconds) // 2],
        "request_p99_s": seconds[len(seconds) * 99 // 100],
        "cached_tokens": found["culet_cached_tokens_total"],
        "preemptions": found["culet_preemptions_total"],
        "cancelled": found["culet_requests_cancelled_total"],
        "resident_threads_files": [first, last],
        "faults": faults,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", default=MODEL_PATH)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep logs and rows here")
    parser.add_argument("options", nargs="*", help="for culet serve, after --")
    for name in ("--client", "--port"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    for name in ("--expected", "--out"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        Client(args.port, args.expected, args.out, args.seed).run(args.client)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        row = soak(args, folder)
    print(json.dumps(row))
    return int(bool(row["faults"]))


if __name__ == "__main__":
    sys.exit(main())
