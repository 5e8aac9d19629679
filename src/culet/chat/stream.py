"""What a model writes, split into thoughts, content and tool calls.

A pure state machine: no tokenizer, no engine, no wire format. Joined, its deltas are the same for
every chunking of the same output, and no character that is held back is lost.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from culet.chat.call_stream import CallStream
from culet.chat.schema import Schema
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
    THOUGHT_LABEL,
    TURN_CLOSE,
    TURN_OPEN,
)
from culet.chat.tools import CallSyntaxError, parse_call

_MARKERS = (
    TURN_OPEN,
    TURN_CLOSE,
    CHANNEL_OPEN,
    CHANNEL_CLOSE,
    CALL_OPEN,
    CALL_CLOSE,
    RESPONSE_OPEN,
    RESPONSE_CLOSE,
    THINK,
    QUOTE,
    END_OF_SEQUENCE,
)
# Inside a call these are part of its text; every other marker ends it.
_WITHIN_CALL = (QUOTE, THINK, CHANNEL_CLOSE, RESPONSE_CLOSE)
_LABEL_LINE = THOUGHT_LABEL + "\n"


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the thinking channel, without its label and markers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call has begun; its arguments follow, and then `Call` or `CallBroken`."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments, never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A complete tool call; `arguments` is JSON text of an object: its pieces, joined."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallBroken:
    """What had begun as a call did not end as one; its text follows as `Content`.

    The pieces told so far are not valid JSON, so that nobody takes them for a call.
    `was_cut`: a limit ended it, not the model.
    """

    index: int
    reason: str
    was_cut: bool = False


# What an answer consists of once it is complete, and what is told while it is written.
WholeDelta = Thought | Content | Call
Delta = WholeDelta | CallStart | CallArguments | CallBroken


class Start(enum.Enum):
    """Where the prompt leaves the model."""

    CONTENT = enum.auto()
    THOUGHT = enum.auto()  # the prompt opened the channel and wrote its label
    THOUGHT_LABEL = enum.auto()  # the prompt opened the channel only

    @classmethod
    def of_prompt(cls, text: str) -> Start:
        """Read off the end of a rendered prompt.

        `text` is what the template itself wrote at the end: text of users may spell markers, so
        the caller passes only the last trusted segment.
        """
        opened = text.rfind(CHANNEL_OPEN)
        if opened < max(text.rfind(CHANNEL_CLOSE), text.rfind(TURN_OPEN), text.rfind(TURN_CLOSE)):
            return cls.CONTENT
        if opened < 0:
            return cls.CONTENT
        rest = text[opened + len(CHANNEL_OPEN) :]
        return cls.THOUGHT_LABEL if rest == "" else cls.THOUGHT


class _State(enum.Enum):
    CONTENT = enum.auto()
    LABEL = enum.auto()  # at the start of a channel, its label may follow
    THOUGHT = enum.auto()
    CALL = enum.auto()
    DONE = enum.auto()  # all calls that the request allows are told


@dataclass
class OutputParser:
    """Feed it the output piece by piece, then `finish` it; each call returns new deltas.

    Attributes:
        tools: parameter schema of each declared tool; without tools a call is shown as text.
        max_calls: after this many calls the rest is ignored and `is_done` is true.
        refused: why pieces of output that look like calls were shown as text.
    """

    tools: Mapping[str, Schema] = field(default_factory=dict)
    start: Start = Start.CONTENT
    max_calls: int | None = None
    num_calls: int = 0
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._state = {
            Start.CONTENT: _State.CONTENT,
            Start.THOUGHT: _State.THOUGHT,
            Start.THOUGHT_LABEL: _State.LABEL,
        }[self.start]
        self._unlexed = ""  # may be the beginning of a spelled marker
        self._held = ""  # a label or newline of a thought whose fate the next text decides
        self._body = ""  # of the call being read
        self._early = CallStream(self.tools)  # what of that call is certain already
        self._num_begun = 0
        self._after_block = False  # only white space since a thought or a call ended
        self._deltas: list[Delta] = []

    @property
    def is_done(self) -> bool:
        """True once `max_calls` calls are complete; what follows is ignored."""
        return self._state is _State.DONE

    @property
    def in_thought(self) -> bool:
        return self._state in (_State.THOUGHT, _State.LABEL)

    @property
    def in_content(self) -> bool:
        return self._state is _State.CONTENT

    def feed(self, text: str) -> list[Delta]:
        """Take text in which control tokens are spelled out, cut anywhere."""
        text = self._unlexed + text
        pos = 0
        while True:
            found = [(at, m) for m in _MARKERS if (at := text.find(m, pos)) >= 0]
            if not found:
                break
            at, marker = min(found)
            self._text(text[pos:at])
            self._marker(marker)
            pos = at + len(marker)
        keep = _partial_marker_length(text[pos:])
        self._text(text[pos : len(text) - keep])
        self._unlexed = text[len(text) - keep :]
        return self._take()

    def feed_text(self, text: str) -> list[Delta]:
        """Take text of ordinary tokens: what spells a marker here is not one."""
        self._text(text)
        return self._take()

    def feed_marker(self, spelling: str) -> list[Delta]:
        """Take one control token; those that mean nothing here are left out."""
        if spelling in _MARKERS:
            self._marker(spelling)
        return self._take()

    def finish(self, was_cut: bool) -> list[Delta]:
        """The output is over; `was_cut`: by a limit, so that an open call is not complete."""
        rest, self._unlexed = self._unlexed, ""
        self._text(rest)
        if self._state is _State.CALL:
            self._end_call(closer="", is_complete=not was_cut)
        elif self.in_thought and was_cut:
            self._emit_thought(self._held)
        elif self.in_thought:
            self._end_thought()
        self._held = ""
        return self._take()

    def _take(self) -> list[Delta]:
        taken, self._deltas = self._deltas, []
        return taken

    def _text(self, text: str) -> None:
        if not text:
            return
        match self._state:
            case _State.CALL:
                self._call_text(text)
            case _State.LABEL:
                self._label(self._held + text)
            case _State.THOUGHT:
                self._thought(text)
            case _State.CONTENT:
                self._content(text)
            case _State.DONE:
                pass

    def _label(self, text: str) -> None:
        """Leave the label out; text that is not the label is a thought without one."""
        if text.startswith(_LABEL_LINE):
            self._held, self._state = "", _State.THOUGHT
            self._thought(text[len(_LABEL_LINE) :])
        elif _LABEL_LINE.startswith(text):
            self._held = text
        else:
            self._held, self._state = "", _State.THOUGHT
            self._thought(text)

    def _thought(self, text: str) -> None:
        """One newline before the closer belongs to the format; hold it until that is known."""
        text = self._held + text
        whole = text.removesuffix("\n")
        self._held = text[len(whole) :]
        self._emit_thought(whole)

    def _content(self, text: str) -> None:
        """White space around thoughts and calls belongs to the format and is left out."""
        if self._after_block:
            text = text.lstrip("\n" if self.num_calls == 0 else None)
            if not text:
                return
            self._after_block = False
        self._emit_content(text)

    def _marker(self, marker: str) -> None:
        if self._state is _State.DONE:
            return
        if self._state is _State.CALL:
            if marker in _WITHIN_CALL:
                self._call_text(marker)
                return
            self._end_call(closer=marker if marker == CALL_CLOSE else "", is_complete=True)
            if marker == CALL_CLOSE or self.is_done:
                return
        if marker == CALL_OPEN:
            self._end_thought()
            self._state, self._body = _State.CALL, ""
            self._early = CallStream(self.tools)
        elif marker == CHANNEL_OPEN:
            self._end_thought()
            self._state = _State.LABEL
        elif self.in_thought and marker in (CHANNEL_CLOSE, TURN_CLOSE, RESPONSE_OPEN):
            self._end_thought()
        # Any other marker says nothing that a reader of the answer should see.

    def _end_thought(self) -> None:
        if self._state is _State.LABEL and self._held not in (THOUGHT_LABEL, _LABEL_LINE):
            self._emit_thought(self._held)
        if self.in_thought:
            self._after_block = True
        self._held = ""
        self._state = _State.CONTENT

    def _call_text(self, text: str) -> None:
        self._body += text
        is_new = self._early.name is None
        certain = self._early.feed(text)
        if certain:
            if is_new and self._early.name is not None:
                self._deltas.append(CallStart(self._num_begun, self._early.name))
            self._emit_arguments(certain)

    def _end_call(self, closer: str, is_complete: bool) -> None:
        body, self._body = self._body, ""
        self._state, self._held = _State.CONTENT, ""
        try:
            if not self.tools or not is_complete:
                raise CallSyntaxError("it was cut off" if self.tools else "no tools were declared")
            call = parse_call(body, self.tools)
            arguments = call.arguments_json()
            if not arguments.startswith(self._early.sent):
                raise CallSyntaxError("its end changes what was told of its beginning")
        except CallSyntaxError as error:
            self._refuse_call(CALL_OPEN + body + closer, str(error), was_cut=not is_complete)
            return
        if self._early.name is None:
            self._deltas.append(CallStart(self._num_begun, call.name))
        self._emit_arguments(arguments[len(self._early.sent) :])
        self._deltas.append(Call(self._num_begun, call.name, arguments))
        self._num_begun += 1
        self.num_calls += 1
        self._after_block = True
        if self.max_calls is not None and self.num_calls >= self.max_calls:
            self._state = _State.DONE

    def _refuse_call(self, raw: str, reason: str, was_cut: bool) -> None:
        self.refused.append(reason)
        self._after_block = False
        if self._early.name is not None:
            self._deltas.append(CallBroken(self._num_begun, reason, was_cut))
            self._num_begun += 1
        self._emit_content(raw)

    def _emit_arguments(self, text: str) -> None:
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, CallArguments):
            self._deltas[-1] = CallArguments(last.index, last.text + text)
        else:
            self._deltas.append(CallArguments(self._num_begun, text))

    def _emit_thought(self, text: str) -> None:
        if not text:
            return
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, Thought):
            self._deltas[-1] = Thought(last.text + text)
        else:
            self._deltas.append(Thought(text))

    def _emit_content(self, text: str) -> None:
        if not text:
            return
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, Content):
            self._deltas[-1] = Content(last.text + text)
        else:
            self._deltas.append(Content(text))


def _partial_marker_length(text: str) -> int:
    """Length of the longest end of `text` that may become a marker."""
    longest = max(map(len, _MARKERS)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(m.startswith(text[-length:]) for m in _MARKERS):
            return length
    return 0


def join(deltas: list[Delta]) -> tuple[str, str, list[Call]]:
    """(thoughts, content, complete calls) of a whole output."""
    thoughts = "".join(d.text for d in deltas if isinstance(d, Thought))
    content = "".join(d.text for d in deltas if isinstance(d, Content))
    return thoughts, content, [d for d in deltas if isinstance(d, Call)]
