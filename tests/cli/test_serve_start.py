"""`culet serve` up to its ready line: what is found out first, and what is said."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import culet
from culet.cli import serving
from culet.cli.main import build_parser, main
from culet.errors import UsageError
from culet.llm.describe import describe
from culet.server.limits import Limits
from culet.server.run import bind, make_server
from culet.server.state import ServerState
from support.live_server import serving as running


def _must_not_load(*args: Any, **options: Any) -> Any:
    raise AssertionError("the model was loaded")


def test_a_bad_model_is_told_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[int] = []
    monkeypatch.setattr(serving, "bind", lambda host, port: opened.append(port))
    monkeypatch.setattr("culet.load", _must_not_load)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        assert main(["serve", str(tmp_path / "none.gguf"), "--port", "0"]) == 2
        assert main(["serve", str(broken), "--port", "0"]) == 3
        gc.collect()
    missing, bad = capsys.readouterr().err.splitlines()
    assert "none.gguf" in missing and "no file or folder" in missing
    assert "broken.gguf" in bad
    assert opened == []


def test_a_taken_port_is_told_before_the_model_is_loaded(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("culet.load", _must_not_load)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(model_path), "--port", str(port)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"port {port} of 127.0.0.1 is taken" in said and "--port" in said


def test_a_model_that_fails_to_load_leaves_no_socket(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []

    def bind_and_note(host: str, port: int) -> socket.socket:
        made.append(bind(host, port))
        return made[-1]

    def fail(*args: Any, **options: Any) -> Any:
        raise UsageError("no room")

    monkeypatch.setattr(serving, "bind", bind_and_note)
    monkeypatch.setattr("culet.load", fail)
    assert main(["serve", str(model_path), "--port", "0"]) == 2
    assert [s.fileno() for s in made] == [-1]


def test_a_port_taken_while_the_model_was_loading() -> None:
    """Two sockets may be bound to one port until one listens; the other is told so."""
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port) as second:
            first.listen()
            server = make_server(_no_app, Limits(), lambda: pytest.fail("it says it is ready"))
            with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is taken"):
                asyncio.run(server.serve(sockets=[second]))


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing is served")


@pytest.mark.parametrize("port", ["-1", "65536", "http", "", "٣"])
def test_ports_that_are_none(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "m.gguf", "--port", port])
    assert "is not a port from 0 to 65535" in capsys.readouterr().err


def test_addresses_in_urls() -> None:
    assert serving.url_of("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert serving.url_of("::1", 80) == "http://[::1]:80"


def test_an_address_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"can't listen on 192\.0\.2\.1 port 0"):
        bind("192.0.2.1", 0)


def test_clients_are_refused_until_the_ready_line(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resolve and check, bind, load, listen, ready: in this order."""
    happened: list[str] = []
    ports: list[int] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **options: Any) -> Any:
            happened.append(name)
            if name == "load":
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", ports[0]), timeout=5)
            got = call(*args, **options)
            if name == "bind":
                ports.append(got.getsockname()[1])
            return got

        return inner

    for name, module in (("describe", serving), ("bind", serving)):
        monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    monkeypatch.setattr("culet.load", noted("load", serving.culet.load))
    status: list[int] = []

    def ask_and_end() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.02)
            if happened[-1:] != ["load"]:
                continue
            try:
                status.append(httpx.get(f"http://127.0.0.1:{ports[0]}/health").status_code)
            except httpx.TransportError:
                continue
            os.kill(os.getpid(), signal.SIGTERM)
            return

    asking = threading.Thread(target=ask_and_end, daemon=True)
    asking.start()
    code = main(["serve", str(model_path), "--port", "0", "--backend", "reference"])
    asking.join(30)
    assert (code, status, happened) == (0, [200], ["describe", "bind", "load"])
    assert f"ready: whole at http://127.0.0.1:{ports[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", [48, 200])
def test_fault_011_the_model_list_tells_the_context_in_force(model_path: Path, tokens: int) -> None:
    """Shorter than the file says, and longer."""
    args = build_parser("serve").parse_args(["serve", str(model_path)])
    with culet.load(model_path, backend="reference", context_length=tokens) as llm:
        model = serving.served_model(llm, describe(model_path), args)
        with running(ServerState(model)) as url:
            (listed,) = httpx.get(f"{url}/v1/models").json()["data"]
            shown = httpx.post(f"{url}/api/show", json={"model": model.name}).json()
    assert listed["max_model_len"] == listed["meta"]["context_length"] == tokens
    assert shown["model_info"]["gemma4.context_length"] == tokens
