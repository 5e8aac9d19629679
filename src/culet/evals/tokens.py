"""Token ids of two tokenizers, text by text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from culet.chat.tokenizer import Tokenizer
from culet.errors import ModelFileError
from culet.formats.opening import open_checkpoint

_TOKENIZER_FILE = "tokenizer.json"

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer as the comparison uses it: control tokens recognised, no BOS added.

    Attributes:
        made_by: which code encodes, for the report.
        piece: the spelling of an id.
    """

    made_by: str
    encode: Encode
    piece: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A text of which two tokenizers make different ids.

    Attributes:
        position: index of the first id that differs.
        ours, theirs: up to `SHOWN_IDS` ids from there on.
        our_pieces, their_pieces: the same, spelled.
    """

    text_name: str
    position: int
    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    our_pieces: tuple[str, ...]
    their_pieces: tuple[str, ...]


SHOWN_IDS = 6


def open_encoder(path: Path, *, is_reference: bool) -> Encoder:
    """The tokenizer at a path: a GGUF file, a Hugging Face folder or its tokenizer.json.

    Args:
        is_reference: a tokenizer.json is read by the `tokenizers` package where that is installed,
            so that the comparison is with other code than ours.

    Raises:
        ModelFileError, UnsupportedModelError, UsageError: it can't be used.
    """
    file = path if path.name == _TOKENIZER_FILE else path / _TOKENIZER_FILE
    if not file.is_file():
        checkpoint = open_checkpoint(path, header_only=True)
        return _own(Tokenizer.from_gguf(checkpoint.metadata, str(path)))
    if is_reference:
        try:
            import tokenizers
        except ImportError:
            return _own(Tokenizer.from_folder(file.parent))
        try:
            library = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises bare Exception for any bad file
            raise ModelFileError(f"{file}: `tokenizers` can't read it ({error})") from error
        return Encoder(
            f"tokenizers {tokenizers.__version__}",
            lambda text: library.encode(text, add_special_tokens=False).ids,
            lambda token_id: str(library.id_to_token(token_id)),
        )
    return _own(Tokenizer.from_folder(file.parent))


def _own(tokenizer: Tokenizer) -> Encoder:
    return Encoder(
        "culet",
        lambda text: tokenizer.encode(text, add_bos=False, parse_special=True),
        lambda token_id: tokenizer.token_bytes(token_id).decode("utf-8", "replace"),
    )


def compare_tokens(
    ours: Encoder, theirs: Encoder, texts: Mapping[str, str]
) -> list[TokenDifference]:
    """The texts of which the ids differ, in order."""
    found = []
    for name, text in texts.items():
        a, b = list(ours.encode(text)), list(theirs.encode(text))
        if a == b:
            continue
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        position = min(len(a), len(b)) if same is None else same
        a, b = a[position : position + SHOWN_IDS], b[position : position + SHOWN_IDS]
        found.append(
            TokenDifference(
                name,
                position,
                tuple(a),
                tuple(b),
                tuple(map(ours.piece, a)),
                tuple(map(theirs.piece, b)),
            )
        )
    return found
