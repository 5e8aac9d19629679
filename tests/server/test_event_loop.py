"""What takes long is done elsewhere: while it goes on, others are answered.

Nothing is timed. The work is held at a gate that the test opens only after the others have had
their answers, so that a server that did it on its event loop would never come to the end.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from culet.chat import constrain
from culet.chat.constrain import ConstraintBuilder
from culet.chat.tokenizer import Tokenizer
from culet.server import app, openai_chat
from culet.server.state import ServerState
from support.live_server import serving, state_for
from support.tiny_tokenizer import tiny_tokenizer

USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
LARGE = [{"role": "user", "content": "word " * 60_000}]
_PATIENCE = 60.0  # of the gate: a blocked server fails the test after this, it does not hang


class Gate:
    """Holds calls that concern a large request until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        self.was_opened = False

    def wrap(self, call: Callable[..., Any], is_held: Callable[..., bool]) -> Callable[..., Any]:
        def held(*args: Any, **options: Any) -> Any:
            if is_held(*args):
                self.entered.set()
                self.was_opened = self._open.wait(_PATIENCE)
            return call(*args, **options)

        return held

    def open(self) -> None:
        self._open.set()


@contextmanager
def sending(url: str, path: str, body: Any) -> Iterator[list[httpx.Response]]:
    """A request in a thread of its own; its answer is in the list afterwards."""
    answers: list[httpx.Response] = []

    def post() -> None:
        answers.append(httpx.post(url + path, json=body, timeout=2 * _PATIENCE))

    worker = threading.Thread(target=post, daemon=True)
    worker.start()
    yield answers
    worker.join(2 * _PATIENCE)
    assert answers, "the large request has no answer"


def ask_others(url: str) -> None:
    """Health, the model list, a small answer and a small stream, while something large goes on."""
    with httpx.Client(base_url=url, timeout=_PATIENCE / 2) as http:
        assert http.get("/health").status_code == 200
        assert http.get("/v1/models").status_code == 200
        for stream in (False, True):
            body = {"messages": USER, "stream": stream}
            answer = http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200 and '"finish_reason":"stop"' in answer.text


def new_state() -> ServerState:
    return state_for(lambda prompt, choice: "Hello", context_length=10_000_000)


def is_large(*args: Any) -> bool:
    return any(len(a) > 100_000 for a in args if isinstance(a, bytes))


def has_large_message(body: Any) -> bool:
    return len(body.messages[0]["content"]) > 100_000


def renders_large(messages: Any, *rest: Any) -> bool:
    return len(messages[0].content) > 100_000


@pytest.mark.parametrize("stage", ["json", "messages", "template", "tokens"])
def test_fault_149_large_prompts_hold_up_nobody(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, gate = new_state(), Gate()
    match stage:
        case "json":
            monkeypatch.setattr(app, "read_json", gate.wrap(app.read_json, is_large))
        case "messages":
            held = gate.wrap(openai_chat.chat_job, has_large_message)
            monkeypatch.setattr(openai_chat, "chat_job", held)
        case "template":
            render = gate.wrap(state.model.template.render, renders_large)
            monkeypatch.setattr(state.model.template, "render", render)
        case "tokens":
            encode = gate.wrap(state.model.tokenizer._encode, is_large)
            monkeypatch.setattr(state.model.tokenizer, "_encode", encode)
    with (
        serving(state) as url,
        sending(url, "/v1/chat/completions", {"messages": LARGE}) as answers,
    ):
        assert gate.entered.wait(_PATIENCE)
        ask_others(url)
        gate.open()
    assert gate.was_opened and answers[0].status_code == 200


@pytest.mark.parametrize("path", ["/tokenize", "/v1/embeddings", "/v1/messages/count_tokens"])
def test_fault_149_large_texts_hold_up_nobody(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, gate = new_state(), Gate()
    encode = gate.wrap(state.model.tokenizer._encode, is_large)
    monkeypatch.setattr(state.model.tokenizer, "_encode", encode)
    text = LARGE[0]["content"]
    body = {"content": text, "input": text, "messages": LARGE}
    with serving(state) as url, sending(url, path, body) as answers:
        assert gate.entered.wait(_PATIENCE)
        ask_others(url)
        gate.open()
    assert gate.was_opened and answers[0].status_code == 200


def test_fault_149_many_large_prompts_leave_threads_to_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More of them than there are threads."""
    state, gate = new_state(), Gate()
    encode = gate.wrap(state.model.tokenizer._encode, is_large)
    monkeypatch.setattr(state.model.tokenizer, "_encode", encode)
    workers = []
    with serving(state) as url:
        for _ in range(40):
            options = {"json": {"content": LARGE[0]["content"]}, "timeout": 2 * _PATIENCE}
            workers.append(
                threading.Thread(target=httpx.post, args=(f"{url}/tokenize",), kwargs=options)
            )
            workers[-1].start()
        assert gate.entered.wait(_PATIENCE)
        ask_others(url)
        gate.open()
        for worker in workers:
            worker.join(2 * _PATIENCE)
    assert gate.was_opened


def test_fault_149_the_first_grammar_holds_up_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables are made on neither the event loop nor the thread that draws tokens."""
    tokenizer = tiny_tokenizer()
    state = state_for(
        lambda prompt, choice: "word " * 50_000, 0.001, constraints=ConstraintBuilder(tokenizer)
    )
    gate = Gate()
    builder = gate.wrap(constrain._build_tables, lambda tokenizer: True)
    monkeypatch.setattr(constrain, "_build_tables", builder)
    form = {"type": "json_object"}
    bound = {"messages": USER, "response_format": form, "max_tokens": 4}
    running = {"messages": USER, "stream": True}
    with (
        serving(state) as url,
        httpx.Client(timeout=_PATIENCE) as http,
        http.stream("POST", f"{url}/v1/chat/completions", json=running) as stream,
    ):
        lines = (line for line in stream.iter_lines() if '"content":"' in line)
        next(lines)
        with sending(url, "/v1/chat/completions", bound) as answers:
            assert gate.entered.wait(_PATIENCE)
            before = state.model.engine.num_sampled  # type: ignore[attr-defined]
            for _ in range(200):
                assert json.loads(next(lines)[6:])["choices"][0]["delta"]["content"]
            deadline = time.monotonic() + _PATIENCE / 2
            while state.model.engine.num_sampled < before + 100:  # type: ignore[attr-defined]
                assert time.monotonic() < deadline, "no tokens are drawn"
                time.sleep(0.01)
            assert httpx.get(f"{url}/health", timeout=_PATIENCE).status_code == 200
            gate.open()
        assert answers[0].status_code == 200 and gate.was_opened


def test_cutting_text_into_tokens_leaves_the_interpreter_to_others() -> None:
    """Another thread's steps fall inside one call of the native code."""
    tokenizer: Tokenizer = tiny_tokenizer()
    text = "word wörd " * 200_000
    steps: list[float] = []
    ends = threading.Event()

    def step() -> None:
        while not ends.is_set():
            steps.append(time.perf_counter())
            time.sleep(0.0005)

    stepper = threading.Thread(target=step)
    stepper.start()
    try:
        for _ in range(20):
            steps.clear()
            began = time.perf_counter()
            tokenizer.encode(text)
            ended = time.perf_counter()
            if sum(began < s < ended for s in list(steps)) >= 3:
                return
    finally:
        ends.set()
        stepper.join()
    raise AssertionError("no other thread ran while the text was cut")
