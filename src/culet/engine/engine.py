"""The engine: a thread that plans steps, runs each in one native call, samples, hands tokens out.

Speaks token ids and arrays. Text is the caller's business, who stops a choice at a stop text; a
grammar is an object that the caller gives.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from culet.engine.choice import Choice, PromptSink, Request
from culet.engine.config import EngineConfig
from culet.engine.handle import RequestHandle
from culet.engine.kv_cache import KvCache
from culet.engine.metrics import EngineMetrics
from culet.engine.prefix_cache import PrefixCache
from culet.engine.request import EnginePrompt, FinishReason, SamplingParams, given_rows
from culet.engine.runner import Piece, PieceResult, Runner, as_token_ids, num_token_ids
from culet.engine.sampler import TokenMask, TokenSampler, new_seed
from culet.engine.scheduler import Chunk, Scheduler, SchedulerConfig, Sequence, Want
from culet.errors import BackendError, CapacityError, CuletError, RequestError, UsageError
from culet.models.base import Model
from culet.ops.interface import Ops

_log = logging.getLogger("culet")


class Engine:
    """One model that serves many requests at once.

    `submit` may be called from any thread. Ends with `close`, or at the end of a `with` block.

    Attributes:
        metrics: what has happened so far.
        failed_with: what ended the engine, if it wasn't closed.
    """

    def __init__(
        self,
        model: Model,
        ops: Ops,
        config: EngineConfig,
        *,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allocates the KV cache and starts the engine's thread.

        Args:
            check: called after each step, before its results count; whether the weights are still
                what they were. What it raises ends the engine.
            clock: seconds; for deadlines and metrics.

        Raises:
            CapacityError: the KV cache that the config allows holds not even one sequence.
        """
        self.config = config
        self.cache = KvCache(ops, model.config, config)
        self.metrics = EngineMetrics()
        self.failed_with: CuletError | None = None
        self._check_weights = check
        self._clock = clock
        self._model_config = model.config
        self._runner = Runner(model, ops, self.cache)
        pages = self.cache.pages
        self._scheduler = Scheduler(
            SchedulerConfig(
                max_seqs=config.max_seqs,
                step_tokens=max(config.prefill_tokens, config.max_seqs + 1),
                mixed_step_tokens=config.mixed_prefill_tokens,
                share_tokens=min(32, config.prefill_tokens),
                max_logit_rows=max(64, config.max_seqs + 1),
                max_waiting=config.max_waiting,
            ),
            pages,
            PrefixCache(pages) if config.prefix_cache else None,
        )
        self._choices: dict[Sequence, Choice] = {}
        self._order = 0
        self._wake = threading.Condition()
        # What other threads want done; the engine's thread alone touches everything else.
        self._inbox: deque[Callable[[], None]] = deque()
        self._num_arriving = 0
        self._is_closing = False
        self._cancels_all = False
        self._thread = threading.Thread(target=self._work, name="culet-engine", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise CapacityError(f"the system allows no further thread ({error})") from error
        atexit.register(self.close)  # the thread must not be in native code when Python goes down

    # ---- the caller's side ---------------------------------------------------------------------
    def submit(
        self,
        prompt: EnginePrompt,
        params: SamplingParams,
        *,
        eos_ids: Collection[int] = (),
        num_ids: int | None = None,
        mask: Callable[[], TokenMask] | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        prompt_want: Want = Want.NONE,
        sink: PromptSink | None = None,
    ) -> RequestHandle:
        """Queue a request.

        Args:
            params: its `stop` is not looked at; see `RequestHandle.stop`.
            eos_ids: tokens that end an answer unless `params` ignores them.
            num_ids: ids from here on are never drawn; None for all that the model has.
            mask: makes the grammar of each choice.
            priority: higher goes first.
            timeout_s: seconds after which the request is ended, wherever it is.
            prompt_want: what `sink` takes of every row of the prompt.

        Raises:
            RequestError: the prompt is empty or has ids that are no tokens.
            CapacityError: the prompt leaves no room in the context, or the queue is full.
            UsageError: the engine is closed.
            CuletError: the engine has failed; the same for all requests.
        """
        max_new = self._check(prompt, params)
        stop_ids = set(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids.update(eos_ids)
        request = Request(
            RequestHandle(params.n, len(prompt.token_ids), self._end_later),
            params,
            tuple(prompt.token_ids),
            prompt.media,
            max_new,
            frozenset(stop_ids),
            num_token_ids(self._model_config) if num_ids is None else num_ids,
            submitted_at=self._clock(),
            sink=sink,
            sink_hidden=prompt_want is Want.HIDDEN,
        )
        if params.prompt_logprobs is not None:
            prompt_want |= Want.LOGITS
        self._add_choices(request, prompt, prompt_want, mask, priority, timeout_s)
        self._enqueue(request, len(prompt.token_ids) + max_new)
        return request.handle

    def close(self, *, drain: bool = False) -> None:
        """Stop: cancel everything, or with `drain` finish it first. Further requests are refused.

        May be called twice and from any thread, but not from a sink or a mask.
        """
        with self._wake:
            self._is_closing = True
            self._cancels_all |= not drain
            self._wake.notify_all()
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear_prefix_cache(self) -> None:
        """Forget what was computed for finished requests; returns when it is done."""
        done = threading.Event()

        def clear() -> None:
            if self._scheduler.cache is not None:
                self._scheduler.cache.clear()
            self._update_gauges()
            done.set()

        with self._wake:
            if self._is_closing:
                return
            self._inbox.append(clear)
            self._wake.notify_all()
        done.wait()

    def _check(self, prompt: EnginePrompt, params: SamplingParams) -> int:
        """Tokens that a choice may have; raises as `submit` says."""
        ids = as_token_ids(prompt.token_ids, self._model_config)
        if not len(ids):
            raise RequestError("token_ids", "is empty; at least 1 token is needed")
        as_token_ids([*params.logit_bias, *params.stop_token_ids], self._model_config)
        context = self.config.context_length
        left = context - len(ids)
        if left < 0 or (left == 0 and params.max_tokens != 0):
            raise CapacityError(
                f"the prompt has {len(ids)} tokens; the context of {context} must hold it"
                + ("" if params.max_tokens == 0 else " and at least one more")
            )
        return left if params.max_tokens is None else min(left, params.max_tokens)

    def _add_choices(
        self,
        request: Request,
        prompt: EnginePrompt,
        prompt_want: Want,
        mask: Callable[[], TokenMask] | None,
        priority: int,
        timeout_s: float | None,
    ) -> None:
        """Make the sequence and the sampler of each choice; the first one reports the prompt."""
        params = request.params
        seed = new_seed() if params.seed is None else params.seed
        for index in range(params.n):
            sequence = Sequence(
                order=0,
                tokens=list(prompt.token_ids),
                keys=prompt.cache_keys() if prompt.media else [],
                prompt_want=prompt_want if index == 0 else Want.NONE,
                last_want=Want.LOGITS if request.max_new else Want.NONE,
                priority=priority,
                deadline=None if timeout_s is None else request.submitted_at + timeout_s,
            )
            sampler = TokenSampler(params, seed, index, request.prompt, mask() if mask else None)
            request.choices.append(Choice(index, request, sequence, sampler))

    def _enqueue(self, request: Request, num_tokens: int) -> None:
        num_new = len(request.choices)
        with self._wake:
            if self.failed_with is not None:
                raise self.failed_with
            if self._is_closing:
                raise UsageError("the engine is closed; it takes no more requests")
            try:
                self._scheduler.check(num_tokens, num_new + self._num_arriving)
            except CapacityError:
                self.metrics.requests_refused.add()
                raise
            for choice in request.choices:
                choice.sequence.order = self._order
                self._order += 1
            self._num_arriving += num_new
            self._inbox.append(lambda: self._start(request))
            self._wake.notify_all()

    def _end_later(self, handle: RequestHandle, reason: FinishReason, choice: int | None) -> None:
        with self._wake:
            self._inbox.append(lambda: self._end_request(handle, reason, choice))
            self._wake.notify_all()

    # ---- the engine's thread -------------------------------------------------------------------
    def _work(self) -> None:
        try:
            while self._take_inbox():
                for sequence in self._scheduler.overdue(self._clock()):
                    if sequence in self._choices:  # not ended together with another choice
                        self._end_request(self._choices[sequence].request.handle, "deadline")
                if self._scheduler.has_work:
                    self._step()
        except Exception as error:
            # Nothing can be said about any request, so that all end with it.
            if isinstance(error, CuletError):
                failure = error
            else:  # a fault of ours
                _log.exception("the engine has failed")
                failure = BackendError(f"the engine has failed: {error!r}")
            with self._wake:
                self.failed_with = failure
                self._is_closing = True
                waiting, self._inbox = list(self._inbox), deque()
            for command in waiting:
                command()
            for request in {choice.request for choice in self._choices.values()}:
                request.handle.close(failure)

    def _take_inbox(self) -> bool:
        """Do what other threads asked for; waits where there is nothing to do. False at the end."""
        with self._wake:
            while not (self._inbox or self._scheduler.has_work or self._is_closing):
                self._wake.wait()
            commands, self._inbox = self._inbox, deque()
            is_closing, cancels_all = self._is_closing, self._cancels_all
        for command in commands:
            command()
        if is_closing and cancels_all:
            for handle in {choice.request.handle for choice in self._choices.values()}:
                self._end_request(handle, "cancelled")
        return self._scheduler.has_work or not is_closing

    def _start(self, request: Request) -> None:
        with self._wake:
            self._num_arriving -= len(request.choices)
        self.metrics.requests.add()
        for choice in request.choices:
            self._choices[choice.sequence] = choice
            self._scheduler.submit(choice.sequence)

    def _step(self) -> None:
        begin = self._clock()
        preemptions = self._scheduler.num_preemptions
        plan = self._scheduler.plan()
        for chunk in plan.chunks:
            request = self._choices[chunk.sequence].request
            if request.started_at is None:
                request.start(begin, chunk.sequence.num_cached or 0)
                self.metrics.queue_seconds.add(begin - request.submitted_at)
                self.metrics.cached_tokens.add(request.num_cached)
        if plan.copies:
            self.cache.copy(plan.copies)
        before_model = self._clock()
        results = self._run(plan.chunks)
        after_model = self._clock()
        self._check_weights()
        done = [(c, r) for c, r in results if isinstance(r, PieceResult)]
        self._scheduler.commit(replace(plan, chunks=tuple(chunk for chunk, _ in done)))
        for chunk, result in results:
            choice = self._choices.get(chunk.sequence)
            if choice is None:
                continue  # ended just now, together with another choice of its request
            if isinstance(result, PieceResult):
                self._receive(choice, chunk, result, after_model)
            else:
                self._fail_request(choice.request, result)
        metrics = self.metrics
        metrics.steps.add()
        metrics.step_rows.add(sum(chunk.num_rows for chunk in plan.chunks))
        metrics.full_rows.add(sum(chunk.num_kept for chunk in plan.chunks))
        metrics.preemptions.add(self._scheduler.num_preemptions - preemptions)
        metrics.model_seconds.add(after_model - before_model)
        self._update_gauges()
        metrics.step_seconds.add(self._clock() - begin)

    def _run(self, chunks: tuple[Chunk, ...]) -> list[tuple[Chunk, PieceResult | Exception]]:
        """Run the chunks; where the step fails, each alone, so that only the guilty one fails."""
        pieces = [self._piece(chunk) for chunk in chunks]
        try:
            return list(zip(chunks, self._runner.step(pieces), strict=True))
        except Exception as error:
            _log.warning("a step of %d sequences failed: %r", len(chunks), error)
            self._flush()
            if len(chunks) == 1:
                return [(chunks[0], error)]
        results: list[tuple[Chunk, PieceResult | Exception]] = []
        for chunk, piece in zip(chunks, pieces, strict=True):
            try:
                (result,) = self._runner.step([piece])
                # The next run may reuse the buffers.
                results.append((chunk, PieceResult(result.hidden.copy(), result.logits.copy())))
            except Exception as error:
                self._flush()
                results.append((chunk, error))
        return results

    def _flush(self) -> None:
        """Run what a failed step had enqueued, so that the next one begins with nothing before it.

        It may fail again; whatever it stores is stored again by those who go on.
        """
        with contextlib.suppress(Exception):
            self._runner.ops.sync()

    def _piece(self, chunk: Chunk) -> Piece:
        sequence = chunk.sequence
        rows, embeddings = given_rows(self._choices[sequence].request.media, chunk.start, chunk.end)
        return Piece(
            sequence.runs,
            chunk.start,
            np.array(sequence.tokens[chunk.start : chunk.end], dtype=np.int32),
            chunk.num_kept,
            chunk.num_logits,
            rows,
            embeddings,
        )

    def _receive(self, choice: Choice, chunk: Chunk, result: PieceResult, now: float) -> None:
        request, metrics = choice.request, self.metrics
        num_prompt = max(0, min(chunk.end, len(request.prompt)) - chunk.start)
        metrics.prompt_tokens.add(num_prompt)
        before = choice.num_sampled
        try:
            reason = choice.receive(chunk, result)
        except Exception as error:
            self._fail_request(request, error)
            return
        if choice.num_sampled > before:
            metrics.generated_tokens.add()
            if choice.token_at is not None:
                metrics.inter_token_seconds.add(now - choice.token_at)
            elif request.num_sampled == 1:
                metrics.first_token_seconds.add(now - request.submitted_at)
            choice.token_at = now
        if reason is not None:
            self._remove(choice, keep=True)
            if not request.choices:
                self._finish(request, reason)

    def _remove(self, choice: Choice, *, keep: bool) -> None:
        """Take a choice out of the schedule and its request."""
        del self._choices[choice.sequence]
        choice.request.choices.remove(choice)
        self._scheduler.remove(choice.sequence, keep=keep)

    def _end_request(
        self, handle: RequestHandle, reason: FinishReason, index: int | None = None
    ) -> None:
        """End what still runs of a request, or one choice of it, and free its pages at once."""
        ended = [
            choice
            for choice in self._choices.values()
            if choice.request.handle is handle and index in (None, choice.index)
        ]
        for choice in ended:
            self._remove(choice, keep=reason == "stop")
            choice.end(reason)
        if ended and not ended[0].request.choices:
            self._finish(ended[0].request, reason)
        # Perhaps no step follows that would do it.
        self._update_gauges()

    def _finish(self, request: Request, reason: FinishReason) -> None:
        metrics = self.metrics
        ended_well = reason in ("stop", "length")
        (metrics.requests_finished if ended_well else metrics.requests_cancelled).add()
        metrics.request_seconds.add(self._clock() - request.submitted_at)
        request.finish()

    def _fail_request(self, request: Request, error: Exception) -> None:
        """End a request with an error; others go on."""
        for choice in list(request.choices):
            self._remove(choice, keep=False)
        self.metrics.requests_failed.add()
        if not isinstance(error, CuletError):
            _log.error("a request has failed", exc_info=error)
            wrapped = BackendError(f"the request has failed: {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        request.finish(error)

    def _update_gauges(self) -> None:
        scheduler, metrics = self._scheduler, self.metrics
        metrics.running.value = scheduler.num_running
        metrics.waiting.value = scheduler.num_waiting
        pools = scheduler.pages.pools
        if "full" in pools:
            metrics.full_pages_used.value = pools["full"].num_used
        if "sliding" in pools:
            metrics.sliding_pages_used.value = pools["sliding"].num_used
        if scheduler.cache is not None:
            metrics.cached_points.value = scheduler.cache.num_points
