"""Where weights are held: options to decisions, and what the system is told about mapped bytes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, cast, get_args

from culet import system
from culet.errors import UsageError
from culet.formats.binding import Binding
from culet.formats.checkpoint import Checkpoint
from culet.formats.packed import LoadMode, PackedCheckpoint
from culet.models.config import ModelConfig
from culet.ops.interface import Placement

_log = logging.getLogger("culet")

EmbedWeights = Literal["auto", "device", "host", "disk"]
_TABLE = "per_layer_token_embd"


@dataclass(frozen=True, slots=True)
class Holding:
    """How a model's bytes are held.

    Attributes:
        load_mode: of a packed file's weights, and of the per-layer table.
        table: where the per-layer table is.
        locks_table: the table is read through the mapping, and kept in RAM.
    """

    load_mode: LoadMode
    table: Placement
    locks_table: bool = False


def decide_holding(embed_weights: str, load_mode: str) -> Holding:
    """What the two options mean together.

    `auto` is `disk`: rows are read through the mapping when a token needs them. With `none` it is
    `host`, since nothing shall be mapped; with `mlock` the mapped table is locked like the rest,
    unless `disk` was asked for.

    Raises:
        UsageError: there is no such option.
    """
    if load_mode not in get_args(LoadMode):
        raise UsageError(
            f"load_mode {load_mode!r} does not exist; there are {', '.join(get_args(LoadMode))}"
        )
    if embed_weights not in get_args(EmbedWeights):
        raise UsageError(
            f"embed_weights {embed_weights!r} does not exist; there are "
            f"{', '.join(get_args(EmbedWeights))}"
        )
    mode = cast(LoadMode, load_mode)
    if embed_weights == "auto":
        table: Placement = "host" if mode == "none" else "disk"
        return Holding(mode, table, locks_table=mode == "mlock")
    return Holding(mode, table=cast(Placement, embed_weights))


def check_table_can_move(config: ModelConfig, embed_weights: str, label: str) -> None:
    """Refuse to move the only table of a model: the head multiplies with it.

    Raises:
        UsageError: the model has no per-layer table and the option asks for another place.
    """
    if embed_weights in ("host", "disk") and not config.ple_dim:
        raise UsageError(
            f"{label}: embed_weights is {embed_weights!r}, but the model's only table is the token "
            "table, which is also the LM head and stays where the other weights are"
        )


def tell_system(checkpoint: Checkpoint, binding: Binding, holding: Holding) -> None:
    """Advise the system on mapped bytes, and lock them where that was asked for.

    A lock that isn't allowed is one warning; everything works without it.
    """
    table = binding.sources.get(_TABLE)
    if table is not None and holding.table == "disk" and not holding.locks_table:
        checkpoint.expect_random_access(table.name)
    if holding.load_mode != "mlock":
        return
    names = {source.name for source in binding.sources.values()}
    if not isinstance(checkpoint, PackedCheckpoint):
        names.clear()  # the planes of other files are private memory
    if table is not None:
        names.discard(table.name)
        if holding.locks_table:
            names.add(table.name)
    num_locked = 0
    try:
        for name in sorted(names):
            num_locked += checkpoint.lock(name)
    except OSError as error:
        limit = system.locked_memory_limit()
        bound = "unknown" if limit is None else f"{limit >> 10} KiB"
        _log.warning(
            "%s: %d MiB locked in RAM, no more (%s); the limit is %s, `ulimit -l unlimited` or "
            "LimitMEMLOCK= of the service raises it",
            checkpoint.path,
            num_locked >> 20,
            error.strerror,
            bound,
        )
