"""HTTP over the built-in model, whose right answers are known: a crowd gets what each gets alone.

What is asked was trained, so each answer has one right form.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from training.corpus import facts
from training.corpus.exchange import Maker
from training.corpus.tables import CAPITALS, SYMBOLS

import culet
from culet.server.state import ServerState
from support.builtin_model import MODEL_PATH, needs_builtin
from support.http_requests import ask_all, serve_llm
from support.live_server import serving

pytestmark = needs_builtin
NUM_REQUESTS, WIDTH = 48, 16
FACTS: tuple[Maker, ...] = (facts.capital, facts.symbol, facts.planet, facts.opposite)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Asked:
    """A request with its one right answer: text, calls (name, arguments) and finish reason."""

    path: str
    body: dict[str, Any]
    answer: tuple[str, list[tuple[str, str]], str]


@pytest.fixture(scope="module")
def state() -> Iterator[ServerState]:
    with culet.load(MODEL_PATH, context_length=512, max_seqs=WIDTH) as llm:
        yield serve_llm(llm)


@pytest.fixture(scope="module")
def url(state: ServerState) -> Iterator[str]:
    with serving(state) as address:
        yield address


def requests() -> list[Asked]:
    """Plain, bound by a schema, with a tool, and without a template; half of each is streamed."""
    rng = Random(48)
    kinds = (plain, bound, with_tool, completed)
    made = []
    for number in range(NUM_REQUESTS):
        asked = kinds[number % len(kinds)](rng)
        options = {"temperature": 0, "max_tokens": 64, "stream": number // len(kinds) % 2 == 0}
        made.append(Asked(asked.path, asked.body | options, asked.answer))
    return made


def chat(answer: tuple[str, list[tuple[str, str]], str], question: str, **body: Any) -> Asked:
    message = {"role": "user", "content": question}
    body["messages"] = [*body.pop("system", []), message]
    return Asked("/v1/chat/completions", body, answer)


def plain(rng: Random) -> Asked:
    exchange = rng.choice(FACTS)(rng, "train")
    return chat((exchange.answer, [], "stop"), exchange.question)


def bound(rng: Random) -> Asked:
    exchange = rng.choice(FACTS)(rng, "train")
    answer = json.dumps({"answer": exchange.short}, ensure_ascii=False)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    system = [{"role": "system", "content": "Answer in JSON."}]
    return chat((answer, [], "stop"), exchange.question, system=system, response_format=form)


def with_tool(rng: Random) -> Asked:
    """A question that wants the tool, or one that doesn't: the model's own choice."""
    if rng.random() < 0.5:
        city = rng.choice(list(CAPITALS.values()))
        arguments = json.dumps({"city": city}, ensure_ascii=False, separators=(",", ":"))
        answer = ("", [("get_weather", arguments)], "tool_calls")
        return chat(answer, f"What is the weather in {city}?", tools=[WEATHER])
    exchange = facts.capital(rng, "train")
    return chat((exchange.answer, [], "stop"), exchange.question, tools=[WEATHER])


def completed(rng: Random) -> Asked:
    table, text = rng.choice(((CAPITALS, "The capital of {} is"), (SYMBOLS, "The symbol of {} is")))
    key, value = rng.choice(list(table.items()))
    body = {"prompt": text.format(key), "stop": ["."]}
    return Asked("/v1/completions", body, (f" {value}", [], "stop"))


def test_forty_eight_known_answers_at_once_are_right(url: str, state: ServerState) -> None:
    made = requests()
    posts = [(asked.path, asked.body) for asked in made]
    together = asyncio.run(ask_all(url, posts, WIDTH))
    wrong = [
        f"{asked.body} wants {asked.answer}, given {answer}"
        for asked, answer in zip(made, together, strict=True)
        if answer != asked.answer
    ]
    assert not wrong, "\n".join(wrong)
    alone = asyncio.run(ask_all(url, posts, 1))
    flipped = [(path, body | {"stream": not body["stream"]}) for path, body in posts]
    assert together == alone == asyncio.run(ask_all(url, flipped, WIDTH))
    assert state.num_open == 0
