"""Reading bodies, and writing events: SSE and NDJSON, with clients that are slow or leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from culet.server.errors import ApiError, add_note
from culet.server.limits import Limits

T = TypeVar("T")
SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"
_HEARTBEAT_SECONDS = 10.0  # proxies give up on streams that are silent for 30 to 60 s
_HEARTBEAT = b": waiting\n\n"


def to_json(value: Any) -> bytes:
    """Compact JSON; text in it may hold lone surrogates of a client's making."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


def sse(data: Mapping[str, Any] | str, event: str | None = None) -> bytes:
    """One server-sent event; JSON has no raw newlines, so one data line is enough."""
    payload = data.encode() if isinstance(data, str) else to_json(data)
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + payload + b"\n\n"


def ndjson(data: Mapping[str, Any]) -> bytes:
    return to_json(data) + b"\n"


async def read_body(request: Request, limits: Limits, hold: Callable[[int], None]) -> bytes:
    """The whole body.

    Args:
        hold: called with the size of each part before it is kept; may refuse it.

    Raises:
        ApiError: it is larger or slower than the limits allow, or `hold` refuses.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limits.body_bytes:
        raise _too_large(limits)
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > limits.body_bytes:
                    raise _too_large(limits)
                hold(len(part))
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {limits.body_seconds:g} s", code="slow_body"
        ) from None
    return b"".join(parts)


def _too_large(limits: Limits) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than the {limits.body_bytes} bytes that are allowed",
        code="body_too_large",
        headers={"Connection": "close"},
    )


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Await `work`, but cancel it as soon as the client is gone.

    Raises:
        ClientDisconnect: the client left first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A streamed response whose source is closed the moment the client leaves or stalls."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        media_type: str,
        send_seconds: float,
        on_close: Callable[[], None],
    ) -> None:
        # Not super().__init__: there is no body whose length could be told.
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._on_close = on_close
        self._send_seconds = send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        broken_off = ""
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientDisconnect:
            broken_off = "the client left"
        except TimeoutError:
            broken_off = "the client stopped reading"
        finally:
            # Not left to the iterator, which may never have begun.
            self._on_close()
            if broken_off:
                add_note(scope, broken_off)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(_beating(self._events, self.media_type == SSE)) as events:
            async for event in events:
                async with asyncio.timeout(self._send_seconds):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _beating(events: AsyncIterator[bytes], is_sse: bool) -> AsyncGenerator[bytes, None]:
    """The events, and in SSE a comment whenever nothing has come for a while."""
    iterator = aiter(events)
    pending: asyncio.Task[bytes] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(_next(iterator))
            done, _ = await asyncio.wait({pending}, timeout=_HEARTBEAT_SECONDS if is_sse else None)
            if not done:
                yield _HEARTBEAT
                continue
            task, pending = pending, None
            try:
                event = task.result()
            except _End:
                return
            yield event
    finally:
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await pending
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


async def _next(iterator: AsyncIterator[bytes]) -> bytes:
    try:
        return await anext(iterator)
    except StopAsyncIteration:
        # A task can't end with StopAsyncIteration as its result.
        raise _End from None


class _End(Exception):
    """No more events."""
