"""Which rows run in the next step, and who gets the pages for them.

Each step holds one row of every running stream and as many prompt rows as the budget allows. Ranks
are by priority, then first come. Pure bookkeeping: knows no arrays, sampling or threads, and time
only as a number that it is given.
"""

from __future__ import annotations

import enum
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from culet.engine.pages import Pages, Runs
from culet.engine.prefix_cache import PageCopy, PrefixCache, num_common_keys
from culet.errors import CapacityError, UsageError
from culet.models.config import AttentionKind


class Want(enum.Flag):
    """What is wanted of a row; nothing means that it ends at the last KV-owning layer."""

    NONE = 0
    LOGITS = enum.auto()
    HIDDEN = enum.auto()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of the queue.

    Attributes:
        max_seqs: sequences that run at once.
        step_tokens: rows of a step at most.
        mixed_step_tokens: prompt rows at most in a step that also has running streams: the longest
            that a stream waits for a token because of somebody's prompt.
        share_tokens: prompt rows that a later prompt may count on while an earlier one is long.
        max_logit_rows: rows with logits in a step at most (each costs a row of the vocabulary).
        max_waiting: requests in the queue at most.
    """

    max_seqs: int = 16
    step_tokens: int = 512
    mixed_step_tokens: int = 128
    share_tokens: int = 32
    max_logit_rows: int = 64
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        if self.max_seqs < 1 or self.max_waiting < 1 or self.share_tokens < 1:
            raise UsageError(
                f"max_seqs {self.max_seqs}, max_waiting {self.max_waiting} and share_tokens "
                f"{self.share_tokens} must be 1 or more"
            )
        for name in ("step_tokens", "mixed_step_tokens", "max_logit_rows"):
            value = getattr(self, name)
            least = 1 if name == "mixed_step_tokens" else self.max_seqs + 1
            if value < least:
                raise UsageError(
                    f"{name} is {value}; with max_seqs {self.max_seqs} it must be {least} or more"
                )


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request, as far as scheduling sees it.

    Attributes:
        order: first come, first served; unique.
        tokens: token ids, prompt first; grows as tokens are sampled.
        keys: what the prefix cache compares, one a token; the same list as `tokens` without media.
        num_prompt: tokens of the prompt.
        prompt_want: what is wanted of every row of the prompt.
        last_want: what is wanted of the row that the next token is sampled from.
        priority: higher runs first.
        deadline: a time, in the clock of `plan`, at which the sequence is given up; None for never.
        num_computed: tokens whose K and V are stored.
        num_reported: prompt rows whose results were handed out; they are not wanted again when
            the sequence is recomputed.
        num_cached: tokens that the prefix cache had at the first start.
        marks: positions at which the prefix cache shall keep the window.
        common: per sequence (its order), the common beginning with it.
    """

    order: int
    tokens: list[int]
    keys: list[int] = field(default_factory=list)
    prompt_want: Want = Want.NONE
    last_want: Want = Want.LOGITS
    priority: int = 0
    deadline: float | None = None
    num_prompt: int = field(init=False)
    num_computed: int = field(default=0, init=False)
    num_reported: int = field(default=0, init=False)
    num_cached: int | None = field(default=None, init=False)
    runs: Runs = field(default_factory=dict, init=False)
    marks: set[int] = field(default_factory=set, init=False)
    common: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.keys = self.keys or self.tokens
        self.num_prompt = len(self.tokens)
        self.marks.add(self.num_prompt)

    @property
    def rank(self) -> tuple[int, int]:
        """Lower goes first."""
        return (-self.priority, self.order)

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def is_streaming(self) -> bool:
        """Only the token sampled last is left to compute."""
        return self.num_computed >= self.num_prompt and self.num_pending == 1

    @property
    def wants_prompt(self) -> bool:
        """Results of prompt rows are still owed, so all of them must be computed."""
        return self.prompt_want is not Want.NONE and self.num_reported < self.num_prompt

    def append(self, token: int) -> None:
        """Add a sampled token."""
        self.tokens.append(token)
        if self.keys is not self.tokens:
            self.keys.append(token)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one sequence in a step.

    Attributes:
        start: position of the first row.
        num_kept: rows, from the end, that go through all layers: their hidden states are wanted,
            or logits.
        num_logits: rows, from the end, whose logits are wanted; a part of those kept.
        reports: kept rows of the prompt are owed to the request.
        ends: the last row is the one that the next token is sampled from.
    """

    sequence: Sequence
    start: int
    num_rows: int
    num_kept: int
    num_logits: int
    reports: bool
    ends: bool

    @property
    def end(self) -> int:
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: copies first, in their order, then all chunks in one forward.

    Attributes:
        preempted: sequences that gave their pages back and wait again.
    """

    chunks: tuple[Chunk, ...]
    copies: tuple[PageCopy, ...]
    preempted: tuple[Sequence, ...]


class Scheduler:
    """The queue, the running sequences and the plan of the next step."""

    def __init__(self, config: SchedulerConfig, pages: Pages, cache: PrefixCache | None) -> None:
        """`cache` None switches prefix caching off."""
        self.config = config
        self.pages = pages
        self.cache = cache
        self.num_preemptions = 0
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._copies: list[PageCopy] = []
        self._preempted: list[Sequence] = []
        self._granted: dict[Sequence, int] = {}
        # A point for each window of a prompt: then every page of the window's layers is kept.
        self._spare_spacing: int | None = None
        for kind, group in pages.groups.items():
            if group.window is not None:
                size = pages.page_tokens
                self._spare_spacing = max(1, group.window // size) * size
                least = self._num_window_pages(kind, 1)
                if group.num_pages < least:
                    raise CapacityError(
                        f"the KV cache has {group.num_pages} pages of {kind} layers; "
                        f"a window of {group.window} tokens needs {least}"
                    )

    # ---- the queue -----------------------------------------------------------------------------
    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def sequences(self) -> Iterator[Sequence]:
        """All live sequences."""
        yield from self._running
        yield from self._waiting

    def check(self, num_tokens: int, num_new: int) -> None:
        """Refuse what can never run, or what the queue has no room for.

        Args:
            num_tokens: the longest that a sequence may become, prompt included.
            num_new: sequences that would be submitted.

        Raises:
            CapacityError: with the limit in its message.
        """
        for group in self.pages.groups.values():
            if group.window is None and self.pages.count(num_tokens) > group.num_pages:
                raise CapacityError(
                    f"a sequence of {num_tokens} tokens does not fit in the KV cache, "
                    f"which holds {group.num_pages * self.pages.page_tokens} tokens"
                )
        if len(self._waiting) + num_new > self.config.max_waiting:
            raise CapacityError(
                f"{len(self._waiting)} sequences wait already; "
                f"the queue has room for {self.config.max_waiting}"
            )

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence that `check` let through."""
        sequence.runs = self.pages.new_runs()
        insort(self._waiting, sequence, key=lambda s: s.rank)

    def remove(self, sequence: Sequence, *, keep: bool) -> None:
        """Take a sequence out, finished or not; all its pages are let go at once.

        With `keep` the prefix cache remembers what it has computed.
        """
        if sequence in self._running:
            self._running.remove(sequence)
            if keep and self.cache is not None and sequence.num_computed:
                self.cache.insert(sequence.keys, sequence.num_computed, sequence.runs)
        else:
            self._waiting.remove(sequence)
        self.pages.release(sequence.runs)

    def overdue(self, now: float) -> list[Sequence]:
        """Live sequences whose deadline has passed."""
        return [s for s in self.sequences() if s.deadline is not None and s.deadline <= now]

    # ---- planning ------------------------------------------------------------------------------
    def plan(self) -> StepPlan:
        """The next step; empty chunks only if no sequence lives."""
        self._copies, self._preempted, self._granted = [], [], {}
        self._running.sort(key=lambda s: s.rank)
        for sequence in [s for s in self._running if s.is_streaming]:
            self._grant_stream(sequence)
        num_streams = len(self._granted)
        budget = self.config.step_tokens - num_streams
        if num_streams:
            budget = min(budget, self.config.mixed_step_tokens)
        logit_rows = self.config.max_logit_rows - num_streams
        self._grant_prompts(budget, logit_rows)
        chunks = [self._chunk(s, n) for s, n in self._granted.items()]
        assert chunks or not self.has_work, "a step must make progress"
        return StepPlan(tuple(chunks), tuple(self._copies), tuple(self._preempted))

    def commit(self, plan: StepPlan) -> None:
        """Note that the rows of a plan have been computed. Sampled tokens are appended after it."""
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.num_computed = chunk.end
            sequence.num_reported = max(sequence.num_reported, min(chunk.end, sequence.num_prompt))
            if self.cache is not None:
                self._remember(self.cache, chunk)
            self.pages.trim(sequence.runs, chunk.end)

    def _remember(self, cache: PrefixCache, chunk: Chunk) -> None:
        """Let the prefix cache keep the windows that a chunk has passed, before they are freed."""
        sequence, spacing = chunk.sequence, self._spare_spacing
        if spacing is not None:
            first = (chunk.start // spacing + 1) * spacing
            for mark in range(first, min(chunk.end + 1, sequence.num_prompt), spacing):
                cache.insert(sequence.keys, mark, sequence.runs, is_spare=True)
        for mark in sorted(m for m in sequence.marks if chunk.start < m <= chunk.end):
            cache.insert(sequence.keys, mark, sequence.runs)

    def _grant_stream(self, sequence: Sequence) -> None:
        """One row for a running stream; later ranks give way, itself if there are none."""
        if sequence not in self._running:
            return  # preempted by an earlier stream
        while not self._take_pages(sequence, sequence.num_computed + 1):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return
        self._granted[sequence] = 1

    def _grant_prompts(self, budget: int, logit_rows: int) -> None:
        """Share the budget: the first prompt takes half of what is left, and so on, then in order.

        So a short prompt is not kept waiting by a long one, and no budget is left unused.
        """
        prompts = [s for s in self._running if not s.is_streaming]
        left = budget
        for sequence in prompts:
            left -= self._grant(sequence, min(self._share(left), left), logit_rows)
        for sequence in list(self._waiting):
            if left <= 0 or len(self._running) >= self.config.max_seqs:
                break
            if self._waits_for_prefix(sequence):
                continue
            if not self._admit(sequence):
                break
            prompts.append(sequence)
            left -= self._grant(sequence, min(self._share(left), left), logit_rows)
        for sequence in prompts:
            if left > 0 and sequence in self._running:
                left -= self._grant(sequence, left, logit_rows)

    def _share(self, left: int) -> int:
        return max(self.config.share_tokens, left // 2)

    def _grant(self, sequence: Sequence, num_rows: int, logit_rows: int) -> int:
        """Give a prompt up to `num_rows` more rows, as far as pages go; how many it got."""
        if sequence not in self._running:
            return 0  # preempted by an earlier prompt
        granted = self._granted.get(sequence, 0)
        start = sequence.num_computed + granted
        num_rows = min(num_rows, len(sequence.tokens) - start)
        if sequence.wants_prompt and Want.LOGITS in sequence.prompt_want:
            used = sum(n for s, n in self._granted.items() if Want.LOGITS in s.prompt_want)
            num_rows = min(num_rows, logit_rows - used)
        end = start + num_rows
        while end > start and not self._take_prompt_pages(sequence, end):
            end = (end - 1) // self.pages.page_tokens * self.pages.page_tokens
        if end <= start:
            return 0
        self._granted[sequence] = granted + end - start
        return end - start

    def _chunk(self, sequence: Sequence, num_rows: int) -> Chunk:
        start = sequence.num_computed
        end = start + num_rows
        ends = end == len(sequence.tokens)
        last = sequence.last_want if ends else Want.NONE
        num_kept, num_logits = int(last is not Want.NONE), int(Want.LOGITS in last)
        reports = sequence.wants_prompt
        if reports:
            num_kept = end - max(start, sequence.num_reported)
            if Want.LOGITS in sequence.prompt_want:
                num_logits = num_kept
        return Chunk(sequence, start, num_rows, num_kept, num_logits, reports, ends)

    # ---- admission -----------------------------------------------------------------------------
    def _admit(self, sequence: Sequence) -> bool:
        """Start a waiting sequence from what the prefix cache has, if its prompt fits now."""
        cache = self.cache
        hit = None
        if cache is not None:
            limit = 0 if sequence.wants_prompt else len(sequence.tokens) - 1
            hit = cache.match(sequence.keys, limit)
        if self._running and not self._fits(sequence, hit.num_tokens if hit else 0):
            return False
        if cache is not None and hit is not None and hit.num_tokens:
            cache.touch(hit)
            # Where the hit ends inside a page, each group needs one for the copy.
            if not cache.reclaim(dict.fromkeys(self.pages.groups, 1)):
                return False
            # Making room may have evicted part of the hit, but only where nothing else was left.
            hit = cache.match(sequence.keys, hit.num_tokens)
            self._copies += cache.acquire(hit, sequence.runs)
            sequence.num_computed = hit.num_tokens
        if hit is not None and hit.num_common - sequence.num_computed >= self.pages.page_tokens:
            sequence.marks.add(hit.num_common)  # others may come that depart here as well
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=lambda s: s.rank)
        return True

    def _waits_for_prefix(self, sequence: Sequence) -> bool:
        """An earlier prompt is just being computed that begins alike: the rest is cheaper later.

        That prompt is told to keep the window where the two part.
        """
        if self.cache is None or sequence.wants_prompt:
            return False
        known: int | None = None
        for other in self._running:
            if other.is_streaming or other.rank > sequence.rank:
                continue
            common = sequence.common.get(other.order)
            if common is None:
                common = num_common_keys(sequence.keys[:-1], other.keys)
                sequence.common[other.order] = common
            if common - other.num_computed <= 0:
                continue
            if known is None:
                known = self.cache.match(sequence.keys, len(sequence.keys) - 1).num_tokens
            if common - known >= self.pages.page_tokens:
                other.marks.add(common)
                return True
        return False

    def _fits(self, sequence: Sequence, num_cached: int) -> bool:
        """Whether the whole prompt would get its pages, those of earlier prompts set aside."""
        for kind, pool in self.pages.pools.items():
            available = pool.num_free + pool.num_evictable
            owed = sum(self._num_owed(kind, s) for s in self._running)
            if self.pages.groups[kind].window is None:
                needed = self.pages.count(len(sequence.tokens))
                needed -= num_cached // self.pages.page_tokens
                # One more for each stream, or the newcomer would soon be sent back.
                needed += len(self._running)
            else:
                needed = self._num_window_pages(kind, len(sequence.tokens))
            if needed + owed > available:
                return False
        return True

    def _num_owed(self, kind: AttentionKind, sequence: Sequence) -> int:
        """Pages that a running prompt will still take."""
        run = sequence.runs[kind]
        if self.pages.groups[kind].window is None:
            return max(0, self.pages.count(len(sequence.tokens)) - run.end)
        return max(0, self._num_window_pages(kind, len(sequence.tokens)) - len(run.pages))

    def _num_window_pages(self, kind: AttentionKind, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens of a sequence hold at once, a window at most.

        A window and the row after it, beginning anywhere in a page.
        """
        window = self.pages.groups[kind].window
        assert window is not None
        size = self.pages.page_tokens
        most = (window + size - 2) // size + 1
        return most if num_tokens == 1 else min(most, self.pages.count(num_tokens))

    # ---- pages ---------------------------------------------------------------------------------
    def _reclaim(self, missing: dict[AttentionKind, int]) -> bool:
        """Whether the pools have the missing pages free, after evicting what that takes."""
        if self.cache is not None:
            return self.cache.reclaim(missing)
        return all(self.pages.pools[kind].num_free >= n for kind, n in missing.items())

    def _take_pages(self, sequence: Sequence, num_tokens: int) -> bool:
        """Allocate pages for positions below `num_tokens` if there are enough."""
        missing = self.pages.shortage(sequence.runs, num_tokens)
        if missing and not self._reclaim(missing):
            return False
        self.pages.extend(sequence.runs, num_tokens)
        return True

    def _take_prompt_pages(self, sequence: Sequence, num_tokens: int) -> bool:
        """The same for a prompt, which may send later prompts back, but no running stream."""
        while not self._take_pages(sequence, num_tokens):
            later = [s for s in self._running if s.rank > sequence.rank and not s.is_streaming]
            if not later:
                return False
            self._preempt(later[-1])
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to the queue; it is recomputed when its turn comes."""
        self.num_preemptions += 1
        self._granted.pop(sequence, None)
        self._preempted.append(sequence)
        self._running.remove(sequence)
        self.pages.release(sequence.runs)
        sequence.num_computed = 0
        insort(self._waiting, sequence, key=lambda s: s.rank)
