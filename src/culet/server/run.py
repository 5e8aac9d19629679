"""The server as a process: sockets, slow connections, the end."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from culet.errors import CuletError, UsageError
from culet.server.limits import Limits

_log = logging.getLogger("culet")
_BACKLOG = 512
_MAX_HEAD_BYTES = 64 * 1024
_LAST_WORDS_SECONDS = 5.0
_TICK_SECONDS = 0.1
_SILENCE_SECONDS = 60.0  # between two lines on the same trouble
_LEAST_TAKEN_BYTES = 64 * 1024


class Answers(Protocol):
    """What a server has to know about what it serves.

    Attributes:
        num_open: answers that are running or waiting.
    """

    num_open: int

    @property
    def failed_with(self) -> CuletError | None:
        """Why there will be no more answers."""
        ...

    def end_all(self) -> None:
        """End all answers soon, each with an error for its client; new ones get it too."""
        ...


class PatientlessProtocol(H11Protocol):
    """Closes connections whose request head does not arrive in time, or whose answer isn't taken.

    uvicorn bounds the time between requests only; a client that sends or takes a byte now and then
    would hold its connection, and an answer, for ever.
    """

    head_seconds = 30.0
    send_seconds = 60.0
    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        if self._send_timer is not None:
            self._send_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_watching()
        if self._send_timer is None:
            self._watch_rest()

    def _watch_rest(self) -> None:
        """Give the client some seconds for each part of what it has yet to take of an answer."""
        left = self.transport.get_write_buffer_size()
        self._send_timer = None
        if left:
            self._send_timer = self.loop.call_later(self.send_seconds, self._check_rest, left)

    def _check_rest(self, before: int) -> None:
        if self.transport.get_write_buffer_size() > max(0, before - _LEAST_TAKEN_BYTES):
            self.transport.abort()
        else:
            self._watch_rest()

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
    """uvicorn with a word when it is ready, and an end that clients are told of.

    The first SIGTERM, SIGINT or SIGHUP lets answers that run come to their end, for some seconds.
    Then, or with a second signal, those that are left end with an error.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        limits: Limits,
        on_ready: Callable[[], None],
        answers: Answers | None,
    ) -> None:
        super().__init__(config)
        self._limits = limits
        self._on_ready = on_ready
        self._answers = answers
        self._signals: list[str] = []
        self._out_of_files_at = -_SILENCE_SECONDS

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn has it, and SIGHUP, which a terminal sends when it goes away.

        Without raising the signal again: to end when asked is no failure.
        """
        with super().capture_signals():
            takes_hangup = (
                threading.current_thread() is threading.main_thread()
                and hasattr(signal, "SIGHUP")
                and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL  # `nohup` ignores it
            )
            if takes_hangup:
                signal.signal(signal.SIGHUP, self.handle_exit)
            yield
            if takes_hangup:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
            self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Takes notes only: what a signal interrupts may be writing to the log."""
        self._signals.append(signal.Signals(sig).name)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._note_trouble)
        try:
            await super().startup(sockets)
        except OSError as error:
            # Two servers may both have bound while neither listened; the second learns it here.
            host, port = (sockets or [])[0].getsockname()[:2]
            raise _not_usable(host, port, error) from error
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        has_failed = self._answers is not None and self._answers.failed_with is not None
        return await super().on_tick(counter) or has_failed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers end, then end them; take no new ones meanwhile."""
        num_open = self._answers.num_open if self._answers is not None else 0
        if self._signals:
            left = f": {num_open} answers have up to {self._limits.drain_seconds:g} s; a second "
            _log.info(
                "%s, ending%s",
                self._signals[0],
                f"{left}signal ends them at once" if num_open else "",
            )
        hurrying = asyncio.create_task(self._end_in_time())
        try:
            await super().shutdown(sockets)
        finally:
            hurrying.cancel()

    async def _end_in_time(self) -> None:
        """End all answers when the time is over or somebody is in a hurry, then let go."""
        deadline = time.monotonic() + self._limits.drain_seconds
        while time.monotonic() < deadline and len(self._signals) < 2:
            await asyncio.sleep(_TICK_SECONDS)
        if self._answers is not None:
            _log.info("ending %d answers before their time", self._answers.num_open)
            self._answers.end_all()
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while time.monotonic() < deadline and len(self._signals) < 3:
            await asyncio.sleep(_TICK_SECONDS)
        # What is still there is cut off, of which uvicorn would tell with a traceback each.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.force_exit = True

    def _note_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """One line in a while on connections that can't be taken, not a traceback for each try."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._out_of_files_at >= _SILENCE_SECONDS:
            self._out_of_files_at = time.monotonic()
            _log.warning(
                "connections wait: all files that this process may have open are in use "
                "(`ulimit -n` or LimitNOFILE= of the service allows more)"
            )


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


def make_server(
    app: ASGIApp, limits: Limits, on_ready: Callable[[], None], answers: Answers | None = None
) -> Server:
    """A server; `serve(sockets=[...])` runs it until it is told to end or `answers` have failed."""
    patience = {"head_seconds": limits.body_seconds, "send_seconds": limits.send_seconds}
    protocol: Any = type("Protocol", (PatientlessProtocol,), patience)
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
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Server(config, limits, on_ready, answers)
