"""A mutation loop over the readers of untrusted files.

Each round damages a sound file in one to four places and reads it as serving would. Allowed are
success and the errors that culet raises on purpose; a crash, another exception, a read that takes
seconds or memory beyond the file's size and a constant is a finding. Deterministic by its seed.

    PYTHONPATH=src:tests:tests/formats python tests/formats/fuzz.py 200000 [FOLDER]

A finding is written to FOLDER under the reader's name and the round.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wild.wild_models import e_series, hf_folder, tokenizer_json

from culet import system
from culet.chat.tokenizer import Tokenizer
from culet.errors import CuletError
from culet.formats.gguf_writer import write_gguf
from culet.formats.opening import open_checkpoint
from culet.llm.describe import describe
from culet.llm.dry_run import VocabularyCheck, check_weights
from culet.llm.packing import pack_model
from support.tiny_tokenizer import tiny_metadata

SLOW_SECONDS = 5.0
SPARE_BYTES = 64 << 20
_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 12, 13, 31, 32, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 32)
_BIG = ((1 << 40), (1 << 62), (1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 32)
_JSON_BITS = (b"null", b"-1", b"1e999", b"[]", b"{}", b'""', b"true", b"9" * 40, b"[" * 50, b'"a":')


@dataclass(frozen=True)
class Target:
    """A reader and the sound files that it is given damaged.

    Attributes:
        name: of the file that is read.
        read: reads that file.
        hot_bytes: damage falls mostly within so many bytes from the beginning or the end.
    """

    kind: str
    name: str
    seeds: Sequence[bytes]
    read: Callable[[Path], None]
    hot_bytes: int
    is_text: bool = False


@dataclass(frozen=True)
class Finding:
    """A file that was not handled."""

    kind: str
    round: int
    what: str


def targets(folder: Path) -> list[Target]:
    """All readers; `folder` is for the sound files."""
    model = e_series()
    vocabulary = tiny_metadata()
    for key in [k for k in model.metadata if k.startswith("tokenizer.")]:
        del model.metadata[key]
    model.metadata |= vocabulary
    whole = folder / "model.gguf"
    write_gguf(whole, model.metadata, list(model.tensors.values()))
    header = whole.read_bytes()[: _header_bytes(whole) + 64]
    packed = folder / "model.culet"
    pack_model(whole, packed)
    hf = hf_folder()
    hf_path = hf.write(folder)
    safetensors = (hf_path / "model.safetensors").read_bytes()
    length = int.from_bytes(safetensors[:8], "little")
    (folder / "config.json").write_bytes((hf_path / "config.json").read_bytes())
    (folder / "tokenizer.json").write_bytes(b"{}")
    return [
        Target("gguf", "fuzzed.gguf", [header], read_model, len(header)),
        Target(
            "safetensors", "fuzzed.safetensors", [safetensors[: 8 + length]], read_model, 8 + length
        ),
        Target("config", "config.json", [(hf_path / "config.json").read_bytes()],
               lambda path: read_model(hf_beside(path, hf_path)), 1 << 20, is_text=True),
        Target("packed", "fuzzed.culet", [packed.read_bytes()], read_model, 40_000),
        Target("tokenizer.json", "tokenizer.json", [tokenizer_json()], read_tokenizer, 1 << 20,
               is_text=True),
    ]  # fmt: skip


def hf_beside(config: Path, model: Path) -> Path:
    """A folder with the fuzzed config beside sound weights."""
    folder = config.parent / "hf"
    if not folder.exists():
        folder.mkdir()
        for name in ("model.safetensors", "tokenizer.json"):
            (folder / name).symlink_to(model / name)
        (folder / "config.json").symlink_to(config)
    return folder


def _header_bytes(path: Path) -> int:
    checkpoint = open_checkpoint(path)
    header = checkpoint.shards[0][1]  # type: ignore[attr-defined]
    return int(header.num_bytes)


def read_model(path: Path) -> None:
    """Everything that `culet check` looks at."""
    vocabularies = VocabularyCheck()

    def examine(config: object, checkpoint: object, binding: object) -> None:
        check_weights(config, checkpoint, binding)  # type: ignore[arg-type]
        vocabularies.check(checkpoint)  # type: ignore[arg-type]

    describe(path, header_only=True, examine=examine)


def read_tokenizer(path: Path) -> None:
    Tokenizer.from_folder(path.parent).encode("a text, <|turn>\n\n with  things")


def damaged(target: Target, rng: random.Random) -> bytes:
    """A sound file with one to four places changed."""
    raw = bytearray(rng.choice(target.seeds))
    for _ in range(rng.randint(1, 4)):
        if not raw:
            break
        hot = min(len(raw), target.hot_bytes)
        at = rng.randrange(hot) if rng.random() < 0.5 else len(raw) - 1 - rng.randrange(hot)
        choice = rng.random()
        if choice < 0.35:
            raw[at] = rng.randrange(256) if rng.random() < 0.5 else raw[at] ^ 1 << rng.randrange(8)
        elif choice < 0.55:
            number = rng.choice(_NUMBERS + _BIG)
            width = 8 if number >> 32 else rng.choice((1, 2, 4, 8))
            raw[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
        elif choice < 0.65:
            del raw[at : at + rng.choice((1, 2, 8, 100))]
        elif choice < 0.75:
            raw[at:at] = rng.randbytes(rng.choice((1, 2, 8, 100)))
        elif choice < 0.85:
            source = rng.randrange(len(raw))
            count = rng.choice((4, 8, 32))
            raw[at : at + count] = raw[source : source + count]
        elif choice < 0.95 and (target.is_text or b"{" in raw[at : at + 200]):
            raw[at : at + rng.randint(0, 8)] = rng.choice(_JSON_BITS)
        else:
            del raw[rng.randrange(len(raw)) :]
    return bytes(raw)


def fuzz(count: int, seed: int, folder: Path, found_folder: Path | None = None) -> list[Finding]:
    """`count` damaged files, spread over all readers; what was not handled."""
    all_targets = targets(folder)
    findings: list[Finding] = []
    for number in range(count):
        rng = random.Random(f"{seed}:{number}")
        target = all_targets[number % len(all_targets)]
        raw = damaged(target, rng)
        path = folder / target.name
        path.write_bytes(raw)
        before = system.anonymous_resident_bytes() or 0
        start = time.process_time()  # not the wall's: the machine may be busy
        what = None
        try:
            target.read(path)
        except CuletError as error:
            if "\n" in str(error) or len(str(error)) > 1100:
                what = f"a message of several lines or {len(str(error))} characters"
        except Exception as error:
            what = repr(error)
        seconds = time.process_time() - start
        grown = (system.anonymous_resident_bytes() or 0) - before
        if what is None and seconds > SLOW_SECONDS:
            what = f"took {seconds:.1f} s"
        if what is None and grown > len(raw) + SPARE_BYTES:
            what = f"took {grown >> 20} MiB for a file of {len(raw)} bytes"
        if what is not None:
            findings.append(Finding(target.kind, number, what))
            if found_folder is not None:
                found_folder.mkdir(parents=True, exist_ok=True)
                (found_folder / f"{number}-{target.name}").write_bytes(raw)
    return findings


def main() -> int:
    count = int(sys.argv[1])
    logging.disable(logging.WARNING)
    found_folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    start = time.perf_counter()
    memory = Path("/dev/shm")  # files that live for a millisecond need no disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        findings = fuzz(count, seed=0, folder=Path(folder), found_folder=found_folder)
    seconds = time.perf_counter() - start
    for finding in findings[:50]:
        print(finding, file=sys.stderr)
    print(
        json.dumps(
            {
                "files": count,
                "findings": len(findings),
                "seconds": round(seconds, 1),
                "peak_rss_bytes": system.peak_resident_bytes(),
            }
        )
    )
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
