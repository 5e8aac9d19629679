"""The server as a process: sockets, slow connections, the end."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from culet.errors import UsageError
from culet.server.limits import Limits

_BACKLOG = 512
_MAX_HEAD_BYTES = 64 * 1024


class PatientlessProtocol(H11Protocol):
    """Closes connections whose request head does not arrive in time.

    uvicorn bounds the time between requests only; a client that sends a byte now and then would
    hold its connection for ever.
    """

    head_seconds = 30.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_watching()

    def _watch_head(self) -> None:
        """Run the clock exactly while part of a head is here and no request is being served."""
        is_serving = self.cycle is not None and not self.cycle.response_complete
        if is_serving:
            self._stop_watching()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop_watching(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn with a word when it is ready."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn has it, without raising the signal again: to end when asked is no failure."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:
            # Two servers may both have bound while neither listened; the second learns it here.
            host, port = (sockets or [])[0].getsockname()[:2]
            raise _not_usable(host, port, error) from error
        self._on_ready()


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet; port 0 takes any free one.

    Until it listens, clients are refused instead of kept waiting while a model is loaded.

    Raises:
        UsageError: the address can't be used; the message says what to do.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _not_usable(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _not_usable(host, port, error) from error
    return listener


def _not_usable(host: str, port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} of {host} is taken by another program: end that one, or choose another "
            "port with --port (0: any that is free)"
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"port {port} of {host} needs rights that this user lacks: choose one of 1024 or more "
            "with --port"
        )
    return UsageError(f"can't listen on {host} port {port}: {error.strerror}")


def make_server(app: ASGIApp, limits: Limits, on_ready: Callable[[], None]) -> Server:
    """A server; `serve(sockets=[...])` runs it until SIGTERM or SIGINT, then drains."""
    protocol: Any = type("Protocol", (PatientlessProtocol,), {"head_seconds": limits.body_seconds})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=int(limits.drain_seconds),
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Server(config, on_ready)
