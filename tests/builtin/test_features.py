"""Each E-series feature of the built-in model matters: without it, answers change.

So a loader that misreads a table, or points a shared layer to the wrong K/V, can't go unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from culet.engine.config import EngineConfig
from culet.formats.checkpoint import Checkpoint
from culet.formats.gguf_writer import write_gguf
from culet.formats.opening import open_checkpoint
from culet.llm.facade import LLM
from culet.llm.loading import load_model
from culet.llm.plan import BytePlan
from culet.models.config import LayerSpec, ModelConfig
from culet.models.registry import read_config
from culet.ops.select import load_ops
from culet.quant.tensor import QTensor
from support.builtin_model import (
    DIGEST_STRIDE,
    FFN_DIM,
    MODEL_PATH,
    goldens,
    needs_builtin,
)

pytestmark = needs_builtin

# Logits that fp32 puts between two tokens: several times what Q8_0 weights and int8 activations
# move any of them by.
NEAR_TIE = 0.25


def judged(
    path: Path, change: Callable[[ModelConfig], ModelConfig] = lambda c: c
) -> tuple[int, float]:
    """How many golden answers, given their own beginnings, differ at a place that is no near-tie,
    and the RMS error of the logits after the prompts.
    """
    checkpoint = open_checkpoint(path)
    ops = load_ops("cpu")
    loaded = load_model(change(read_config(checkpoint)), checkpoint, ops, "disk")
    engine = EngineConfig(context_length=1024, kv_type="f32")
    num_wrong, errors = 0, []
    with LLM(checkpoint, loaded, ops, engine, BytePlan(())) as llm:
        for golden in goldens():
            prompt, answer = golden["prompt_ids"], golden["answer_ids"]
            logits = llm.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
            num_wrong += margin_of(golden, logits.argmax(-1).tolist()) > NEAR_TIE
            errors.append(logits[0, ::DIGEST_STRIDE] - golden["logits"])
    return num_wrong, float(np.sqrt(np.square(errors).mean()))


def margin_of(golden: dict[str, Any], chosen: list[int]) -> float:
    """fp32's logit of the golden token over that of the chosen one, where they differ most."""
    margins = [0.0]
    rows = zip(chosen, golden["answer_ids"], golden["best_ids"], golden["best_logits"], strict=True)
    for token, expected, best_ids, best_logits in rows:
        if token != expected:  # one that is not among the best lies below the last of them
            place = best_ids.index(token) if token in best_ids else -1
            margins.append(best_logits[0] - best_logits[place])
    return max(margins)


@pytest.fixture(scope="module")
def exact_error() -> float:
    """The RMS error that Q8_0 weights and fast activations make anyway."""
    num_wrong, error = judged(MODEL_PATH)
    assert num_wrong == 0
    return error


def assert_matters(found: tuple[int, float], exact_error: float) -> None:
    """Damage must change answers where no near-tie excuses it, as the goldens' test would see."""
    num_wrong, error = found
    assert num_wrong and error > 4 * exact_error, (found, exact_error)


def rewritten(folder: Path, changed: Callable[[QTensor], QTensor]) -> Path:
    """A copy of the model whose tensors went through `changed`."""
    checkpoint: Checkpoint = open_checkpoint(MODEL_PATH)
    tensors = [changed(checkpoint.tensor(name)) for name in checkpoint.tensor_names()]
    path = folder / "changed.gguf"
    write_gguf(path, checkpoint.metadata, tensors)
    checkpoint.close()
    return path


def with_data(tensor: QTensor, data: np.ndarray) -> QTensor:
    return replace(tensor, data=np.ascontiguousarray(data))


def test_rewriting_changes_nothing(tmp_path: Path) -> None:
    assert judged(rewritten(tmp_path, lambda tensor: tensor)) == judged(MODEL_PATH)


@pytest.mark.parametrize("damage", ["zeroed", "a row further"])
def test_per_layer_table_matters(damage: str, tmp_path: Path, exact_error: float) -> None:
    def changed(tensor: QTensor) -> QTensor:
        if tensor.name != "per_layer_token_embd.weight":
            return tensor
        zero = np.zeros_like(tensor.data)
        return with_data(tensor, zero if damage == "zeroed" else np.roll(tensor.data, 1, axis=0))

    assert_matters(judged(rewritten(tmp_path, changed)), exact_error)


def test_wide_mlps_matter(tmp_path: Path, exact_error: float) -> None:
    def changed(tensor: QTensor) -> QTensor:
        """The second half of a wide MLP's inner values never reaches its output."""
        if not tensor.name.endswith("ffn_down.weight") or tensor.row_values == FFN_DIM:
            return tensor
        data = tensor.data.copy()
        data[:, tensor.data.shape[1] // 2 :] = 0
        return with_data(tensor, data)

    assert_matters(judged(rewritten(tmp_path, changed)), exact_error)


def test_layer_scales_matter(tmp_path: Path, exact_error: float) -> None:
    def changed(tensor: QTensor) -> QTensor:
        if not tensor.name.endswith("layer_output_scale.weight"):
            return tensor
        return with_data(tensor, np.ones(1, np.float32).view(np.uint8).reshape(tensor.data.shape))

    assert_matters(judged(rewritten(tmp_path, changed)), exact_error)


def test_the_owner_of_shared_layers_matters(exact_error: float) -> None:
    def wrong_owner(config: ModelConfig) -> ModelConfig:
        def moved(layer: LayerSpec) -> LayerSpec:
            if layer.owns_kv or layer.attention == "full":
                return layer
            return replace(layer, kv_owner=layer.kv_owner - 1)

        return replace(config, layers=tuple(moved(layer) for layer in config.layers))

    assert_matters(judged(MODEL_PATH, wrong_owner), exact_error)
