"""What a model file says about its tokens, and how GGUF metadata says it.

Decides by content, not by label, which pieces are control tokens, where generation stops and in
which order pairs merge. Knows nothing of the native tables that do the merging.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from culet.errors import ModelFileError, UnsupportedModelError

SPACE_MARK = "\u2581"

# Control tokens of all Gemma generations, whatever type a file gives them: old Gemma 4 files call
# <eos> normal, new ones call the tool and channel marks user-defined.
_GEMMA4_CONTROL = (
    "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
    '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|image>", "<image|>",
    "<|image|>", "<|audio>", "<audio|>", "<|audio|>", "<|video|>",
)  # fmt: skip
_GEMMA3_CONTROL = (
    "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>",
    "<start_of_audio>", "<end_of_audio>", "<audio_soft_token>",
)  # fmt: skip
_COMMON_CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
CONTROL = _COMMON_CONTROL + _GEMMA3_CONTROL + _GEMMA4_CONTROL
_STOPS = ("<eos>", "<turn|>", "<|tool_response>", "<end_of_turn>")

# Pieces that are text even where a file calls them control: runs of white space, and HTML tags
# (</s> closes a strike-through here, it ends no sequence).
_TEXT_PIECE = re.compile(
    rf"[ {SPACE_MARK}\t\n]+|</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong"
    r"|em|b|i|u|s|sub|sup|code|a|html|body|img|span|bbox|ul|li|div|iframe|footer)>"
)

# Values of tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL_TYPE, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

MAX_PIECES = (1 << 20) - 1  # csrc/bpe.h packs an id in 20 bits


@dataclass(frozen=True)
class Vocabulary:
    """Pieces and what they mean.

    Attributes:
        pieces: the bytes of each id.
        merges: b"left right" in the order of application; None: pairs merge by score.
        scores: float32 [pieces]; None exactly if there are merges.
        control_ids: never made from text, hidden in output.
        user_defined_ids: text that is taken whole wherever it is spelled.
        inert_ids: unused and unknown pieces.
        unknown_id: for bytes without a byte piece; -1: none.
        stop_ids: generation ends after one of these.
        notes: what was repaired, one sentence each, for the log.
    """

    pieces: Sequence[bytes]
    merges: Sequence[bytes] | None
    scores: NDArray[np.float32] | None
    control_ids: tuple[int, ...]
    user_defined_ids: tuple[int, ...]
    inert_ids: tuple[int, ...]
    unknown_id: int
    bos_id: int
    eos_id: int
    stop_ids: frozenset[int]
    notes: tuple[str, ...] = ()


def from_gguf(metadata: Mapping[str, Any], find: Callable[[bytes], int], source: str) -> Vocabulary:
    """The vocabulary of a GGUF file.

    Args:
        metadata: key-values; `tokens` and `merges` are sequences of bytes, numbers numpy arrays.
        find: the id of a piece, -1 if there is none.
        source: the file's name, for messages.

    Raises:
        UnsupportedModelError: another kind of tokenizer.
        ModelFileError: keys that are missing or contradict each other.
    """
    pieces = _required(metadata, "tokenizer.ggml.tokens", source)
    kind = _required(metadata, "tokenizer.ggml.model", source)
    is_gemma4 = find(b"<|turn>") >= 0 and find(b"<turn|>") >= 0
    if kind not in ("gemma4", "llama") and not is_gemma4:
        raise UnsupportedModelError(
            f"{source}: tokenizer.ggml.model is {kind!r}, but only 'gemma4' (merges) and 'llama' "
            "(scores) are served"
        )
    notes: list[str] = []
    merges, scores = None, None
    if kind == "gemma4" or is_gemma4:
        merges = metadata.get("tokenizer.ggml.merges")
        if merges is None or len(merges) == 0:
            raise ModelFileError(
                f"{source}: tokenizer.ggml.merges is missing, and a Gemma 4 vocabulary cannot be "
                "used without its merges"
            )
        if kind != "gemma4":
            notes.append(
                f"tokenizer.ggml.model says {kind!r}, but the pieces are Gemma 4's: pairs merge by "
                "rank and the scores are ignored"
            )
    else:
        _required(metadata, "tokenizer.ggml.scores", source)
        scores = _numbers(metadata, "scores", np.float32, len(pieces), source)
    declared = {
        key: _declared_id(metadata, key, len(pieces), source)
        for key in ("bos", "eos", "eot", "eom", "unknown")
    }
    bos_id = known_id("bos", find(b"<bos>"), declared["bos"], source)
    eos_id = known_id("eos", find(b"<eos>"), declared["eos"], source)
    known_ids = {i for i in (find(s.encode()) for s in CONTROL) if i >= 0} | {bos_id, eos_id}
    control, user_defined, inert = _roles_in_gguf(
        metadata, pieces, known_ids, merges is not None, notes, source
    )
    return Vocabulary(
        pieces=pieces,
        merges=merges,
        scores=scores,
        control_ids=control,
        user_defined_ids=user_defined,
        inert_ids=inert,
        unknown_id=_first_id(find(b"<unk>"), declared["unknown"]),
        bos_id=bos_id,
        eos_id=eos_id,
        stop_ids=stop_ids(find, [declared[k] for k in ("eos", "eot", "eom")], set(control), notes),
        notes=tuple(notes),
    )


def _required(metadata: Mapping[str, Any], key: str, source: str) -> Any:
    value = metadata.get(key)
    if value is None:
        raise ModelFileError(f"{source}: the key {key} is missing, so there is no tokenizer")
    return value


def _numbers(
    metadata: Mapping[str, Any], name: str, dtype: DTypeLike, num_pieces: int, source: str
) -> NDArray[Any]:
    """The array `tokenizer.ggml.NAME`, one number for each piece; ones if the key is missing."""
    key = f"tokenizer.ggml.{name}"
    values = metadata.get(key)
    if values is None:
        return np.ones(num_pieces, dtype)
    array = np.asarray(values if isinstance(values, (list, tuple, np.ndarray)) else None)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ModelFileError(f"{source}: {key} is {type(values).__name__}, not an array of numbers")
    if len(array) != num_pieces:
        raise ModelFileError(f"{source}: {key} holds {len(array)} values for {num_pieces} tokens")
    return np.ascontiguousarray(array, dtype)


def _declared_id(
    metadata: Mapping[str, Any], name: str, num_pieces: int, source: str
) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None or value == 0xFFFFFFFF:  # how some converters write "none"
        return None
    if not isinstance(value, int) or not 0 <= value < num_pieces:
        raise ModelFileError(f"{source}: {key} is {value!r}, not an id from 0 to {num_pieces - 1}")
    return value


def _first_id(found: int, declared: int | None) -> int:
    return found if found >= 0 or declared is None else declared


def known_id(name: str, found: int, declared: int | None, source: str) -> int:
    token_id = _first_id(found, declared)
    if token_id < 0:
        raise ModelFileError(
            f"{source}: the vocabulary has no piece <{name}> and the file declares no other"
        )
    return token_id


def _roles_in_gguf(
    metadata: Mapping[str, Any],
    pieces: Sequence[bytes],
    known_ids: set[int],
    by_rank: bool,
    notes: list[str],
    source: str,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Ids of control, user-defined and inert pieces: the file's types, put right by spelling.

    `known_ids` are control tokens whatever their type.
    """
    types = _numbers(metadata, "token_type", np.int32, len(pieces), source)

    def ids_of(token_type: int) -> set[int]:
        return set(np.flatnonzero(types == token_type).tolist())

    control, user_defined = ids_of(_CONTROL_TYPE), ids_of(_USER_DEFINED)
    text_ids = {i for i in control if is_text_piece(pieces[i])} - known_ids
    # Newer Gemma 4 files call seven marks user-defined: usual, and not worth a line in the log.
    mistyped = known_ids - control - user_defined
    if text_ids or mistyped:
        notes.append(
            f"token types put right by spelling: {len(mistyped)} control tokens, "
            f"{len(text_ids)} pieces of text"
        )
    control = (control - text_ids) | known_ids
    if not by_rank:  # merges make these pieces, scores don't
        user_defined |= text_ids
    user_defined -= known_ids
    inert = (ids_of(_UNKNOWN) | ids_of(_UNUSED)) - control
    return tuple(sorted(control)), tuple(sorted(user_defined)), tuple(sorted(inert))


def is_text_piece(piece: bytes) -> bool:
    return _TEXT_PIECE.fullmatch(piece.decode("utf-8", "replace")) is not None


def stop_ids(
    find: Callable[[bytes], int],
    declared: Iterable[int | None],
    control: set[int],
    notes: list[str],
) -> frozenset[int]:
    """Stops found by spelling, and those the file declares unless they are ordinary text."""
    stops = {i for i in (find(s.encode()) for s in _STOPS) if i >= 0}
    for token_id in declared:
        if token_id is None or token_id in stops:
            continue
        if stops and token_id not in control:
            notes.append(f"the file declares token {token_id} as a stop, but it is ordinary text")
        else:
            stops.add(token_id)
    return frozenset(stops)
