"""Configs from GGUF metadata and from config.json: every shape that is served, every refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from transformers import Gemma4TextConfig

from culet.errors import ModelFileError, UnsupportedModelError
from culet.formats.checkpoint import TensorInfo
from culet.formats.gguf_writer import float_tensor
from culet.models.config import AttentionKind, ModelConfig, RopeSpec, kv_owners
from culet.models.registry import read_config
from culet.quant.tensor import QTensor
from support.tiny_models import BASE, Tiny, gguf_arrays, gguf_metadata, make_model


@dataclass
class FakeCheckpoint:
    """Metadata and tensors without a file."""

    kind: Literal["gguf", "safetensors"]
    architecture: str
    metadata: dict[str, Any]
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    path: Path = Path("model")
    file_bytes: int = 0

    def tensor_names(self) -> list[str]:
        return list(self.tensors)

    def tensor(self, name: str) -> QTensor:
        if name not in self.tensors:
            raise ModelFileError(f"{self.path}: tensor {name} is missing")
        return float_tensor(name, self.tensors[name].astype(np.float32))

    def has_data(self, name: str) -> bool:
        return name in self.tensors

    def info(self, name: str) -> TensorInfo:
        tensor = self.tensor(name)
        return TensorInfo(name, tensor.qtype, tensor.shape, tensor.num_bytes)

    def release(self, name: str) -> None: ...

    def close(self) -> None: ...


def gguf(architecture: str = "gemma4", values: dict[str, Any] | None = None) -> FakeCheckpoint:
    """A tiny model's GGUF form."""
    model = make_model(Tiny("config", architecture, values or {}))
    return FakeCheckpoint(
        "gguf",
        architecture,
        gguf_metadata(model.config, architecture),
        gguf_arrays(model, architecture),
    )


def hf(architecture: str = "gemma4", **values: Any) -> FakeCheckpoint:
    """A config as Google's own files spell it, not as transformers saves it."""
    config = {k: v for k, v in (BASE[architecture] | values).items() if v is not None}
    return FakeCheckpoint("safetensors", architecture, config)


def with_keys(checkpoint: FakeCheckpoint, **changes: Any) -> FakeCheckpoint:
    """The same with GGUF keys replaced, or left out where None."""
    prefix = f"{checkpoint.architecture}."
    changed = {prefix + k.replace("__", "."): v for k, v in changes.items()}
    merged = checkpoint.metadata | changed
    checkpoint.metadata = {k: v for k, v in merged.items() if v is not None}
    return checkpoint


def layer_facts(config: ModelConfig) -> list[tuple[Any, ...]]:
    return [
        (s.attention, s.window, s.num_kv_heads, s.head_dim, s.kv_owner, s.ffn_dim)
        for s in config.layers
    ]


# ---- layers --------------------------------------------------------------------------------------
def test_e2b_layer_map() -> None:
    """Google's E2B: layers 15 to 34 read K/V of 13 (sliding) and 14 (full)."""
    config = read_config(
        hf(
            num_hidden_layers=35,
            layer_types=[
                "full_attention" if i % 5 == 4 else "sliding_attention" for i in range(35)
            ],
            num_kv_shared_layers=20,
        )
    )
    assert [s.kv_owner for s in config.layers[:15]] == list(range(15))
    assert {s.kv_owner for s in config.layers[15:] if s.attention == "sliding"} == {13}
    assert {s.kv_owner for s in config.layers[15:] if s.attention == "full"} == {14}
    assert config.last_owning_layer == 14
    assert [s.ffn_dim for s in config.layers] == [48] * 15 + [96] * 20


def test_lists_and_scalars_mean_the_same() -> None:
    scalar = gguf(values={"use_double_wide_mlp": False})
    listed = gguf(values={"use_double_wide_mlp": False})
    with_keys(
        listed,
        attention__head_count_kv=np.array([1] * 6, np.int32),
        feed_forward_length=[48] * 6,
        attention__head_count=[4] * 6,
    )
    assert read_config(listed) == read_config(scalar)


@pytest.mark.parametrize(
    "key", ["attention.head_count_kv", "feed_forward_length", "attention.sliding_window_pattern"]
)
def test_a_list_of_the_wrong_length_is_refused_by_name(key: str) -> None:
    checkpoint = gguf()
    checkpoint.metadata[f"gemma4.{key}"] = [1] * 5
    with pytest.raises(ModelFileError, match=rf"gemma4\.{key} is a list of 5.* 6 layers"):
        read_config(checkpoint)


def test_a_v_that_only_some_full_layers_lack_is_damage_not_k_eq_v() -> None:
    checkpoint = gguf(values={"num_kv_shared_layers": 0})
    del checkpoint.tensors["blk.2.attn_v.weight"]
    assert not any(s.value_is_key for s in read_config(checkpoint).layers)
    del checkpoint.tensors["blk.5.attn_v.weight"]
    assert [s.value_is_key for s in read_config(checkpoint).layers] == [
        s.attention == "full" for s in read_config(checkpoint).layers
    ]


@pytest.mark.parametrize(
    ("kinds", "shared", "owners"),
    [
        ("SSFSSF", 3, [0, 1, 2, 1, 1, 2]),
        ("FSSF", 1, [0, 1, 2, 0]),
        ("FSFS", 2, [0, 1, 0, 1]),
        ("FFF", 2, [0, 0, 0]),
        ("SFSF", 0, [0, 1, 2, 3]),
    ],
)
def test_a_shared_layer_reads_the_last_owner_of_its_kind(
    kinds: str, shared: int, owners: list[int]
) -> None:
    names = ["sliding" if kind == "S" else "full" for kind in kinds]
    assert kv_owners(names, shared, "key") == owners


def test_sharing_without_an_owner_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="layer 3 is of kind 'full'"):
        kv_owners(["sliding", "sliding", "sliding", "full"], 1, "key")
    with pytest.raises(UnsupportedModelError, match="key is 2, so that no layer"):
        kv_owners(["sliding", "full"], 2, "key")
    with pytest.raises(ModelFileError, match="key is 3, but the model has only 2"):
        kv_owners(["sliding", "full"], 3, "key")


def test_any_pattern_that_transformers_accepts() -> None:
    """All patterns of up to five layers, the last of them full as transformers would have it."""
    num_accepted = 0
    for length in range(1, 6):
        for code in range(2 ** (length - 1)):
            sliding = [bool(code >> i & 1) for i in range(length - 1)] + [False]
            types = ["sliding_attention" if s else "full_attention" for s in sliding]
            kinds: list[AttentionKind] = ["sliding" if s else "full" for s in sliding]
            for shared in range(length):
                theirs = Gemma4TextConfig(
                    num_hidden_layers=length, layer_types=types, num_kv_shared_layers=shared
                )
                try:
                    modes = theirs.kv_sharing_modes
                except ValueError:
                    with pytest.raises(UnsupportedModelError):
                        kv_owners(kinds, shared, "key")
                    continue
                stores = {kinds[i]: i for i, mode in enumerate(modes) if mode == "store"}
                expected = [
                    stores[kinds[i]] if mode == "reuse" else i for i, mode in enumerate(modes)
                ]
                assert kv_owners(kinds, shared, "key") == expected
                num_accepted += 1
    assert num_accepted > 50


# ---- config.json ---------------------------------------------------------------------------------
def test_per_layer_config_and_global_keys_mean_the_same() -> None:
    ours = hf(
        attention_k_eq_v=True,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        num_kv_shared_layers=0,
    )
    saved = hf(attention_k_eq_v=True, num_key_value_heads=2, num_kv_shared_layers=0)
    del saved.metadata["global_head_dim"]
    saved.metadata["per_layer_config"] = {
        str(i): {"head_dim": 32, "num_key_value_heads": 1} for i in (2, 5)
    }
    assert layer_facts(read_config(saved)) == layer_facts(read_config(ours))


def test_global_kv_heads_count_only_with_k_eq_v() -> None:
    """As in transformers, which ignores the key otherwise."""
    config = read_config(hf(num_key_value_heads=2, num_global_key_value_heads=1))
    assert {s.num_kv_heads for s in config.layers} == {2}


def test_what_config_json_leaves_out_is_transformers_default() -> None:
    """Gemma 3 4B's config.json has hardly more than this."""
    checkpoint = FakeCheckpoint(
        "safetensors",
        "gemma3",
        {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    )
    config = read_config(checkpoint)
    assert [s.attention for s in config.layers[:7]] == ["sliding"] * 5 + ["full", "sliding"]
    assert (config.layers[0].num_heads, config.layers[0].num_kv_heads) == (8, 4)
    assert config.layers[0].head_dim == 256
    assert config.vocab_size == 262208
    assert config.attention_scale == 256**-0.5
    assert config.ropes["full"] == RopeSpec(1e6, 256, position_scale=1 / 8)
    assert config.ropes["sliding"] == RopeSpec(1e4, 256)


def test_a_last_sliding_layer_is_taken_as_full_like_in_transformers() -> None:
    config = read_config(hf(layer_types=["sliding_attention"] * 6, num_kv_shared_layers=0))
    assert [s.attention for s in config.layers] == ["sliding"] * 5 + ["full"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"layer_types": ["chunked_attention"] * 6}, "layer_types is 'chunked_attention'"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6, so that no layer"),
        ({"num_kv_shared_layers": 5}, "no layer of that kind"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "no multiple of its 2"),
        ({"hidden_size": "many"}, "hidden_size is 'many'"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": 2**40}, "below 2"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"per_layer_config": {"9": {}}}, "per_layer_config is '9'"),
        ({"per_layer_config": {"1": {"intermediate_size": 3}}}, "overrides intermediate_size"),
        ({"per_layer_config": {"1": {"head_dim": 8}}}, "earlier sliding layers have 16"),
        ({"rope_parameters": {}}, "rope_parameters has no sliding_attention"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1.0, "rope_type": "yarn"}}},
            "rope_type is 'yarn'",
        ),
    ],
)
def test_what_a_config_may_not_say(values: dict[str, Any], message: str) -> None:
    checkpoint = hf(**values)
    with pytest.raises(ModelFileError, match=message):
        read_config(checkpoint)


# ---- GGUF ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("architecture", ["gemma4", "gemma3"])
def test_every_missing_key_is_named(architecture: str) -> None:
    optional = {
        "final_logit_softcapping",
        "attention.shared_kv_layers",
        "attention.value_length",
        "attention.value_length_swa",
        "rope.freq_base_swa",
    }
    if architecture == "gemma3":
        optional |= {"attention.sliding_window"}
    for key in list(gguf(architecture).metadata):
        checkpoint = gguf(architecture)
        del checkpoint.metadata[key]
        if key.removeprefix(f"{architecture}.") in optional:
            read_config(checkpoint)
        else:
            with pytest.raises(ModelFileError, match=f"key {key} is missing"):
                read_config(checkpoint)


def test_gemma3_without_a_window_is_full_throughout() -> None:
    config = read_config(with_keys(gguf("gemma3"), attention__sliding_window=0))
    assert {s.attention for s in config.layers} == {"full"}


def test_gemma3_patterns() -> None:
    default = [s.attention for s in read_config(gguf("gemma3")).layers]
    assert default == ["sliding"] * 5 + ["full", "sliding"]
    period = read_config(with_keys(gguf("gemma3"), attention__sliding_window_pattern=3))
    assert [s.attention for s in period.layers] == ["sliding", "sliding", "full"] * 2 + ["sliding"]
    listed = with_keys(gguf("gemma3"), attention__sliding_window_pattern=[False] + [True] * 6)
    assert [s.attention for s in read_config(listed).layers] == ["full"] + ["sliding"] * 6


def test_gemma3_27b_scales_by_hidden_over_heads() -> None:
    """llama.cpp knows the model by its 62 layers; the files have no key for it."""
    checkpoint = with_keys(
        gguf("gemma3"), block_count=62, embedding_length=5376, attention__head_count=32
    )
    assert read_config(checkpoint).attention_scale == (5376 // 32) ** -0.5


def test_rope_scaling_in_gguf() -> None:
    plain = read_config(gguf("gemma3")).ropes["full"]
    assert plain.position_scale == 1.0
    scaled = with_keys(gguf("gemma3"), rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert read_config(scaled).ropes["full"].position_scale == 1 / 8
    assert read_config(scaled).ropes["sliding"].position_scale == 1.0
    old = with_keys(gguf("gemma3"), rope__scale_linear=4.0)
    assert read_config(old).ropes["full"].position_scale == 1 / 4
    with pytest.raises(UnsupportedModelError, match="yarn"):
        read_config(with_keys(gguf("gemma3"), rope__scaling__type="yarn"))


@pytest.mark.parametrize(
    ("freqs", "message"),
    [(np.ones(5), "has 5 values"), (np.zeros(16), "not greater than 0")],
)
def test_rope_freqs_are_checked(freqs: np.ndarray, message: str) -> None:
    checkpoint = gguf()
    checkpoint.tensors["rope_freqs.weight"] = freqs
    with pytest.raises(ModelFileError, match=message):
        read_config(checkpoint)


def test_a_cap_of_zero_is_none() -> None:
    assert read_config(gguf()).logit_softcap == 30.0
    assert read_config(with_keys(gguf(), final_logit_softcapping=0.0)).logit_softcap is None


def test_key_and_value_widths_must_agree() -> None:
    with pytest.raises(ModelFileError, match="value_length is 16; key_length is 32"):
        read_config(with_keys(gguf(), attention__value_length=16))


def test_a_table_that_metadata_promises_must_be_there() -> None:
    checkpoint = gguf()
    del checkpoint.tensors["per_layer_token_embd.weight"]
    with pytest.raises(ModelFileError, match=r"per_layer_token_embd\.weight"):
        read_config(checkpoint)


def test_other_architectures_are_refused() -> None:
    for kind in ("gguf", "safetensors"):
        with pytest.raises(UnsupportedModelError, match="'llama' is not served"):
            read_config(FakeCheckpoint(kind, "llama", {}))
