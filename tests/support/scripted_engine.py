"""An engine that says what it is told: the server's counterpart in its own tests.

It keeps the promises of `engine.Engine`: tokens leave one by one from another thread, masks are
obeyed, stop ids and limits end an answer, a cancelled request stops at its next token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np

from culet.chat.tokenizer import Tokenizer
from culet.engine.choice import PromptSink
from culet.engine.handle import Delta, RequestHandle
from culet.engine.metrics import EngineMetrics
from culet.engine.request import EnginePrompt, FinishReason, SamplingParams, Usage
from culet.engine.sampler import Sampled, TokenMask
from culet.engine.scheduler import Want
from culet.errors import CuletError, RequestError, UsageError

Script = Callable[[str, int], str]
"""(text of the prompt, index of the choice) -> what the model writes, control tokens spelled."""


class ScriptedEngine:
    """Attributes:
    step_seconds: between two tokens.
    num_sampled: tokens sampled so far, over all requests.
    num_active: choices that are running.
    sampled_at: time.monotonic() of every token.
    """

    def __init__(
        self, tokenizer: Tokenizer, script: Script, step_seconds: float = 0.0, hidden_size: int = 8
    ) -> None:
        self.metrics = EngineMetrics()
        self.tokenizer = tokenizer
        self.script = script
        self.step_seconds = step_seconds
        self.hidden_size = hidden_size
        self.num_sampled = 0
        self.num_active = 0
        self.sampled_at: list[float] = []
        self.prompts: list[str] = []
        self.last_ids: list[int] = []
        self.params: list[SamplingParams] = []
        self.failure: Exception | None = None
        self.failed_with: CuletError | None = None
        self.is_closed = False
        self._lock = threading.Lock()
        self._ended: dict[tuple[RequestHandle, int | None], FinishReason] = {}

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
        ids = list(prompt.token_ids)
        if self.is_closed:
            raise UsageError("the engine is closed; it takes no more requests")
        if not ids:
            raise RequestError("token_ids", "is empty; at least 1 token is needed")
        handle = RequestHandle(params.n, len(ids), self._note_end)
        self.last_ids = ids
        self.prompts.append(self.tokenizer.decode(ids, skip_special=False))
        self.params.append(params)
        if sink is not None:
            rows = np.random.default_rng(sum(ids)).standard_normal((len(ids), self.hidden_size))
            sink(0, rows.astype(np.float32))
        if params.prompt_logprobs is not None:
            handle.prompt_logprobs = [Sampled(ids[0])] + [
                Sampled(i, -1.0, ((i, -1.0),)[: params.prompt_logprobs]) for i in ids[1:]
            ]
        choices = [(i, mask() if mask else None) for i in range(params.n)]
        worker = threading.Thread(
            target=self._work, args=(handle, ids, params, choices), daemon=True
        )
        worker.start()
        return handle

    def _work(
        self,
        handle: RequestHandle,
        ids: Sequence[int],
        params: SamplingParams,
        choices: Sequence[tuple[int, TokenMask | None]],
    ) -> None:
        prompt = self.tokenizer.decode(ids, skip_special=False)
        with self._lock:
            self.num_active += 1
        total = 0
        error: Exception | None = self.failure
        try:
            for index, mask in choices if error is None else ():
                script = self.tokenizer.encode(
                    self.script(prompt, index), add_bos=False, parse_special=True
                )
                total += self._speak(handle, params, index, script, mask)
        except Exception as fault:
            error = fault
        with self._lock:
            self.num_active -= 1
        handle.usage = Usage(len(ids), total, 0)
        handle.close(error)

    def _speak(
        self,
        handle: RequestHandle,
        params: SamplingParams,
        index: int,
        script: list[int],
        mask: TokenMask | None,
    ) -> int:
        rng = np.random.default_rng(params.seed)
        count = 0
        limit = params.max_tokens if params.max_tokens is not None else 100_000
        end = min(self.tokenizer.stop_ids)
        if limit == 0:
            handle.put(Delta(index, None, "length"))
            return 0
        while True:
            ended = self._ended.get((handle, None)) or self._ended.get((handle, index))
            if self.is_closed:
                ended = "cancelled"
            if ended is not None:
                handle.put(Delta(index, None, ended))
                return count
            wanted = script[count] if count < len(script) else end
            token = self._allowed(wanted, mask, rng)
            time.sleep(self.step_seconds)
            count += 1
            with self._lock:
                self.num_sampled += 1
                self.sampled_at.append(time.monotonic())
            reason: FinishReason | None = None
            if token in self.tokenizer.stop_ids and not params.ignore_eos:
                reason = "stop"
            elif count == limit:
                reason = "length"
            handle.put(Delta(index, self._sampled(token, params), reason))
            if reason is not None:
                return count

    def close(self) -> None:
        self.is_closed = True

    def _note_end(self, handle: RequestHandle, reason: FinishReason, choice: int | None) -> None:
        self._ended[(handle, choice)] = reason

    def _allowed(self, wanted: int, mask: TokenMask | None, rng: np.random.Generator) -> int:
        """The scripted token, or a random one where a mask does not allow it."""
        if mask is None:
            return wanted
        logits = np.zeros(self.tokenizer.vocab_size, np.float32)
        mask.apply(logits)
        token = wanted if logits[wanted] == 0 else int(rng.choice(np.flatnonzero(logits == 0)))
        if token not in self.tokenizer.stop_ids:
            mask.accept(token)
        return token

    def _sampled(self, token: int, params: SamplingParams) -> Sampled:
        if params.logprobs is None:
            return Sampled(token)
        others = [token, *(i for i in range(20, 40) if i != token)][: params.logprobs]
        return Sampled(token, -0.5, tuple((i, -0.5 - n) for n, i in enumerate(others)))
