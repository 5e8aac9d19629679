"""What all routes of a running server share, and how a request is let in."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from culet.errors import CuletError
from culet.server.errors import add_note, as_api_error, busy, refused, too_much_held
from culet.server.generation import (
    ChatJob,
    Generation,
    TextJob,
    WholeChoice,
    gather,
    start_chat,
    start_text,
)
from culet.server.limits import Access, Limits
from culet.server.model import ServedModel
from culet.server.stream import EventStream, until_disconnect

T = TypeVar("T")
Job = TypeVar("Job", ChatJob, TextJob)
Starter = Callable[[ServedModel, Job, float | None, Executor | None], Awaitable[Generation]]
_BODY_BYTES = "culet.body_bytes"
_LARGE_BODY_BYTES = 256 * 1024


@dataclass
class ServerState:
    """Attributes:
    num_open: answers that are running or waiting, each choice counted.
    responses: how often each (route, status) was sent.
    held_bytes: of bodies that are being read or turned into requests.
    logs_prompts: write request bodies to the access log; off unless asked for.
    """

    model: ServedModel
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    logs_prompts: bool = False
    started_at: float = field(default_factory=time.time)
    num_open: int = 0
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)
    held_bytes: int = 0

    def __post_init__(self) -> None:
        self._large = ThreadPoolExecutor(1, "culet-large")

    def executor_for(self, request: Request) -> ThreadPoolExecutor | None:
        """Where the work of a request is done; None for the event loop's own threads.

        Large requests come one after another: they take neither the threads of small ones, nor
        much memory at once.
        """
        return self._large if request.scope.get(_BODY_BYTES, 0) > _LARGE_BODY_BYTES else None

    async def in_thread(self, request: Request, work: Callable[[], T]) -> T:
        """Run something that may take long away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.executor_for(request), work)

    def hold(self, num_bytes: int) -> Callable[[], None]:
        """Count bytes of a body that is held; the returned function lets go of them.

        Raises:
            ApiError: 429, if too much is held already.
        """
        if self.held_bytes + num_bytes > self.limits.held_bytes:
            raise too_much_held(self.limits.held_bytes)
        self.held_bytes += num_bytes

        def let_go() -> None:
            self.held_bytes -= num_bytes

        return let_go

    @property
    def failed_with(self) -> CuletError | None:
        """Why there will be no more answers."""
        return self.model.engine.failed_with

    def end_all(self) -> None:
        """End all answers soon, each with an error for its client; new ones get it too."""
        # Closing waits for the step that runs.
        asyncio.get_running_loop().run_in_executor(None, self.model.engine.close)

    async def start_chat(self, request: Request, job: ChatJob) -> Generation:
        """Start an answer in a conversation; errors as `generation.start_chat`, or 429."""
        if len(job.messages) > self.limits.messages:
            raise refused(
                f"there are {len(job.messages)} messages, at most {self.limits.messages} are "
                "allowed",
                param="messages",
            )
        if len(job.tools.specs) > self.limits.tools:
            raise refused(
                f"there are {len(job.tools.specs)} tools, at most {self.limits.tools} are allowed",
                param="tools",
            )
        return await self._start(start_chat, request, job)

    async def start_text(self, request: Request, job: TextJob) -> Generation:
        """Start a plain completion; errors as `start_chat`."""
        return await self._start(start_text, request, job)

    async def _start(self, start: Starter[Job], request: Request, job: Job) -> Generation:
        """Take places for all choices and start; they are given back when the answer is closed."""
        release = self.admit(self._choices(job.sampling.get("n", 1)))
        try:
            seconds, executor = self.limits.request_seconds, self.executor_for(request)
            generation = await start(self.model, job, seconds, executor)
        except BaseException:
            release()
            raise
        generation.when_closed(release)
        return generation

    def _choices(self, given: object) -> int:
        count = given if isinstance(given, int) else 1
        if not 1 <= count <= self.limits.choices:
            raise refused(
                f"n is {count}; 1 to {self.limits.choices} choices are allowed", param="n"
            )
        return count

    def admit(self, count: int) -> Callable[[], None]:
        """Take `count` places; the returned function gives them back, once.

        Raises:
            ApiError: 429, if there are not so many left.
        """
        if self.num_open + count > self.limits.requests:
            raise busy(self.limits.requests)
        self.num_open += count
        is_open = True

        def release() -> None:
            nonlocal is_open
            if is_open:
                self.num_open -= count
                is_open = False

        return release

    async def whole(
        self, request: Request, generations: Sequence[Generation]
    ) -> list[list[WholeChoice]]:
        """All choices of all `generations`; they end with the request's client.

        Raises:
            ClientDisconnect: the client left first.
        """

        async def gather_all() -> list[list[WholeChoice]]:
            return [await gather(generation) for generation in generations]

        try:
            return await until_disconnect(request.receive, gather_all())
        finally:
            _end(request, generations)

    def stream(
        self,
        request: Request,
        generations: Sequence[Generation],
        events: AsyncIterator[bytes],
        media_type: str,
    ) -> EventStream:
        """A response that sends `events`; the generations end with the request's client."""

        def end() -> None:
            _end(request, generations)
            errors = [g.error for g in generations if g.error is not None]
            if errors:  # the status, which was sent before, doesn't tell of it
                add_note(request.scope, as_api_error(errors[0]).label)

        return EventStream(events, media_type, self.limits.send_seconds, end)


def _end(request: Request, generations: Sequence[Generation]) -> None:
    """Close, and leave token counts for the access log's line."""
    for generation in generations:
        generation.close()
    prompt = sum(g.num_prompt_tokens for g in generations)
    answer = sum(g.num_answer_tokens for g in generations)
    cached = sum(g.num_cached_tokens for g in generations)
    add_note(request.scope, f"{prompt} + {answer} tokens, {cached} cached")


def note_body(request: Request, num_bytes: int) -> None:
    """Remember how large a request is, for `ServerState.executor_for`."""
    request.scope[_BODY_BYTES] = num_bytes
