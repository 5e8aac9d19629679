"""Errors on the wire: one exception, its status, and its body in each API family's own shape."""

from __future__ import annotations

import logging
import re
from enum import Enum
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Scope

from culet.errors import CapacityError, CuletError, RequestError, UsageError

NOTE = "culet.note"  # in a request's scope
_MAX_MESSAGE_CHARS = 500
_MAX_PARAM_CHARS = 100
_NOT_PRINTABLE = re.compile(r"[^ -~]")
_log = logging.getLogger("culet")


class Dialect(Enum):
    """An API family."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"

    @classmethod
    def of_path(cls, path: str) -> Dialect:
        if path.startswith("/v1/messages"):
            return cls.ANTHROPIC
        return cls.OLLAMA if path.startswith("/api/") else cls.OPENAI


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """A refusal or failure with its HTTP status.

    Attributes:
        code: a word that programs may compare, as OpenAI has it.
        param: the request's field that is at fault.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = shortened(message)
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self, dialect: Dialect) -> dict[str, Any]:
        """The JSON body that clients of this family expect."""
        if dialect is Dialect.OLLAMA:
            return {"error": self.message}
        if dialect is Dialect.ANTHROPIC:
            kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
            if 400 <= self.status < 500 and kind == "api_error":
                kind = "invalid_request_error"
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def label(self) -> str:
        """Why, for the access log: no message, since messages may quote prompts."""
        place = f" ({printable(self.param, _MAX_PARAM_CHARS)})" if self.param else ""
        return (self.code or "invalid_request") + place

    def response(self, dialect: Dialect) -> JSONResponse:
        return JSONResponse(self.body(dialect), self.status, headers=self.headers)


def printable(text: str, max_chars: int) -> str:
    """A text of a client's making, in what headers and lines of a log may hold."""
    return _NOT_PRINTABLE.sub("?", text)[:max_chars].strip()


def shortened(text: str) -> str:
    """A message that stays a message, whatever a client's value in it is."""
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[: _MAX_MESSAGE_CHARS - 3] + "..."


def refused(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request cannot be served as it is."""
    return ApiError(400, message, param=param, code=code)


def context_exceeded(
    num_tokens: int, context_length: int, is_lower_bound: bool = False
) -> ApiError:
    """The refusal of a prompt that does not fit."""
    counted = f"at least {num_tokens}" if is_lower_bound else str(num_tokens)
    return refused(
        f"the prompt has {counted} tokens, but the context holds {context_length} "
        "and one must be left for the answer",
        param="messages",
        code="context_length_exceeded",
    )


def busy(limit: int) -> ApiError:
    return ApiError(
        429,
        f"{limit} requests are running or waiting, which is the limit; try again",
        code="queue_full",
        headers={"Retry-After": "1"},
    )


def cancelled() -> ApiError:
    """What the client of a request hears that the server, not the client, has cancelled."""
    return ApiError(
        503,
        "the server is ending and has cancelled this request",
        code="cancelled",
        headers={"Retry-After": "5"},
    )


def too_much_held(limit: int) -> ApiError:
    return ApiError(
        429,
        f"the bodies of other requests take the {limit} bytes that are allowed at once; try again",
        code="queue_full",
        headers={"Retry-After": "1", "Connection": "close"},
    )


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an exception; a fault of ours is logged, not shown."""
    if isinstance(error, BaseExceptionGroup) and isinstance(error.exceptions[0], Exception):
        error = error.exceptions[0]  # of tasks that ran together, the first that failed
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return refused(str(error), param=error.field)
    if isinstance(error, CapacityError):
        return refused(str(error), code="capacity_exceeded")
    if isinstance(error, UsageError):
        return ApiError(503, str(error), code="not_available", headers={"Retry-After": "5"})
    if isinstance(error, CuletError):
        return ApiError(500, str(error), code="engine_error")
    _log.error("a request failed", exc_info=error)
    return ApiError(500, "an internal error ended this request", code="internal_error")


def add_note(scope: Scope, text: str) -> None:
    """Add to what the access log's line of this request ends with."""
    scope[NOTE] = f"{scope.get(NOTE, '')}, {text}"
