"""Text to token ids and back, by the vocabulary of the model file.

The merging is native (csrc/bpe.h); here is what surrounds it: BOS, control tokens, decoding, and
text that grows token by token. Knows nothing of templates or of how a file is opened.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from culet._native import Bpe, PieceIndex, StringTable
from culet.chat import tokenizer_json, vocabulary
from culet.chat.prompt import ControlSpelling, Prompt
from culet.chat.vocabulary import SPACE_MARK, Vocabulary
from culet.errors import ModelFileError, RequestError


class Tokenizer:
    """A tokenizer of the Gemma family.

    Attributes:
        bos_id: put in front of every text, exactly once.
        eos_id: the id of `<eos>`.
        stop_ids: generation ends after one of these.
        control_tokens: spellings that stand for control tokens, by id.
        notes: what was repaired in the file's tables, one sentence each, for the log.
    """

    def __init__(
        self, words: Vocabulary, pieces: StringTable, index: PieceIndex, source: str
    ) -> None:
        self._pieces = pieces
        self._index = index
        self._byte_of_id = {
            i: bytes([b]) for b in range(256) if (i := index.find(b"<0x%02X>" % b)) >= 0
        }
        self.bos_id = words.bos_id
        self.eos_id = words.eos_id
        self.stop_ids = words.stop_ids
        self.notes = words.notes
        self.control_tokens: Mapping[int, str] = {
            i: pieces[i].decode("utf-8", "replace") for i in words.control_ids
        }
        marks = (list(words.control_ids), list(words.user_defined_ids), list(words.inert_ids))
        try:
            if words.merges is not None:
                merges = _table(words.merges, source)
                self._bpe = Bpe.ranked(index, merges, *marks, words.unknown_id)
            else:
                assert words.scores is not None
                self._bpe = Bpe.scored(index, words.scores, *marks, words.unknown_id)
        except ValueError as error:
            raise ModelFileError(f"{source}: the vocabulary is damaged: {error}") from error

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], source: str = "GGUF metadata") -> Tokenizer:
        """The tokenizer of a GGUF file.

        Args:
            metadata: its key-values; string arrays are `StringTable`s (or lists of bytes), which
                are used where they lie and kept alive.
            source: the file's name, for messages.

        Raises:
            UnsupportedModelError: another kind of tokenizer.
            ModelFileError: keys that are missing or contradict each other.
        """
        tables = {
            key: _table(metadata[key], f"{source}: {key}")
            for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
            if key in metadata
        }
        pieces = tables.get("tokenizer.ggml.tokens")
        if pieces is None:
            raise ModelFileError(f"{source}: the key tokenizer.ggml.tokens is missing")
        index = _index_of(pieces, source)
        words = vocabulary.from_gguf({**metadata, **tables}, index.find, source)
        return cls(words, pieces, index, source)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder (tokenizer.json); errors as in `from_gguf`."""
        words = tokenizer_json.from_folder(Path(folder))
        source = str(Path(folder) / "tokenizer.json")
        pieces = _table(words.pieces, source)
        return cls(words, pieces, _index_of(pieces, source), source)

    @property
    def spelling(self) -> ControlSpelling:
        """What templates need to know: the spellings of the control tokens."""
        tokens = self.control_tokens
        return ControlSpelling(
            bos=tokens[self.bos_id], eos=tokens[self.eos_id], all=frozenset(tokens.values())
        )

    @property
    def vocab_size(self) -> int:
        """Number of pieces; ids are below it."""
        return len(self._pieces)

    @cached_property
    def longest_piece_bytes(self) -> int:
        """Bytes of the longest piece: a text of n bytes has at least n / this many tokens."""
        return max(len(self._pieces[i]) for i in range(len(self._pieces)))

    def id_of(self, piece: str | bytes) -> int | None:
        """The id of a piece by its spelling in the vocabulary, None if there is none."""
        found = self._index.find(piece.encode() if isinstance(piece, str) else piece)
        return found if found >= 0 else None

    def is_control(self, token_id: int) -> bool:
        """Whether a token is part of the dialogue format and not text."""
        return token_id in self.control_tokens

    def encode(
        self, text: str | bytes, add_bos: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The ids of a text.

        Bytes need not be UTF-8: what is not becomes byte tokens, as do lone surrogates in a str.

        Args:
            add_bos: put BOS in front, unless the text already begins with it.
            parse_special: recognise control tokens; otherwise text that spells one stays text.

        Raises:
            RequestError: a text above 256 MiB.
        """
        return self._encode(_utf8(text), parse_special, [], add_bos)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The ids of a rendered prompt: control tokens only where it is trusted, BOS once."""
        guarded: list[tuple[int, int]] = []
        chunks: list[bytes] = []
        num_bytes = 0
        for segment in prompt.segments:
            chunk = _utf8(segment.text)
            if not segment.is_trusted:
                guarded.append((num_bytes, num_bytes + len(chunk)))
            chunks.append(chunk)
            num_bytes += len(chunk)
        return self._encode(b"".join(chunks), True, guarded, True)

    def _encode(
        self, text: bytes, parse_control: bool, guarded: list[tuple[int, int]], add_bos: bool
    ) -> list[int]:
        try:
            ids = self._bpe.encode(text, parse_control, guarded)
        except ValueError as error:
            raise RequestError("text", str(error)) from error
        if add_bos:
            num_bos = next((n for n, i in enumerate(ids) if i != self.bos_id), len(ids))
            ids[:num_bos] = [self.bos_id]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; a control token's are its spelling.

        Raises:
            RequestError: there is no such id.
        """
        if not 0 <= token_id < len(self._pieces):
            raise RequestError(
                "token_ids", f"{token_id} is not an id from 0 to {len(self._pieces) - 1}"
            )
        byte = self._byte_of_id.get(token_id)
        if byte is not None:
            return byte
        return self._pieces[token_id].replace(SPACE_MARK.encode(), b" ")

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`, without control tokens if `skip_special`; bad bytes become U+FFFD.

        Raises:
            RequestError: an id does not exist.
        """
        kept = (i for i in ids if not (skip_special and i in self.control_tokens))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def stream_decoder(self, skip_special: bool = True) -> StreamDecoder:
        """A decoder for ids that arrive one by one."""
        return StreamDecoder(self, skip_special)


class StreamDecoder:
    """Text of ids that arrive one by one.

    What `push` and `finish` return, joined, is what `decode` returns for the same ids; each return
    is valid text, and never more than the bytes of one unfinished character are held back.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that becomes certain with this token, often empty inside a character."""
        if self._skip_special and self._tokenizer.is_control(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What was held back: U+FFFD for a character that never became whole, usually nothing."""
        return self._decoder.decode(b"", final=True)


def piece_finder(tokens: object, source: str) -> Callable[[bytes], int]:
    """Gives the id of a piece by its bytes, -1 if there is none; `ModelFileError` as `from_gguf`.

    Args:
        tokens: the value of tokenizer.ggml.tokens; kept alive.
        source: the file's name, for messages.
    """
    return _index_of(_table(tokens, f"{source}: tokenizer.ggml.tokens"), source).find


def _table(strings: object, where: str) -> StringTable:
    if isinstance(strings, StringTable):
        return strings
    if not isinstance(strings, (list, tuple)) or not all(isinstance(s, bytes) for s in strings):
        raise ModelFileError(f"{where} is {type(strings).__name__}, not an array of strings")
    return StringTable.from_list(list(strings))


def _index_of(pieces: StringTable, source: str) -> PieceIndex:
    try:
        return PieceIndex(pieces)
    except ValueError as error:
        raise ModelFileError(f"{source}: the vocabulary is damaged: {error}") from error


def _utf8(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
