"""Page accounting: how often each page of each group is held, and which pages a sequence has.

Pure bookkeeping on page numbers; knows no arrays, token ids, requests or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from culet.models.config import AttentionKind


@dataclass(frozen=True, slots=True)
class PageGroup:
    """The layers of one attention kind that own K/V; they share one numbering of pages.

    Attributes:
        num_pages: pages allocated for the group.
        window: tokens that a row sees, itself included; None where it sees all.
    """

    num_pages: int
    window: int | None


class PagePool:
    """Reference counts and the free list of one group's pages.

    Attributes:
        num_evictable: pages that nothing but the prefix cache holds.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_evictable = 0
        self._references = [0] * num_pages
        self._cached = [0] * num_pages  # those of the references that are the prefix cache's
        # A stack: what was freed last is given out first, so memory never used stays untouched.
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    def references(self, page: int) -> int:
        return self._references[page]

    def is_evictable(self, page: int) -> bool:
        """Nothing but the prefix cache holds the page."""
        return 0 < self._references[page] == self._cached[page]

    def allocate(self) -> int:
        """A free page, held once. The caller has made sure that there is one."""
        page = self._free.pop()
        assert self._references[page] == 0
        self._references[page] = 1
        return page

    def retain(self, page: int, *, for_cache: bool = False) -> None:
        """Hold a page that is held already once more."""
        assert self._references[page] > 0, "only a held page can be shared"
        self._count(page, 1, for_cache)

    def release(self, page: int, *, for_cache: bool = False) -> None:
        """Hold a page once less; at none it is free."""
        assert self._references[page] > 0, "page released more often than held"
        self._count(page, -1, for_cache)
        if self._references[page] == 0:
            self._free.append(page)

    def _count(self, page: int, change: int, for_cache: bool) -> None:
        self.num_evictable -= self.is_evictable(page)
        self._references[page] += change
        self._cached[page] += change if for_cache else 0
        self.num_evictable += self.is_evictable(page)


@dataclass(slots=True)
class PageRun:
    """The pages of one sequence in one group, in order of position.

    Attributes:
        first: absolute number (position // page_tokens) of `pages[0]`; grows as pages leave the
            window.
        pages: page ids, each held once by this run.
    """

    first: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Absolute number of the page after the last one."""
        return self.first + len(self.pages)


Runs = dict[AttentionKind, PageRun]


class Pages:
    """All groups' pools, and the rule of which pages a sequence needs at which position."""

    def __init__(self, page_tokens: int, groups: Mapping[AttentionKind, PageGroup]) -> None:
        self.page_tokens = page_tokens
        self.groups = dict(groups)
        self.pools: dict[AttentionKind, PagePool] = {
            kind: PagePool(group.num_pages) for kind, group in groups.items()
        }

    def new_runs(self) -> Runs:
        return {kind: PageRun() for kind in self.groups}

    def count(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens from position 0 on."""
        return -(-num_tokens // self.page_tokens)

    def first_needed(self, kind: AttentionKind, position: int) -> int:
        """Absolute number of the first page that the row at `position` reads.

        It sees positions s > position - window.
        """
        window = self.groups[kind].window
        return 0 if window is None else max(0, position - window + 1) // self.page_tokens

    def shortage(self, runs: Runs, num_tokens: int) -> dict[AttentionKind, int]:
        """Per group, pages that lack in `runs` to hold positions below `num_tokens`; no zeros."""
        end = self.count(num_tokens)
        return {kind: end - run.end for kind, run in runs.items() if end > run.end}

    def extend(self, runs: Runs, num_tokens: int) -> None:
        """Allocate what `shortage` names. The caller has made sure that the pools have it."""
        for kind, missing in self.shortage(runs, num_tokens).items():
            pool = self.pools[kind]
            runs[kind].pages.extend(pool.allocate() for _ in range(missing))

    def trim(self, runs: Runs, next_position: int) -> None:
        """Let go of pages that no row at `next_position` or later reads."""
        for kind, run in runs.items():
            left = min(self.first_needed(kind, next_position), run.end) - run.first
            if left > 0:
                for page in run.pages[:left]:
                    self.pools[kind].release(page)
                del run.pages[:left]
                run.first += left

    def release(self, runs: Runs) -> None:
        """Let go of every page of `runs` and empty them."""
        for kind, run in runs.items():
            for page in run.pages:
                self.pools[kind].release(page)
            run.first, run.pages = 0, []
