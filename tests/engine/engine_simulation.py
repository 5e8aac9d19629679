"""A trivial model over simulated pages: what a row reads through its pages decides the next token.

Each page slot remembers which token key was written to it, so a page that two sequences share
wrongly, that came free too early or that a copy missed shows as a row that reads something else
than its own past.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence as SequenceOf

from culet.engine.pages import Pages
from culet.engine.prefix_cache import PrefixCache, _Node
from culet.engine.scheduler import Chunk, Scheduler, Sequence, StepPlan
from culet.models.config import AttentionKind

VOCAB = 3  # small, so that prompts and answers often begin alike


def next_token(history: SequenceOf[int]) -> int:
    """The trivial model: a token that depends on everything before it."""
    return hashlib.blake2b(bytes(t % 256 for t in history), digest_size=2).digest()[0] % VOCAB


def solo(prompt: SequenceOf[int], num_new: int) -> list[int]:
    """Prompt and answer of a sequence that runs alone."""
    tokens = list(prompt)
    for _ in range(num_new):
        tokens.append(next_token(tokens))
    return tokens


class SimulatedModel:
    """Page contents, and a forward pass that reads them."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.rows_computed = 0
        self._stored: dict[AttentionKind, list[list[int | None]]] = {
            kind: [[None] * pages.page_tokens for _ in range(group.num_pages)]
            for kind, group in pages.groups.items()
        }

    def run(self, plan: StepPlan) -> dict[Sequence, int]:
        """Execute a plan; the token sampled for each chunk that ends its sequence."""
        for copy in plan.copies:
            stored = self._stored[copy.kind]
            stored[copy.target] = list(stored[copy.source])
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.end):
                self._write(chunk.sequence, position)
        return {
            chunk.sequence: token
            for chunk in plan.chunks
            if (token := self._read_back(chunk)) is not None
        }

    def stored(self, kind: AttentionKind, page: int) -> list[int | None]:
        """The keys that a page's slots hold."""
        return self._stored[kind][page]

    def _write(self, sequence: Sequence, position: int) -> None:
        self.rows_computed += 1
        for kind, run in sequence.runs.items():
            number, slot = divmod(position, self.pages.page_tokens)
            page = run.pages[number - run.first]
            self._stored[kind][page][slot] = sequence.keys[position]

    def _read_back(self, chunk: Chunk) -> int | None:
        sequence = chunk.sequence
        for position in range(chunk.start, chunk.end):
            for kind, run in sequence.runs.items():
                window = self.pages.groups[kind].window
                first = 0 if window is None else max(0, position - window + 1)
                seen = []
                for s in range(first, position + 1):
                    number, slot = divmod(s, self.pages.page_tokens)
                    assert number >= run.first, "a page left the window too early"
                    seen.append(self._stored[kind][run.pages[number - run.first]][slot])
                assert seen == sequence.keys[first : position + 1]
        if not chunk.ends:
            return None
        assert chunk.num_logits >= 1
        return next_token(sequence.keys[: chunk.end])


def check_pages(pages: Pages, scheduler: Scheduler, model: SimulatedModel) -> None:
    """Reference counts equal what is reachable, nothing is lost, windows are as the rule says."""
    for kind, pool in pages.pools.items():
        held = Counter(
            page for sequence in scheduler.sequences() for page in sequence.runs[kind].pages
        )
        if scheduler.cache is not None:
            kept = scheduler.cache.held_pages(kind)
            assert kind == "sliding" or max(kept.values(), default=0) <= 1
            held += kept
        for page in range(pool.num_pages):
            assert pool.references(page) == held[page]
        of_sequences = {p for s in scheduler.sequences() for p in s.runs[kind].pages}
        assert pool.num_evictable == len(held.keys() - of_sequences)
        assert pool.num_free == pool.num_pages - len(held)
    for sequence in scheduler.sequences():
        for kind, run in sequence.runs.items():
            assert len(run.pages) == len(set(run.pages))
            if run.pages:
                assert run.first == pages.first_needed(kind, sequence.num_computed)
                assert run.end >= pages.count(sequence.num_computed)
    if scheduler.cache is not None:
        check_tree(scheduler.cache, model)


def check_tree(cache: PrefixCache, model: SimulatedModel) -> None:
    """Every leaf has a point, windows are counted right, pages hold what their keys say."""
    windows: Counter[_Node] = Counter()
    assert not cache._points.keys() & cache._spare.keys()
    for point in [*cache._points, *cache._spare]:
        windows.update(point.window)
        assert point.node.points[point.offset] is point
    num_points = 0
    for node in cache._nodes():
        num_points += len(node.points)
        assert node.points or node.children
        assert not node.children or len(node.keys) == cache._page_tokens
        assert node.num_windows == windows[node]
        assert (node.sliding_page is not None) == (node.num_windows > 0)
        assert node.sliding_tokens <= len(node.keys)
        if node.full_page is not None:
            assert model.stored("full", node.full_page)[: len(node.keys)] == list(node.keys)
        if node.sliding_page is not None:
            kept = model.stored("sliding", node.sliding_page)[: node.sliding_tokens]
            assert kept == list(node.keys[: node.sliding_tokens])
        assert all(offset <= len(node.keys) for offset in node.points)
    assert num_points == cache.num_points
