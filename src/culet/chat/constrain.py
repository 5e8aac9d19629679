"""Which tokens may come next: thoughts with a budget, then an answer bound by a grammar.

Constraint means masking while sampling, so the first pass is valid already. Knows the tokenizer;
no engine: an engine lets a `Constraint` mask the logits before each draw and tells it the token.
The tables of `llguidance` (2 s and 110 MB for 262,144 tokens) are built with the first grammar.
"""

from __future__ import annotations

import enum
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from culet.chat import grammar
from culet.chat.schema import Schema
from culet.chat.stream import Start
from culet.chat.syntax import (
    CALL_CLOSE,
    CALL_OPEN,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    QUOTE,
    TURN_CLOSE,
    TURN_OPEN,
)
from culet.errors import RequestError

if TYPE_CHECKING:
    # Imported with the first grammar: a tenth of what every start would take.
    from llguidance import LLMatcher, LLTokenizer

_MAX_GRAMMAR_CHARS = 256 * 1024
Mask = NDArray[np.uint32]


class TokenTable(Protocol):
    """The part of a tokenizer that grammars need."""

    stop_ids: frozenset[int]
    bos_id: int
    control_tokens: Mapping[int, str]

    @property
    def vocab_size(self) -> int: ...
    def id_of(self, piece: str | bytes) -> int | None: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(
        self, text: str | bytes, add_bos: bool = True, parse_special: bool = False
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Which calls an answer may or must hold.

    Attributes:
        schemas: parameter schema by tool name; only these may be called.
        strict: tools whose schema must be enforced whole, or the request refused.
        is_required: the answer consists of calls; otherwise text is free until a call begins.
        allow_several: more than one call in an answer.
    """

    schemas: Mapping[str, Schema]
    strict: frozenset[str] = frozenset()
    is_required: bool = False
    allow_several: bool = True


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What the answer's text has to be; at most one is given. `schema` True is any JSON object."""

    schema: Schema = None
    regex: str | None = None
    lark: str | None = None

    @property
    def is_free(self) -> bool:
        return self.schema is None and self.regex is None and self.lark is None

    @classmethod
    def from_request(cls, value: Mapping[str, Any] | None) -> AnswerFormat:
        """Read OpenAI's `response_format`, with the further types regex and grammar (Lark).

        Raises:
            RequestError: another type, or a schema, pattern or grammar that is not there.
        """
        kind = None if value is None else value.get("type")
        if value is None or kind == "text":
            return cls()
        if kind == "json_object":
            return cls(schema=True)
        if kind == "json_schema":
            inner = value.get("json_schema", value)
            schema = inner.get("schema") if isinstance(inner, Mapping) else None
            return cls(schema=parse_schema(schema, "response_format.json_schema.schema"))
        if kind in ("regex", "grammar"):
            text = value.get(kind, value.get("pattern"))
            if not isinstance(text, str):
                raise RequestError(f"response_format.{kind}", "a string is needed")
            return cls(regex=text) if kind == "regex" else cls(lark=text)
        raise RequestError(
            "response_format",
            f"type {kind!r} is not one of text, json_object, json_schema, regex, grammar",
        )


class _Phase(enum.Enum):
    MAY_THINK = enum.auto()  # the model may open the channel or answer at once
    THOUGHT = enum.auto()
    TEXT = enum.auto()  # free text; a grammar waits for a call to begin
    GRAMMAR = enum.auto()
    FREE = enum.auto()


class ConstraintBuilder:
    """Makes constraints for one tokenizer; may be used from several threads."""

    def __init__(self, tokenizer: TokenTable) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._tables: LLTokenizer | None = None

    @property
    def has_tables(self) -> bool:
        return self._tables is not None

    def prepare(self) -> None:
        """Build the tables now. The package keeps the interpreter to itself meanwhile."""
        self._shared_tables()

    def _shared_tables(self) -> LLTokenizer:
        with self._lock:
            if self._tables is None:
                self._tables = _build_tables(self._tokenizer)
            return self._tables

    def build(
        self,
        answer: AnswerFormat,
        tools: ToolRules | None,
        start: Start = Start.CONTENT,
        may_think: bool = False,
        thinking_budget: int | None = None,
    ) -> Constraint | None:
        """The constraint of one request, or None where nothing is constrained.

        Args:
            start: where the prompt leaves the model.
            may_think: the model may open a thought before it answers.
            thinking_budget: tokens after which a thought is closed.

        Raises:
            RequestError: a schema, regex or grammar that is wrong or can't be enforced.
        """
        text = _grammar_text(answer, tools)
        if text is None and thinking_budget is None:
            return None
        matcher = None if text is None else self._matcher(text)
        waits = answer.is_free and tools is not None and not tools.is_required
        return Constraint(self._tokenizer, matcher, waits, start, may_think, thinking_budget)

    def _matcher(self, text: str) -> LLMatcher:
        if len(text) > _MAX_GRAMMAR_CHARS:
            raise RequestError(
                "response_format",
                f"the grammar has {len(text)} characters, at most {_MAX_GRAMMAR_CHARS} are allowed",
            )
        from llguidance import LLMatcher

        matcher = LLMatcher(self._shared_tables(), LLMatcher.grammar_from_lark(text), log_level=0)
        if matcher.is_error():
            raise RequestError("response_format", _reason(matcher.get_error()))
        return matcher


def _grammar_text(answer: AnswerFormat, tools: ToolRules | None) -> str | None:
    """One Lark grammar for the whole answer after any thought."""
    binds_tools = tools is not None and (
        tools.is_required or bool(tools.strict) or not answer.is_free
    )
    if answer.is_free and not binds_tools:
        return None
    rules: list[str] = []
    starts: list[str] = []
    if tools is not None and binds_tools:
        strict = {name: name in tools.strict for name in tools.schemas}
        rules += grammar.calls_rules(tools.schemas, tools.allow_several, strict)
        starts.append("calls")
    if tools is not None and tools.is_required:
        pass  # calls only, whatever the format of a text would be
    elif answer.schema is not None:
        schema = {"type": "object"} if answer.schema is True else answer.schema
        rules.append(f"answer: {grammar.json_rule(schema)}")
        starts.append("answer")
    elif answer.regex is not None:
        rules.append("answer: /" + answer.regex.replace("/", "\\/") + "/")
        starts.append("answer")
    elif answer.lark is not None:
        if not starts:
            return answer.lark
        rules.append(f"answer: %lark {{\n{answer.lark}\n}}")
        starts.append("answer")
    return "\n".join(["start: " + " | ".join(starts), *rules, ""])


class Constraint:
    """The state of one answer. `mask` before each draw, `accept` after it."""

    def __init__(
        self,
        tokenizer: TokenTable,
        matcher: LLMatcher | None,
        waits_for_call: bool,
        start: Start,
        may_think: bool,
        thinking_budget: int | None,
    ) -> None:
        self._matcher = matcher
        self._budget = thinking_budget
        self._num_thought_tokens = 0
        self._num_words = (tokenizer.vocab_size + 31) // 32
        self._vocab_size = tokenizer.vocab_size
        self._open_id = tokenizer.id_of(CHANNEL_OPEN)
        self._close_id = tokenizer.id_of(CHANNEL_CLOSE)
        self._call_id = tokenizer.id_of(CALL_OPEN)
        self._newline_ids = tokenizer.encode("\n", add_bos=False)
        self._last_id = -1
        # A thought ends with its closer only: an answer has still to come.
        barred = {*tokenizer.stop_ids, self._call_id, tokenizer.id_of(TURN_OPEN)}
        barred |= {tokenizer.id_of(s) for s in (QUOTE, CALL_CLOSE, TURN_CLOSE)}
        self._thought_mask = self._all_but(i for i in barred if i is not None)
        self._answer_phase = _Phase.FREE
        if matcher is not None:
            self._answer_phase = _Phase.TEXT if waits_for_call else _Phase.GRAMMAR
        if start is not Start.CONTENT:
            self._phase = _Phase.THOUGHT
        elif may_think and self._open_id is not None and self._close_id is not None:
            self._phase = _Phase.MAY_THINK
        else:
            self._phase = self._answer_phase

    def _all_but(self, ids: Any) -> Mask:
        mask = np.full(self._num_words, 0xFFFFFFFF, np.uint32)
        for token_id in ids:
            mask[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        return mask

    def _only(self, token_id: int) -> Mask:
        mask = np.zeros(self._num_words, np.uint32)
        mask[token_id >> 5] = np.uint32(1 << (token_id & 31))
        return mask

    @property
    def is_complete(self) -> bool:
        """True once the grammar allows nothing but the end."""
        return (
            self._phase is _Phase.GRAMMAR
            and self._matcher is not None
            and self._matcher.is_stopped()
        )

    def mask(self) -> Mask | None:
        """Bits of the allowed tokens, bit i of word i // 32; None where all are allowed.

        uint32 [ceil(vocab_size / 32)]; the caller must not write to it.
        """
        match self._phase:
            case _Phase.THOUGHT:
                return self._mask_of_thought()
            case _Phase.GRAMMAR:
                return self._mask_of_grammar()
            case _Phase.MAY_THINK if self._answer_phase is _Phase.GRAMMAR:
                assert self._open_id is not None
                return self._mask_of_grammar() | self._only(self._open_id)
        return None

    def _mask_of_thought(self) -> Mask:
        if self._budget is None or self._num_thought_tokens < self._budget:
            return self._thought_mask
        assert self._close_id is not None
        # The format ends a thought with a newline.
        newline = self._newline_ids[0] if len(self._newline_ids) == 1 else self._close_id
        return self._only(self._close_id if self._last_id == newline else newline)

    def _mask_of_grammar(self) -> Mask:
        assert self._matcher is not None
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._num_words]
        if self._matcher.is_error():
            raise RequestError("response_format", _reason(self._matcher.get_error()))
        if not words.any():
            raise RequestError("response_format", "the grammar has come to a point without exit")
        return words

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Set the logits [vocab] of tokens that may not come next to -inf, in place."""
        words = self.mask()
        if words is None:
            return
        allowed = np.unpackbits(words.view(np.uint8), count=self._vocab_size, bitorder="little")
        logits[: self._vocab_size][allowed == 0] = -np.inf
        logits[self._vocab_size :] = -np.inf

    def accept(self, token_id: int) -> None:
        """Tell what was drawn; it must be one of the last mask's tokens."""
        if self._phase is _Phase.MAY_THINK:
            if token_id == self._open_id:
                self._phase = _Phase.THOUGHT
                return
            self._phase = self._answer_phase
        elif self._phase is _Phase.THOUGHT:
            self._num_thought_tokens += 1
            self._last_id = token_id
            if token_id == self._close_id:
                self._phase = self._answer_phase
            return
        if self._phase is _Phase.TEXT and token_id == self._call_id:
            self._phase = _Phase.GRAMMAR
        if self._phase is _Phase.GRAMMAR:
            assert self._matcher is not None
            self._matcher.consume_token(token_id)


class _Wrapper:
    """The tokenizer as `llguidance` wants to see it: bytes of every id, and a way to encode."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: TokenTable, eos_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens: Sequence[bytes] = [
            tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)
        ]
        self.special_token_ids = sorted(tokenizer.control_tokens)

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text, add_bos=False, parse_special=False)


def _build_tables(tokenizer: TokenTable) -> LLTokenizer:
    from llguidance import LLTokenizer

    stops = sorted(tokenizer.stop_ids)
    wrapper: Any = _Wrapper(tokenizer, stops[0])
    return LLTokenizer(wrapper, n_vocab=tokenizer.vocab_size, eos_token=stops)


def _reason(message: str) -> str:
    """The reason out of a message with places and stack frames around it."""
    line = next((s.strip() for s in message.splitlines() if s.strip()), "it is not usable")
    line = line.removeprefix("ERROR: ")
    if line == "NoExtensionBias":  # its word for a rule that never comes to an end
        return "no text fits it: it refers to itself without end"
    return line.rsplit("failed to compile JSON schema: ", 1)[-1][:300]


def parse_schema(value: Any, field: str) -> dict[str, Any]:
    """A JSON schema given as an object or as JSON text of one; `RequestError` names `field`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RequestError(field, "the schema is not JSON") from None
    if not isinstance(value, dict):
        raise RequestError(field, f"the schema is {type(value).__name__}, not an object")
    return value
