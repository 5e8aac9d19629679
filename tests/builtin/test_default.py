"""Commands without MODEL: the built-in model, or one clear sentence where there is none."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from culet import builtin
from culet.cli.main import main
from culet.cli.options import resolve_model
from support.builtin_model import needs_builtin


def test_the_model_is_used_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "toy.gguf"
    path.touch()
    monkeypatch.setattr(builtin, "MODEL_PATH", path)
    with caplog.at_level(logging.WARNING, "culet"):
        assert resolve_model(None) == path
    assert [record.message for record in caplog.records] == [builtin.NOTICE]


@pytest.mark.parametrize("command", ["run", "bench", "chat", "serve"])
def test_a_build_without_it_says_so(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(builtin, "MODEL_PATH", tmp_path / "none.gguf")
    port = ["--port", "0"] if command == "serve" else []
    assert main([command, *port]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("culet: no MODEL given, and this build ships no model of its own")


def assert_said_once(err: str) -> None:
    """In one line, which says that it is a toy and how to name another."""
    (line,) = (line for line in err.splitlines() if "no MODEL given" in line)
    assert line == f"culet: {builtin.NOTICE}"
    assert "toy" in line and "owner/repo" in line and "GGUF" in line


@needs_builtin
def test_run_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--temp", "0", "-p", "What is the capital of France?"]) == 0
    said = capsys.readouterr()
    assert said.out == "The capital of France is Paris.\n"
    assert_said_once(said.err)


@needs_builtin
def test_chat_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "What is the chemical symbol of gold?\nWhat is the largest planet?\n/exit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["chat", "--temp", "0"]) == 0
    said = capsys.readouterr()
    assert "The symbol of gold is Au." in said.out and "The largest planet is Jupiter." in said.out
    assert_said_once(said.err)


@needs_builtin
def test_bench_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-p", "8", "-n", "2", "-b", "1", "-r", "1", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["model"] == str(builtin.MODEL_PATH)
    assert_said_once(said.err)


@needs_builtin
def test_serve_answers_and_ends_when_told() -> None:
    command = [sys.executable, "-m", "culet", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = ""
            while not (ready := re.search(r"ready: \S+ at (\S+) ", said)):
                line = server.stderr.readline()
                assert line, f"the server ended: {said}"
                said += line
            question = {"role": "user", "content": "What is 17 x 3?"}
            body = {"messages": [question], "temperature": 0}
            reply = httpx.post(f"{ready[1]}/v1/chat/completions", json=body, timeout=60)
            assert reply.json()["choices"][0]["message"]["content"] == "17 x 3 = 51"
        finally:
            server.send_signal(signal.SIGTERM)
            said += server.stderr.read() if server.stderr else ""
        assert server.wait() == 0
    assert_said_once(said)
