"""The built-in model's vocabulary: BPE trained on the corpus, in Gemma 4's form.

Spaces are U+2581, punctuation stays single, merges never cross words, numbers up to 400 and newline
runs up to 8 are tokens, other bytes fall back to `<0xXX>`. Special tokens have Gemma 4's spellings
with ids of their own, so that nothing that serves the model can rely on Gemma's ids.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

VOCAB_SIZE = 4096
SPACE = "\u2581"
# What a chat shows to nobody, and what parsers must see in the output (GGUF types 3 and 4).
CONTROL = (
    "<pad>", "<unk>", "<eos>", "<bos>", "<mask>", "<|tool>", "<tool|>", "<|think|>", "<|turn>",
    "<turn|>", "<|image>", "<|audio>", "<|image|>", "<|audio|>", "<image|>", "<audio|>",
    "<|video|>",
)  # fmt: skip
USER_DEFINED = (
    "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|channel>",
    "<channel|>",
)  # fmt: skip
# How runs of newlines come together, in the order of merging: powers of two, then the rest.
_NEWLINE_MERGES = ((1, 1), (2, 2), (4, 4), (2, 1), (4, 1), (4, 2), (4, 3))
# Numbers that are one token each: what a small model must know by heart, it learns sooner so.
LARGEST_NUMBER = 400
# A word with its space, a digit, a mark: units that learned merges stay inside.
_UNIT = re.compile(rf"{SPACE}?[^\W\d_]+|\d|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and merges by rank."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    def ggml_type(self, token_id: int) -> int:
        """GGUF token type: 1 normal, 3 control, 4 user-defined, 5 unused, 6 byte."""
        token = self.tokens[token_id]
        if token in CONTROL:
            return 3
        if token in USER_DEFINED:
            return 4
        if re.fullmatch(r"<unused\d+>", token):
            return 5
        return 6 if re.fullmatch(r"<0x[0-9A-F]{2}>", token) else 1


def train(texts: Iterable[str]) -> Vocabulary:
    """Learns merges from texts without special tokens until the vocabulary is full."""
    units: Counter[str] = Counter()
    for text in texts:
        units.update(_UNIT.findall(text.replace(" ", SPACE)))
    letters = {chr(code) for code in range(0x21, 0x7F)} | {SPACE} | set("".join(units)) - {"\n"}
    newlines = ["\n" * count for count in range(1, 9)]
    head = [*CONTROL, *USER_DEFINED, *(f"<0x{byte:02X}>" for byte in range(256)), *newlines]
    head += sorted(letters)
    head += [str(number) for number in range(10, LARGEST_NUMBER + 1)]
    merges = [("\n" * a, "\n" * b) for a, b in _NEWLINE_MERGES] + _number_merges()
    learned = _learn_merges(units, VOCAB_SIZE - len(head))
    tokens = head + list(dict.fromkeys(a + b for a, b in learned))
    unused = (f"<unused{n}>" for n in range(VOCAB_SIZE))
    tokens += [next(unused) for _ in range(VOCAB_SIZE - len(tokens))]
    return Vocabulary(tuple(tokens), (*merges, *learned))


def _number_merges() -> list[tuple[str, str]]:
    """Digits to pairs, then pairs to triples: a pair may form at either end of one."""
    pairs = [(text[0], text[1]) for text in map(str, range(10, 100))]
    triples = [str(number) for number in range(100, LARGEST_NUMBER + 1)]
    pairs_first = [(text[:2], text[2]) for text in triples]
    return pairs + pairs_first + [(text[0], text[1:]) for text in triples if text[1] != "0"]


def _learn_merges(units: Counter[str], count: int) -> list[tuple[str, str]]:
    """The commonest pair, merged everywhere, again and again; ties go to the smaller pair."""
    words = [(list(unit), number) for unit, number in sorted(units.items()) if len(unit) > 1]
    pairs: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for index, (parts, number) in enumerate(words):
        for pair in zip(parts, parts[1:], strict=False):
            pairs[pair] += number
            where[pair].add(index)
    merges: list[tuple[str, str]] = []
    while len(merges) < count and pairs:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for index in where.pop(best):
            parts, number = words[index]
            for pair in zip(parts, parts[1:], strict=False):
                pairs[pair] -= number
                if pairs[pair] <= 0:
                    del pairs[pair]
            _merge_in_place(parts, best)
            for pair in zip(parts, parts[1:], strict=False):
                pairs[pair] += number
                where[pair].add(index)
        pairs.pop(best, None)
    return merges


def _merge_in_place(parts: list[str], pair: tuple[str, str]) -> None:
    index = 0
    while index + 1 < len(parts):
        if (parts[index], parts[index + 1]) == pair:
            parts[index : index + 2] = [pair[0] + pair[1]]
        index += 1


def build(vocabulary: Vocabulary) -> Tokenizer:
    """The vocabulary as a `tokenizers` object, the form of tokenizer.json."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    model = BPE(
        vocab=ids,
        merges=list(vocabulary.merges),
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in USER_DEFINED])
    return tokenizer


def vocabulary_of(tokenizer_json: Path) -> Vocabulary:
    """Tokens and merges of a saved tokenizer.json."""
    model = json.loads(tokenizer_json.read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return Vocabulary(tuple(tokens), tuple((a, b) for a, b in model["merges"]))
