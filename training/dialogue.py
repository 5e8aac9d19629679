"""Dialogues of the corpus, and their text in Gemma 4's format with what is trained marked.

Knows the format, not what the dialogues say. What serves a checkpoint renders dialogues through
`culet.chat`; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

QUOTE = '<|"|>'


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool and what came back: an object, or a text as most clients send it."""

    name: str
    arguments: Mapping[str, Any]
    response: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer.

    Attributes:
        thought: what the model thinks first; only where the dialogue has thinking on.
        tool: the call made before the answer.
        trained: false where the answer is only context.
    """

    question: str
    answer: str
    thought: str | None = None
    tool: ToolUse | None = None
    trained: bool = True


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A chat: turns after an optional system turn.

    Attributes:
        tools: function declarations in OpenAI's form (the `function` object).
        thinking: `<|think|>` is in the system turn.
    """

    turns: tuple[Turn, ...]
    system: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """Plain text, trained whole, from `<bos>` to `<eos>`."""

    text: str


@dataclass(slots=True)
class Segments:
    """Text in pieces, each trained or only read. Neighbours of one kind are one piece."""

    pieces: list[tuple[str, bool]] = field(default_factory=list)

    def add(self, text: str, trained: bool) -> None:
        if self.pieces and self.pieces[-1][1] == trained:
            self.pieces[-1] = (self.pieces[-1][0] + text, trained)
        elif text:
            self.pieces.append((text, trained))

    @property
    def text(self) -> str:
        return "".join(piece for piece, _ in self.pieces)


def render(item: Dialogue | Story) -> Segments:
    """The whole text of an item, `<bos>` included."""
    segments = Segments()
    if isinstance(item, Story):
        segments.add("<bos>", False)
        segments.add(item.text + "<eos>", True)
        return segments
    segments.add("<bos>" + _system_turn(item), False)
    last = len(item.turns) - 1
    for index, turn in enumerate(item.turns):
        segments.add(f"<|turn>user\n{turn.question}<turn|>\n<|turn>model\n", False)
        if turn.thought is not None and index == last:  # templates drop older thoughts
            segments.add(f"<|channel>thought\n{turn.thought}\n<channel|>", turn.trained)
        if turn.tool is not None:
            segments.add(call_text(turn.tool) + "<|tool_response>", turn.trained)
            segments.add(response_text(turn.tool).removeprefix("<|tool_response>"), False)
        segments.add(turn.answer + "<turn|>", turn.trained)
        segments.add("\n", False)
    return segments


def prompt(item: Dialogue) -> str:
    """The text up to where the last answer begins; its tool call, if any, is yet to come."""
    *before, last = item.turns
    head = Dialogue(tuple(before), item.system, item.tools, item.thinking)
    return render(head).text + f"<|turn>user\n{last.question}<turn|>\n<|turn>model\n"


def _system_turn(item: Dialogue) -> str:
    if item.system is None and not item.tools and not item.thinking:
        return ""
    think = "<|think|>\n" if item.thinking else ""
    tools = "".join(f"<|tool>{_declaration(tool)}<tool|>" for tool in item.tools)
    return f"<|turn>system\n{think}{item.system or ''}{tools}<turn|>\n"


def call_text(tool: ToolUse) -> str:
    """`<|tool_call>call:name{k:v,...}<tool_call|>`, keys sorted."""
    return f"<|tool_call>call:{tool.name}{_braced(tool.arguments)}<tool_call|>"


def response_text(tool: ToolUse) -> str:
    """`<|tool_response>response:name{k:v,...}<tool_response|>`, keys sorted; a text is `value`."""
    response = {"value": tool.response} if isinstance(tool.response, str) else tool.response
    return f"<|tool_response>response:{tool.name}{_braced(response)}<tool_response|>"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return _braced(value)
    if isinstance(value, Sequence):
        return "[" + ",".join(_value(entry) for entry in value) + "]"
    return str(value)


def _braced(mapping: Mapping[str, Any]) -> str:
    entries = (f"{key}:{_value(mapping[key])}" for key in sorted(mapping, key=str.lower))
    return "{" + ",".join(entries) + "}"


def _declaration(function: Mapping[str, Any]) -> str:
    parameters = function["parameters"]
    required = ",".join(_value(name) for name in parameters["required"])
    return (
        f"declaration:{function['name']}{{description:{_value(function['description'])},"
        f"parameters:{{properties:{{{_properties(parameters['properties'])}}},"
        f"required:[{required}],type:{_value('OBJECT')}}}}}"
    )


def _properties(properties: Mapping[str, Mapping[str, Any]]) -> str:
    return ",".join(
        f"{name}:{{{_property(properties[name])}}}" for name in sorted(properties, key=str.lower)
    )


def _property(schema: Mapping[str, Any]) -> str:
    """One parameter's schema; of the keys of JSON schema, those that the corpus uses."""
    parts = []
    if "description" in schema:
        parts.append(f"description:{_value(schema['description'])}")
    if "enum" in schema:
        parts.append(f"enum:{_value(schema['enum'])}")
    if schema["type"] == "object":
        parts.append(f"properties:{{{_properties(schema['properties'])}}}")
        parts.append("required:[" + ",".join(_value(n) for n in schema["required"]) + "]")
    if schema["type"] == "array":
        parts.append(f"items:{{type:{_value(schema['items']['type'].upper())}}}")
    parts.append(f"type:{_value(schema['type'].upper())}")
    return ",".join(parts)
