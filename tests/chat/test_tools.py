"""The reader of one tool call: exact on what the format says, careful with what it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from culet.chat.schema import SchemaView
from culet.chat.syntax import QUOTE
from culet.chat.tools import CallSyntaxError, parse_call


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def arguments(text: str, parameters: Any = None) -> dict[str, Any]:
    return parse_call(f"call:f{text}", {"f": parameters}).arguments


def written(value: Any) -> str:
    """A value as the chat template writes it: the format that the model was trained on."""
    if isinstance(value, str):
        return QUOTE + value + QUOTE
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


texts = st.text(st.characters(codec="utf-8")).filter(lambda s: QUOTE not in s)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=4))
@settings(max_examples=300, deadline=None)
def test_what_the_template_writes_is_read_back(wanted: dict[str, Any]) -> None:
    got = arguments(written(wanted))
    assert json.dumps(got) == json.dumps(wanted)  # types included: 1 is not 1.0


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_call_or_refused(body: str) -> None:
    tools = {"f": schema(a={"type": "string"}, n={"type": "integer"})}
    for text in (body, "call:f{" + body, "call:f{a:" + body + "}"):
        try:
            call = parse_call(text, tools)
        except CallSyntaxError:
            continue
        assert isinstance(json.loads(call.arguments_json()), dict)
        call.arguments_json().encode()


@pytest.mark.parametrize(
    "text", ["{a:" * 500 + "1" + "}" * 500, "{a:" + "[" * 5000 + "]" * 5000 + "}"]
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(CallSyntaxError, match="deep"):
        arguments(text)


def test_numbers_that_json_cannot_hold_stay_text() -> None:
    got = arguments("{a:1e999,b:NaN,c:-Infinity,d:" + "9" * 5000 + "}")
    assert got == {"a": "1e999", "b": "NaN", "c": "-Infinity", "d": "9" * 5000}


def test_lone_surrogates_of_escapes_become_replacement_characters() -> None:
    call = parse_call('call:f{a:"\\ud83d\\ude00 \\ud800"}', {"f": None})
    assert json.loads(call.arguments_json()) == {"a": "😀 �"}


@pytest.mark.parametrize("text", ["{a:1,a:2}", "{a:1 b:2}", "{a}", "{a:}", "{:1}", "{a:1}x", "[1]"])
def test_ambiguous_text_is_refused(text: str) -> None:
    with pytest.raises(CallSyntaxError):
        arguments(text)


def test_json_form_is_read_for_declared_tools_only() -> None:
    text = '{"name": "f", "arguments": {"a": 1}}'
    assert parse_call(text, {"f": None}).arguments == {"a": 1}
    with pytest.raises(CallSyntaxError):
        parse_call(text, {"g": None})


def test_trailing_comma_parentheses_and_quoted_keys_are_repaired() -> None:
    assert arguments("{a:1,}") == {"a": 1}
    assert arguments("({a:1})") == {"a": 1}
    assert arguments("()") == {}
    assert arguments(f'{{"a":1,{QUOTE}b c{QUOTE}:2}}') == {"a": 1, "b c": 2}


def test_schema_references_and_unions_give_types() -> None:
    parameters = {
        "type": "object",
        "$defs": {"Zip": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}},
        "properties": {
            "zip": {"$ref": "#/$defs/Zip"},
            "loop": {"$ref": "#/$defs/Loop"},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "choice": {"enum": ["1", "2"]},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
            "free": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
    text = "{zip:007,loop:5,either:null,choice:2,pair:[1,2],free:{k:8}}"
    assert arguments(text, parameters) == {
        "zip": "007",
        "loop": 5,
        "either": None,
        "choice": "2",
        "pair": ["1", 2],
        "free": {"k": "8"},
    }


@pytest.mark.parametrize("odd", [True, False, None, {}, {"type": 3}, {"properties": []}])
def test_odd_schemas_give_no_types(odd: Any) -> None:
    view = SchemaView(odd)
    assert view.types() == frozenset()
    assert view.property("x").types() == frozenset()
    assert view.item(0).types() == frozenset()


def test_quoted_values_follow_a_schema_that_demands_another_type() -> None:
    parameters = schema(
        n={"type": "integer"}, b={"type": "boolean"}, o={"type": "object"}, l={"type": "array"}
    )
    text = f'{{n:"7",b:{QUOTE}true{QUOTE},o:{QUOTE}{{"a":1}}{QUOTE},l:{QUOTE}[1]{QUOTE}}}'
    assert arguments(text, parameters) == {"n": 7, "b": True, "o": {"a": 1}, "l": [1]}
    assert arguments('{n:"seven"}', parameters) == {"n": "seven"}
