"""The name table: both formats give the same canonical tensors; nothing is lost or guessed."""

from __future__ import annotations

import pytest

from culet.errors import ModelFileError
from culet.formats.binding import Binding, bind_names
from culet.formats.names import LayerFacts, ModelFacts

LAYER = LayerFacts(owns_kv=True, value_is_key=False, has_experts=False, q_rows=8, kv_rows=4)
SHARED = LayerFacts(owns_kv=False, value_is_key=False, has_experts=False, q_rows=8, kv_rows=4)
KEY_VALUE = LayerFacts(owns_kv=True, value_is_key=True, has_experts=False, q_rows=8, kv_rows=4)
MOE = LayerFacts(owns_kv=True, value_is_key=False, has_experts=True, q_rows=8, kv_rows=4)

GGUF_LAYER = (
    "attn_norm attn_q attn_k attn_v attn_output attn_q_norm attn_k_norm post_attention_norm "
    "ffn_norm ffn_gate ffn_up ffn_down post_ffw_norm"
).split()
GGUF_MOE = (
    "ffn_gate_inp ffn_gate_up_exps ffn_down_exps pre_ffw_norm_2 post_ffw_norm_1 post_ffw_norm_2"
).split()
HF_LAYER = (
    "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
    "self_attn.q_norm self_attn.k_norm post_attention_layernorm pre_feedforward_layernorm "
    "mlp.gate_proj mlp.up_proj mlp.down_proj post_feedforward_layernorm"
).split()


def gguf_names(num_layers: int, layer: list[str] = GGUF_LAYER) -> list[str]:
    blocks = [f"blk.{i}.{n}.weight" for i in range(num_layers) for n in layer]
    return ["token_embd.weight", "output_norm.weight", *blocks]


def hf_names(num_layers: int, prefix: str = "model.") -> list[str]:
    blocks = [f"{prefix}layers.{i}.{n}.weight" for i in range(num_layers) for n in HF_LAYER]
    return [f"{prefix}embed_tokens.weight", f"{prefix}norm.weight", *blocks]


def facts(
    *layers: LayerFacts, ple: bool = False, tied: bool = True, arch: str = "gemma4"
) -> ModelFacts:
    return ModelFacts(arch, layers, has_ple=ple, tied_head=tied)  # type: ignore[arg-type]


def accounted(binding: Binding) -> set[str]:
    return (
        {s.name for s in binding.sources.values()} | set(binding.companions) | set(binding.dropped)
    )


def test_both_formats_bind_the_same_tensors() -> None:
    gguf = bind_names("gguf", facts(LAYER, LAYER), gguf_names(2), "x.gguf")
    hf = bind_names("safetensors", facts(LAYER, LAYER), hf_names(2), "x")
    assert gguf.sources.keys() == hf.sources.keys()
    assert len(gguf.sources) == 2 + 2 * 13
    assert accounted(gguf) == set(gguf_names(2))
    assert gguf.describe_unused() is None


@pytest.mark.parametrize(
    "prefix",
    ["model.language_model.", "language_model.model.", "model.", "language_model.", ""],
)
def test_hf_prefixes(prefix: str) -> None:
    binding = bind_names("safetensors", facts(LAYER), hf_names(1, prefix), "x")
    assert binding.sources["layers.0.attn_q"].name == f"{prefix}layers.0.self_attn.q_proj.weight"
    assert binding.sources["output_norm"].name == f"{prefix}norm.weight"


def test_only_gemma3_norms_of_hf_gain_one() -> None:
    gemma3 = bind_names("safetensors", facts(LAYER, arch="gemma3"), hf_names(1), "x")
    changed = {c for c, s in gemma3.sources.items() if s.transform == "plus_one"}
    assert changed == {c for c in gemma3.sources if c.endswith("norm")} and len(changed) == 7
    for kind, arch, names in (
        ("gguf", "gemma3", gguf_names(1)),
        ("gguf", "gemma4", gguf_names(1)),
        ("safetensors", "gemma4", hf_names(1)),
    ):
        binding = bind_names(kind, facts(LAYER, arch=arch), names, "x")  # type: ignore[arg-type]
        assert {s.transform for s in binding.sources.values()} == {"none"}


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_kv_of_shared_layers_may_be_there_or_not(kind: str) -> None:
    names = gguf_names(2) if kind == "gguf" else hf_names(2)
    kv = [
        n
        for n in names
        if ".1." in n and any(p in n for p in ("attn_k", "attn_v", "k_proj", "v_proj", "k_norm"))
    ]
    assert len(kv) == 3
    full = bind_names(kind, facts(LAYER, SHARED), names, "x")  # type: ignore[arg-type]
    lean = bind_names(kind, facts(LAYER, SHARED), [n for n in names if n not in kv], "x")  # type: ignore[arg-type]
    assert set(full.dropped) == set(kv) and lean.dropped == ()
    assert full.sources == lean.sources
    assert "layers.1.attn_k" not in full.sources


def test_value_is_key_needs_no_value() -> None:
    names = [n for n in gguf_names(1) if "attn_v" not in n]
    binding = bind_names("gguf", facts(KEY_VALUE), names, "x")
    assert "layers.0.attn_v" not in binding.sources
    with pytest.raises(ModelFileError, match=r"x\.gguf: tensor blk\.0\.attn_v\.weight is missing"):
        bind_names("gguf", facts(LAYER), names, "x.gguf")


@pytest.mark.parametrize(
    "missing", ["token_embd.weight", "blk.1.ffn_down.weight", "output_norm.weight"]
)
def test_a_missing_tensor_is_named(missing: str) -> None:
    names = [n for n in gguf_names(2) if n != missing]
    with pytest.raises(ModelFileError, match=f"tensor {missing} is missing"):
        bind_names("gguf", facts(LAYER, LAYER), names, "x.gguf")


def test_promised_ple_must_be_there_and_unpromised_must_not() -> None:
    ple_layer = [*GGUF_LAYER, "inp_gate", "proj", "post_norm"]
    table = [
        "per_layer_token_embd.weight",
        "per_layer_model_proj.weight",
        "per_layer_proj_norm.weight",
    ]
    names = gguf_names(1, ple_layer) + table
    assert len(bind_names("gguf", facts(LAYER, ple=True), names, "x").sources) == 2 + 13 + 6
    with pytest.raises(ModelFileError, match=r"per_layer_token_embd\.weight is missing"):
        bind_names("gguf", facts(LAYER, ple=True), names[:-3] + table[1:], "x")
    with pytest.raises(ModelFileError, match="has no place"):
        bind_names("gguf", facts(LAYER), names, "x")


def test_towers_are_counted_by_group() -> None:
    gguf = [
        "v.blk.0.ln1.weight",
        "v.patch_embd.weight",
        "a.blk.0.ln2.weight",
        "mm.input_projection.weight",
    ]
    binding = bind_names("gguf", facts(LAYER), gguf_names(1) + gguf, "x")
    assert binding.unused == {"vision tower": 2, "audio tower": 1, "projector": 1}
    assert binding.describe_unused() == (
        "not used: vision tower (2 tensors), audio tower (1 tensor), projector (1 tensor)"
    )
    hf = [
        "model.vision_embedder.patch_dense.weight",
        "model.embed_audio.embedding_projection.weight",
    ]
    names = hf_names(1, "model.language_model.") + hf
    unused = bind_names("safetensors", facts(LAYER), names, "x").unused
    assert unused == {"vision tower": 1, "audio tower": 1}


@pytest.mark.parametrize(
    "extra", ["blk.0.attn_q.bias", "blk.1.attn_q.weight", "blk.0.ffn_gate_inp.weight", "cls.weight"]
)
def test_a_tensor_without_a_place_is_named(extra: str) -> None:
    with pytest.raises(ModelFileError, match=f"x.gguf: tensor {extra} has no place"):
        bind_names("gguf", facts(LAYER), [*gguf_names(1), extra], "x.gguf")


def test_moe_fused_and_split() -> None:
    extra = ["blk.0.ffn_gate_inp.scale", "blk.0.ffn_down_exps.scale"]
    fused = gguf_names(1, GGUF_LAYER + GGUF_MOE) + extra
    binding = bind_names("gguf", facts(MOE), fused, "x")
    assert binding.sources["layers.0.expert_scale"].name == "blk.0.ffn_down_exps.scale"
    assert binding.sources["layers.0.router_scale"].name == "blk.0.ffn_gate_inp.scale"
    assert binding.sources["layers.0.experts_down"].scale_name is None
    split = [n for n in fused if "gate_up_exps" not in n]
    split += ["blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"]
    sources = bind_names("gguf", facts(MOE), split, "x").sources
    assert {"layers.0.experts_gate", "layers.0.experts_up"} <= sources.keys()
    assert "layers.0.experts_gate_up" not in sources


def test_nvfp4_companions() -> None:
    extra = [f"blk.0.{n}.{s}" for n in ("attn_q", "ffn_up") for s in ("scale", "input_scale")]
    binding = bind_names("gguf", facts(LAYER), gguf_names(1) + extra, "x")
    assert set(binding.companions) == set(extra)
    assert binding.sources["layers.0.attn_q"].scale_name == "blk.0.attn_q.scale"
    assert binding.sources["layers.0.attn_k"].scale_name is None


def test_fused_qkv_is_split_by_rows() -> None:
    unfused = (".attn_q.weight", ".attn_k.weight", ".attn_v.weight")
    names = [n for n in gguf_names(2) if not n.endswith(unfused)]
    names += ["blk.0.attn_qkv.weight", "blk.1.attn_qkv.weight"]
    sources = bind_names("gguf", facts(LAYER, SHARED), names, "x").sources
    rows = {p: sources[f"layers.0.attn_{p}"].rows for p in "qkv"}
    assert rows == {"q": (0, 8), "k": (8, 12), "v": (12, 16)}
    assert sources["layers.1.attn_q"].rows == (0, 8)
    assert "layers.1.attn_k" not in sources


def test_head() -> None:
    untied = bind_names("gguf", facts(LAYER), [*gguf_names(1), "output.weight"], "x")
    assert untied.sources["output"].name == "output.weight"
    head = [*hf_names(1), "lm_head.weight"]
    assert bind_names("safetensors", facts(LAYER), head, "x").dropped == ("lm_head.weight",)
    sources = bind_names("safetensors", facts(LAYER, tied=False), head, "x").sources
    assert sources["output"].name == "lm_head.weight"
    with pytest.raises(ModelFileError, match=r"lm_head\.weight is missing"):
        bind_names("safetensors", facts(LAYER, tied=False), hf_names(1), "x")
