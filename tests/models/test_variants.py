"""What model files have in common and where they differ: one meaning, the same logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from culet.errors import ModelFileError
from culet.formats.gguf_writer import float_tensor
from culet.ops.interface import KvType, Ops
from culet.quant.blocks import decode
from culet.quant.encode import encode
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME
from support.harness import BACKENDS, Float32Array, Loaded, cut, exact_ops, prompt
from support.tiny_models import (
    CONFIGS,
    Tiny,
    gguf_arrays,
    logits_of,
    make_model,
    save_gguf,
    save_hf,
)

E_SERIES = CONFIGS[0]
LENGTH = 20


@pytest.fixture(scope="module", params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Ops:
    return exact_ops(request.param)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(E_SERIES)


def run(path: Path, ops: Ops, **options: Any) -> Float32Array:
    loaded = Loaded(path, ops)
    return loaded.logits(prompt(loaded.config, LENGTH), **options)


# ---- shared layers -------------------------------------------------------------------------------
def shared_kv(model: Any, rename: Callable[[int, str], str]) -> dict[str, Float32Array]:
    """K, V and k_norm of shared layers, as Google's own files carry them: never used."""
    rng = np.random.default_rng(3)
    extra = {}
    for i, kind in enumerate(model.config.layer_types):
        if i >= model.config.num_hidden_layers - model.config.num_kv_shared_layers:
            width = 32 if kind == "full_attention" else 16
            for part, shape in (("k", (width, 32)), ("v", (width, 32)), ("k_norm", (width,))):
                extra[rename(i, part)] = rng.standard_normal(shape).astype(np.float32)
    return extra


def test_kv_of_shared_layers_may_be_there_or_not(model: Any, ops: Ops, tmp_path: Path) -> None:
    hf_parts = {"k": "k_proj", "v": "v_proj", "k_norm": "k_norm"}
    hf_extra = shared_kv(model, lambda i, p: f"model.layers.{i}.self_attn.{hf_parts[p]}.weight")
    gguf_extra = shared_kv(model, lambda i, p: f"blk.{i}.attn_{p}.weight")
    expected = run(save_gguf(model, tmp_path / "without.gguf"), ops)
    for path in (
        save_gguf(model, tmp_path / "with.gguf", extra=gguf_extra),
        save_hf(model, tmp_path / "without"),
        save_hf(model, tmp_path / "with", hf_extra),
    ):
        np.testing.assert_array_equal(run(path, ops), expected)


def test_dropped_tensors_are_never_read(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = shared_kv(model, lambda i, p: f"blk.{i}.attn_{p}.weight")
    path = save_gguf(model, tmp_path / "with.gguf", extra=extra)
    from culet.formats.gguf import GgufCheckpoint

    read: list[str] = []
    original = GgufCheckpoint.tensor

    def spy(self: GgufCheckpoint, name: str) -> QTensor:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(GgufCheckpoint, "tensor", spy)
    Loaded(path, exact_ops("reference"))
    assert read and not set(read) & set(extra)


# ---- forms of the same tensors -------------------------------------------------------------------
def test_fused_qkv(model: Any, ops: Ops, tmp_path: Path) -> None:
    arrays = gguf_arrays(model, "gemma4")
    owning = range(model.config.num_hidden_layers - model.config.num_kv_shared_layers)
    names = {i: [f"blk.{i}.attn_{part}.weight" for part in "qkv"] for i in owning}
    fused = {
        f"blk.{i}.attn_qkv.weight": np.concatenate([arrays[n] for n in names[i]]) for i in owning
    }
    path = save_gguf(
        model, tmp_path / "fused.gguf", extra=fused, without=sum(names.values(), start=[])
    )
    plain = save_gguf(model, tmp_path / "plain.gguf")
    np.testing.assert_array_equal(run(path, ops), run(plain, ops))


def test_experts_with_gate_and_up_apart(ops: Ops, tmp_path: Path) -> None:
    moe = make_model(next(t for t in CONFIGS if t.name == "mixture of experts"))
    arrays = gguf_arrays(moe, "gemma4")
    fused = [name for name in arrays if "ffn_gate_up_exps" in name]
    apart = {}
    for name in fused:
        gate, up = np.split(arrays[name], 2, axis=1)
        apart[name.replace("gate_up", "gate")] = gate
        apart[name.replace("gate_up", "up")] = up
    path = save_gguf(moe, tmp_path / "apart.gguf", extra=apart, without=fused)
    plain = save_gguf(moe, tmp_path / "plain.gguf")
    np.testing.assert_array_equal(run(path, ops), run(plain, ops))


def test_a_head_of_its_own(model: Any, ops: Ops, tmp_path: Path) -> None:
    table = gguf_arrays(model, "gemma4")["token_embd.weight"]
    path = save_gguf(model, tmp_path / "head.gguf", extra={"output.weight": -table})
    plain = save_gguf(model, tmp_path / "plain.gguf")
    np.testing.assert_array_equal(run(path, ops), -run(plain, ops))


def test_a_tied_table_is_one_weight(model: Any, ops: Ops, tmp_path: Path) -> None:
    head = Loaded(save_gguf(model, tmp_path / "tied.gguf"), ops).model.head
    assert head.output_table is head.embedding


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_K"])
def test_quantised_weights(ops: Ops, tmp_path: Path, type_name: str) -> None:
    """Against transformers with the same, decoded, weights; tolerance as in test_parity."""
    wide = type_name == "Q4_K"
    width = 256 if wide else 32
    sizes = {"hidden_size": width, "intermediate_size": width, "hidden_size_per_layer_input": width}
    sizes |= {"head_dim": 64, "global_head_dim": 64} if wide else {}
    model = make_model(
        Tiny(
            "quantised",
            "gemma4",
            sizes | {"num_hidden_layers": 3, "layer_types": BASE_LAYERS, "num_kv_shared_layers": 1},
        )
    )
    qtype = BY_NAME[type_name]

    def encoded(name: str, array: Float32Array) -> QTensor:
        if array.ndim != 2:
            return float_tensor(name, array)
        return QTensor(name, qtype, array.shape, encode(array, qtype))

    path = save_gguf(model, tmp_path / "q.gguf", encode=encoded)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.ndim == 2 and name != "lm_head.weight":
                stored = encoded(name, tensor.numpy())
                tensor.copy_(torch.from_numpy(decode(stored)))
    loaded = Loaded(path, ops)
    ids = prompt(loaded.config, LENGTH)
    exact = logits_of(model, ids, torch.float64)
    error = np.abs(logits_of(model, ids, torch.float32) - exact).max()
    assert np.abs(loaded.logits(ids) - exact).max() <= 8 * error


BASE_LAYERS = ["sliding_attention", "full_attention", "full_attention"]


@pytest.mark.parametrize("kv_type", get_args(KvType))
def test_every_kv_type_is_independent_of_pieces(ops: Ops, tmp_path: Path, kv_type: KvType) -> None:
    """Bit for bit; and rounding of K and V moves logits by a small part of their size."""
    model = make_model(Tiny("kv", "gemma4", {"head_dim": 32, "global_head_dim": 64}))
    loaded = Loaded(save_gguf(model, tmp_path / "kv.gguf"), ops)
    ids = prompt(loaded.config, LENGTH)
    whole = loaded.logits(ids, kv_type=kv_type)
    for pieces in (cut(LENGTH, 1), cut(LENGTH, 7)):
        np.testing.assert_array_equal(loaded.logits(ids, pieces, kv_type=kv_type), whole)
    rounding = np.abs(whole - loaded.logits(ids)).max()
    assert (rounding == 0) == (kv_type == "f32")
    assert rounding < 0.1 * np.abs(whole).max()


# ---- what must matter ----------------------------------------------------------------------------
def test_per_layer_inputs_matter(model: Any, ops: Ops, tmp_path: Path) -> None:
    table = gguf_arrays(model, "gemma4")["per_layer_token_embd.weight"]
    zeroed = {"per_layer_token_embd.weight": np.zeros_like(table)}
    path = save_gguf(model, tmp_path / "zeroed.gguf", extra=zeroed)
    plain = save_gguf(model, tmp_path / "plain.gguf")
    assert np.abs(run(path, ops) - run(plain, ops)).max() > 0.1


def test_a_promised_table_that_is_missing_is_refused(model: Any, tmp_path: Path) -> None:
    name = "per_layer_token_embd.weight"
    path = save_gguf(model, tmp_path / "without.gguf", without=[name])
    with pytest.raises(ModelFileError, match=name):
        Loaded(path, exact_ops("reference"))


def test_every_tensor_is_needed(model: Any, tmp_path: Path) -> None:
    """All but the factor of a layer's residual, which defaults to 1; and if the only full layer
    with K/V has no V, that means k = v, of which GGUF has no other sign."""
    for name in gguf_arrays(model, "gemma4"):
        path = save_gguf(model, tmp_path / "without.gguf", without=[name])
        if "layer_output_scale" in name or name == "blk.2.attn_v.weight":
            Loaded(path, exact_ops("reference"))
        else:
            with pytest.raises(ModelFileError, match=name.replace(".", r"\.")):
                Loaded(path, exact_ops("reference"))


def test_a_tensor_of_another_shape_is_refused(model: Any, tmp_path: Path) -> None:
    arrays = gguf_arrays(model, "gemma4")
    for name in ("blk.0.attn_q.weight", "output_norm.weight", "per_layer_model_proj.weight"):
        extra = {name: np.concatenate([arrays[name]] * 2)}
        path = save_gguf(model, tmp_path / "shape.gguf", extra=extra)
        with pytest.raises(ModelFileError, match=rf"{name}.* has shape .*the config says"):
            Loaded(path, exact_ops("reference"))


def test_logits_beyond_the_cap(ops: Ops, tmp_path: Path) -> None:
    """Logits of about 60 before capping: both files cap them as transformers does."""
    model = make_model(E_SERIES, embed_gain=40.0)
    ids = prompt(Loaded(save_gguf(model, tmp_path / "x.gguf"), ops).config, LENGTH)
    exact = logits_of(model, ids, torch.float64)
    error = np.abs(logits_of(model, ids, torch.float32) - exact).max()
    capped = run(tmp_path / "x.gguf", ops)
    assert np.abs(capped).max() <= 30.0
    assert np.abs(capped - exact).max() <= 8 * error
    np.testing.assert_array_equal(run(save_hf(model, tmp_path / "x"), ops), capped)
    keys = {"gemma4.final_logit_softcapping": None}
    uncapped = run(save_gguf(model, tmp_path / "y.gguf", metadata=keys), ops)
    assert np.abs(uncapped).max() > 30.0


@pytest.mark.parametrize("pieces", [None, [1] * 12, [5, 7]])
def test_a_window_holds_the_token_itself_and_those_just_before(
    ops: Ops, tmp_path: Path, pieces: list[int] | None
) -> None:
    """One sliding layer of window 4: a token 3 back matters, one 4 back does not."""
    model = make_model(
        Tiny(
            "window",
            "gemma4",
            {"sliding_window": 4, "num_kv_shared_layers": 0, "use_double_wide_mlp": False},
        )
    )
    arrays = gguf_arrays(model, "gemma4")
    later = [name for name in arrays if name.startswith("blk.") and not name.startswith("blk.0.")]
    first = {
        "per_layer_token_embd.weight": arrays["per_layer_token_embd.weight"][:, :8].copy(),
        "per_layer_model_proj.weight": arrays["per_layer_model_proj.weight"][:8].copy(),
    }
    keys = {"gemma4.block_count": 1, "gemma4.attention.sliding_window_pattern": [True]}
    path = save_gguf(
        model,
        tmp_path / "w.gguf",
        metadata=keys,
        extra=first,
        without=[*later, "rope_freqs.weight"],
    )
    loaded = Loaded(path, ops)
    ids = prompt(loaded.config, 12)
    logits = loaded.logits(ids, pieces)
    for back in range(1, 8):
        changed = ids.copy()
        changed[11 - back] = (changed[11 - back] + 1) % loaded.config.vocab_size
        moved = (loaded.logits(changed, pieces)[-1] != logits[-1]).any()
        assert moved == (back < 4), back


# ---- media ---------------------------------------------------------------------------------------
def test_given_embeddings_take_the_place_of_looked_up_ones(
    model: Any, ops: Ops, tmp_path: Path
) -> None:
    """Against transformers with the same embeddings and the pad token's per-layer rows there."""
    loaded = Loaded(save_gguf(model, tmp_path / "media.gguf"), ops)
    ids = prompt(loaded.config, LENGTH)
    places = np.array([3, 4, 5, 11], dtype=np.int32)
    ids[places] = model.config.pad_token_id
    given = np.random.default_rng(4).standard_normal((4, 32)).astype(np.float32)
    with torch.no_grad():
        tokens = torch.from_numpy(ids).long()[None]
        embeds = model.model.embed_tokens(tokens)
        embeds[0, places] = torch.from_numpy(given)
        expected = model(
            inputs_embeds=embeds,
            per_layer_inputs=model.model.get_per_layer_inputs(tokens),
            use_cache=False,
        ).logits[0]
    ours = loaded.logits(ids, embedding_rows=places, embeddings=given)
    # Two float32 results, each within the error that test_parity measures.
    exact = logits_of(model, ids, torch.float64)
    error = np.abs(logits_of(model, ids, torch.float32) - exact).max()
    assert np.abs(ours - expected.numpy()).max() <= 8 * error
    assert np.abs(ours - loaded.logits(ids)).max() > 0.1
