"""Memory at the worst moment of loading, in a process of its own, for each format."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from culet import system
from culet.llm.packing import pack_model

MIB = 1 << 20
NUM_ROWS = 20_000

_MEASURE = """
import json, sys
import numpy as np
import culet
from culet import system
with culet.load(sys.argv[1], context_length=32, max_seqs=1, threads=2, prefix_cache=False) as llm:
    llm.logits(np.arange(2))
"""
# Runs the same on a small model first, so that what is compared is the model alone.
_PEAK = _MEASURE + "    print(json.dumps(system.peak_resident_bytes()))\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A small and a large model (of some 100 MiB) in each form."""
    pytest.importorskip("torch")
    from support.tiny_models import Tiny, make_model, save_gguf, save_hf

    folder = tmp_path_factory.mktemp("peak")
    made: dict[str, list[Path]] = {"gguf": [], "folder": [], "packed": []}
    for name, width, rows in (("small", 64, 256), ("large", 256, NUM_ROWS)):
        sizes = {
            "hidden_size": width,
            "intermediate_size": 16 * width,
            "vocab_size": rows,
            "vocab_size_per_layer_input": rows,
            "hidden_size_per_layer_input": width // 4,
            "head_dim": 64,
            "global_head_dim": 64,
        }
        model = make_model(Tiny(name, "gemma4", sizes))
        made["gguf"].append(save_gguf(model, folder / f"{name}.gguf"))
        made["folder"].append(save_hf(model, folder / name))
        made["packed"].append(folder / f"{name}.culet")
        pack_model(made["gguf"][-1], made["packed"][-1])
    return {form: (small, large) for form, (small, large) in made.items()}


def peak_bytes(path: Path) -> int:
    done = subprocess.run([sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("form", ["gguf", "folder", "packed"])
def test_fault_182_loading_takes_little_more_than_the_file(
    models: dict[str, tuple[Path, Path]], form: str
) -> None:
    """Also fault 179: what is allowed besides is less than a second copy of the tied table."""
    if system.peak_resident_bytes() is None:
        pytest.skip("this system doesn't tell the peak of a process")
    small, large = models[form]
    weights = large / "model.safetensors" if form == "folder" else large
    file_bytes = weights.stat().st_size
    table_bytes = NUM_ROWS * 6 * 64 * 4  # of the per-layer table, of which rows are read only
    slack_bytes = 16 * MIB
    assert slack_bytes < NUM_ROWS * 256 * 4
    assert peak_bytes(large) - peak_bytes(small) < file_bytes - table_bytes + slack_bytes
