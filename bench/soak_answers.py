"""What the server soak asks the built-in model, and an answer's content without what may vary."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

COUNTRIES = "France Japan Italy Spain Germany Egypt Canada Norway Peru Kenya Greece Cuba".split()
ELEMENTS = "gold silver iron oxygen carbon neon helium sodium copper zinc".split()
WORDS = "river stone lamp green seven market paper winter glass road music apple north".split()
WEATHER = {
    "name": "get_weather",
    "description": "Current weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
_TEXT_KEYS = {"content", "text", "arguments", "partial_json", "thinking", "reasoning_content"}
_TEXT_KEYS |= {"name", "response"}
_END_KEYS = {"finish_reason", "stop_reason", "done_reason"}
TIMEOUT_SECONDS = 900.0  # the machine may be held still meanwhile


@dataclass(frozen=True)
class Question:
    """A request that has one right answer: greedy, or sampled with a seed."""

    path: str
    body: dict[str, Any]

    @property
    def key(self) -> str:
        return json.dumps([self.path, self.body], sort_keys=True)


def questions(count: int, seed: int) -> list[Question]:
    """`count` different questions of every kind and API, whole and streamed."""
    rng = random.Random(seed)
    kinds = (_plain, _with_tool, _bound, _completion, _anthropic, _ollama, _second_turn, _sampled)
    made: dict[str, Question] = {}
    while len(made) < count:
        kind = kinds[len(made) % len(kinds)]
        question = kind(rng)
        question.body["stream"] = rng.random() < 0.5
        made[question.key] = question
    return list(made.values())


def _ask(rng: random.Random) -> str:
    country, element = rng.choice(COUNTRIES), rng.choice(ELEMENTS)
    a, b, word = rng.randint(2, 20), rng.randint(2, 20), rng.choice(WORDS)
    return rng.choice(
        (
            f"What is the capital of {country}?",
            f"What is the chemical symbol of {element}?",
            f"What is {a} x {b}?",
            f"Spell the word {word}.",
            f"Count from {a} to {a + b}.",
        )
    )


def _turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _chat(messages: list[dict[str, str]], **body: Any) -> Question:
    options = {"messages": messages, "temperature": 0, "max_tokens": 96}
    return Question("/v1/chat/completions", options | body)


def _plain(rng: random.Random) -> Question:
    return _chat([_turn("user", _ask(rng))])


def _with_tool(rng: random.Random) -> Question:
    asked = f"What is the weather in {rng.choice(('Paris', 'Rome', 'Tokyo', 'Oslo', 'Cairo'))}?"
    question = rng.choice((asked, _ask(rng)))
    return _chat([_turn("user", question)], tools=[{"type": "function", "function": WEATHER}])


def _bound(rng: random.Random) -> Question:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    messages = [_turn("system", "Answer in JSON."), _turn("user", _ask(rng))]
    return _chat(messages, response_format=form)


def _completion(rng: random.Random) -> Question:
    body = {"prompt": f"The capital of {rng.choice(COUNTRIES)} is", "max_tokens": 48, "n": 1}
    return Question("/v1/completions", body | {"temperature": 0, "seed": rng.randrange(8)})


def _anthropic(rng: random.Random) -> Question:
    body = {"model": "culet", "max_tokens": 96, "messages": [_turn("user", _ask(rng))]}
    return Question("/v1/messages", body | {"temperature": 0})


def _ollama(rng: random.Random) -> Question:
    options = {"temperature": 0, "num_predict": 96}
    return Question("/api/chat", {"messages": [_turn("user", _ask(rng))], "options": options})


def _second_turn(rng: random.Random) -> Question:
    name = rng.choice(("Ada", "Tom", "Mia", "Leo"))
    first = [_turn("user", f"My name is {name}."), _turn("assistant", f"Hello, {name}.")]
    return _chat([*first, _turn("user", rng.choice(("What is my name?", _ask(rng))))])


def _sampled(rng: random.Random) -> Question:
    prompt = f"Tell me a story about a {rng.choice(WORDS)}."
    return _chat(
        [_turn("user", prompt)], temperature=1.0, seed=rng.randrange(1000), n=rng.randint(1, 2),
        max_tokens=160,
    )  # fmt: skip


def ask(port: int, question: Question) -> dict[str, str]:
    """The answer's content; `ConnectionError` or `OSError` where there was none."""
    connection, answer = send(port, question)
    try:
        raw = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        return {"status": str(answer.status), "body": raw[:500].decode(errors="replace")}
    return content(raw, bool(question.body["stream"]))


def send(
    port: int, question: Question
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", question.path, json.dumps(question.body), headers)
    return connection, connection.getresponse()


def content(raw: bytes, is_stream: bool) -> dict[str, str]:
    """Texts joined by choice and key, and reasons of ends: equal however the pieces were cut."""
    found: dict[str, str] = {}
    for part in _parts(raw, is_stream):
        _gather(part, "0", found)
    return found


def _parts(raw: bytes, is_stream: bool) -> Iterator[Any]:
    if not is_stream:
        yield json.loads(raw)
        return
    for line in raw.decode().splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            yield json.loads(data)


def _gather(part: Any, choice: str, found: dict[str, str]) -> None:
    if isinstance(part, dict):
        choice = str(part.get("index", choice))
        for key, value in part.items():
            if key in _TEXT_KEYS and isinstance(value, str):
                found[f"{choice} {key}"] = found.get(f"{choice} {key}", "") + value
            elif key in _END_KEYS and value is not None:
                found[f"{choice} {key}"] = str(value)
            else:
                _gather(value, choice, found)
    elif isinstance(part, Iterable) and not isinstance(part, str):
        for value in part:
            _gather(value, choice, found)
