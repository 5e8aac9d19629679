"""A state machine over submit, step, cancel, finish and evict, against the trivial model."""

from __future__ import annotations

from engine_simulation import VOCAB, SimulatedModel, check_pages, solo
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from culet.engine.pages import PageGroup, Pages
from culet.engine.prefix_cache import PrefixCache
from culet.engine.scheduler import Scheduler, SchedulerConfig, Sequence, Want
from culet.errors import CapacityError

WINDOW, MAX_SEQS, MAX_LOGIT_ROWS = 7, 4, 7


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        page_tokens=st.sampled_from([2, 4]),
        full_tokens=st.integers(32, 160),
        sliding_tokens=st.integers(12, 120),
        step_tokens=st.integers(MAX_SEQS + 1, 24),
        mixed=st.integers(1, 16),
        cached=st.booleans(),
        kinds=st.sampled_from([("full", "sliding"), ("full",), ("sliding",)]),
    )
    def start(
        self, page_tokens, full_tokens, sliding_tokens, step_tokens, mixed, cached, kinds
    ) -> None:
        groups = {
            "full": PageGroup(full_tokens // page_tokens, None),
            "sliding": PageGroup(sliding_tokens // page_tokens, WINDOW),
        }
        self.pages = Pages(page_tokens, {kind: groups[kind] for kind in kinds})
        self.max_tokens = min(full_tokens // page_tokens * page_tokens, 80)
        cache = PrefixCache(self.pages) if cached else None
        config = SchedulerConfig(MAX_SEQS, step_tokens, mixed, 2, MAX_LOGIT_ROWS, max_waiting=8)
        self.scheduler = Scheduler(config, self.pages, cache)
        self.model = SimulatedModel(self.pages)
        self.goal: dict[Sequence, int] = {}
        self.num_submitted = 0

    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=45),
        num_new=st.integers(1, 20),
        priority=st.sampled_from([0, 0, 0, 1]),
        want=st.sampled_from([Want.NONE, Want.NONE, Want.LOGITS, Want.HIDDEN]),
        repeat=st.booleans(),
    )
    def submit(self, prompt, num_new, priority, want, repeat) -> None:
        if repeat and self.goal:  # a later turn of a conversation, or the same question again
            prompt = list(self.goal)[-1].tokens[:40] + prompt[:4]
        num_new = min(num_new, self.max_tokens - len(prompt))
        if num_new < 1:
            return
        try:
            self.scheduler.check(len(prompt) + num_new, 1)
        except CapacityError:
            # More than were let in may wait: whoever lost its pages waits again.
            assert self.scheduler.num_waiting >= 8
            return
        sequence = Sequence(self.num_submitted, list(prompt), prompt_want=want, priority=priority)
        self.num_submitted += 1
        self.goal[sequence] = len(prompt) + num_new
        self.scheduler.submit(sequence)

    @precondition(lambda self: self.goal)
    @rule()
    def step(self) -> None:
        scheduler = self.scheduler
        streams = {s for s in scheduler._running if s.is_streaming}
        waited = list(scheduler._waiting)
        plan = scheduler.plan()
        assert plan.chunks, "live sequences, but no progress"
        rows = sum(chunk.num_rows for chunk in plan.chunks)
        assert rows <= scheduler.config.step_tokens
        planned = {chunk.sequence for chunk in plan.chunks}
        # A running stream has a row in every step unless its pages had to go.
        assert streams <= planned | set(plan.preempted)
        # One that lost its pages may come back in the same step, but then as a prompt.
        kept = streams & planned - set(plan.preempted)
        if kept:
            prompt_rows = rows - len(kept)
            assert prompt_rows <= scheduler.config.mixed_step_tokens
        self.check_first_come(waited)
        for chunk in plan.chunks:
            first_owed = max(chunk.start, chunk.sequence.num_reported)
            if chunk.sequence.wants_prompt:  # every row of such a prompt goes through
                assert chunk.reports and chunk.num_kept == chunk.end - first_owed
                assert chunk.sequence.num_cached == 0
            else:
                assert chunk.num_kept == int(chunk.ends)
            if chunk.sequence.wants_prompt and chunk.sequence.prompt_want is Want.LOGITS:
                assert chunk.num_logits == chunk.num_kept
            else:
                assert chunk.num_logits == int(chunk.ends)
        assert sum(chunk.num_logits for chunk in plan.chunks) <= MAX_LOGIT_ROWS + MAX_SEQS
        sampled = self.model.run(plan)
        scheduler.commit(plan)
        for sequence, token in sampled.items():
            sequence.append(token)
            if len(sequence.tokens) == self.goal[sequence]:
                assert sequence.tokens == solo(
                    sequence.tokens[: sequence.num_prompt],
                    len(sequence.tokens) - sequence.num_prompt,
                )
                del self.goal[sequence]
                scheduler.remove(sequence, keep=True)

    def check_first_come(self, waited: list[Sequence]) -> None:
        """Nobody starts before an earlier one of the same priority, unless that one is waiting for
        a prompt that begins alike and is being computed."""
        scheduler = self.scheduler
        still = [s for s in waited if s in scheduler._waiting]
        started = [s for s in waited if s in scheduler._running]
        for sequence in started:
            for other in still:
                if other.rank < sequence.rank and not other.common:
                    raise AssertionError("overtaken")

    @precondition(lambda self: self.goal)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        sequence = data.draw(st.sampled_from(list(self.goal)))
        del self.goal[sequence]
        self.scheduler.remove(sequence, keep=False)
        assert all(not run.pages for run in sequence.runs.values())

    @precondition(lambda self: self.scheduler.cache is not None)
    @rule(count=st.integers(1, 5))
    def evict(self, count) -> None:
        pools = self.pages.pools
        before = {kind: pool.num_free for kind, pool in pools.items()}
        wanted = {kind: free + count for kind, free in before.items()}
        could = all(pool.num_evictable >= count for pool in pools.values())
        assert self.scheduler.cache.reclaim(wanted) == could
        if not could:
            assert before == {kind: pool.num_free for kind, pool in pools.items()}

    @invariant()
    def pages_add_up(self) -> None:
        if hasattr(self, "pages"):
            check_pages(self.pages, self.scheduler, self.model)

    def teardown(self) -> None:
        if not hasattr(self, "pages"):
            return
        steps = 0
        while self.goal:
            self.step()
            steps += 1
            assert steps < 5000, "work does not come to an end"
        if self.scheduler.cache is not None:
            self.scheduler.cache.clear()
        check_pages(self.pages, self.scheduler, self.model)
        assert all(pool.num_free == pool.num_pages for pool in self.pages.pools.values())


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
