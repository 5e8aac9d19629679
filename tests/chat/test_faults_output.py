"""Faults that people met elsewhere in thoughts, calls and stop strings (table: docs/faults.md)."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from culet.chat.stop import StopStrings
from culet.chat.stream import (
    Call,
    CallArguments,
    Content,
    Delta,
    OutputParser,
    Start,
    Thought,
    join,
)
from culet.chat.syntax import CALL_CLOSE as END
from culet.chat.syntax import CALL_OPEN as BEGIN
from culet.chat.syntax import CHANNEL_CLOSE, CHANNEL_OPEN, RESPONSE_OPEN, TURN_CLOSE
from culet.chat.syntax import QUOTE as Q
from culet.chat.tools import CallSyntaxError, parse_call

ANY_TOOL: dict[str, Any] = dict.fromkeys(("send", "table", "set", "find", "now", "add", "f"))


def output(
    text: str,
    tools: dict[str, Any] | None = None,
    start: Start = Start.CONTENT,
    cut: bool = False,
    max_calls: int | None = None,
) -> tuple[str, str, list[Call]]:
    """Thoughts, content and calls, after checking that every chunking agrees."""
    results = []
    tools = ANY_TOOL if tools is None else tools
    for size in (len(text) or 1, 1, 2, 3, 5, 8, 13):
        parser = OutputParser(tools, start, max_calls)
        deltas: list[Delta] = []
        for at in range(0, len(text), size):
            deltas += parser.feed(text[at : at + size])
        deltas += parser.finish(cut)
        texts = [d.text for d in deltas if isinstance(d, Thought | Content | CallArguments)]
        assert all(texts), "an empty delta"
        results.append(join(deltas))
    assert all(r == results[0] for r in results)
    return results[0]


def call(body: str, tools: dict[str, Any] | None = None) -> Any:
    """The arguments of the one call in an output."""
    thoughts, content, calls = output(BEGIN + body + END, tools)
    assert (thoughts, content, len(calls)) == ("", "", 1)
    return json.loads(calls[0].arguments)


def schema(**properties: Any) -> dict[str, Any]:
    return {"f": {"type": "object", "properties": properties}}


# H. Thinking channel


@pytest.mark.parametrize("label", ["thought\n", ""])
def test_fault_096_markers_and_label_are_in_neither_field(label: str) -> None:
    text = f"{CHANNEL_OPEN}{label}I ponder.{CHANNEL_CLOSE}The answer.{TURN_CLOSE}"
    assert output(text) == ("I ponder.", "The answer.", [])


@pytest.mark.parametrize("thinking, tools", list(product([True, False], [ANY_TOOL, {}])))
def test_fault_097_boundaries_survive_in_every_mode(thinking: bool, tools: dict[str, Any]) -> None:
    thought = f"{CHANNEL_OPEN}thought\nhm{CHANNEL_CLOSE}" if thinking else ""
    spelled = f"{BEGIN}call:now{{}}{END}"
    thoughts, content, calls = output(thought + "ok" + spelled, tools)
    assert thoughts == ("hm" if thinking else "")
    assert content == ("ok" if tools else "ok" + spelled)
    assert len(calls) == (1 if tools else 0)


@pytest.mark.parametrize(
    "prompt_end", ["<|turn>model\n<|channel>thought\n", "<tool_response|><|channel>"]
)
def test_fault_099_the_prompt_opened_the_thought(prompt_end: str) -> None:
    start = Start.of_prompt(prompt_end)
    label = "thought\n" if start is Start.THOUGHT_LABEL else ""
    got = output(f"{label}so far{CHANNEL_CLOSE}answer{TURN_CLOSE}", start=start)
    assert got == ("so far", "answer", [])


@pytest.mark.parametrize("inside", ["thought\nhidden\n", "thought\n", "", "thought"])
def test_fault_102_a_thought_that_nobody_asked_for_is_not_content(inside: str) -> None:
    got = output(f"{CHANNEL_OPEN}{inside}{CHANNEL_CLOSE}\n\nHello")
    assert got == ("hidden" if "hidden" in inside else "", "Hello", [])


# I. Tool calls in the output


def test_fault_105_nested_objects_end_at_their_own_brace() -> None:
    got = call(f"call:send{{to:{{name:{Q}A}}B{Q},tags:[1,{{k:true}}]}},n:2}}")
    assert got == {"to": {"name": "A}B", "tags": [1, {"k": True}]}, "n": 2}


def test_fault_106_brackets_in_strings_in_nested_lists() -> None:
    got = call(f"call:table{{rows:[[{Q}x]y[{Q},{Q},{Q}],[{Q}}}{Q}]]}}")
    assert got == {"rows": [["x]y[", ","], ["}"]]}


def test_fault_108_half_a_literal_is_not_a_string() -> None:
    assert call("call:set{flag:true,n:-12.5e3,z:null}") == {"flag": True, "n": -12500.0, "z": None}


def test_fault_109_quote_token_cut_anywhere() -> None:
    text = f"{BEGIN}call:f{{a:{Q}one{Q},b:{Q}t<|wo{Q},c:[{Q}{Q},{Q}|>{Q}]}}{END}"
    wanted = {"a": "one", "b": "t<|wo", "c": ["", "|>"]}
    for at in range(len(text) + 1):
        parser = OutputParser(ANY_TOOL)
        deltas = parser.feed(text[:at]) + parser.feed(text[at:]) + parser.finish(False)
        thoughts, content, calls = join(deltas)
        assert (thoughts, content) == ("", "")
        assert json.loads(calls[0].arguments) == wanted


def test_fault_111_ordinary_quotes_inside_containers() -> None:
    got = call("call:find{ids:[\"u_7\",'u_8',u_9],cfg:{\"lvl\":\"h\\ti\"},who:[don't,'it''s']}")
    assert got == {
        "ids": ["u_7", "u_8", "u_9"],
        "cfg": {"lvl": "h\ti"},
        "who": ["don't", "it''s"],
    }


def test_fault_113_types_come_from_the_schema() -> None:
    tools = schema(
        zip={"type": "string"}, n={"type": "integer"}, x={"type": "number"}, ok={"type": "boolean"}
    )
    assert call("call:f{zip:00123,n:7,x:7,ok:true}", tools) == {
        "zip": "00123",
        "n": 7,
        "x": 7,
        "ok": True,
    }
    quoted = f'call:f{{zip:{Q}7{Q},n:{Q}7{Q},x:"7.5",ok:{Q}true{Q}}}'
    assert call(quoted, tools) == {"zip": "7", "n": 7, "x": 7.5, "ok": True}
    untyped = call(f"call:f{{zip:00123,n:7,q:{Q}7{Q}}}")
    assert untyped == {"zip": "00123", "n": 7, "q": "7"}


@pytest.mark.parametrize(
    "written, value",
    [
        ("'a, b} c'", "a, b} c"),
        ("```py\nd = {1: [2, 3]}\n```", "d = {1: [2, 3]}"),
        ("`x, {y}`", "x, {y}"),
        ("first line, and {more}\nsecond", "first line, and {more}\nsecond"),
        (f"half quoted, here{Q}", "half quoted, here"),
        (f"{Q}never closed, {{so}}", "never closed, {so}"),
    ],
)
def test_fault_114_sloppy_strings_are_repaired(written: str, value: str) -> None:
    tools = schema(n={"type": "integer"}, pattern={"type": "string"})
    assert call(f"call:f{{n:1,pattern:{written}}}", tools) == {"n": 1, "pattern": value}


def test_fault_114_ambiguous_slop_is_shown_as_it_is() -> None:
    text = f"{BEGIN}call:f{{a:{Q}one{Q} and {Q}two{Q}}}{END}"
    assert output(text) == ("", text, [])


def test_fault_115_a_missing_closer_swallows_no_key() -> None:
    tools = schema(body={"type": "string"}, file={"type": "string"})
    got = call(f"call:f{{body:{Q}f(x)}}],file:{Q}m.py{Q}}}", tools)
    assert got == {"body": "f(x)}]", "file": "m.py"}
    with pytest.raises(CallSyntaxError):  # without a schema there are two readings
        parse_call(f"call:f{{body:{Q}f(x)}}],file:{Q}m.py{Q}}}", {"f": None})


@pytest.mark.parametrize(
    "text",
    [
        f"{BEGIN}BEGIN_ARG city END_ARG Paris{END}",
        f"{BEGIN}call:{{a:1}}{END}",
        BEGIN * 40,
        f"{BEGIN}{END}",
    ],
)
def test_fault_116_an_unreadable_call_is_shown_as_text(text: str) -> None:
    assert output(text) == ("", text, [])
    assert output(text, cut=True) == ("", text, [])


def test_fault_118_the_same_call_several_times() -> None:
    same, other = f"{BEGIN}call:now{{}}{END}", f"{BEGIN}call:add{{a:1}}{END}"
    text = same * 3 + other
    assert [c.name for c in output(text, max_calls=1)[2]] == ["now"]
    calls = output(text)[2]
    assert [c.name for c in calls] == ["now", "now", "now", "add"]
    assert [c.index for c in calls] == [0, 1, 2, 3]


def test_fault_120_the_response_marker_is_not_content() -> None:
    text = f"Looking.{BEGIN}call:now{{}}{END}{RESPONSE_OPEN}"
    thoughts, content, calls = output(text)
    assert (thoughts, content, [c.name for c in calls]) == ("", "Looking.", ["now"])


def test_fault_121_calls_that_share_a_chunk() -> None:
    bodies = ["call:add{a:1}", "call:now{}", f"call:f{{t:{Q}x{Q}}}"]
    text = "".join(f"{BEGIN}{b}{END}" for b in bodies)
    calls = output(text)[2]
    assert [(c.index, c.name) for c in calls] == [(0, "add"), (1, "now"), (2, "f")]
    assert [json.loads(c.arguments) for c in calls] == [{"a": 1}, {}, {"t": "x"}]
    between = text.replace(END + BEGIN, END + "\nand then\n" + BEGIN, 1)
    assert output(between)[1] == "and then\n"
    spaced = text.replace(END + BEGIN, END + "\n\n" + BEGIN)
    assert output(spaced) == ("", "", calls)


@pytest.mark.parametrize("length", range(len(BEGIN), len(f"{BEGIN}call:f{{a:{Q}long{Q}}}")))
def test_fault_122_cut_off_inside_a_call(length: int) -> None:
    text = f"{BEGIN}call:f{{a:{Q}long{Q}}}"[:length]
    assert output(text, cut=True) == ("", text, [])


def test_fault_125_calls_without_arguments() -> None:
    for body in ("call:now{}", "call:now{ }", "call:now", "call:now\n"):
        text = f"{BEGIN}{body}{END}{BEGIN}call:add{{a:1}}{END}"
        calls = output(text)[2]
        assert [(c.name, c.arguments) for c in calls] == [("now", "{}"), ("add", '{"a":1}')]


def test_fault_089_null_and_unusual_values_survive() -> None:
    got = call(
        f"call:f{{a:null,b:true,c:false,d:0,e:-0.5,f:1e9,g:{Q}{Q},h:[],i:{{}},j:[{{k:null}}]}}"
    )
    assert got == {
        "a": None,
        "b": True,
        "c": False,
        "d": 0,
        "e": -0.5,
        "f": 1e9,
        "g": "",
        "h": [],
        "i": {},
        "j": [{"k": None}],
    }


def test_fault_081_parameters_named_like_schema_words() -> None:
    names = ("type", "description", "properties", "required", "nullable", "enum")
    tools = schema(**{name: {"type": "string"} for name in names})
    written = ",".join(f"{name}:{Q}v{Q}" for name in names)
    assert call(f"call:f{{{written}}}", tools) == dict.fromkeys(names, "v")


# J. Stop strings


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize(
    "stops, wanted",
    [
        (["azy d"], "The l"),
        (["\n\nQ:"], "The lazy dog.\n"),
        (["é"], "The lazy dog.\n\n\nQ: caf"),
        (["dog.\n\n\n\n", "dog.\n\n", "dog.\n", "dog."], "The lazy "),
    ],
)
def test_fault_129_stop_strings_across_tokens(size: int, stops: list[str], wanted: str) -> None:
    text = "The lazy dog.\n\n\nQ: café"
    matcher = StopStrings(stops)
    passed = "".join(matcher.feed(text[a : a + size]) for a in range(0, len(text), size))
    assert passed + matcher.finish() == wanted
    assert matcher.matched in stops
