"""What the three dialects share: field types, ids, and the reading of tools and formats."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from culet.chat.constrain import AnswerFormat, parse_schema
from culet.chat.messages import ToolSpec
from culet.chat.tokenizer import Tokenizer
from culet.engine.sampler import Sampled
from culet.errors import RequestError
from culet.server.errors import refused
from culet.server.generation import ToolUse

_MAX_STOPS = 16
_LOWEST_LOGPROB = -9999.0  # JSON has no infinity


class Body(BaseModel):
    """A request body. Fields that it does not name are reported back, never dropped in silence."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def stop_texts(value: str | Sequence[str] | None, field: str) -> tuple[str, ...]:
    stops = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    if len(stops) > _MAX_STOPS:
        raise refused(
            f"{field}: there are {len(stops)} texts, at most {_MAX_STOPS} are allowed", param=field
        )
    return stops


def given(**values: Any) -> dict[str, Any]:
    """Sampling parameters that a request gives; what is None is left to the model's defaults."""
    return {name: value for name, value in values.items() if value is not None}


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
    names = [spec.name for spec in specs]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise refused(f"tools: {twice!r} is declared twice", param="tools")
    unknown = next((n for n in named or () if n not in names), None)
    if unknown is not None:
        raise refused(f"tool_choice: there is no tool {unknown!r}", param="tool_choice")
    if mode == "none":
        return ToolUse()
    if mode == "required" and not names:
        raise refused("tool_choice: a call is demanded, but no tool is declared", "tool_choice")
    allowed = None if named is None else frozenset(named)
    return ToolUse(tuple(specs), mode == "required", allowed, allow_several)


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
