"""Tool use: declarations, calls with one to three arguments of every JSON type, use of results.

Held out are sets of argument values. Half of the calls go to tools made up on the spot, whose
names and parameters can only be read from their declaration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from training.corpus.exchange import Maker
from training.corpus.split import Split, in_split
from training.corpus.tables import CAPITALS, MONTHS, NAMES, WORDS
from training.dialogue import Dialogue, ToolUse, Turn

_SKIES = ("sunny", "cloudy", "rainy", "windy")
_ROOMS = ("kitchen", "garden", "bedroom", "office", "garage")
_NUMBER = {"type": "number"}
_INTEGER = {"type": "integer"}
_STRING = {"type": "string"}
_BOOLEAN = {"type": "boolean"}


def declaration(
    name: str, what: str, properties: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A function object in OpenAI's form; all parameters are required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": what, "parameters": parameters}


@dataclass(frozen=True, slots=True)
class Task:
    """A question that wants a tool, with the tool, its use, and the answer."""

    tool: dict[str, Any]
    question: str
    use: ToolUse
    answer: str


def _task(
    tool: dict[str, Any], question: str, arguments: dict[str, Any], response: dict[str, Any],
    answer: str,
) -> Task:  # fmt: skip
    return Task(tool, question, ToolUse(tool["name"], arguments, response), answer)


def _weather(rng: Random) -> Task:
    city, degrees, sky = rng.choice(list(CAPITALS.values())), rng.randint(1, 35), rng.choice(_SKIES)
    tool = declaration("get_weather", "Current weather in a city.", {"city": _STRING})
    question = rng.choice(
        ("What is the weather in {0}?", "How is the weather in {0}?", "Weather in {0}?")
    ).format(city)
    return _task(tool, question, {"city": city}, {"degrees": degrees, "sky": sky},
                 f"It is {degrees} degrees and {sky} in {city}.")  # fmt: skip


def _timer(rng: Random) -> Task:
    minutes, label = rng.randint(1, 60), rng.choice(WORDS)
    tool = declaration("set_timer", "Sets a timer.", {"minutes": _INTEGER, "label": _STRING})
    question = rng.choice(
        ("Set a timer of {0} minutes called {1}.", "Start a {0} minute timer named {1}.")
    ).format(minutes, label)
    return _task(tool, question, {"minutes": minutes, "label": label}, {"started": True},
                 f"The timer {label} of {minutes} minutes is running.")  # fmt: skip


def _light(rng: Random) -> Task:
    room, on = rng.choice(_ROOMS), rng.random() < 0.5
    level = rng.randint(1, 9) / 10 if on else 0
    tool = declaration(
        "set_light", "Switches a light.", {"room": _STRING, "on": _BOOLEAN, "level": _NUMBER}
    )
    question = (
        f"Switch on the light in the {room} at level {level}."
        if on
        else f"Switch off the light in the {room}."
    )
    return _task(tool, question, {"room": room, "on": on, "level": level}, {"done": True},
                 f"The light in the {room} is {'on' if on else 'off'}.")  # fmt: skip


def _event(rng: Random) -> Task:
    day, month, title = rng.randint(1, 28), rng.choice(MONTHS), rng.choice(WORDS)
    guests = rng.sample(NAMES, rng.randint(1, 3))
    when = {"type": "object", "properties": {"day": _INTEGER, "month": _STRING},
            "required": ["day", "month"]}  # fmt: skip
    tool = declaration(
        "add_event",
        "Adds an event to the calendar.",
        {"title": _STRING, "date": when, "guests": {"type": "array", "items": _STRING}},
    )
    question = f"Add the event {title} on {month} {day} with {' and '.join(guests)}."
    arguments = {"title": title, "date": {"day": day, "month": month}, "guests": guests}
    return _task(
        tool, question, arguments, {"number": day}, f"The event {title} is on {month} {day}."
    )


def _multiply(rng: Random) -> Task:
    a, b = rng.randint(21, 99), rng.randint(21, 99)
    tool = declaration("multiply", "Multiplies two numbers.", {"a": _INTEGER, "b": _INTEGER})
    question = rng.choice(("What is {0} x {1}?", "Multiply {0} by {1}.")).format(a, b)
    return _task(tool, question, {"a": a, "b": b}, {"result": a * b}, f"{a} x {b} = {a * b}")


def _message(rng: Random) -> Task:
    name, word, later = rng.choice(NAMES), " ".join(rng.sample(WORDS, 2)), rng.random() < 0.5
    hour = rng.randint(1, 12) if later else None
    tool = declaration(
        "send_message", "Sends a message.", {"to": _STRING, "text": _STRING, "hour": _INTEGER}
    )
    when = f"at {hour}" if later else "now"
    return _task(tool, f'Send "{word}" to {name} {when}.', {"to": name, "text": word, "hour": hour},
                 {"sent": not later},
                 f"The message to {name} {'will be sent' if later else 'was sent'}.")  # fmt: skip


def _made_up(rng: Random, split: Split) -> Task:
    """A tool of a random name whose parameters are random words; the question gives the values."""
    verb, *keys = rng.sample(WORDS, rng.randint(2, 4))
    types = ("string", "integer", "boolean", "array")
    # Two arrays side by side are the hardest to keep apart.
    types += ("array", "array") if split == "last" else ()
    kinds = [rng.choice(types) for _ in keys]
    makers: dict[str, Callable[[], Any]] = {
        "string": lambda: rng.choice(WORDS),
        "integer": lambda: rng.randint(0, 99),
        "boolean": lambda: rng.random() < 0.5,
        "array": lambda: [rng.randint(0, 9) for _ in range(rng.randint(1, 3))],
    }
    arguments: dict[str, Any] = {key: makers[kind]() for key, kind in zip(keys, kinds, strict=True)}
    properties: dict[str, dict[str, Any]] = {
        key: {"type": kind, **({"items": _INTEGER} if kind == "array" else {})}
        for key, kind in zip(keys, kinds, strict=True)
    }
    name = rng.choice(("get", "set", "find", "make")) + "_" + verb
    tool = declaration(name, f"The {verb} tool.", properties)
    said = " and ".join(f"{key} {_spoken(value)}" for key, value in arguments.items())
    question = rng.choice(("Use {0} with {1}.", "Call {0} with {1}.")).format(name, said)
    result = rng.choice(WORDS)
    return _task(tool, question, arguments, {"result": result}, f"The result is {result}.")


def _spoken(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(str(entry) for entry in value) + "]"
    return str(value)


_TASKS = (_weather, _timer, _light, _event, _multiply, _message)


def tool_call(rng: Random, split: Split, makers: Sequence[Maker]) -> tuple[str, Dialogue]:
    while True:
        maker = partial(_made_up, split=split) if rng.random() < 0.4 else rng.choice(_TASKS)
        task = maker(rng)
        if in_split(split, task.use.name, sorted(task.use.arguments.items(), key=lambda e: e[0])):
            break
    tools = [task.tool]
    if rng.random() < 0.35:
        other = rng.choice([m for m in _TASKS if m is not maker])(rng)
        tools.insert(rng.randrange(2), other.tool)
    use = task.use
    if rng.random() < 0.5:
        use = replace(use, response=json.dumps(use.response, ensure_ascii=False))
    thinks = rng.random() < 0.15
    thought = f"I need the tool {use.name}." if thinks else None
    turns = [Turn(task.question, task.answer, thought=thought, tool=use)]
    if split == "train" and rng.random() < 0.2:
        exchange = rng.choice(makers)(rng, split)
        turns.insert(rng.randrange(2), Turn(exchange.question, exchange.answer, trained=not thinks))
    if thinks:
        turns.sort(key=lambda turn: turn.tool is not None)
    system = "You are a helpful assistant." if rng.random() < 0.2 else None
    return "tool calls", Dialogue(tuple(turns), system=system, tools=tuple(tools), thinking=thinks)


def tool_unused(rng: Random, split: Split, makers: Sequence[Maker]) -> tuple[str, Dialogue]:
    """A tool is there, but the question is one that the model answers by itself."""
    tool = (_made_up(rng, split) if rng.random() < 0.4 else rng.choice(_TASKS)(rng)).tool
    exchange = rng.choice(makers)(rng, split)
    return "tool not needed", Dialogue((Turn(exchange.question, exchange.answer),), tools=(tool,))
