"""From numbered corpus items to padded batches. A step's batches depend on its number alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tokenizers import Tokenizer

from training.corpus import training_item
from training.dialogue import Segments, render
from training.forward import Batch

MAX_LENGTH = 512
ITEMS_PER_STEP = 64
# Padded tokens of one forward: bounds memory; items of a step are sorted by length first.
BATCH_TOKENS = 4096


def encode(tokenizer: Tokenizer, segments: Segments) -> tuple[list[int], list[int]]:
    """Ids of a text, and the positions whose next token is trained."""
    ids: list[int] = []
    query: list[int] = []
    for text, trained in segments.pieces:
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        if trained:
            query += range(len(ids) - 1, len(ids) + len(piece) - 1)
        ids += piece
    # What follows the last trained token is read by nobody.
    return ids[: query[-1] + 2], query


def step_batches(tokenizer: Tokenizer, seed: int, step: int) -> Iterator[Batch]:
    """The batches of one optimiser step, short items first."""
    first = step * ITEMS_PER_STEP
    items = [training_item(seed, number) for number in range(first, first + ITEMS_PER_STEP)]
    encoded = [encode(tokenizer, render(item)) for item in items]
    encoded = sorted((e for e in encoded if len(e[0]) <= MAX_LENGTH), key=lambda e: len(e[0]))
    group: list[tuple[list[int], list[int]]] = []
    for entry in encoded:
        longest = len(entry[0])
        # A group ends when it is full, or when padding would be over a quarter of its shortest.
        if group and (
            longest * (len(group) + 1) > BATCH_TOKENS or longest > 1.25 * len(group[0][0]) + 8
        ):
            yield _padded(group)
            group = []
        group.append(entry)
    if group:
        yield _padded(group)


def _padded(group: list[tuple[list[int], list[int]]]) -> Batch:
    length = max(len(ids) for ids, _ in group) - 1
    width = max(len(query) for _, query in group)
    ids = torch.zeros((len(group), length), dtype=torch.int64)
    query = torch.zeros((len(group), width), dtype=torch.int64)
    target = torch.full((len(group), width), -100, dtype=torch.int64)
    for row, (tokens, places) in enumerate(group):
        ids[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        query[row, : len(places)] = torch.tensor(places)
        target[row, : len(places)] = torch.tensor([tokens[place + 1] for place in places])
    return Batch(ids, query, target)
