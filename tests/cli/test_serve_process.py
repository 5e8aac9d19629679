"""`culet serve` as a service: signals, kills, logs, limits of the shell, files that change.

Each test runs processes of their own with the built-in model; docs/operating.md says what is right.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from culet.errors import BackendError, ModelFileError
from culet.formats.opening import open_checkpoint
from culet.llm.packing import pack_model
from support.builtin_model import MODEL_PATH, needs_builtin
from support.served_process import Served, free_port, question, served

pytestmark = [
    needs_builtin,
    pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX"),
]
LONG = 3000
BASH_LIMIT = 'ulimit {} && exec "$0" "$@"'


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed file, of which weights are read through the mapping while the model runs."""
    path = tmp_path_factory.mktemp("packed") / "packed.culet"
    pack_model(MODEL_PATH, path)
    return path


@contextmanager
def streams(server: Served, count: int) -> Iterator[list[str]]:
    """Long streams that have begun; the list gets all that each one was sent, at the end."""
    ended: list[str] = []
    begun = threading.Barrier(count + 1)

    def run() -> None:
        body = question(LONG, stream=True, ignore_eos=True)
        text = ""
        try:
            with httpx.stream(
                "POST", f"{server.url}/v1/chat/completions", json=body, timeout=120
            ) as answer:
                pieces = answer.iter_text()
                text += next(pieces)
                begun.wait(60)
                for piece in pieces:
                    text += piece
        except httpx.TransportError as error:
            text += repr(error)
        ended.append(text)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    begun.wait(120)
    yield ended
    for thread in threads:
        thread.join(60)


def test_a_killed_server_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """kill -9 under load, and again at once on the same port."""
    port = free_port()
    folder = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in folder.items():
            patch.setenv(name, value)
        for _ in range(2):
            with served(port=port) as server, streams(server, 3):
                server.process.kill()
                assert server.wait() == -signal.SIGKILL
        with served(port=port) as server:
            assert "Paris" in server.chat().text
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_answers_with_an_error(sign: signal.Signals) -> None:
    """The first lets them run (tests/server/test_access.py); clients hear why there is no more."""
    with served() as server, streams(server, 2) as ended:
        server.process.send_signal(sign)
        server.wait_until(lambda: server.said(f"{sign.name}, ending: 2 answers have up to 30 s"))
        with pytest.raises(httpx.ConnectError):
            server.chat()
        server.process.send_signal(sign)
        assert server.wait() == 0
    assert len(ended) == 2
    for text in ended:
        assert '"code":"cancelled"' in text and "the server is ending" in text
        assert "Error(" not in text, "the stream has its end"
    assert server.said("ending 2 answers before their time") and server.said(" cached, cancelled")
    assert not server.said("Traceback")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGHUP])
def test_an_idle_server_ends_at_once(sign: signal.Signals) -> None:
    if signal.getsignal(sign) == signal.SIG_IGN:
        pytest.skip("these tests run under nohup or the like, which the server obeys")
    with served() as server, httpx.Client() as http:
        assert http.get(f"{server.url}/health").status_code == 200  # and stays connected
        server.process.send_signal(sign)
        assert server.wait() == 0
    assert server.lines[-1] == f"culet: {sign.name}, ending"


def test_nohup_is_obeyed() -> None:
    with served(before=["nohup"], stdout=subprocess.DEVNULL) as server:
        server.process.send_signal(signal.SIGHUP)
        assert "Paris" in server.chat().text
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.mark.parametrize("redirection", ["2>/dev/full >&2", "2>&-", ">&- 2>&-"])
def test_a_log_that_cannot_be_written_costs_nothing(redirection: str) -> None:
    """/dev/full stands for a disk without room."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = ["env", "-u", "PYTHONUNBUFFERED", "bash", "-c", f'exec "$0" "$@" {redirection}']
    with served(before=command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        for stream in (False, True):
            answer = server.chat(stream=stream)
            assert answer.status_code == 200 and "Paris" in answer.text
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.mark.parametrize("words", [["run", "-p", "hi", "-n", "3"], ["inspect", str(MODEL_PATH)]])
def test_output_that_cannot_be_written_is_one_sentence(words: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "culet", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "culet: the output can't be written (No space left on device)"
    )
    assert "Traceback" not in done.stderr


def test_lines_of_the_log_say_what_and_why() -> None:
    with served("--log-times", "--api-key", "k") as server:
        key = {"authorization": "Bearer k"}
        url = f"{server.url}/v1/chat/completions"
        assert httpx.post(url, json=question(4)).status_code == 401
        assert httpx.post(url, json=question(4), headers=key, timeout=60).status_code == 200
        wrong = question(4, temperature="a secret")
        assert httpx.post(url, json=wrong, headers=key, timeout=60).status_code == 400
        long = question(4) | {"messages": [{"role": "user", "content": "word " * 9000}]}
        assert httpx.post(url, json=long, headers=key, timeout=60).status_code == 400
        with httpx.stream(
            "POST", url, json=question(LONG, stream=True, ignore_eos=True), headers=key, timeout=60
        ) as answer:
            next(answer.iter_text())
        server.wait_until(lambda: server.said("the client left"))
    lines = [line for line in server.lines if " POST " in line]
    time = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} culet: "
    request = r"127\.0\.0\.1 POST /v1/chat/completions "
    for line, expected in zip(
        lines,
        [
            r"401 \d+ ms, invalid_api_key$",
            r"200 \d+ ms, 16 \+ 4 tokens, 0 cached$",
            r"400 \d+ ms, invalid_request \(temperature\)$",
            r"400 \d+ ms, context_length_exceeded \(messages\)$",
            r"200 \d+ ms, 16 \+ \d+ tokens, \d+ cached, the client left$",
        ],
        strict=True,
    ):
        assert re.search(time + request + expected, line), line
    assert not any("secret" in line or "capital" in line for line in server.lines)


def test_files_that_may_be_open_run_out() -> None:
    """Connections wait and are served once others have gone; the log says so, once."""
    limit = ["bash", "-c", BASH_LIMIT.format("-n 48")]
    with served(before=limit) as server:
        port = httpx.URL(server.url).port
        idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(80)]
        server.wait_until(lambda: server.said("all files that this process may have open"))
        for one in idle:
            one.close()
        assert "Paris" in server.chat().text
    assert len([line for line in server.lines if "may have open" in line]) == 1
    assert not server.said("Traceback")


def test_the_limit_of_files_is_raised_to_what_the_system_allows() -> None:
    soft = ["bash", "-c", BASH_LIMIT.format("-S -n 64")]
    with served(before=soft) as server:
        limits = Path(f"/proc/{server.process.pid}/limits")
        if not limits.exists():
            pytest.skip("this system doesn't show the limits of a process")
        now, allowed = re.search(r"Max open files +(\w+) +(\w+)", limits.read_text()).groups()  # type: ignore[union-attr]
        assert now == allowed != "64"


def test_memory_that_the_shell_does_not_allow() -> None:
    command = [sys.executable, "-m", "culet", "run", "-p", "hi", "--ctx", "2000000"]
    limit = ["bash", "-c", BASH_LIMIT.format("-v 900000")]
    done = subprocess.run([*limit, *command], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(r"2000000 tokens does not fit in memory; \d+ tokens would", done.stderr)


def test_threads_that_the_system_does_not_allow() -> None:
    """Said when the backend is made, not with a traceback in the middle of a step."""
    command = [sys.executable, "-m", "culet", "run", "-p", "hi", "--threads", "1000"]
    # A stack is 8 MiB of address space, the limit 3 GB: unlike `ulimit -u` it holds for root too.
    limit = ["bash", "-c", BASH_LIMIT.format("-v 3000000")]
    done = subprocess.run([*limit, *command], capture_output=True, text=True)
    assert done.returncode == BackendError.exit_code and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"culet: .* start 1000 threads \(.*\); ask for fewer with --threads, .*", last
    )


# ---- the model file changes while it is served ---------------------------------------------------
def _overwrite(path: Path) -> None:
    """As `cp` does: other bytes of the same number in the same file."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(size // 2))


def _cut(path: Path) -> None:
    os.truncate(path, 4096)


def _touch(path: Path) -> None:
    """Can't be told from a write of the same size, so it counts as one."""
    path.touch()


@pytest.mark.parametrize("change", [_overwrite, _cut, _touch])
def test_a_file_that_is_written_to_ends_the_server(
    packed: Path, tmp_path: Path, change: Any
) -> None:
    """No answer is made of other bytes than those that were opened."""
    path = tmp_path / "served.culet"
    shutil.copy(packed, path)
    with served(model=path) as server:
        assert "Paris" in server.chat().text
        change(path)
        try:
            answer = server.chat()
        except httpx.TransportError:
            assert change is _cut  # it ended in the middle of a step
        else:
            assert answer.status_code == 500 and "was written to" in answer.text
        assert server.wait() == ModelFileError.exit_code
    assert server.lines[-1].startswith(f"culet: {path}: ")
    assert "was written to while in use" in server.lines[-1] or "cut" in server.lines[-1]
    assert not server.said("Traceback")


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    """As `mv` does: another file under the same name."""
    other = path.with_name("other")
    other.write_bytes(os.urandom(path.stat().st_size))
    other.replace(path)


@pytest.mark.parametrize("change", [_remove, _replace])
def test_a_file_that_is_gone_is_still_served(packed: Path, tmp_path: Path, change: Any) -> None:
    path = tmp_path / "served.culet"
    shutil.copy(packed, path)
    with served(model=path) as server:
        change(path)
        assert "Paris" in server.chat().text
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_file_that_changes_while_it_is_open(tmp_path: Path) -> None:
    """The check itself, for each format, of all files of a model."""
    gguf = tmp_path / "m.gguf"
    shutil.copy(MODEL_PATH, gguf)
    packed = tmp_path / "m.culet"
    pack_model(gguf, packed)
    folder = tmp_path / "folder"
    shutil.copytree(MODEL_PATH.parents[3] / "models" / "builtin", folder)
    for path, file in ((gguf, gguf), (packed, packed), (folder, folder / "model.safetensors")):
        checkpoint = open_checkpoint(path)
        checkpoint.check_unchanged()
        os.utime(file, ns=(0, 0))
        with pytest.raises(ModelFileError, match=f"{file.name}: was written to while in use"):
            checkpoint.check_unchanged()
        file.unlink()
        checkpoint.check_unchanged()
        checkpoint.close()


def test_a_bus_error_that_is_no_lost_page_keeps_its_meaning() -> None:
    code = "import os, signal; from culet.formats.mapped import explain_lost_pages as explain; "
    code += "explain(); os.kill(os.getpid(), signal.SIGBUS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGBUS and "can't be read" not in done.stderr
