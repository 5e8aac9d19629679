"""The prefix cache: a tree over pages, keyed by token ids, that finds what is already computed.

A node is one page of tokens. It holds the page of the full layers for as long as it lives, and the
page of the sliding layers only where some kept window needs it. A *point* is a place (an end of a
prompt or of an answer, mostly) whose window is kept; points are what is evicted, least recently
used first, and a node that no point lies on or below goes at once. A sequence may start at any
position whose whole window is there, so a hit is exact. Spare points inside a prompt let others
depart anywhere before its end, for as long as there is room.

Keys are integers, one a token: the token id, or for media a number made from its content. Pure
bookkeeping: knows no arrays, requests or time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from culet.engine.pages import Pages, Runs
from culet.models.config import AttentionKind

_WINDOWED: AttentionKind = "sliding"
_GROWING: AttentionKind = "full"


@dataclass(slots=True, eq=False)
class _Node:
    """Tokens of one page, at one place in the tree.

    Attributes:
        number: absolute page number (position // page_tokens).
        keys: of the tokens that both this node and its `full_page` hold; only a node whose page is
            complete has children.
        sliding_tokens: how many leading tokens `sliding_page` holds; 0 without one.
        num_windows: points that keep this node's sliding page.
        children: by first key; several may begin alike.
        points: those that end in this node, by number of its tokens they take.
    """

    number: int
    parent: _Node | None
    keys: tuple[int, ...] = ()
    full_page: int | None = None
    sliding_page: int | None = None
    sliding_tokens: int = 0
    num_windows: int = 0
    children: dict[int, list[_Node]] = field(default_factory=dict)
    points: dict[int, _Point] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Point:
    """A place where sequences may start: `offset` tokens into `node`, with a window kept."""

    node: _Node
    offset: int
    window: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """The longest usable beginning of a sequence.

    Attributes:
        num_tokens: that need not be computed; 0 for a miss.
        num_common: tokens that the tree knows, with or without their window.
        path: nodes of the usable part, from the first page on.
    """

    num_tokens: int
    num_common: int
    path: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Page `target` must become a copy of page `source` before the step runs."""

    kind: AttentionKind
    source: int
    target: int


class PrefixCache:
    """A tree over the pages of one model's cache."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._page_tokens = pages.page_tokens
        self._has_full = _GROWING in pages.groups
        self._has_sliding = _WINDOWED in pages.groups
        self._root = _Node(number=-1, parent=None)
        # Least recently used first; all spare ones go before any other.
        self._spare: OrderedDict[_Point, None] = OrderedDict()
        self._points: OrderedDict[_Point, None] = OrderedDict()

    # ---- looking up ----------------------------------------------------------------------------
    def match(self, keys: Sequence[int], limit: int) -> Hit:
        """The longest beginning of `keys`, up to `limit` tokens, that a sequence can start from.

        Changes nothing; the hit holds until the tree changes.
        """
        size = self._page_tokens
        path: list[_Node] = []
        node, num_common, common = self._root, 0, size
        while common == size and num_common < limit:
            piece = tuple(keys[num_common : min(num_common + size, limit)])
            child, common = self._closest(node, piece)
            if child is None:
                break
            path.append(child)
            node, num_common = child, num_common + common
        usable = self._last_usable(path, num_common)
        return Hit(usable, num_common, tuple(path[: self._pages.count(usable)]))

    def touch(self, hit: Hit) -> None:
        """Make the end of a hit the most recently used point, and a point if it is none yet."""
        if not hit.path:
            return
        node = hit.path[-1]
        offset = hit.num_tokens - node.number * self._page_tokens
        point = node.points.get(offset)
        if point is None:
            point = self._add_point(hit.path, offset, None)
        self._use(point)

    def acquire(self, hit: Hit, runs: Runs) -> list[PageCopy]:
        """Let empty `runs` hold the pages of a hit.

        Complete pages are shared. Where the hit ends inside a page, a fresh page is allocated in
        each group, to be filled by the copies returned; the caller has made sure that there is one.
        """
        num_whole, rest = divmod(hit.num_tokens, self._page_tokens)
        sources: dict[AttentionKind, int] = {}
        for kind, run in runs.items():
            run.first = self._pages.first_needed(kind, hit.num_tokens)
            for node in hit.path[run.first :]:
                page = node.full_page if kind == _GROWING else node.sliding_page
                assert page is not None
                if node.number < num_whole:
                    self._pages.pools[kind].retain(page)
                    run.pages.append(page)
                else:
                    sources[kind] = page
        if not rest:
            return []
        self._pages.extend(runs, hit.num_tokens)
        return [PageCopy(kind, page, runs[kind].pages[-1]) for kind, page in sources.items()]

    # ---- adding --------------------------------------------------------------------------------
    def insert(
        self, keys: Sequence[int], num_tokens: int, runs: Runs, *, is_spare: bool = False
    ) -> None:
        """Keep the first `num_tokens` tokens of a sequence, and the window that ends there.

        `runs` must still hold the window before `num_tokens`. Pages are shared, not taken over.
        A spare point is kept as long as nothing else has a use for its pages.
        """
        size = self._page_tokens
        path: list[_Node] = []
        node = self._root
        for number in range(self._pages.count(num_tokens)):
            piece = tuple(keys[number * size : min((number + 1) * size, num_tokens)])
            node = self._descend(node, number, piece, runs)
            path.append(node)
        if not path:
            return
        offset = num_tokens - node.number * size
        point = node.points.get(offset)
        if point is None:
            point = self._add_point(path, offset, runs)
            (self._spare if is_spare else self._points)[point] = None
        elif not is_spare:
            self._use(point)

    def _descend(self, node: _Node, number: int, piece: tuple[int, ...], runs: Runs) -> _Node:
        """The child of `node` that holds `piece`; extended or made where there is none."""
        child, common = self._closest(node, piece)
        if child is not None and common == len(piece):
            return child
        page = runs[_GROWING].pages[number] if self._has_full else None
        if child is not None and common == len(child.keys):
            # The same tokens and more: the longer page takes the place of the shorter.
            child.keys = piece
            if page is not None:
                self._pages.pools[_GROWING].retain(page, for_cache=True)
                assert child.full_page is not None
                self._pages.pools[_GROWING].release(child.full_page, for_cache=True)
                child.full_page = page
            return child
        if page is not None:
            self._pages.pools[_GROWING].retain(page, for_cache=True)
        child = _Node(number, node, piece, page)
        node.children.setdefault(piece[0], []).append(child)
        return child

    def _add_point(self, path: Sequence[_Node], offset: int, runs: Runs | None) -> _Point:
        """Make a point at the end of `path`; sliding pages that the tree lacks come from `runs`."""
        window: list[_Node] = []
        if self._has_sliding:
            num_tokens = path[-1].number * self._page_tokens + offset
            # From one token earlier than the next row needs, since of a prompt that is known as a
            # whole the last token is computed again.
            first = self._pages.first_needed(_WINDOWED, num_tokens - 1)
            for node in reversed(path[first:]):
                wanted = offset if node is path[-1] else self._page_tokens
                if node.sliding_tokens < wanted and not self._adopt(node, wanted, runs):
                    break  # what lies before a gap is of no use to this point
                node.num_windows += 1
                window.append(node)
        point = _Point(path[-1], offset, tuple(window))
        path[-1].points[offset] = point
        return point

    def _use(self, point: _Point) -> None:
        """Make a point the most recently used one."""
        self._spare.pop(point, None)
        self._points[point] = None
        self._points.move_to_end(point)

    def _adopt(self, node: _Node, num_tokens: int, runs: Runs | None) -> bool:
        """Let `node` share a sequence's sliding page, which holds `num_tokens` of its tokens."""
        if runs is None:
            return False
        run = runs[_WINDOWED]
        if not run.first <= node.number < run.end:
            return False
        page = run.pages[node.number - run.first]
        self._pages.pools[_WINDOWED].retain(page, for_cache=True)
        if node.sliding_page is not None:
            self._pages.pools[_WINDOWED].release(node.sliding_page, for_cache=True)
        node.sliding_page, node.sliding_tokens = page, num_tokens
        return True

    # ---- walking -------------------------------------------------------------------------------
    def _closest(self, node: _Node, piece: tuple[int, ...]) -> tuple[_Node | None, int]:
        """The child that shares the longest beginning with `piece`, and that beginning's length."""
        best, best_common = None, 0
        for child in node.children.get(piece[0], ()):
            common = num_common_keys(child.keys, piece)
            if common > best_common:
                best, best_common = child, common
        return best, best_common

    def _last_usable(self, path: Sequence[_Node], num_common: int) -> int:
        """The last position up to `num_common` whose whole window the path holds; 0 if none."""
        if not self._has_sliding:
            return num_common
        size = self._page_tokens
        complete_before: list[int] = []  # per node, those in a row before it with a whole page
        run = 0
        for node in path:
            complete_before.append(run)
            run = run + 1 if node.sliding_tokens == size else 0
        for index in reversed(range(len(path))):
            offset = min(path[index].sliding_tokens, num_common - index * size)
            position = index * size + offset
            needed = index - self._pages.first_needed(_WINDOWED, position)
            # Earlier places in the same page need the same pages or more, so one check decides.
            if offset > 0 and complete_before[index] >= needed:
                return position
        return 0

    def _nodes(self) -> Iterator[_Node]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node is not self._root:
                yield node
            for children in node.children.values():
                stack.extend(children)

    # ---- giving back ---------------------------------------------------------------------------
    @property
    def num_points(self) -> int:
        return len(self._points) + len(self._spare)

    def held_pages(self, kind: AttentionKind) -> Counter[int]:
        """Page ids that the tree holds, and how often.

        A sliding page can be held twice: by the node that the sequence's prompt ended in, which
        another sequence then continued differently, and by the node of its own continuation.
        """
        pages = (n.full_page if kind == _GROWING else n.sliding_page for n in self._nodes())
        return Counter(page for page in pages if page is not None)

    def reclaim(self, wanted: dict[AttentionKind, int]) -> bool:
        """Evict until each pool has as many free pages as `wanted` says.

        Returns:
            False, with nothing evicted, if evicting everything would not be enough.
        """
        pools = self._pages.pools
        if any(pools[k].num_free + pools[k].num_evictable < n for k, n in wanted.items()):
            return False
        for kind, count in wanted.items():
            while pools[kind].num_free < count:
                self._evict_for(kind)
        return True

    def clear(self) -> None:
        """Forget everything."""
        for point in [*self._spare, *self._points]:
            self._drop(point)

    def _evict_for(self, kind: AttentionKind) -> None:
        """Drop the first point, in order of eviction, that frees a page; if none, the first."""
        frees = self._frees_full if kind == _GROWING else self._frees_sliding
        first = next(chain(self._spare, self._points))
        self._drop(next(filter(frees, chain(self._spare, self._points)), first))

    def _frees_sliding(self, point: _Point) -> bool:
        pool = self._pages.pools[_WINDOWED]
        return any(
            node.num_windows == 1
            and node.sliding_page is not None
            and pool.is_evictable(node.sliding_page)
            for node in point.window
        )

    def _frees_full(self, point: _Point) -> bool:
        pool = self._pages.pools[_GROWING]
        node, leaving = point.node, 1  # points and children of `node` that would leave it
        while node.parent is not None and len(node.points) + _num_children(node) == leaving:
            if node.full_page is not None and pool.is_evictable(node.full_page):
                return True
            node = node.parent
        return False

    def _drop(self, point: _Point) -> None:
        """Remove a point, the windows that only it kept, and nodes that no point needs now."""
        self._spare.pop(point, None)
        self._points.pop(point, None)
        for node in point.window:
            node.num_windows -= 1
            if node.num_windows == 0:
                assert node.sliding_page is not None
                self._pages.pools[_WINDOWED].release(node.sliding_page, for_cache=True)
                node.sliding_page, node.sliding_tokens = None, 0
        node = point.node
        del node.points[point.offset]
        while node.parent is not None and not node.points and not node.children:
            assert node.num_windows == 0
            if node.full_page is not None:
                self._pages.pools[_GROWING].release(node.full_page, for_cache=True)
            siblings = node.parent.children[node.keys[0]]
            siblings.remove(node)
            if not siblings:
                del node.parent.children[node.keys[0]]
            node = node.parent


def _num_children(node: _Node) -> int:
    return sum(len(children) for children in node.children.values())


def num_common_keys(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning; a and b are of one sequence type.

    Halving on slices that are compared natively, so that long prompts cost microseconds.
    """
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
