"""What the prefix cache saves, counted in rows, at the window and page sizes of the real models."""

from __future__ import annotations

import random
from collections.abc import Sequence as SequenceOf

import pytest
from engine_simulation import SimulatedModel, check_pages

from culet.engine.pages import PageGroup, Pages
from culet.engine.prefix_cache import PrefixCache
from culet.engine.scheduler import Scheduler, SchedulerConfig, Sequence, Want

WINDOW, PAGE = 512, 64


class Server:
    """Scheduler, prefix cache and the trivial model, run to completion."""

    def __init__(self, sliding_pages: int = 400, page_tokens: int = PAGE, cached: bool = True):
        groups = {"full": PageGroup(2000, None), "sliding": PageGroup(sliding_pages, WINDOW)}
        self.pages = Pages(page_tokens, groups)
        self.cache = PrefixCache(self.pages) if cached else None
        self.scheduler = Scheduler(SchedulerConfig(), self.pages, self.cache)
        self.model = SimulatedModel(self.pages)
        self.num_submitted = 0

    def start(self, prompt: SequenceOf[int], want: Want = Want.NONE) -> Sequence:
        sequence = Sequence(self.num_submitted, list(prompt), prompt_want=want)
        self.num_submitted += 1
        self.scheduler.submit(sequence)
        return sequence

    def finish(self, answers: dict[Sequence, SequenceOf[int]]) -> int:
        """Run until every sequence has its answer (given, not sampled); rows computed."""
        before = self.model.rows_computed
        left = {sequence: list(answer) for sequence, answer in answers.items()}
        while left:
            plan = self.scheduler.plan()
            sampled = self.model.run(plan)
            self.scheduler.commit(plan)
            for sequence in sampled:
                sequence.append(left[sequence].pop(0))
                if not left[sequence]:
                    del left[sequence]
                    self.scheduler.remove(sequence, keep=True)
        check_pages(self.pages, self.scheduler, self.model)
        return self.model.rows_computed - before


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(250) for _ in range(count)]


@pytest.mark.parametrize("num_prompt", [700, 640, 37])
def test_the_second_turn_of_a_chat_computes_what_is_new(num_prompt: int) -> None:
    """The template drops the thought, so turn two departs from where turn one's prompt ended."""
    server = Server()
    prompt, thought, answer, question = (
        tokens(n, seed) for seed, n in enumerate((num_prompt, 600, 400, 30))
    )
    first = server.start(prompt)
    assert server.finish({first: thought + answer}) == num_prompt + 999  # the last is not fed
    second = server.start(prompt + answer + question)
    assert server.finish({second: tokens(1, 9)}) == len(answer) + len(question)
    assert second.num_cached == num_prompt


def test_a_turn_that_keeps_everything_computes_only_the_question() -> None:
    server = Server()
    first = server.start(tokens(700, 0))
    server.finish({first: tokens(1000, 1)})
    second = server.start(first.tokens + tokens(30, 2))
    # The last token of the answer was never fed.
    assert server.finish({second: tokens(1, 3)}) == 31


@pytest.mark.parametrize("at_once", [True, False])
def test_a_prefix_of_1000_tokens_costs_its_prefill_once(at_once: bool) -> None:
    """Although nobody asked for the prefix alone, and nobody could know where the eight part."""
    prefix = tokens(1000, 0)
    prompts = [prefix + [250 + i] + tokens(100, i + 1) for i in range(8)]
    server = Server()
    if at_once:
        rows = server.finish({server.start(prompt): [1] for prompt in prompts})
    else:
        rows = sum(server.finish({server.start(prompt): [1]}) for prompt in prompts)
    assert rows == 1000 + 8 * 101
    uncached = Server(cached=False)
    assert uncached.finish({uncached.start(prompt): [1] for prompt in prompts}) == 8 * 1101


def test_the_same_prompt_again_computes_one_row() -> None:
    server = Server()
    for expected in (900, 1, 1):
        assert server.finish({server.start(tokens(900, 4)): [7]}) == expected


def test_choices_share_their_prompt() -> None:
    server = Server()
    choices = {server.start(tokens(333, 5)): [i, i, i] for i in range(4)}
    assert server.finish(choices) == 333 + 3 * 1 + 4 * 2


def test_rows_that_are_all_wanted_are_all_computed() -> None:
    """Such a request takes nothing from the cache, but gives."""
    server = Server()
    prompt = tokens(600, 6)
    assert server.finish({server.start(prompt): [1]}) == 600
    wanting = server.start(prompt, Want.HIDDEN)
    assert server.finish({wanting: [1]}) == 600
    assert wanting.num_cached == 0
    assert server.finish({server.start(prompt): [1]}) == 1


@pytest.mark.parametrize(("num_common", "expected"), [(900, 0), (1100, 0), (1199, 1199)])
def test_only_a_whole_window_is_a_hit(num_common: int, expected: int) -> None:
    """Inside the one window that is left, a later start would read what is no longer there."""
    server = Server()
    prompt = tokens(1200, 8)
    server.finish({server.start(prompt): [1]})
    pool, cache = server.pages.pools["sliding"], server.cache
    assert cache is not None
    while cache.num_points > 1:  # the end of the prompt is the last to go
        assert cache.reclaim({"sliding": pool.num_free + 1})
    other = server.start([*prompt[:num_common], 251, 252])
    server.finish({other: [1]})
    assert other.num_cached == expected


def test_fault_158_media_keys_part_prompts_of_equal_token_ids() -> None:
    server = Server()
    ids = tokens(300, 7)

    def start(picture: int) -> Sequence:
        keys = list(ids)
        keys[100:200] = [-1 - picture * 1000 - i for i in range(100)]
        sequence = Sequence(server.num_submitted, list(ids), keys=keys)
        server.num_submitted += 1
        server.scheduler.submit(sequence)
        return sequence

    assert server.finish({start(0): [1]}) == 300
    assert server.finish({start(1): [1]}) == 200
    assert server.finish({start(0): [1]}) == 1


def test_the_least_recently_used_goes_first() -> None:
    window_pages = WINDOW // PAGE + 2
    server = Server(sliding_pages=4 * window_pages)
    prompts = [tokens(1200, 10 + i) for i in range(3)]
    for prompt in prompts:
        server.finish({server.start(prompt): [1]})
    server.finish({server.start(prompts[0]): [1]})  # used again
    server.finish({server.start(tokens(1200, 20)): [1]})
    assert server.finish({server.start(prompts[0]): [1]}) == 1
    assert server.finish({server.start(prompts[1]): [1]}) == 1200
