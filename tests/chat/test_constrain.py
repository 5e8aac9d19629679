"""Constrained answers: whatever a random model draws, the first pass is valid."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from culet.chat.constrain import AnswerFormat, Constraint, ConstraintBuilder, ToolRules
from culet.chat.stream import Call, Delta, OutputParser, Start, join
from culet.errors import RequestError
from support.tiny_tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
BUILDER = ConstraintBuilder(TOKENIZER)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def draw(constraint: Constraint | None, seed: int, limit: int = 2000) -> list[int]:
    """Ids of a model that gives every allowed token the same chance."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    for _ in range(limit):
        words = None if constraint is None else constraint.mask()
        if words is None:
            allowed = np.arange(TOKENIZER.vocab_size)
        else:
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            allowed = allowed[allowed < TOKENIZER.vocab_size]
        assert len(allowed), "nothing is allowed"
        token = int(rng.choice(allowed))
        if token in TOKENIZER.stop_ids:
            return ids
        if constraint is not None:
            constraint.accept(token)
        ids.append(token)
    raise AssertionError(f"no end after {limit} tokens: {TOKENIZER.decode(ids)[:300]!r}")


def parsed(ids: list[int], tools: dict[str, Any], start: Start) -> tuple[str, str, list[Call]]:
    parser = OutputParser(tools, start)
    deltas: list[Delta] = []
    decoder = TOKENIZER.stream_decoder(skip_special=False)
    for token in ids:
        if TOKENIZER.is_control(token):
            deltas += parser.feed_text(decoder.finish())
            deltas += parser.feed_marker(TOKENIZER.token_bytes(token).decode())
        else:
            deltas += parser.feed_text(decoder.push(token))
    return join(deltas + parser.feed_text(decoder.finish()) + parser.finish(False))


def build(
    answer: AnswerFormat | None = None, tools: ToolRules | None = None, **options: Any
) -> Constraint:
    constraint = BUILDER.build(answer or AnswerFormat(), tools, **options)
    assert constraint is not None
    return constraint


def check_person(value: Any) -> None:
    assert set(value) == {"name", "age", "tags"}
    assert isinstance(value["name"], str) and len(value["name"]) <= 8
    assert type(value["age"]) is int and 0 <= value["age"] <= 150
    assert len(value["tags"]) <= 3 and set(value["tags"]) <= {"a", "b"}


@pytest.mark.parametrize("seed", range(20))
def test_json_schema_holds_in_one_pass(seed: int) -> None:
    text = TOKENIZER.decode(draw(build(AnswerFormat(schema=PERSON)), seed))
    check_person(json.loads(text))


def test_regex_and_grammar_hold() -> None:
    for seed in range(10):
        text = TOKENIZER.decode(draw(build(AnswerFormat(regex="[a-f]{3}-[0-9]{2}/x")), seed))
        assert re.fullmatch("[a-f]{3}-[0-9]{2}/x", text)
        lark = 'start: item ("," item){0,3}\nitem: "x" | "yy"'
        text = TOKENIZER.decode(draw(build(AnswerFormat(lark=lark)), seed))
        assert re.fullmatch("(x|yy)(,(x|yy)){0,3}", text)


EVERY_TYPE = {
    "type": "object",
    "$defs": {"node": {"type": "object", "properties": {"leaf": {"type": "boolean"}}}},
    "properties": {
        "s": {"type": "string", "maxLength": 5},
        "p": {"type": "string", "pattern": "^[a-c]{2}$"},
        "i": {"type": "integer", "minimum": 1, "maximum": 9},
        "n": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "e": {"enum": ["x", 'quo"te', 3, None, [1, "z"], {"k": True}]},
        "l": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        "t": {"type": "array", "prefixItems": [{"const": "a"}, {"type": "null"}]},
        "o": {"$ref": "#/$defs/node"},
        "u": {"anyOf": [{"const": 1}, {"type": "boolean"}], "description": "either"},
    },
    "required": ["s", "i", "l"],
}


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_bound_to_their_schemas(seed: int) -> None:
    schemas = {"every": EVERY_TYPE, "none": None}
    rules = ToolRules(schemas, strict=frozenset(schemas), is_required=True)
    thoughts, content, calls = parsed(draw(build(tools=rules), seed), schemas, Start.CONTENT)
    assert (thoughts, content) == ("", "")
    assert calls
    for call in calls:
        value = json.loads(call.arguments)
        if call.name == "none":
            assert value == {}
            continue
        assert {"s", "i", "l"} <= set(value) <= set(EVERY_TYPE["properties"])
        assert isinstance(value["s"], str) and len(value["s"]) <= 5
        assert type(value["i"]) is int and 1 <= value["i"] <= 9
        assert 1 <= len(value["l"]) <= 2 and {type(x) for x in value["l"]} == {bool}
        assert re.fullmatch("[a-c]{2}", value.get("p", "ab"))
        assert value.get("n") is None or 0 <= value["n"] <= 1
        assert value.get("e", "x") in EVERY_TYPE["properties"]["e"]["enum"]
        assert value.get("t", ["a", None]) == ["a", None]
        assert set(value.get("o", {})) <= {"leaf"}
        assert value.get("u", 1) in (1, True, False)


def test_one_call_only_where_several_are_not_allowed() -> None:
    rules = ToolRules({"f": None}, is_required=True, allow_several=False)
    for seed in range(5):
        assert len(parsed(draw(build(tools=rules), seed), {"f": None}, Start.CONTENT)[2]) == 1


def test_free_values_are_readable_calls() -> None:
    schema = {"type": "object", "properties": {"any": {}}, "required": ["any"]}
    rules = ToolRules({"f": schema}, is_required=True, allow_several=False)
    read = 0
    for seed in range(10):
        try:
            ids = draw(build(tools=rules), seed, limit=400)
        except AssertionError:
            continue  # values nest at random, so some never end
        assert parsed(ids, {"f": schema}, Start.CONTENT)[2]
        read += 1
    assert read


def test_schema_and_tools_together() -> None:
    rules = ToolRules({"f": {"type": "object", "properties": {"a": {"const": 1}}}})
    kinds = set()
    for seed in range(30):
        ids = draw(build(AnswerFormat(schema=PERSON), rules), seed)
        _, content, calls = parsed(ids, dict(rules.schemas), Start.CONTENT)
        kinds.add(bool(calls))
        if calls:
            assert content == ""
        else:
            check_person(json.loads(content))
    assert kinds == {True, False}


def test_strict_tools_leave_text_free_until_a_call_begins() -> None:
    rules = ToolRules(
        {"f": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}},
        strict=frozenset({"f"}),
    )
    seen = 0
    for seed in range(60):
        try:
            ids = draw(build(tools=rules), seed, limit=3000)
        except AssertionError:
            continue
        calls = parsed(ids, dict(rules.schemas), Start.CONTENT)[2]
        assert all(c.arguments == '{"a":1}' for c in calls)
        seen += len(calls)
    assert seen


def test_thoughts_are_free_and_the_answer_is_bound() -> None:
    thought_seen = False
    for seed in range(30):
        constraint = build(AnswerFormat(schema=PERSON), may_think=True, thinking_budget=30)
        thoughts, content, _ = parsed(draw(constraint, seed), {}, Start.CONTENT)
        thought_seen |= bool(thoughts)
        check_person(json.loads(content))
    assert thought_seen


def test_a_thought_opened_by_the_prompt_comes_first() -> None:
    constraint = build(AnswerFormat(schema=PERSON), start=Start.THOUGHT, thinking_budget=12)
    ids = draw(constraint, 1)
    assert ids.index(TOKENIZER.id_of("<channel|>")) <= 13
    _, content, _ = parsed(ids, {}, Start.THOUGHT)
    check_person(json.loads(content))


def test_a_budget_alone_needs_no_tables() -> None:
    builder = ConstraintBuilder(TOKENIZER)
    constraint = builder.build(AnswerFormat(), None, Start.THOUGHT, thinking_budget=0)
    assert constraint is not None and not builder.has_tables
    newline, close = TOKENIZER.encode("\n", add_bos=False)[0], TOKENIZER.id_of("<channel|>")
    for wanted in (newline, close):
        words = constraint.mask()
        assert words is not None
        assert np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")) == [wanted]
        constraint.accept(wanted)
    assert constraint.mask() is None
    assert builder.build(AnswerFormat(), None) is None


def test_free_tools_need_no_constraint() -> None:
    assert BUILDER.build(AnswerFormat(), ToolRules({"f": None})) is None


@pytest.mark.parametrize(
    "schema, named",
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "what"}, "what"),
    ],
)
def test_a_keyword_that_cannot_be_enforced_is_named(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        build(AnswerFormat(schema=schema))
    tool = {"type": "object", "properties": {"x": schema}}
    with pytest.raises(RequestError, match=named):
        build(tools=ToolRules({"f": tool}, strict=frozenset({"f"})))


@pytest.mark.parametrize(
    "answer",
    [
        AnswerFormat(regex="(["),
        AnswerFormat(lark="start: nothing_here"),
        AnswerFormat(schema={"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}),
        AnswerFormat(schema=False),
        AnswerFormat(lark="start: " + " | ".join(f'"{n}"' for n in range(100_000))),
    ],
)
def test_wrong_grammars_are_refused(answer: AnswerFormat) -> None:
    with pytest.raises(RequestError):
        build(answer)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]},
        {"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(1000)}},
        {"type": "object", "required": ["missing"], "properties": {"a": {}}},
    ],
)
def test_hostile_tool_schemas_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        build(tools=ToolRules({"f": schema}, strict=frozenset({"f"})))


def test_fault_133_white_space_is_bounded() -> None:
    """A model that would write white space for ever is made to go on."""
    fields = {f"f{n}": {"type": "boolean"} for n in range(12)}
    schema = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    constraint = build(AnswerFormat(schema=schema))
    space = {
        i
        for i in range(TOKENIZER.vocab_size)
        if not TOKENIZER.is_control(i) and not TOKENIZER.token_bytes(i).strip(b" \n\t\r")
    }
    ids: list[int] = []
    in_a_row = longest = 0
    while not constraint.is_complete:
        words = constraint.mask()
        assert words is not None
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        spaces = [i for i in allowed if i in space]
        token = int(spaces[0] if spaces else allowed[0])
        if token in TOKENIZER.stop_ids:
            break
        in_a_row = in_a_row + 1 if spaces else 0
        longest = max(longest, in_a_row)
        constraint.accept(token)
        ids.append(token)
    assert set(json.loads(TOKENIZER.decode(ids))) == set(fields)
    assert longest <= 13
