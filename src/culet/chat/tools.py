"""One tool call as Gemma 4 writes it, to a name and typed arguments.

    call:NAME{key:<|"|>text<|"|>,n:1,list:[true,null],inner:{a:1}}

Knows the text between the call markers and the tools' JSON schemas; no streaming, no wire format.
Slop is repaired only where one reading is left; everything else is a `CallSyntaxError`, and the
caller shows the text as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from culet.chat.schema import Schema, SchemaView, from_bare, from_quoted
from culet.chat.syntax import QUOTE

MAX_DEPTH = 64  # deeper than any schema in use, far from Python's own limit
CALL_PREFIX = "call:"
CALL_NAME = re.compile(r"\s*([^\s{}()\[\],:\"'<>|]+)\s*")
BARE_KEY = re.compile(r"[^\s:,{}\[\]\"'`<|]+")
_SPACE = re.compile(r"\s*")
_AFTER_VALUE = re.compile(r"\s*(?:[,}\]]|\Z)")
_WORD = re.compile(r"[^,{}\[\]]*")
_FENCE_INFO = re.compile(r"[\w+-]*\n")
KEY_AT_END = re.compile(r",\s*([^\s:,{}\[\]\"'`]+)\s*:\s*\Z")
KEY_INSIDE = re.compile(r"\s[\w.-]+:(?!//)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


class CallSyntaxError(ValueError):
    """The text of a call has no single meaning."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call: the tool's name and its arguments as JSON values."""

    name: str
    arguments: dict[str, Any]

    def arguments_json(self) -> str:
        """The arguments as compact JSON text, always an object and always valid UTF-8."""
        return json_text(self.arguments)


def json_text(value: Any) -> str:
    """A value as compact JSON text that is valid UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _SURROGATE.sub("\ufffd", text)


def parse_call(body: str, tools: Mapping[str, Schema]) -> ParsedCall:
    """Parse what stands between the call markers.

    `tools` maps names to parameter schemas; a name that is missing there is parsed without types.
    Raises `CallSyntaxError` where the text is not a call or has more than one reading.
    """
    text = body.strip()
    if text.startswith("{"):
        return _parse_json_call(text, tools)
    known_prefix = text.startswith(CALL_PREFIX)
    match = CALL_NAME.match(text, len(CALL_PREFIX) if known_prefix else 0)
    if match is None:
        raise CallSyntaxError("the call has no name")
    name = match.group(1)
    if not known_prefix and name not in tools:
        raise CallSyntaxError(f"the text does not begin with {CALL_PREFIX!r}")
    view = SchemaView(tools.get(name))
    rest = text[match.end() :]
    if rest.startswith("(") and rest.endswith(")"):
        rest = rest[1:-1].strip() or "{}"
    if not rest:
        return ParsedCall(name, {})
    if not rest.startswith("{") or not rest.endswith("}"):
        raise CallSyntaxError("the arguments are not between one pair of braces")
    return ParsedCall(name, _Arguments(rest).parse(view))


def _parse_json_call(text: str, tools: Mapping[str, Schema]) -> ParsedCall:
    """`{"name": ..., "arguments": {...}}`, the form of other models; only for a declared tool."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise CallSyntaxError("the call has no name") from None
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict):
        raise CallSyntaxError("the call has no name")
    return ParsedCall(name, arguments)


class _Arguments:
    """A recursive-descent reader over the braces of one call."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def parse(self, view: SchemaView) -> dict[str, Any]:
        value = self.object(view, depth=0)
        self.skip_space()
        if self.pos != len(self.text):
            raise CallSyntaxError("text follows the arguments")
        return value

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.pos)
        assert match is not None
        self.pos = match.end()

    def at(self, what: str) -> bool:
        return self.text.startswith(what, self.pos)

    def take(self, what: str) -> bool:
        self.skip_space()
        if not self.at(what):
            return False
        self.pos += len(what)
        return True

    def object(self, view: SchemaView, depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise CallSyntaxError(f"values are nested more than {MAX_DEPTH} deep")
        assert self.take("{")
        found: dict[str, Any] = {}
        if self.take("}"):
            return found
        while True:
            key = self.key()
            if key in found:
                raise CallSyntaxError(f"{key!r} is given twice")
            if not self.take(":"):
                raise CallSyntaxError(f"no ':' after {key!r}")
            others = view.properties().keys() - found.keys() - {key}
            found[key] = self.value(view.property(key), depth, frozenset(others))
            if self.take("}"):
                return found
            if not self.take(","):
                raise CallSyntaxError(f"no ',' after the value of {key!r}")
            if self.take("}"):  # a trailing comma
                return found

    def array(self, view: SchemaView, depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise CallSyntaxError(f"values are nested more than {MAX_DEPTH} deep")
        assert self.take("[")
        found: list[Any] = []
        while not self.take("]"):
            found.append(self.value(view.item(len(found)), depth, frozenset()))
            if not self.take(",") and not self._at_closer("]"):
                raise CallSyntaxError("no ',' between the items of a list")
        return found

    def _at_closer(self, closer: str) -> bool:
        self.skip_space()
        return self.at(closer)

    def key(self) -> str:
        self.skip_space()
        if self.at(QUOTE):
            end = self.text.find(QUOTE, self.pos + len(QUOTE))
            if end < 0:
                raise CallSyntaxError("the quote of a key is not closed")
            key = self.text[self.pos + len(QUOTE) : end]
            self.pos = end + len(QUOTE)
            return key
        if self.at('"') or self.at("'"):
            key, self.pos = self._escaped(self.text[self.pos], before=":")
            return key
        match = BARE_KEY.match(self.text, self.pos)
        if match is None:
            raise CallSyntaxError("a key is missing")
        self.pos = match.end()
        return match.group()

    def value(self, view: SchemaView, depth: int, others: frozenset[str]) -> Any:
        """One value; `others` are keys that may follow it in the same object."""
        self.skip_space()
        if self.at("{") and not self._raw_text_expected(view, depth):
            return self.object(view, depth + 1)
        if self.at("[") and not self._raw_text_expected(view, depth):
            return self.array(view, depth + 1)
        if self.at(QUOTE):
            return from_quoted(self.quoted(depth, others), view)
        for opener in ("```", "`", '"', "'"):
            if self.at(opener):
                text = self._delimited(opener)
                if text is not None:
                    return from_quoted(text, view)
        return self.bare(view, depth, others)

    def _raw_text_expected(self, view: SchemaView, depth: int) -> bool:
        """Unquoted text that happens to begin with a bracket, where only text may stand."""
        return depth == 0 and view.wants_text()

    def quoted(self, depth: int, others: frozenset[str]) -> str:
        start = self.pos + len(QUOTE)
        end = self.text.find(QUOTE, start)
        if end < 0:
            # The closer is missing; at the top level the call's own brace is the end.
            if depth > 0 or not self.text.endswith("}"):
                raise CallSyntaxError("a quoted string is not closed")
            self.pos = len(self.text) - 1
            return self.text[start : self.pos]
        text = self.text[start:end]
        swallowed = KEY_AT_END.search(text)
        if swallowed is not None and swallowed.group(1) in others:
            # The closer is missing and the opener of the next value was taken for it.
            self.pos = start + swallowed.start()
            return text[: swallowed.start()]
        self.pos = end + len(QUOTE)
        if _AFTER_VALUE.match(self.text, self.pos) is None:
            raise CallSyntaxError("text follows a quoted string")
        return text

    def _delimited(self, opener: str) -> str | None:
        """Text between ordinary quotes or back-ticks; None where they are part of the text."""
        if opener in ('"', "'"):
            try:
                text, end = self._escaped(opener, before=",}]")
            except CallSyntaxError:
                return None
            self.pos = end
            return text
        start = self.pos + len(opener)
        end = start
        while (end := self.text.find(opener, end)) >= 0:
            if _AFTER_VALUE.match(self.text, end + len(opener)):
                break
            end += 1
        if end < 0:
            return None
        text = self.text[start:end]
        if opener == "```" and (info := _FENCE_INFO.match(text)):
            text = text[info.end() :].removesuffix("\n")
        self.pos = end + len(opener)
        return text

    def _escaped(self, quote: str, before: str) -> tuple[str, int]:
        """A string with backslash escapes; its closer is followed by one of `before`.

        Returns the text and the position behind the closer; moves nothing.
        """
        out: list[str] = []
        pos = self.pos + 1
        while pos < len(self.text):
            char = self.text[pos]
            if char == "\\" and pos + 1 < len(self.text):
                piece, pos = _unescape(self.text, pos)
                out.append(piece)
                continue
            if char == quote:
                after = _SPACE.match(self.text, pos + 1)
                assert after is not None
                following = self.text[after.end() : after.end() + 1]
                if following == "" or following in before:
                    return "".join(out), pos + 1
            out.append(char)
            pos += 1
        raise CallSyntaxError(f"the quote {quote} is not closed")

    def bare(self, view: SchemaView, depth: int, others: frozenset[str]) -> Any:
        start = self.pos
        match = _WORD.match(self.text, start)
        assert match is not None
        end = match.end()
        if depth == 0 and view.wants_text():
            end = self._end_of_raw_text(start, others)
        text = self.text[start:end].strip()
        text = text.removesuffix(QUOTE)  # a dangling closer
        if not text or QUOTE in text:
            raise CallSyntaxError("a value is missing or half quoted")
        if not view.wants_text() and KEY_INSIDE.search(text):
            raise CallSyntaxError("an unquoted value seems to hold another key")
        self.pos = end
        return from_bare(text, view)

    def _end_of_raw_text(self, start: int, others: frozenset[str]) -> int:
        """Where unquoted text ends: before the next declared key, or at the call's own brace."""
        end = len(self.text) - 1
        if others:
            names = "|".join(re.escape(name) for name in sorted(others))
            found = re.compile(rf",\s*(?:{names})\s*:").search(self.text, start, end)
            end = end if found is None else found.start()
        return end


def _unescape(text: str, pos: int) -> tuple[str, int]:
    """The character that the escape at `pos` means, and the position behind it."""
    kind = text[pos + 1]
    if kind == "u":
        match = re.compile(r"(?:\\u[0-9a-fA-F]{4})+").match(text, pos)
        if match is not None:
            # Pairs of surrogates make one character; json knows how.
            return str(json.loads(f'"{match.group()}"')), match.end()
    return _ESCAPES.get(kind, kind if kind in "\"'\\/`" else "\\" + kind), pos + 2
