"""From numbered corpus items to batches. A step's batches depend on its number alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from tokenizers import Tokenizer

from training.corpus import training_item
from training.corpus.split import Split
from training.dialogue import Segments, render
from training.forward import Batch, Grid

MAX_LENGTH = 512
ITEMS_PER_STEP = 64
# Padded tokens of one forward: bounds memory; items of a step are sorted by length first.
BATCH_TOKENS = 4096
# A batch's longest item against its shortest; more means fewer batches, with more padding.
SPREAD = 1.25


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


def step_batches(
    tokenizer: Tokenizer, seed: int, step: int, split: Split = "train"
) -> Iterator[Batch]:
    """The batches of one optimiser step, short items first; `split` is the stage."""
    first = step * ITEMS_PER_STEP
    items = [training_item(seed, number, split) for number in range(first, first + ITEMS_PER_STEP)]
    encoded = [encode(tokenizer, render(item)) for item in items]
    encoded = sorted((e for e in encoded if len(e[0]) <= MAX_LENGTH), key=lambda e: len(e[0]))
    group: list[tuple[list[int], list[int]]] = []
    for entry in encoded:
        longest = len(entry[0])
        if group and (
            longest * (len(group) + 1) > BATCH_TOKENS or longest > SPREAD * len(group[0][0]) + 8
        ):
            yield _batch(group)
            group = []
        group.append(entry)
    if group:
        yield _batch(group)


def _batch(group: list[tuple[list[int], list[int]]]) -> Batch:
    ids: list[int] = []
    query: list[int] = []
    target: list[int] = []
    for tokens, places in group:
        query += [len(ids) + place for place in places]
        target += [tokens[place + 1] for place in places]
        ids += tokens[:-1]
    return Batch(
        torch.tensor(ids),
        torch.tensor(query),
        torch.tensor(target),
        _grid([range(len(tokens) - 1) for tokens, _ in group]),
        _grid([places for _, places in group]),
    )


def _grid(rows: Sequence[Sequence[int]]) -> Grid:
    """The grid of rows of positions."""
    width = max(map(len, rows))
    place = [index * width + column for index, row in enumerate(rows) for column in range(len(row))]
    position = [position for row in rows for position in row]
    return Grid(torch.tensor(position), torch.tensor(place), len(rows), width)
