"""Arguments of calls told while they are written: the pieces are the whole, however it is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from culet.chat.stream import (
    Call,
    CallArguments,
    CallBroken,
    CallStart,
    Content,
    Delta,
    OutputParser,
)
from culet.chat.syntax import CALL_CLOSE, CALL_OPEN, QUOTE, TURN_CLOSE
from culet.chat.tools import CallSyntaxError, parse_call

Q = QUOTE
TOOLS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "other": {"type": "string"},
            "n": {"type": "integer"},
            "flag": {"type": "boolean"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "list": {"type": "array", "items": {"type": "string"}},
            "inner": {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}},
        },
    },
    "free": {},
}


def deltas_of(chunks: list[str], was_cut: bool = False, tools: Any = TOOLS) -> list[Delta]:
    """Deltas with neighbouring pieces of one kind joined, as no reader can tell them apart."""
    parser = OutputParser(tools)
    joined: list[Delta] = []
    for chunk in [*chunks, None]:
        for delta in parser.finish(was_cut) if chunk is None else parser.feed(chunk):
            last = joined[-1] if joined else None
            if isinstance(delta, CallArguments) and isinstance(last, CallArguments):
                joined[-1] = CallArguments(last.index, last.text + delta.text)
            elif isinstance(delta, Content) and isinstance(last, Content):
                joined[-1] = Content(last.text + delta.text)
            else:
                joined.append(delta)
    assert not any("changes what was told" in reason for reason in parser.refused)
    return joined


def cut_at(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted({p % (len(text) + 1) for p in places}), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def check_calls(deltas: list[Delta]) -> None:
    """Every call begins, is told in pieces, and ends as what the pieces make; or is no JSON."""
    names: dict[int, str] = {}
    pieces: dict[int, str] = {}
    ended: set[int] = set()
    for delta in deltas:
        match delta:
            case CallStart(index, name):
                assert index == len(names)
                names[index], pieces[index] = name, ""
            case CallArguments(index, text):
                assert text and index not in ended
                pieces[index] += text
            case Call(index, name, arguments):
                assert names[index] == name and pieces[index] == arguments
                assert isinstance(json.loads(arguments), dict)
                ended.add(index)
            case CallBroken(index, reason, _):
                assert reason and not is_json(pieces[index])
                ended.add(index)
    assert ended == set(names)


# Written with care, with every kind of slop, and with what a broken model may write.
words = st.sampled_from(
    [Q, "{", "}", "[", "]", ",", ":", " ", "\n", "(", ")", '"', "'", "`", "```", "\\", "<", "<|"]
    + ["text:", "other:", "n:", "list:", "inner:", "maybe:", "flag:", "a:", "b:", "zz:", ", other"]
    + ["1", "-2.5e3", "true", "nul", "null", "x", "é😀", f"text:{Q}", f"{Q},", f"{Q}}}", "call:f{"]
)
strings = st.text(st.sampled_from('ab ,:}{]["\n\\é😀<|>o'), max_size=12).filter(
    lambda s: Q not in s
)


def quoted(text: str) -> str:
    return f"{Q}{text}{Q}"


leaves = strings.map(quoted) | st.sampled_from(["1", "-0.5", "true", "null", "word", "two words"])
values = st.recursive(
    leaves,
    lambda below: (
        st.lists(below, max_size=3).map(lambda v: f"[{','.join(v)}]")
        | st.dictionaries(st.sampled_from(["a", "b", "c d", Q + "k" + Q]), below, max_size=3).map(
            lambda d: "{" + ",".join(f"{k}:{v}" for k, v in d.items()) + "}"
        )
    ),
    max_leaves=5,
)
members = st.lists(
    st.tuples(st.sampled_from([*TOOLS["f"]["properties"], "undeclared"]), values), max_size=4
).map(lambda pairs: ",".join(f"{key}:{value}" for key, value in pairs))
bodies = (
    st.builds(
        lambda name, inside: f"call:{name}{{{inside}}}", st.sampled_from(["f", "free"]), members
    )
    | st.lists(words, max_size=14).map(lambda parts: "call:f{" + "".join(parts) + "}")
    | st.lists(words, max_size=14).map(lambda parts: "call:f{text:" + Q + "".join(parts))
    | st.lists(words, max_size=8).map("".join)
)
ends = st.sampled_from([CALL_CLOSE, TURN_CLOSE, "", CALL_CLOSE + "and text"])


@given(st.lists(st.tuples(bodies, ends), min_size=1, max_size=3), st.lists(st.integers(0, 10**6)))
@settings(max_examples=400, deadline=None)
@example([(f"call:f{{text:{Q}a,other:{Q}b{Q}}}", CALL_CLOSE)], [])
@example([(f"call:f{{text:{Q}a, n", ""), ("", CALL_CLOSE)], [])
@example([(f"call:f{{text:{Q}a}} ", CALL_CLOSE)], [])
@example([(f"call:f{{n:{Q}7{Q},text:a,other:b}}", CALL_CLOSE)], [])
def test_pieces_are_the_whole_however_it_is_cut(
    calls: list[tuple[str, str]], places: list[int]
) -> None:
    text = "".join(CALL_OPEN + body + end for body, end in calls)
    for was_cut in (False, True):
        whole = deltas_of([text], was_cut)
        check_calls(whole)
        assert deltas_of(cut_at(text, places), was_cut) == whole
        assert deltas_of(list(text), was_cut) == whole


@given(bodies)
@settings(max_examples=400, deadline=None)
def test_a_readable_call_is_told_whole_and_no_other_is(body: str) -> None:
    """Telling a call early changes nothing of what is taken for a call."""
    if CALL_OPEN in body:
        return
    try:
        wanted = parse_call(body, TOOLS).arguments_json()
    except CallSyntaxError:
        wanted = None
    told = [d for d in deltas_of(list(CALL_OPEN + body + CALL_CLOSE)) if isinstance(d, Call)]
    assert [c.arguments for c in told] == ([] if wanted is None else [wanted])


def early(body: str) -> str:
    """The arguments told before the end of the call is known."""
    parser = OutputParser(TOOLS)
    told = [d for char in CALL_OPEN + body for d in parser.feed(char)]
    return "".join(d.text for d in told if isinstance(d, CallArguments))


@pytest.mark.parametrize(
    "body, certain",
    [
        (f"call:f{{text:{Q}", '{"text":"'),
        (f'call:f{{text:{Q}one "two"\nthr', '{"text":"one \\"two\\"\\nthr'),
        (f"call:f{{text:{Q}a, b", '{"text":"a, b'),
        # A comma with what may be the next key: its value's opener may be taken for a closer.
        (f"call:f{{text:{Q}a, oth", '{"text":"a'),
        (f"call:f{{text:{Q}a, other :", '{"text":"a'),
        (f"call:f{{text:{Q}a, other: b", '{"text":"a, other: b'),
        # The call's own brace, should the closer be missing.
        (f"call:f{{text:{Q}if x {{y}} ", '{"text":"if x {y'),
        (f"call:f{{text:{Q}if x {{y}} z", '{"text":"if x {y} z'),
        (f"call:f{{text:{Q}a <|", '{"text":"a '),
        (f"call:f{{text:{Q}a{Q}}}", '{"text":"a"'),
        (f"call:f{{text:{Q}a{Q},n:12", '{"text":"a","n":'),
        (f"call:f{{text:{Q}a{Q},n:12,", '{"text":"a","n":12'),
        (f"call:f{{n:{Q}12", ""),
        (f"call:f{{n:{Q}12{Q}", '{"n":12'),
        ("call:f{flag:tru", ""),
        ("call:f{flag:true,", '{"flag":true'),
        (f"call:f{{list:[{Q}x{Q},{Q}y", '{"list":["x","y'),
        (f"call:f{{inner:{{b:1,a:{Q}z", '{"inner":{"b":1,"a":"z'),
        (f"call:f{{inner:{{a:{Q}z{Q}}}", '{"inner":{"a":"z"}'),
        # Text without quotes, ordinary quotes, other forms: nothing is certain before the end.
        ("call:f{text:plain text,", ""),
        ('call:f{text:"plain",', ""),
        ('{"name":"f","arguments":{"text":"a"}', ""),
        (f"call:g{{text:{Q}a", ""),
        (f"f{{text:{Q}a", ""),
        ("call:f{", ""),
    ],
)
def test_what_is_certain_is_told_and_nothing_else(body: str, certain: str) -> None:
    assert early(body) == certain


def test_a_long_text_arrives_as_it_is_written() -> None:
    """A character in, a character out: no lump at the end."""
    parser = OutputParser(TOOLS)
    parser.feed(CALL_OPEN + f"call:f{{text:{Q}")
    for char in "print(1)\n" * 200:
        (piece,) = parser.feed(char)
        assert isinstance(piece, CallArguments) and json.loads(f'"{piece.text}"') == char


def test_the_cost_of_a_long_text_grows_with_its_length_only() -> None:
    """Counted in characters looked at, not in seconds."""
    looked_at = 0

    class Counting(str):
        def find(self, *args: Any) -> int:
            nonlocal looked_at
            looked_at += len(self) - (args[1] if len(args) > 1 else 0)
            return super().find(*args)

    from culet.chat.call_stream import CallStream

    stream = CallStream(TOOLS)
    stream.feed(f"call:f{{text:{Q}")
    for _ in range(2000):
        stream._text = Counting(stream._text)
        stream.feed("word ")
    assert looked_at < 2000 * 100


def test_a_call_that_breaks_is_shown_as_text_and_its_pieces_are_no_json() -> None:
    raw = f"{CALL_OPEN}call:f{{text:{Q}a{Q} and more}}{CALL_CLOSE}"
    assert deltas_of(list(raw)) == [
        CallStart(0, "f"),
        CallArguments(0, '{"text":"a"'),
        CallBroken(0, "text follows a quoted string"),
        Content(raw),
    ]
    cut = f"{CALL_OPEN}call:f{{text:{Q}a"
    told = deltas_of(list(cut), was_cut=True)
    assert told[2:] == [CallBroken(0, "it was cut off", was_cut=True), Content(cut)]


def test_calls_after_a_broken_one_have_indices_of_their_own() -> None:
    broken = f"{CALL_OPEN}call:f{{text:{Q}a{Q} x}}{CALL_CLOSE}"
    good = f"{CALL_OPEN}call:f{{text:{Q}b{Q}}}{CALL_CLOSE}"
    told = deltas_of([broken + good])
    check_calls(told)
    assert [d for d in told if isinstance(d, Call)] == [Call(1, "f", '{"text":"b"}')]
