"""Many HTTP requests at once, and their answers in one shape, streamed or whole."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import httpx

import culet
from culet.server.limits import Limits
from culet.server.model import ServedModel
from culet.server.state import ServerState


def serve_llm(llm: culet.LLM, **limits: Any) -> ServerState:
    """A server's state around a loaded model."""
    model = ServedModel(
        name="tiny",
        engine=llm.engine,
        tokenizer=llm.tokenizer,
        template=llm.renderer,
        context_length=llm.context_length,
        num_ids=llm.num_ids,
        constraints=llm.constraints,
        defaults=asdict(llm.defaults),
    )
    return ServerState(model, Limits(**limits))


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    """The answer in one shape, whether it was streamed or not."""
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if not body["stream"]:
        choice = answer.json()["choices"][0]
        message = choice.get("message", {})
        calls = [c["function"] for c in message.get("tool_calls", ())]
        text = choice.get("text") or message.get("content") or ""
        return text, [(c["name"], c["arguments"]) for c in calls], choice["finish_reason"]
    text, finish = "", None
    calls = []
    for line in answer.text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice.get("delta", {})
            text += choice.get("text") or delta.get("content") or ""
            finish = choice["finish_reason"] or finish
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"].get("arguments", "")
    return text, [tuple(c) for c in calls], finish


async def ask_all(url: str, made: list[tuple[str, dict[str, Any]]], width: int) -> list[Any]:
    gate = asyncio.Semaphore(width)
    limits = httpx.Limits(max_connections=width)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:

        async def one(path: str, body: dict[str, Any]) -> Any:
            async with gate:
                return await ask(http, path, body)

        answers = list(await asyncio.gather(*(one(p, b) for p, b in made)))
    await asyncio.sleep(0.1)  # sockets are closed in the loop's next rounds
    return answers
