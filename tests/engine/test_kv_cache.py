"""KV memory is what the arithmetic says, and what is allocated is what was planned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_model import tiny_config, tiny_model

from culet.engine.config import EngineConfig
from culet.engine.kv_cache import KvCache, least_kv_bytes, plan_kv
from culet.errors import CapacityError
from culet.models.config import AttentionKind, LayerSpec, ModelConfig
from culet.ops.interface import KvType


def e_series(num_layers: int, full_every: int, num_owning: int, num_kv_heads: int) -> ModelConfig:
    """The shape of E2B or E4B as far as K and V go: heads of 256 and, on full layers, 512."""
    kinds: list[AttentionKind] = [
        "full" if i % full_every == full_every - 1 else "sliding" for i in range(num_layers)
    ]
    last = {kind: max(i for i in range(num_owning) if kinds[i] == kind) for kind in set(kinds)}
    layers = tuple(
        LayerSpec(
            index=i,
            attention=kind,
            window=512 if kind == "sliding" else None,
            num_heads=8,
            num_kv_heads=num_kv_heads,
            head_dim=512 if kind == "full" else 256,
            kv_owner=i if i < num_owning else last[kind],
            value_is_key=False,
            ffn_dim=64,
        )
        for i, kind in enumerate(kinds)
    )
    return replace(tiny_config(), layers=layers)


E2B = e_series(35, 5, 15, 1)
E4B = e_series(42, 6, 24, 2)


@pytest.mark.parametrize(
    ("model", "kv_type", "growing", "windowed"),
    [
        (E2B, "f16", 6144, 12288),
        (E2B, "bf16", 6144, 12288),
        (E2B, "f32", 12288, 24576),
        (E2B, "q8_0", 6144 * 17 // 32, 12288 * 17 // 32),
        (E4B, "f16", 16384, 40960),
    ],
)
def test_bytes_a_token(model: ModelConfig, kv_type: KvType, growing: int, windowed: int) -> None:
    plan = plan_kv(model, EngineConfig(context_length=4096, kv_type=kv_type))
    assert plan.groups["full"].token_bytes == growing
    assert plan.groups["sliding"].token_bytes == windowed
    for group in plan.groups.values():
        assert group.num_bytes == group.num_pages * 64 * group.token_bytes
    assert plan.num_bytes == sum(group.num_bytes for group in plan.groups.values())


def test_a_context_of_131072_tokens_on_e2b_fits_in_850_mb() -> None:
    plan = plan_kv(E2B, EngineConfig(context_length=131072, max_seqs=1))
    assert plan.num_tokens == 131072
    assert plan.groups["full"].num_bytes == 131072 * 6144
    assert plan.num_bytes < 0.85e9
    # The window itself, a step, and two windows for the prefix cache.
    assert plan.groups["sliding"].num_bytes < 5 * 512 * 12288
    assert "131072" not in plan.describe() and "6144 B" in plan.describe()


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "f32", "q8_0"])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_what_is_allocated_is_what_was_planned(kv_type: KvType, prefix_cache: bool) -> None:
    _, ops = tiny_model()
    layers = tuple(replace(s, head_dim=64 if s.attention == "full" else 32) for s in E2B.layers)
    config = replace(E2B, layers=layers)
    engine = EngineConfig(300, max_seqs=3, kv_type=kv_type, prefix_cache=prefix_cache)
    cache = KvCache(ops, config, engine)
    assert cache.num_bytes == cache.plan.num_bytes
    for kind, group in cache.plan.groups.items():
        assert cache.group_bytes(kind) == group.num_bytes
        assert len(group.layers) == {"full": 3, "sliding": 12}[kind]


def test_a_budget_is_kept_and_used() -> None:
    engine = EngineConfig(context_length=8192, max_seqs=8)
    least, most = least_kv_bytes(E2B, engine), plan_kv(E2B, engine).num_bytes
    page = plan_kv(E2B, engine).groups["sliding"].page_bytes
    for budget in (least, least + 10 * page, (least + most) // 2, most, 2 * most):
        plan = plan_kv(E2B, replace(engine, kv_bytes=budget))
        assert plan.num_tokens >= engine.context_length
        assert plan.num_bytes <= budget
        assert plan.num_bytes > min(budget, most) - page
    with pytest.raises(CapacityError, match=f"needs {least} bytes"):
        plan_kv(E2B, replace(engine, kv_bytes=least - 1))
