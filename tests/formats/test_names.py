"""The name table against the `gguf` package's own table of the two architectures."""

from __future__ import annotations

import gguf
import pytest

from culet.formats import names

GEMMA4_LAYER = names.LAYER_GEMMA4 + names.LAYER_PLE + (names.EXPERTS_FUSED,)
FUSED_QKV = f"blk.{{bid}}.{names.FUSED_QKV}".removesuffix(".weight")


@pytest.mark.parametrize(
    ("architecture", "model_rows", "layer_rows"),
    [
        ("GEMMA4", names.MODEL_GEMMA4 + names.MODEL_PLE, GEMMA4_LAYER),
        ("GEMMA3", (), ()),
    ],
)
def test_gguf_names(
    architecture: str, model_rows: tuple[names.Row, ...], layer_rows: tuple[names.Row, ...]
) -> None:
    def bare(rows: tuple[names.Row, ...]) -> set[str]:
        return {r.gguf.rsplit(".", 1)[0] for r in rows if r.gguf is not None}

    ours = bare((*names.MODEL, names.HEAD, *model_rows))
    ours |= {f"blk.{{bid}}.{name}" for name in bare((*names.LAYER, *layer_rows))}
    arch = gguf.MODEL_ARCH[architecture]
    theirs = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    assert ours - {FUSED_QKV} == theirs - {FUSED_QKV}


def test_canonical_names_are_unique() -> None:
    model = (*names.MODEL, names.HEAD, *names.MODEL_GEMMA4, *names.MODEL_PLE)
    layer = (*names.LAYER, *GEMMA4_LAYER, *names.EXPERTS_SPLIT)
    for rows in (model, layer):
        canonical = [row.canonical for row in rows]
        assert len(set(canonical)) == len(canonical)
