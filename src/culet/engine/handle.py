"""A running request, as the caller sees it: tokens arrive, the request can be cancelled.

The engine's thread puts in; any thread or event loop takes out. Knows nothing of models.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial

from culet.engine.request import FinishReason, Usage
from culet.engine.sampler import Sampled


@dataclass(frozen=True, slots=True)
class Delta:
    """One step forward of one choice.

    Attributes:
        choice: 0 to n - 1.
        token: sampled. With finish reason `stop` it is the one that ended the answer and is no part
            of it. None where a choice ends without a token (a cancellation, no tokens asked for).
        finish_reason: set on the last delta of a choice.
    """

    choice: int
    token: Sampled | None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole choice, without the token that ended it."""

    tokens: tuple[Sampled, ...]
    finish_reason: FinishReason

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]


class RequestHandle:
    """Iterates over the deltas of all choices, synchronously or asynchronously, once.

    An error of the request is raised where it is iterated. Leaving the `with` block cancels what is
    still running.

    Attributes:
        num_choices: choices asked for.
        usage: complete once the iteration has ended; `cached_tokens` from the first delta on.
        prompt_logprobs: one per prompt token, before the first delta arrives; None unless asked.
    """

    def __init__(
        self,
        num_choices: int,
        num_prompt: int,
        end: Callable[[RequestHandle, FinishReason, int | None], None],
    ) -> None:
        self.num_choices = num_choices
        self.usage = Usage(num_prompt, 0, 0)
        self.prompt_logprobs: list[Sampled] | None = None
        self._end = end
        self._changed = threading.Condition()
        self._deltas: deque[Delta] = deque()
        self._is_done = False
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []

    # ---- the caller's side ---------------------------------------------------------------------
    def cancel(self) -> None:
        """End the request soon; its choices get finish reason `cancelled`. May be called twice."""
        self._end(self, "cancelled", None)

    def stop(self, choice: int | None = None) -> None:
        """The caller has all it needs of a choice (None: of all): ends it with reason `stop`.

        For stop texts. Unlike after `cancel`, the prefix cache keeps the answer so far.
        """
        self._end(self, "stop", choice)

    @property
    def is_done(self) -> bool:
        """Nothing more will arrive (some of it may still be unread)."""
        return self._is_done

    def __enter__(self) -> RequestHandle:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_done:
            self.cancel()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        with self._changed:
            self._changed.wait_for(lambda: self._deltas or self._is_done)
            delta = self._take()
        if delta is None:
            raise StopIteration
        return delta

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while True:
            with self._changed:
                if self._deltas or self._is_done:
                    delta = self._take()
                    if delta is None:
                        raise StopAsyncIteration
                    return delta
                arrived = asyncio.Event()
                self._wakers.append(partial(_wake, asyncio.get_running_loop(), arrived))
            await arrived.wait()

    def result(self, timeout: float | None = None) -> list[Answer]:
        """Wait for the end; all choices, from deltas not yet read.

        Raises:
            TimeoutError: the request has not ended within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_done, timeout):
                raise TimeoutError(f"the request has not ended within {timeout} s")
        tokens: list[list[Sampled]] = [[] for _ in range(self.num_choices)]
        reasons: list[FinishReason] = ["cancelled"] * self.num_choices
        for delta in self:
            if delta.token is not None and delta.finish_reason != "stop":
                tokens[delta.choice].append(delta.token)
            if delta.finish_reason is not None:
                reasons[delta.choice] = delta.finish_reason
        return [Answer(tuple(t), r) for t, r in zip(tokens, reasons, strict=True)]

    def _take(self) -> Delta | None:
        if self._deltas:
            return self._deltas.popleft()
        if self._error is not None:
            raise self._error
        return None

    # ---- the engine's side ---------------------------------------------------------------------
    def put(self, delta: Delta) -> None:
        """Hand a delta over."""
        with self._changed:
            self._deltas.append(delta)
            self._notify()

    def close(self, error: BaseException | None = None) -> None:
        """No more deltas will come; `error` is raised after those that have."""
        with self._changed:
            self._is_done = True
            self._error = error
            self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()


def _wake(loop: asyncio.AbstractEventLoop, arrived: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(arrived.set)
    except RuntimeError:
        if not loop.is_closed():
            raise  # a closed loop has nobody left who waits
