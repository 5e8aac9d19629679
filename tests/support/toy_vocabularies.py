"""Small vocabularies of the kinds that Gemma 4 and Gemma 3 have, their oracles, and odd texts."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

GEMMA4_CONTROL = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>",
    "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>",
    "<channel|>", "<|turn>", "<turn|>", "<|image|>",
)  # fmt: skip
GEMMA3_CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
BYTES = tuple(f"<0x{b:02X}>" for b in range(256))
MAX_RUN = 9

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # values of token_type

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and then it doesn't. ",
    "Быстрая лиса прыгает через ленивую собаку. ",
    "敏捷的棕色狐狸跳过了懒狗。 素早い茶色の狐。 ",
    "def f(x):\n    return [x ** 2 for x in range(10) if x < 3]\n",
    "<table><tr><td>x</td></tr></table> <s>gone</s> <code>a &lt; b</code> ",
    "Größe, naïve, café, El Niño, Việt Nam. ",
    "🙂🙂 👩\u200d👩\u200d👧 ½ ﬁ ",
)
_RUN_CHARACTERS = ("\n", "\u2581", "\t")
_TAGS = ("<table>", "</table>", "<b>", "</b>", "<s>", "</s>", "<code>", "</code>")


def training_text() -> str:
    """Some 60 kB of mixed text and made-up words, always the same."""
    rng = random.Random(7)
    syllables = [a + b for a in "bcdfglmnprst" for b in ("a", "e", "i", "o", "un", "er")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    made_up = [" ".join(rng.choices(words, k=8)) + ". " for _ in range(500)]
    return "".join(rng.choice((rng.choice(_SENTENCES), rng.choice(made_up))) for _ in range(1200))


def _run_merges(piece: str) -> list[tuple[str, str]]:
    """All ways to build runs of one character, the longest result first, as Gemma 4 has them."""
    return [
        (piece * left, piece * (size - left))
        for size in range(MAX_RUN, 1, -1)
        for left in range(size - 1, 0, -1)
    ]


def gemma4_tables() -> tuple[list[str], list[tuple[str, str]]]:
    """Pieces by id, and merges in order: control tokens, runs, tags, bytes, trained pieces."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False)
    trained.train_from_iterator([training_text()], trainer)
    model = trained.to_str()
    learned = json.loads(model)["model"]
    merges = [m for c in _RUN_CHARACTERS for m in _run_merges(c)]
    # Trained merges that build runs too would contradict the order above.
    is_run = {a + b for a, b in merges}
    merges += [tuple(m) for m in learned["merges"] if "".join(m) not in is_run]
    runs = [c * n for c in _RUN_CHARACTERS for n in range(1, MAX_RUN + 1)]
    pieces = [*GEMMA4_CONTROL, *runs, *BYTES]
    pieces += [p for p in learned["vocab"] if p not in set(pieces)]
    return pieces, merges


def gemma4_metadata() -> dict[str, Any]:
    """GGUF metadata of the toy vocabulary."""
    pieces, merges = gemma4_tables()
    types = [CONTROL if p in GEMMA4_CONTROL else BYTE if p in BYTES else NORMAL for p in pieces]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": [p.encode() for p in pieces],
        "tokenizer.ggml.merges": [" ".join(m).encode() for m in merges],
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.full(len(pieces), -1000, np.float32),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }


def gemma4_oracle(
    pieces: Sequence[str], merges: Sequence[tuple[str, str]], control: Sequence[str] = ()
) -> Tokenizer:
    """The tokenizer that Gemma's tokenizer.json describes; knows control tokens if given any."""
    oracle = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)},
            merges=list(merges),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    oracle.normalizer = normalizers.Replace(" ", "\u2581")
    oracle.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    oracle.add_special_tokens([AddedToken(c, normalized=False, special=True) for c in control])
    return oracle


def gemma3_oracle() -> sentencepiece.SentencePieceProcessor:
    """A freshly trained model with Gemma 3's settings."""
    model = io.BytesIO()
    spaces = ["\u2581" * n for n in range(2, MAX_RUN)]
    newlines = ["\n" * n for n in range(1, MAX_RUN)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training_text().split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=800,
        byte_fallback=True,
        character_coverage=1.0,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>", unk_piece="<unk>",
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        user_defined_symbols=[*spaces, *newlines, "[multimodal]", *_TAGS],
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        minloglevel=2,
    )  # fmt: skip
    oracle = sentencepiece.SentencePieceProcessor()
    oracle.LoadFromSerializedProto(model.getvalue())
    return oracle


def gemma3_metadata(oracle: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece model, as llama.cpp's converter writes it."""
    pieces: list[bytes] = []
    types: list[int] = []
    for token_id in range(oracle.GetPieceSize()):
        piece = oracle.IdToPiece(token_id)
        kind = NORMAL
        if oracle.IsUnknown(token_id):
            kind = UNKNOWN
        elif oracle.IsControl(token_id):
            kind = CONTROL
        elif oracle.IsByte(token_id):
            kind = BYTE
        elif piece in _TAGS or piece == "[multimodal]" or not piece.strip("\u2581\n"):
            kind = USER_DEFINED if piece != "\u2581" else NORMAL
        if kind == USER_DEFINED:
            piece = piece.replace("\u2581", " ")
        pieces.append(piece.encode())
        types.append(kind)
    scores = [oracle.GetScore(i) for i in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": False,
    }


def sentencepiece_of(metadata: Mapping[str, Any]) -> sentencepiece.SentencePieceProcessor:
    """The SentencePiece model whose conversion has this GGUF metadata.

    Written field by field (sentencepiece_model.proto), since the package's own message classes
    need protobuf.
    """

    def number(value: int) -> bytes:
        low, rest = value & 0x7F, value >> 7
        return bytes([low | 0x80]) + number(rest) if rest else bytes([low])

    def int_field(field: int, value: int) -> bytes:
        return number(field << 3) + number(value)

    def bytes_field(field: int, value: bytes) -> bytes:
        return number(field << 3 | 2) + number(len(value)) + value

    model = bytearray()
    pieces = list(metadata["tokenizer.ggml.tokens"])
    for token_id, (piece, score, kind) in enumerate(
        zip(
            pieces,
            metadata["tokenizer.ggml.scores"],
            metadata["tokenizer.ggml.token_type"],
            strict=True,
        )
    ):
        kind = UNKNOWN if token_id == metadata["tokenizer.ggml.unknown_token_id"] else int(kind)
        spelled = piece.replace(b" ", "\u2581".encode())
        model += bytes_field(
            1,
            bytes_field(1, spelled)
            + number(2 << 3 | 5)
            + struct.pack("<f", score)
            + int_field(3, kind),
        )
    special = [metadata[f"tokenizer.ggml.{k}_token_id"] for k in ("unknown", "bos", "eos")]
    trainer = int_field(3, 2) + int_field(4, len(pieces)) + int_field(35, 1)  # BPE, byte fallback
    trainer += b"".join(int_field(40 + n, i) for n, i in enumerate(special))
    # add_dummy_prefix and remove_extra_whitespaces off, escape_whitespaces on
    normalizer = bytes_field(1, b"identity") + int_field(3, 0) + int_field(4, 0) + int_field(5, 1)
    model += bytes_field(2, trainer) + bytes_field(3, normalizer)
    oracle = sentencepiece.SentencePieceProcessor()
    oracle.LoadFromSerializedProto(bytes(model))
    return oracle


_SCRIPTS = (
    (0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0xDFF),
    (0xE00, 0xEFF), (0x1780, 0x17FF), (0x2000, 0x206F), (0x2580, 0x25FF), (0x3040, 0x30FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0x1F300, 0x1FAFF), (0xE0000, 0xE007F),
    (0x0, 0x1F), (0xFE00, 0xFE0F), (0x10000, 0x10FFFF),
)  # fmt: skip
_SNIPPETS = (
    "def f(x):\n\treturn  x**2\n", "    if (a<b && c>d) {\r\n        x += 1;\r\n    }\r\n",
    "<code>x</code>", "</s>", "<b>bold</b><table>", "#include <a.h>\n\n\n", "```py\n",
    "a\u2581b", "\u2581\u2581", "[multimodal]", "<unused7>", "<0x41>", "<0x0A>", "e\u0301",
    "\ufeff", "\u00ad", "\u200b", "👩\u200d👩\u200d👧", "\x00", "\x7f", "don't", "'ll",
)  # fmt: skip


def odd_texts(count: int, seed: int, special: Sequence[str]) -> list[str]:
    """Mixed scripts, runs of white space, code, numbers and spellings of special tokens."""
    rng = random.Random(seed)
    words = training_text().split(" ")

    def fragment() -> str:
        kind = rng.randrange(7)
        if kind == 0:
            low, high = rng.choice(_SCRIPTS)
            return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12)))
        if kind == 1:
            start = rng.randrange(len(words) - 10)
            return " ".join(words[start : start + rng.randint(1, 9)])
        if kind == 2:
            return "\n" * rng.randint(1, 40)
        if kind == 3:
            return rng.choice((" ", "\t", "\r\n", " \n")) * rng.randint(1, 40)
        if kind == 4:
            return rng.choice(_SNIPPETS)
        if kind == 5:
            return rng.choice(special)
        return str(rng.randint(0, 10 ** rng.randint(1, 15)))

    texts = ["", " ", "\n", *_SNIPPETS]
    texts += ["".join(fragment() for _ in range(rng.randint(1, 8))) for _ in range(count)]
    return texts


def with_bad_bytes(text: str, rng: random.Random) -> list[bytes]:
    """The text cut in pieces, with bytes between them that are nowhere valid UTF-8."""
    chunks: list[bytes] = []
    while text:
        size = rng.randint(1, 12)
        chunks.append(text[:size].encode())
        chunks.append(rng.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5", b"\xfe\xfe")))
        text = text[size:]
    return chunks
