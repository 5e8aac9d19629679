"""Tools in Gemma 4's dialogue format: declarations, calls, results.

Equal to the official template, except where that loses something: parameters that are called like
words of JSON Schema (`type`, `required`) are declared too, a schema of `true` is an empty one, a
list of types is its first type, and null is written as null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from culet.chat.messages import Message, ToolCall, ToolSpec
from culet.chat.syntax import CALL_CLOSE, CALL_OPEN, QUOTE, RESPONSE_CLOSE, RESPONSE_OPEN

Part = tuple[str, bool]
"""Text, and whether it is ours and may hold control tokens."""

_TOOL_OPEN = "<|tool>"
_TOOL_CLOSE = "<tool|>"
_SCHEMA_WORDS = ("description", "type", "properties", "required", "nullable")


def declaration(tool: ToolSpec) -> Iterator[Part]:
    """What the model is told of a tool, in the system's turn."""
    yield _TOOL_OPEN + "declaration:", True
    yield tool.name, False
    yield "{description:", True
    yield from _quoted(tool.description)
    if tool.parameters:
        yield ",parameters:{", True
        properties = tool.parameters.get("properties")
        if isinstance(properties, Mapping) and properties:
            yield "properties:{", True
            yield from _properties(properties)
            yield "},", True
        required = tool.parameters.get("required")
        if required:
            yield from _required(required)
            yield ",", True
        yield "type:", True
        yield from _quoted(_type_name(tool.parameters) or "OBJECT")
        yield "}", True
    yield "}" + _TOOL_CLOSE, True


def call(made: ToolCall) -> Iterator[Part]:
    """A call as the model writes it."""
    yield CALL_OPEN + "call:", True
    yield made.name, False
    yield from value(made.arguments, quotes_keys=False)
    yield CALL_CLOSE, True


def result(name: str, answer: Message) -> Iterator[Part]:
    """What a tool has answered, as text: only an object would be shown by its fields."""
    yield RESPONSE_OPEN + "response:", True
    yield name, False
    yield "{value:", True
    yield from _quoted("".join(answer.parts))
    yield "}" + RESPONSE_CLOSE, True


def value(item: Any, quotes_keys: bool) -> Iterator[Part]:
    """A JSON value in the format's own spelling."""
    if isinstance(item, str):
        yield from _quoted(item)
    elif isinstance(item, Mapping):
        yield "{", True
        for number, key in enumerate(_in_order(item)):
            if number:
                yield ",", True
            yield from _quoted(key) if quotes_keys else [(key, False)]
            yield ":", True
            yield from value(item[key], quotes_keys)
        yield "}", True
    elif isinstance(item, list | tuple):
        yield "[", True
        for number, element in enumerate(item):
            if number:
                yield ",", True
            yield from value(element, quotes_keys)
        yield "]", True
    elif item is None or isinstance(item, bool):
        yield {None: "null", True: "true", False: "false"}[item], True
    else:
        yield str(item), False


def _quoted(text: str) -> Iterator[Part]:
    yield QUOTE, True
    yield text, False
    yield QUOTE, True


def _in_order(mapping: Mapping[str, Any]) -> list[str]:
    """Keys as the template sorts them: by letters, whatever their case."""
    return sorted(mapping, key=str.lower)


def _required(names: Any) -> Iterator[Part]:
    listed = names if isinstance(names, list) else [names]  # of one name, without the list
    yield "required:", True
    yield from value([str(name) for name in listed], quotes_keys=False)


def _type_name(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type") or ""
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), "null")
    return str(kind).upper()


def _properties(properties: Mapping[str, Any]) -> Iterator[Part]:
    for number, name in enumerate(_in_order(properties)):
        if number:
            yield ",", True
        schema = properties[name]
        yield name, False
        yield ":{", True
        yield from _separated(_fields(schema if isinstance(schema, Mapping) else {}))
        yield "}", True


def _separated(fields: Iterator[list[Part]]) -> Iterator[Part]:
    for number, field in enumerate(fields):
        if number:
            yield ",", True
        yield from field


def _fields(schema: Mapping[str, Any]) -> Iterator[list[Part]]:
    """What is told of one parameter, in the template's order."""
    kind = _type_name(schema)
    if schema.get("description"):
        yield [("description:", True), *_quoted(str(schema["description"]))]
    items = schema.get("items")
    if kind == "STRING" and schema.get("enum"):
        yield [("enum:", True), *value(schema["enum"], quotes_keys=True)]
    elif kind == "ARRAY" and isinstance(items, Mapping) and items:
        yield [("items:{", True), *_separated(_item_fields(items)), ("}", True)]
    types = schema.get("type")
    if schema.get("nullable") or (isinstance(types, list) and "null" in types):
        yield [("nullable:true", True)]
    if kind == "OBJECT":
        inner = schema.get("properties")
        if not isinstance(inner, Mapping):
            # As in the template: fields beside the schema's own words count as properties.
            inner = {k: v for k, v in schema.items() if k not in _SCHEMA_WORDS}
        yield [("properties:{", True), *_properties(inner), ("}", True)]
        if schema.get("required"):
            yield list(_required(schema["required"]))
    yield [("type:", True), *_quoted(kind)]


def _item_fields(items: Mapping[str, Any]) -> Iterator[list[Part]]:
    for key in _in_order(items):
        item = items[key]
        if item is None:
            continue
        if key == "properties":
            inner = _properties(item) if isinstance(item, Mapping) else iter(())
            yield [("properties:{", True), *inner, ("}", True)]
        elif key == "required" and isinstance(item, list):
            yield list(_required(item))
        elif key == "type":
            is_list = isinstance(item, list)
            kinds = [str(k).upper() for k in item] if is_list else str(item).upper()
            yield [("type:", True), *value(kinds, quotes_keys=True)]
        else:
            yield [(key, False), (":", True), *value(item, quotes_keys=True)]
