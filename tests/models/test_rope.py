"""Rotary embedding against transformers: frequencies of each kind, and which lanes move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.gemma4.modeling_gemma4 import apply_rotary_pos_emb

from culet.models.config import RopeSpec
from culet.ops.reference import ReferenceOps, rotate
from support.tiny_models import CONFIGS, Tiny, make_model

# Gemma 4's own: full layers of 512 lanes of which a quarter rotates, sliding ones of 256.
FULL = RopeSpec(1e6, 512, num_rotated_pairs=64)
SLIDING = RopeSpec(1e4, 256)


def full_size() -> Any:
    """transformers' rotary embedding at Gemma 4's real head widths."""
    model = make_model(Tiny("rope", "gemma4", {"head_dim": 256, "global_head_dim": 512}))
    return model.model.rotary_emb


@pytest.mark.parametrize(
    ("spec", "kind"), [(FULL, "full_attention"), (SLIDING, "sliding_attention")]
)
def test_frequencies_are_transformers(spec: RopeSpec, kind: str) -> None:
    """To the last place of float32: both round the exponent, a power and a quotient."""
    expected = getattr(full_size(), f"{kind}_inv_freq").numpy()
    ours = spec.inverse_frequencies()
    assert ours.dtype == np.float32
    np.testing.assert_array_max_ulp(ours, expected, maxulp=2)
    np.testing.assert_array_equal(ours == 0, expected == 0)


def test_linear_scaling_is_transformers() -> None:
    tiny = next(t for t in CONFIGS if t.name == "gemma 3, scaled rope")
    rotary = make_model(tiny).model.rotary_emb
    full = RopeSpec(1e6, 16, position_scale=1 / 8).inverse_frequencies()
    np.testing.assert_array_max_ulp(full, rotary.full_attention_inv_freq.numpy(), maxulp=2)
    sliding = RopeSpec(1e4, 16).inverse_frequencies()
    np.testing.assert_array_max_ulp(sliding, rotary.sliding_attention_inv_freq.numpy(), maxulp=2)


def test_divisors_of_any_kind() -> None:
    spec = RopeSpec(1e4, 8, divisors=(1.0, 2.0, 4.0, 1e30))
    plain = RopeSpec(1e4, 8).inverse_frequencies()
    np.testing.assert_array_equal(
        spec.inverse_frequencies(), plain / np.array([1, 2, 4, 1e30], np.float32)
    )


@pytest.mark.parametrize("position", [1, 700, 100_000])
def test_lanes_of_a_wide_head(position: int) -> None:
    """Lane i turns with lane i + 256, for i below 64; the others stay as they are.

    The angle is position x frequency in float32, so that frequencies one place apart may differ
    by position x 2^-23 rad; cos and sin of it differ by at most that.
    """
    x = np.random.default_rng(position).standard_normal((1, 1, 512)).astype(np.float32)
    positions = np.array([position], dtype=np.int32)
    cos, sin = np.empty((1, 256), np.float32), np.empty((1, 256), np.float32)
    ReferenceOps().rope_table(cos, sin, positions, FULL.inverse_frequencies())
    turned = rotate(x, cos, sin)[0, 0]

    their_cos, their_sin = full_size()(
        torch.zeros(1), torch.tensor([[position]]), layer_type="full_attention"
    )
    expected = apply_rotary_pos_emb(torch.from_numpy(x)[None], their_cos, their_sin, 2)
    tolerance = 2 * position * 2.0**-23 * np.abs(x).max() + 1e-6
    np.testing.assert_allclose(turned, expected[0, 0, 0].numpy(), rtol=0, atol=tolerance)
    still = np.r_[64:256, 320:512]
    np.testing.assert_array_equal(turned[still], x[0, 0, still])
    assert (turned[np.r_[0:16, 256:272]] != x[0, 0, np.r_[0:16, 256:272]]).all()
