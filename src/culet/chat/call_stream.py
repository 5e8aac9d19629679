"""The arguments of a call while it is being written: as much of their JSON text as is certain.

Knows the same syntax as `tools`, and less of it: where a repair may still change what was read, or
the form is not Gemma's own, the rest is held back until the call is complete. What was let out is
the beginning of the complete call's JSON text, for every cut; the last brace is never let out, so
that arguments that end early are no JSON.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any

from culet.chat.schema import Schema, SchemaView, from_bare, from_quoted
from culet.chat.syntax import QUOTE
from culet.chat.tools import (
    BARE_KEY,
    CALL_NAME,
    CALL_PREFIX,
    KEY_AT_END,
    KEY_INSIDE,
    MAX_DEPTH,
    json_text,
)

_SPACE = re.compile(r"\s*")
_BARE_END = re.compile(r"[,{}\[\]]")
_BRACE_AT_END = re.compile(r"\}\s*\Z")
# What may become `KEY_AT_END`: a comma, then the beginning of a key with its colon.
_KEY_BEGUN = re.compile(r",\s*([^\s:,{}\[\]\"'`]*)(\s*:?)\s*\Z")
_QUOTES = ('"', "'", "`")

Steps = Generator[None, None, None]  # each pause waits for more text


class _Held(Exception):
    """From here on nothing is certain before the call is complete."""


class CallStream:
    """Feed it the text between the call markers as it comes.

    Attributes:
        name: the tool's, once the first value has begun; None before, and where nothing is certain.
        sent: the JSON text let out so far.
    """

    def __init__(self, tools: Mapping[str, Schema]) -> None:
        self.name: str | None = None
        self.sent = ""
        self._tools = tools
        self._text = ""
        self._pos = 0
        self._ready: list[str] = []
        self._begun_name = ""
        self._steps: Steps | None = self._call()

    def feed(self, text: str) -> str:
        """The JSON text that has become certain; empty before the first value has begun."""
        self._text += text
        if self._steps is not None:
            try:
                next(self._steps)
            except (StopIteration, _Held):
                self._steps = None
        if self.name is None:
            return ""
        certain = "".join(self._ready)
        self._ready.clear()
        self.sent += certain
        return certain

    def _let_out(self, json_part: str) -> None:
        self._ready.append(json_part)

    def _let_out_value(self, json_part: str) -> None:
        self._let_out(json_part)
        self.name = self._begun_name

    def _next_char(self) -> Generator[None, None, str]:
        """The next character that is no white space, not yet taken."""
        while True:
            space = _SPACE.match(self._text, self._pos)
            assert space is not None
            self._pos = space.end()
            if self._pos < len(self._text):
                return self._text[self._pos]
            yield

    def _is_quote(self) -> Generator[None, None, bool]:
        """Whether the quote token stands here."""
        while True:
            rest = self._text[self._pos : self._pos + len(QUOTE)]
            if len(rest) == len(QUOTE) or not QUOTE.startswith(rest):
                return rest == QUOTE
            yield

    def _expect(self, char: str) -> Steps:
        if (yield from self._next_char()) != char:
            raise _Held
        self._pos += 1

    def _call(self) -> Steps:
        yield from self._next_char()
        while len(self._text) < self._pos + len(CALL_PREFIX):
            yield
        if not self._text.startswith(CALL_PREFIX, self._pos):
            raise _Held
        self._pos += len(CALL_PREFIX)
        match = yield from self._matched(CALL_NAME)
        self._begun_name = match.group(1)
        if self._begun_name not in self._tools:
            raise _Held
        if (yield from self._next_char()) != "{":
            raise _Held
        yield from self._object(SchemaView(self._tools[self._begun_name]), 0)

    def _matched(self, pattern: re.Pattern[str]) -> Generator[None, None, re.Match[str]]:
        """The match here, once a character behind it shows that it is whole."""
        while True:
            match = pattern.match(self._text, self._pos)
            if match is None and self._pos < len(self._text):
                raise _Held
            if match is not None and match.end() < len(self._text):
                self._pos = match.end()
                return match
            yield

    def _object(self, view: SchemaView, depth: int) -> Steps:
        if depth > MAX_DEPTH:
            raise _Held
        self._pos += 1
        self._let_out("{")
        found: set[str] = set()
        while (yield from self._next_char()) != "}":
            if found:
                yield from self._expect(",")
                if (yield from self._next_char()) == "}":  # a trailing comma
                    break
            key = yield from self._key()
            if key in found:
                raise _Held
            yield from self._expect(":")
            self._let_out(("," if found else "") + json_text(key) + ":")
            found.add(key)
            others = frozenset(view.properties().keys() - found)
            yield from self._value(view.property(key), depth, others)
        self._pos += 1
        if depth:
            self._let_out_value("}")

    def _array(self, view: SchemaView, depth: int) -> Steps:
        if depth > MAX_DEPTH:
            raise _Held
        self._pos += 1
        self._let_out_value("[")
        count = 0
        while (yield from self._next_char()) != "]":
            if count:
                yield from self._expect(",")
                if (yield from self._next_char()) == "]":
                    break
                self._let_out(",")
            yield from self._value(view.item(count), depth, frozenset())
            count += 1
        self._pos += 1
        self._let_out("]")

    def _key(self) -> Generator[None, None, str]:
        char = yield from self._next_char()
        if char in _QUOTES:
            raise _Held
        if char == "<" and (yield from self._is_quote()):
            start = self._pos + len(QUOTE)
            while (end := self._text.find(QUOTE, start)) < 0:
                yield
            self._pos = end + len(QUOTE)
            return self._text[start:end]
        return (yield from self._matched(BARE_KEY)).group()

    def _value(self, view: SchemaView, depth: int, others: frozenset[str]) -> Steps:
        char = yield from self._next_char()
        if char in "{[":
            if depth == 0 and view.wants_text():
                raise _Held
            below = self._object if char == "{" else self._array
            yield from below(view, depth + 1)
        elif char == "<" and (yield from self._is_quote()):
            self._pos += len(QUOTE)
            yield from self._quoted(view, depth, others)
        elif char in _QUOTES:
            raise _Held  # what is quoted so may turn out to be plain text
        else:
            yield from self._bare(view, depth)

    def _quoted(self, view: SchemaView, depth: int, others: frozenset[str]) -> Steps:
        """A string: its text as it comes, where the schema takes text; else once it is whole."""
        types = view.types()
        is_text = not types or "string" in types
        start = self._pos
        if is_text:
            self._let_out_value('"')
        while (end := self._text.find(QUOTE, self._pos if is_text else start)) < 0:
            if is_text:
                safe = self._end_of_certain_text(depth, others)
                self._let_out(json_text(self._text[self._pos : safe])[1:-1])
                self._pos = safe
            yield
        swallowed = KEY_AT_END.search(self._text, self._pos, end)
        closer = len(QUOTE)
        if swallowed is not None and swallowed.group(1) in others:
            end, closer = swallowed.start(), 0
        if is_text:
            self._let_out(json_text(self._text[self._pos : end])[1:-1] + '"')
        else:
            self._let_out_value(json_text(from_quoted(self._text[start:end], view)))
        self._pos = end + closer

    def _end_of_certain_text(self, depth: int, others: frozenset[str]) -> int:
        """Up to where the text of an open string stays part of it whatever follows."""
        end = len(self._text)
        for length in range(len(QUOTE) - 1, 0, -1):
            if self._text.endswith(QUOTE[:length], self._pos):
                end -= length
                break
        brace = _BRACE_AT_END.search(self._text, self._pos)
        if depth == 0 and brace is not None:  # the call's own, should the closer be missing
            end = min(end, brace.start())
        comma = self._text.rfind(",", self._pos, end)
        begun = _KEY_BEGUN.match(self._text, comma, end) if comma >= 0 and others else None
        if begun is not None and any(name.startswith(begun.group(1)) for name in others):
            end = comma
        return end

    def _bare(self, view: SchemaView, depth: int) -> Steps:
        """A number or a word, once the mark behind it is there."""
        if depth == 0 and view.wants_text():
            raise _Held  # such text ends where the next declared key is found
        start = searched = self._pos
        while (match := _BARE_END.search(self._text, searched)) is None:
            searched = len(self._text)
            yield
        text = self._text[start : match.start()].strip().removesuffix(QUOTE)
        if not text or QUOTE in text:
            raise _Held
        if not view.wants_text() and KEY_INSIDE.search(text):
            raise _Held
        self._pos = match.start()
        value: Any = from_bare(text, view)
        self._let_out_value(json_text(value))
