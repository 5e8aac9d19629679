"""The vocabulary of a Hugging Face folder: tokenizer.json, stops from generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from culet.chat.files import read_json
from culet.chat.vocabulary import (
    CONTROL,
    MAX_PIECES,
    SPACE_MARK,
    Vocabulary,
    is_text_piece,
    known_id,
    stop_ids,
)
from culet.errors import ModelFileError, UnsupportedModelError


def from_folder(folder: Path) -> Vocabulary:
    """The vocabulary of a Hugging Face folder: tokenizer.json, stops from generation_config.json.

    Raises:
        UnsupportedModelError: a tokenizer of another kind than Gemma's.
        ModelFileError: files that are missing, unreadable or contradict each other.
    """
    path = folder / "tokenizer.json"
    content = read_json(path)
    model = content.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise ModelFileError(f"{path}: model.vocab is not an object of pieces and ids")
    _check_algorithm(content, model, path)
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(_is_added_token(t) for t in added):
        raise ModelFileError(f"{path}: added_tokens is not a list of objects with id and content")
    pieces = _pieces_by_id(model["vocab"], added, path)
    ids = {piece: i for i, piece in reversed(list(enumerate(pieces)))}

    def find(piece: bytes) -> int:
        return ids.get(piece, -1)

    known = {i for i in (find(s.encode()) for s in CONTROL) if i >= 0}
    control = {t["id"] for t in added if t.get("special") and not is_text_piece(pieces[t["id"]])}
    control |= known
    notes: list[str] = []
    stops = stop_ids(find, _declared_stops(folder, len(pieces)), control, notes)
    return Vocabulary(
        pieces=pieces,
        merges=_merges(model.get("merges"), path),
        scores=None,
        control_ids=tuple(sorted(control)),
        user_defined_ids=tuple(sorted({t["id"] for t in added} - control)),
        inert_ids=(),
        unknown_id=find(b"<unk>"),
        bos_id=known_id("bos", find(b"<bos>"), None, str(path)),
        eos_id=known_id("eos", find(b"<eos>"), None, str(path)),
        stop_ids=stops,
        notes=tuple(notes),
    )


def _check_algorithm(content: Mapping[str, Any], model: Mapping[str, Any], path: Path) -> None:
    """Only Gemma's scheme is served: BPE, byte fallback, space to U+2581, no other splitting."""
    normalizer = content.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence":
        steps = normalizer.get("normalizers")
        normalizer = steps[0] if isinstance(steps, list) and len(steps) == 1 else normalizer
    expected_normalizer = {
        "type": "Replace",
        "pattern": {"String": " "},
        "content": SPACE_MARK,
    }
    splitter = content.get("pre_tokenizer")
    is_split_at_spaces = splitter is None or (
        # After the normalizer there are no spaces left to split at.
        isinstance(splitter, dict)
        and splitter.get("type") == "Split"
        and splitter.get("pattern") == {"String": " "}
    )
    found = {
        "model.type": model.get("type", "BPE") == "BPE",
        "model.byte_fallback": model.get("byte_fallback") is True,
        "model.ignore_merges": not model.get("ignore_merges"),
        "model.dropout": not model.get("dropout"),
        "normalizer": normalizer == expected_normalizer,
        "pre_tokenizer": is_split_at_spaces,
    }
    for key, is_served in found.items():
        if not is_served:
            raise UnsupportedModelError(
                f"{path}: {key} is not Gemma's, and no other tokenizer is served"
            )


def _is_added_token(token: object) -> bool:
    return (
        isinstance(token, dict)
        and type(token.get("id")) is int
        and isinstance(token.get("content"), str)
        and not any(token.get(k) for k in ("lstrip", "rstrip", "single_word"))
    )


def _pieces_by_id(
    vocab: Mapping[str, Any], added: Sequence[Mapping[str, Any]], path: Path
) -> list[bytes]:
    items = [*vocab.items(), *((t["content"], t["id"]) for t in added)]
    for piece, token_id in items:
        if type(token_id) is not int or not 0 <= token_id < MAX_PIECES:
            raise ModelFileError(
                f"{path}: the id of piece {piece!r} is {token_id!r}, not an integer from 0 to "
                f"{MAX_PIECES - 1}"
            )
    pieces = [b""] * (max((token_id for _, token_id in items), default=-1) + 1)
    for piece, token_id in items:
        spelled = piece.encode("utf-8", "surrogatepass")
        if pieces[token_id] not in (b"", spelled):
            raise ModelFileError(f"{path}: id {token_id} is given to two pieces")
        pieces[token_id] = spelled
    return pieces


def _merges(merges: object, path: Path) -> list[bytes]:
    if not isinstance(merges, list) or not merges:
        raise ModelFileError(f"{path}: model.merges is missing or empty")
    joined: list[bytes] = []
    for index, merge in enumerate(merges):
        # Older files write "left right", newer ones ["left", "right"].
        if isinstance(merge, list) and len(merge) == 2 and all(isinstance(m, str) for m in merge):
            merge = " ".join(merge)
        if not isinstance(merge, str):
            raise ModelFileError(f"{path}: model.merges[{index}] is not a pair of pieces")
        joined.append(merge.encode("utf-8", "surrogatepass"))
    return joined


def _declared_stops(folder: Path, num_pieces: int) -> list[int]:
    """Values of eos_token_id in generation_config.json and config.json, where these exist."""
    stops: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if not path.exists():
            continue
        value = read_json(path).get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None:
                continue
            if type(token_id) is not int or not 0 <= token_id < num_pieces:
                raise ModelFileError(
                    f"{path}: eos_token_id is {value!r}, but ids end at {num_pieces - 1}"
                )
            stops.append(token_id)
    return stops
