"""What the three dialects share: field types, ids, and the reading of tools and formats."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from culet.chat.constrain import AnswerFormat, parse_schema
from culet.chat.messages import ToolSpec
from culet.chat.tokenizer import Tokenizer
from culet.chat.tools import CALL_NAME
from culet.engine.sampler import Sampled
from culet.errors import RequestError
from culet.server.errors import ApiError, refused
from culet.server.generation import ToolUse

_MAX_STOPS = 16
_MAX_STOP_CHARS = 1000
_MAX_NAME_CHARS = 256
_MAY_HOLD_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
_HALVES = re.compile("[\ud800-\udfff]")
_LOWEST_LOGPROB = -9999.0  # JSON has no infinity


class Body(BaseModel):
    """A request body. Fields that it does not name are reported back, never dropped in silence."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


def read_json(raw: bytes) -> Any:
    """The JSON value of a body, of which there is one reading only.

    Half of a surrogate pair becomes U+FFFD, as in every encoder: it is no character.

    Raises:
        ApiError: it is not UTF-8, not JSON, nested too deeply, holds a name twice in one object or
            a number that JSON has no place for (NaN, 1e999).
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=_finite,
        )
        return _whole_characters(value) if _MAY_HOLD_HALVES.search(text) else value
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _not_json(str(error)) from None
    except ValueError:
        raise _not_json("a whole number has thousands of digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _not_json(f"{twice!r} stands twice in one object")
    return found


def _no_number(word: str) -> float:
    raise _not_json(f"{word} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _not_json(f"the number {text} is too large")
    return value


def _not_json(reason: str) -> ApiError:
    return refused(f"the body is not JSON: {reason}", code="invalid_json")


def _whole_characters(value: Any) -> Any:
    """The value with U+FFFD for each half of a surrogate pair; nested no deeper than it is read."""
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole_characters(v) for v in value]
    if isinstance(value, dict):
        return {_whole_characters(k): _whole_characters(v) for k, v in value.items()}
    return value


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def stop_texts(value: str | Sequence[str] | None, field: str) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    if len(stops) > _MAX_STOPS:
        raise refused(
            f"{field}: there are {len(stops)} texts, at most {_MAX_STOPS} are allowed", param=field
        )
    longest = max((len(s) for s in stops if isinstance(s, str)), default=0)
    if longest > _MAX_STOP_CHARS:
        raise refused(
            f"{field}: a text has {longest} characters, at most {_MAX_STOP_CHARS} are allowed",
            param=field,
        )
    return stops


def given(**values: Any) -> dict[str, Any]:
    """Sampling parameters that a request gives; what is None is left to the model's defaults."""
    return {name: value for name, value in values.items() if value is not None}


def object_or_none(value: Any, field: str) -> Mapping[str, Any] | None:
    """A value that a body's model leaves open; raises `ApiError` if it is another kind."""
    if value is None or isinstance(value, dict):
        return value
    raise refused(f"{field}: an object is needed, not {type(value).__name__}", param=field)


def text_or_none(value: Any, field: str) -> str | None:
    """As `object_or_none`, for a string."""
    if value is None or isinstance(value, str):
        return value
    raise refused(f"{field}: a string is needed, not {type(value).__name__}", param=field)


def tool_use(
    specs: Sequence[ToolSpec],
    mode: str,
    named: Sequence[str] | None = None,
    allow_several: bool = True,
) -> ToolUse:
    """Tools and their choice: `mode` is auto, none or required; `named` narrows what is allowed.

    Raises:
        ApiError: a name twice, an unknown name, or a call demanded without tools.
    """
    names = Counter(spec.name for spec in specs)
    twice = next((n for n, count in names.items() if count > 1), None)
    if twice is not None:
        raise refused(f"tools: {twice!r} is declared twice", param="tools")
    wrong = next((n for n in names if not is_callable_name(n)), None)
    if wrong is not None:
        raise refused(
            f"tools: {wrong!r} can't be a tool's name: white space, quotes and brackets can't be "
            f"called, nor can more than {_MAX_NAME_CHARS} characters",
            param="tools",
        )
    unknown = next((n for n in named or () if n not in names), None)
    if unknown is not None:
        raise refused(f"tool_choice: there is no tool {unknown!r}", param="tool_choice")
    if mode == "none":
        return ToolUse()
    if mode == "required" and not (names if named is None else named):
        raise refused("tool_choice: a call is demanded, but there is no tool for it", "tool_choice")
    allowed = None if named is None else frozenset(named)
    return ToolUse(tuple(specs), mode == "required", allowed, allow_several)


def is_callable_name(name: str) -> bool:
    """Whether a model can write a call of a tool of this name."""
    match = CALL_NAME.fullmatch(name)
    return match is not None and match.group(1) == name and len(name) <= _MAX_NAME_CHARS


def json_answer(schema: Any, field: str) -> AnswerFormat:
    """An answer bound to a schema given as an object or as text; anything else is refused."""
    try:
        return AnswerFormat(schema=parse_schema(schema, field))
    except RequestError as error:
        raise refused(str(error), param=field) from error


def token_entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    """A token with its true bytes; its text may hold U+FFFD where a character is cut."""
    data = tokenizer.token_bytes(token_id)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": max(logprob, _LOWEST_LOGPROB),
        "bytes": list(data),
    }


def logprob_entries(tokenizer: Tokenizer, tokens: Sequence[Sampled]) -> list[dict[str, Any]]:
    """OpenAI's `logprobs.content`."""
    entries = []
    for token in tokens:
        entry = token_entry(tokenizer, token.token_id, token.logprob or 0.0)
        entry["top_logprobs"] = [token_entry(tokenizer, i, value) for i, value in token.top]
        entries.append(entry)
    return entries


def require_text_only(kind: str, where: str) -> None:
    """Raises the refusal of a content part that is not text."""
    raise refused(
        f"{where}: parts of type {kind!r} are not served: this model is served text-only",
        param=where,
        code="unsupported_media",
    )


def ignored_fields(body: BaseModel, without_effect: Sequence[str]) -> list[str]:
    """Names of given fields that have no effect here, for the reply's header."""
    extra = sorted(body.model_extra or {})
    return extra + [n for n in without_effect if n in body.model_fields_set]
