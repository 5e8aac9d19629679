"""A mutation loop over the readers of untrusted files.

Each round damages a sound file and reads it as serving would. Allowed are success and the errors
that culet raises on purpose; a crash, another exception, a read that takes seconds or memory beyond
the file's size and a constant is a finding. Deterministic by its seed.

    PYTHONPATH=src:tests:tests/formats python tests/formats/fuzz.py 200000 --seed 0 --keep FOLDER

A finding is written to FOLDER under seed, round and the reader's name. A round that never ends, or
ends the process, leaves its file in the temporary folder that is named at the beginning.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from damage import Target, damaged, mend_packed, mend_safetensors
from wild.gguf_file_cases import all_matrices, every_type_somewhere, ollama
from wild.wild_models import WildModel, e_series, hf_folder, tokenizer_json

import culet
from culet import system
from culet.chat.tokenizer import Tokenizer
from culet.errors import CuletError
from culet.formats.gguf_writer import write_gguf, write_split_gguf
from culet.formats.opening import open_checkpoint
from culet.llm.describe import damaged_parts, describe
from culet.llm.dry_run import VocabularyCheck, check_chat, check_weights
from culet.llm.packing import pack_model
from support.tiny_tokenizer import tiny_metadata

SLOW_SECONDS = 5.0
SPARE_BYTES = 64 << 20
_RESET_PEAK = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Finding:
    """A file that was not handled."""

    kind: str
    round: int
    what: str


@dataclass
class Outcome:
    """What came of all rounds.

    Attributes:
        num_files: by reader.
        num_read: of these, how many were damaged in a way that does no harm.
        most_grown_bytes: the most memory that a round took beyond its file's size.
    """

    findings: list[Finding] = field(default_factory=list)
    num_files: Counter[str] = field(default_factory=Counter)
    num_read: Counter[str] = field(default_factory=Counter)
    most_grown_bytes: int = 0


def targets(folder: Path) -> list[Target]:
    """All readers; `folder` is for the sound files."""
    files = []
    for number, change in enumerate((in_4_bits, every_type_somewhere, ollama)):
        model = e_series()
        change(model)
        files.append(folder / f"sound-{number}.gguf")
        write_gguf(files[-1], *small(model))
    headers = [path.read_bytes()[: _header_bytes(path) + 64] for path in files]
    models = [path.read_bytes() for path in files[:2]]
    packed = []
    for path in files[:2]:
        pack_model(path, path.with_suffix(".culet"))
        packed.append(path.with_suffix(".culet").read_bytes())
    (folder / "shards").mkdir()
    shards = write_split_gguf(folder / "shards", "fuzzed", *small(e_series()), num_shards=2)
    sound_shard = shards[0].read_bytes()[:20_000]
    hf_path = hf_folder().write(folder)
    config = (hf_path / "config.json").read_bytes()
    safetensors = (hf_path / "model.safetensors").read_bytes()
    safetensors = safetensors[: 8 + int.from_bytes(safetensors[:8], "little")]
    for beside, names in {
        "safetensors": ("config.json", "tokenizer.json"),
        "config": ("model.safetensors", "tokenizer.json"),
    }.items():
        (folder / beside).mkdir()
        for name in names:
            (folder / beside / name).symlink_to(hf_path / name)
    return [
        Target("gguf", "fuzzed.gguf", headers, read_model),
        Target("shards", shards[0].name, [sound_shard], read_model),
        Target("safetensors", "fuzzed.safetensors", [safetensors], read_model,
               mend=mend_safetensors),
        Target("config", "config.json", [config], lambda path: read_model(path.parent),
               is_text=True),
        Target("packed", "fuzzed.culet", packed, read_model, 40_000, mend=mend_packed),
        Target("tokenizer.json", "tokenizer.json", [tokenizer_json()], read_tokenizer,
               is_text=True),
        Target("weights", "weights", [*models, *packed], run_model, 1 << 30),
    ]  # fmt: skip


def in_4_bits(model: WildModel) -> None:
    all_matrices("Q4_0", model)


def small(model: WildModel) -> tuple[dict[str, object], list[object]]:
    """What a writer takes of a model, with the smallest vocabulary, which is read fastest."""
    for key in [k for k in model.metadata if k in tiny_metadata()]:
        del model.metadata[key]
    return model.metadata | tiny_metadata(), list(model.tensors.values())


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
        check_chat(checkpoint)  # type: ignore[arg-type]

    describe(path, header_only=True, examine=examine)


def run_model(path: Path) -> None:
    """Load it, damaged weights and all, and compute with what they have become."""
    damaged_parts(path)
    with culet.load(path, context_length=32, max_seqs=1, threads=1, prefix_cache=False) as llm:
        llm.logits([2, 300])


def read_tokenizer(path: Path) -> None:
    Tokenizer.from_folder(path.parent).encode("a text, <|turn>\n\n with  things")


def handled(target: Target, path: Path, outcome: Outcome) -> str | None:
    """Read a file; what is wrong with how that went."""
    try:
        target.read(path)
        outcome.num_read[target.kind] += 1
    except CuletError as error:
        if "\n" in str(error) or len(str(error)) > 1100:
            return f"a message of several lines or {len(str(error))} characters"
    except Exception as error:
        return repr(error)
    return None


def _reset_peak() -> None:
    if _RESET_PEAK.exists():
        _RESET_PEAK.write_text("5")


def fuzz(
    count: int,
    seed: int,
    folder: Path,
    found_folder: Path | None = None,
    seconds: float = float("inf"),
) -> Outcome:
    """Read `count` damaged files, spread over all readers, or as many as `seconds` allow."""
    all_targets = targets(folder)
    for target in all_targets:
        (folder / target.kind).mkdir(exist_ok=True)
        for sound in target.seeds:  # or else nothing but the first check would be tried
            (folder / target.kind / target.name).write_bytes(sound)
            target.read(folder / target.kind / target.name)
    outcome = Outcome()
    end = time.monotonic() + seconds
    for number in range(count):
        if time.monotonic() > end:
            break
        rng = random.Random(f"{seed}:{number}")
        target = all_targets[number % len(all_targets)]
        raw = damaged(target, rng)
        path = folder / target.kind / target.name
        path.write_bytes(raw)
        _reset_peak()
        before = system.resident_bytes() or 0
        start = time.process_time()  # not the wall's: the machine may be busy
        what = handled(target, path, outcome)
        took = time.process_time() - start
        grown = (system.peak_resident_bytes() or 0) - before - len(raw)
        outcome.num_files[target.kind] += 1
        outcome.most_grown_bytes = max(outcome.most_grown_bytes, grown)
        if what is None and took > SLOW_SECONDS:
            what = f"took {took:.1f} s"
        if what is None and grown > SPARE_BYTES:
            what = f"took {grown >> 20} MiB more than the {len(raw)} bytes of the file"
        if what is not None:
            outcome.findings.append(Finding(target.kind, number, what))
            if found_folder is not None:
                found_folder.mkdir(parents=True, exist_ok=True)
                (found_folder / f"{seed}-{number}-{target.name}").write_bytes(raw)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where findings are written")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    start = time.perf_counter()
    memory = Path("/dev/shm")  # files that live for a millisecond need no disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        print(folder, file=sys.stderr)
        outcome = fuzz(args.count, args.seed, Path(folder), args.keep, args.seconds)
    for finding in outcome.findings[:50]:
        print(finding, file=sys.stderr)
    row = {
        "files": outcome.num_files,
        "read": outcome.num_read,
        "seed": args.seed,
        "findings": len(outcome.findings),
        "seconds": round(time.perf_counter() - start, 1),
        "most_grown_bytes": outcome.most_grown_bytes,
    }
    print(json.dumps(row))
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
