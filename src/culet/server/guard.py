"""The first thing a request meets: hosts, origins, keys, content type; and the access log.

A plain ASGI middleware: it must not stand between a stream and its client's disconnect.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from culet.server.errors import NOTE, ApiError, Dialect, add_note, printable
from culet.server.limits import Access

_access_log = logging.getLogger("culet.access")
_METHODS = "GET, POST, HEAD, OPTIONS"
_PREFLIGHT_SECONDS = "600"
_MAX_PATH_CHARS = 200


class Guard:
    """Refuses what may not pass; adds CORS headers to whatever may, errors included.

    Args:
        open_paths: need no key: the health check and the static page.
    """

    def __init__(self, app: ASGIApp, access: Access, open_paths: Iterable[str]) -> None:
        self._app = app
        self._access = access
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        status = 499  # what a log shows of a client that went away before an answer began
        began = time.monotonic()

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(message, scope, origin, headers.get("host", ""))
            await send(message)

        try:
            if scope["method"] == "OPTIONS":
                await self._preflight(headers, send_on)
                return
            error = self._refusal(scope, headers, origin)
            if error is not None:
                add_note(scope, error.label)
                dialect = Dialect.of_path(scope["path"])
                await error.response(dialect)(scope, receive, send_on)
                return
            await self._app(scope, receive, send_on)
        finally:
            _log_access(scope, status, time.monotonic() - began)

    def _refusal(self, scope: Scope, headers: Headers, origin: str | None) -> ApiError | None:
        host = headers.get("host", "")
        if not self._access.allows_host(host):
            return ApiError(
                403,
                f"the Host header {host!r} is not one of this server's names "
                "(--allow-host adds one)",
                code="host_not_allowed",
            )
        changes = scope["method"] not in ("GET", "HEAD")
        if origin is not None and changes and not self._access.allows_origin(origin, host):
            return ApiError(
                403,
                f"pages of {origin} may not call this server (--cors-origin allows one)",
                code="origin_not_allowed",
            )
        if scope["path"] not in self._open_paths and not self._access.allows_key(_key(headers)):
            return ApiError(
                401,
                "this server needs an API key: `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if changes and _media_type(headers) != "application/json":
            return ApiError(
                415,
                f"the content type is {headers.get('content-type', 'missing')!r}; "
                "application/json is needed",
                code="unsupported_media_type",
            )
        return None

    async def _preflight(self, headers: Headers, send: Send) -> None:
        """Browsers ask without a key whether they may ask with one."""
        answer = MutableHeaders({"content-length": "0", "allow": _METHODS})
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and self._access.allows_origin(origin, host):
            asked = headers.get("access-control-request-headers")
            answer["access-control-allow-methods"] = _METHODS
            answer["access-control-allow-headers"] = asked or "authorization, content-type"
            answer["access-control-max-age"] = _PREFLIGHT_SECONDS
        await send({"type": "http.response.start", "status": 204, "headers": answer.raw})
        await send({"type": "http.response.body", "body": b""})

    def _add_headers(self, message: Message, scope: Scope, origin: str | None, host: str) -> None:
        headers = MutableHeaders(raw=message["headers"])
        headers["x-content-type-options"] = "nosniff"
        if origin is not None and self._access.allows_origin(origin, host):
            # The origin itself and never `*`, and no credentials: keys travel in a header.
            headers["access-control-allow-origin"] = origin
            headers.add_vary_header("Origin")
        message["headers"] = headers.raw


def _key(headers: Headers) -> str | None:
    """The key that a request shows, in either family's header."""
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return key.strip()
    return headers.get("x-api-key")


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _log_access(scope: Scope, status: int, seconds: float) -> None:
    client = scope.get("client")
    _access_log.info(
        "%s %s %s %d %.0f ms%s",
        client[0] if client else "-",
        scope["method"],
        printable(scope["path"], _MAX_PATH_CHARS),
        status,
        seconds * 1000,
        scope.get(NOTE, ""),
    )
