"""Every tiny model against transformers: logits of all positions, from HF and GGUF files.

The yardstick is transformers' own float64 result. Two float32 evaluations of the same formulas
differ from it by rounding that grows alike through the same layers, so that our largest error may
be at most `SLACK` times transformers' own in float32. `SLACK` is three bits for the luck that
summation orders have in a maximum over thousands of logits; a wrong formula is off by 1,000 times.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from culet.ops.select import BackendName
from support.harness import BACKENDS, Float32Array, Growing, Loaded, cut, exact_ops, prompt
from support.tiny_models import CONFIGS, Tiny, logits_of, make_model, save_gguf, save_hf

Int32Array = NDArray[np.int32]
Float64Array = NDArray[np.float64]

SLACK = 8.0
LENGTH = 28
IDS = [re.sub(r"[^a-z0-9]+", "-", tiny.name) for tiny in CONFIGS]


@cache
def model_of(tiny_name: str) -> Any:
    return make_model(next(t for t in CONFIGS if t.name == tiny_name))


@cache
def oracle(tiny_name: str) -> tuple[Int32Array, Float64Array, float]:
    """Token ids, transformers' float64 logits, and the largest error of its float32 ones."""
    model = model_of(tiny_name)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, model.config.vocab_size, LENGTH).astype(np.int32)
    exact = logits_of(model, ids, torch.float64)
    error = float(np.abs(logits_of(model, ids, torch.float32) - exact).max())
    return ids, exact, error


@pytest.fixture(scope="module", params=CONFIGS, ids=IDS)
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return request.param


def saved(tiny: Tiny, kind: str, folder: Path) -> Path:
    """The tiny model saved in one of the two formats, once."""
    path = folder / f"{IDS[CONFIGS.index(tiny)]}.{kind}"
    if not path.exists():
        save = save_hf if kind == "hf" else save_gguf
        save(model_of(tiny.name), path)
    return path


@pytest.fixture(scope="module", params=BACKENDS)
def loaded(request: pytest.FixtureRequest, tiny: Tiny, model_files: Path) -> Loaded:
    """The GGUF file on each backend."""
    return Loaded(saved(tiny, "gguf", model_files), exact_ops(request.param))


@pytest.fixture(scope="module")
def whole(tiny: Tiny, loaded: Loaded) -> Float32Array:
    """Logits of all positions, the prompt in one piece."""
    return loaded.logits(oracle(tiny.name)[0])


def test_all_logits_agree_with_transformers(tiny: Tiny, whole: Float32Array) -> None:
    _, exact, error = oracle(tiny.name)
    assert np.abs(whole - exact).max() <= SLACK * error


def test_both_formats_give_the_same_logits(
    tiny: Tiny, loaded: Loaded, whole: Float32Array, model_files: Path
) -> None:
    """Bit for bit: the files hold the same values."""
    folder = Loaded(saved(tiny, "hf", model_files), loaded.ops)
    np.testing.assert_array_equal(folder.logits(oracle(tiny.name)[0]), whole)


@pytest.mark.parametrize("length", [1, 7, 64])
def test_pieces_of_a_prompt_give_the_same_logits(
    tiny: Tiny, loaded: Loaded, whole: Float32Array, length: int
) -> None:
    """Bit for bit: a row's sums have one order, whatever other rows are in the step.

    On `reference` that holds because all its matmuls of one weight have one shape.
    """
    ids = oracle(tiny.name)[0]
    np.testing.assert_array_equal(loaded.logits(ids, cut(LENGTH, length)), whole)


@pytest.mark.parametrize("length", [LENGTH, 7])
def test_the_early_end_of_prompt_rows_changes_nothing(
    tiny: Tiny, loaded: Loaded, whole: Float32Array, length: int
) -> None:
    ids = oracle(tiny.name)[0]
    last = loaded.logits(ids, cut(LENGTH, length), wants="last")
    np.testing.assert_array_equal(last, whole[-1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_in_one_step_do_not_touch_each_other(
    backend: BackendName, model_files: Path
) -> None:
    path = save_gguf(make_model(CONFIGS[0]), model_files / f"batch-{backend}.gguf")
    loaded = Loaded(path, exact_ops(backend))
    prompts = [prompt(loaded.config, length, seed=length) for length in (3, 30, 17)]
    alone = [loaded.logits(ids) for ids in prompts]

    runner = loaded.start()
    sequences = [Growing(runner) for _ in prompts]
    first = runner.step([s.next(ids[:2], 2) for s, ids in zip(sequences, prompts, strict=True)])
    rest = runner.step(
        [s.next(ids[2:], len(ids) - 2) for s, ids in zip(sequences, prompts, strict=True)]
    )
    for a, b, expected in zip(first, rest, alone, strict=True):
        np.testing.assert_array_equal(np.concatenate([a.logits, b.logits]), expected)
