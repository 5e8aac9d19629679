"""The output parser and stop strings: the same result however the text is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from culet.chat.stop import StopStrings
from culet.chat.stream import Call, Delta, OutputParser, Start, join
from culet.chat.syntax import (
    CALL_CLOSE,
    CALL_OPEN,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    END_OF_SEQUENCE,
    QUOTE,
    RESPONSE_CLOSE,
    RESPONSE_OPEN,
    THINK,
    TURN_CLOSE,
    TURN_OPEN,
)

TOOLS = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
MARKERS = [
    CALL_OPEN,
    CALL_CLOSE,
    CHANNEL_OPEN,
    CHANNEL_CLOSE,
    QUOTE,
    RESPONSE_OPEN,
    TURN_CLOSE,
    TURN_OPEN,
]
ALL_MARKERS = [*MARKERS, RESPONSE_CLOSE, THINK, END_OF_SEQUENCE]
# Text that spells no marker; hypothesis tries strings that it finds in the code.
plain_texts = st.text(max_size=40).filter(lambda text: not any(m in text for m in ALL_MARKERS))
pieces = st.lists(
    st.sampled_from(MARKERS)
    | st.sampled_from(
        [
            "thought\n",
            "thought",
            "\n",
            "call:f{",
            "a:",
            "}",
            "call:f{a:1}",
            "<|",
            "<turn",
            "|>",
            " ",
            "é",
        ]
    )
    | st.text(max_size=4),
    max_size=16,
)


def run(chunks: list[str], start: Start = Start.CONTENT, cut: bool = False) -> list[Delta]:
    parser = OutputParser(TOOLS, start)
    deltas: list[Delta] = []
    for chunk in chunks:
        deltas += parser.feed(chunk)
    return deltas + parser.finish(cut)


def cut_at(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted({p % (len(text) + 1) for p in places}), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@given(pieces, st.lists(st.integers(0, 10**6), max_size=8), st.sampled_from(Start), st.booleans())
@settings(max_examples=500, deadline=None)
def test_every_chunking_gives_the_same(
    parts: list[str], places: list[int], start: Start, cut: bool
) -> None:
    text = "".join(parts)
    whole = join(run([text], start, cut))
    assert join(run(cut_at(text, places), start, cut)) == whole
    assert join(run(list(text), start, cut)) == whole


@given(pieces, st.sampled_from(Start))
@settings(max_examples=300, deadline=None)
def test_tokens_and_spelled_text_give_the_same(parts: list[str], start: Start) -> None:
    """Control tokens by id or by spelling: no difference while no text spells a marker."""
    text = "".join(parts)
    by_token = OutputParser(TOOLS, start)
    deltas: list[Delta] = []
    rest = text
    while rest:
        at, marker = min(((rest.find(m), m) for m in MARKERS if m in rest), default=(len(rest), ""))
        deltas += by_token.feed_text(rest[:at])
        if marker:
            deltas += by_token.feed_marker(marker)
        rest = rest[at + len(marker) :]
    # Markers that the list above lacks are spelled by none of the pieces.
    assert join(deltas + by_token.finish(False)) == join(run([text], start))


@given(plain_texts, st.lists(st.integers(0, 100), max_size=5))
@settings(deadline=None)
def test_text_without_markers_is_content_unchanged(text: str, places: list[int]) -> None:
    assert join(run(cut_at(text, places))) == ("", text, [])


@given(plain_texts)
@settings(deadline=None)
def test_thoughts_keep_their_text(text: str) -> None:
    output = f"{CHANNEL_OPEN}thought\n{text}\n{CHANNEL_CLOSE}answer"
    assert join(run(list(output))) == (text, "answer", [])


def test_deltas_leave_as_early_as_they_can() -> None:
    parser = OutputParser(TOOLS)
    assert [len(parser.feed(c)) for c in "abc<d"] == [1, 1, 1, 0, 1]


def test_text_of_ordinary_tokens_is_never_a_marker() -> None:
    parser = OutputParser(TOOLS)
    assert join(parser.feed_text(TURN_CLOSE) + parser.finish(False)) == ("", TURN_CLOSE, [])


def test_start_is_read_off_the_prompt() -> None:
    assert Start.of_prompt("<|turn>model\n") is Start.CONTENT
    assert Start.of_prompt("<|turn>model\n<|channel>thought\n<channel|>") is Start.CONTENT
    assert Start.of_prompt("<|turn>model\n<|channel>thought\n") is Start.THOUGHT
    assert Start.of_prompt("<tool_response|><|channel>") is Start.THOUGHT_LABEL


def test_call_without_its_closer_counts_when_the_turn_ends() -> None:
    whole = [Call(0, "f", '{"a":"1"}')]
    assert join(run([CALL_OPEN + "call:f{a:1}" + RESPONSE_OPEN]))[2] == whole
    assert join(run([CALL_OPEN + "call:f{a:1}"], cut=False))[2] == whole
    raw = CALL_OPEN + "call:f{a:1}"
    assert join(run([raw], cut=True)) == ("", raw, [])


stop_alphabet = st.text("ab\n é", max_size=4)


@given(
    st.text("ab\n é", max_size=30),
    st.lists(stop_alphabet, max_size=4),
    st.lists(st.integers(0, 99)),
)
@settings(max_examples=500, deadline=None)
def test_stop_strings_equal_a_search_of_the_whole_text(
    text: str, stops: list[str], places: list[int]
) -> None:
    matcher = StopStrings(stops)
    passed = [matcher.feed(chunk) for chunk in cut_at(text, places)]
    passed.append(matcher.finish())
    starts = [at for s in stops if s and (at := text.find(s)) >= 0]
    assert "".join(passed) == text[: min(starts, default=len(text))]
    assert (matcher.matched is not None) == bool(starts)
