"""Stored rows -> tiled planes -> stored rows, bit for bit; and cutting planes by rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from culet.quant import tiles
from culet.quant.blocks import decode
from culet.quant.tensor import QTensor, Tiles
from support.stored_tensors import WEIGHT_TYPES, assert_same_bits, edge_tensor, random_tensor

# Types in which several encodings have the same values.
AMBIGUOUS = {"TQ1_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}


@pytest.fixture(scope="module")
def packer() -> tiles.Packer:
    return tiles.Packer(2)


def tiled(packer: tiles.Packer, tensor: QTensor) -> QTensor:
    """The tensor in planes, as a packed file gives it."""
    layout = tiles.layout_of(packer, tensor)
    data = tiles.aligned_empty(tiles.tiles_bytes(tensor.shape, tensor.qtype.ggml_id, layout))
    parts = [part.data for _, part in tiles.encode(packer, tensor, layout)]
    np.concatenate(parts, out=data)  # fails on any other length
    whole = Tiles(layout, data, owned=True)
    return replace(tensor, data=tensor.data[:0], tiles=whole)


@pytest.mark.parametrize("name", WEIGHT_TYPES)
@pytest.mark.parametrize("num_rows", [1, 16, 37])
def test_rows_come_back(packer: tiles.Packer, name: str, num_rows: int) -> None:
    tensor = random_tensor(name, num_rows)
    back = tiles.plain(tiled(packer, tensor), packer)
    if name in AMBIGUOUS:
        assert back.qtype.name == "F32"
        assert_same_bits(decode(back), decode(tensor))
    else:
        assert back.qtype is tensor.qtype
        np.testing.assert_array_equal(back.data, tensor.data)


@pytest.mark.parametrize("name", sorted(set(WEIGHT_TYPES) - AMBIGUOUS))
def test_edges_come_back(packer: tiles.Packer, name: str) -> None:
    tensor = edge_tensor(name)
    back = tiles.restore(packer, tiled(packer, tensor))
    assert back is not None
    np.testing.assert_array_equal(back, tensor.data)


@pytest.mark.parametrize("name", ["F32", "F64"])
def test_floats_that_are_bf16_take_two_bytes_and_come_back(packer: tiles.Packer, name: str) -> None:
    wide = random_tensor("BF16", 20)
    decoded = decode(wide)
    decoded[np.isnan(decoded)] = 1
    values = decoded.astype("<f4" if name == "F32" else "<f8")
    data = values.view(np.uint8).reshape(20, -1)
    tensor = replace(random_tensor(name, 20), shape=values.shape, data=data)
    in_planes = tiled(packer, tensor)
    assert in_planes.tiles is not None and in_planes.tiles.layout == "bf16"
    np.testing.assert_array_equal(tiles.plain(in_planes).data, data)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "BF16"])
@pytest.mark.parametrize("span", [(0, 16), (16, 48), (32, 50), (0, 50), (5, 20)])
def test_cutting_by_rows(packer: tiles.Packer, name: str, span: tuple[int, int]) -> None:
    tensor = random_tensor(name, 50)
    cut = tiles.row_part(tiled(packer, tensor), *span)
    on_tiles = span[0] % 16 == 0 and (span[1] % 16 == 0 or span[1] == 50)
    assert (cut.tiles is not None) is on_tiles
    np.testing.assert_array_equal(tiles.plain(cut).data, tensor.data[slice(*span)])


def test_stacked_matrices(packer: tiles.Packer) -> None:
    flat = random_tensor("Q5_K", 3 * 21)
    stacked = replace(flat, shape=(3, 21, flat.row_values), scale=np.float32([1, 2, 3]))
    in_planes = tiled(packer, stacked)
    for index in range(3):
        one = tiles.matrix(in_planes, index)
        assert one.shape == (21, flat.row_values)
        np.testing.assert_array_equal(one.scale, [index + 1])
        np.testing.assert_array_equal(
            tiles.plain(one).data, flat.data[index * 21 : (index + 1) * 21]
        )
    np.testing.assert_array_equal(tiles.plain(in_planes).data, flat.data)


def test_slices_of_a_large_tensor_join(
    packer: tiles.Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = random_tensor("Q4_K", 100)
    whole = tiled(packer, tensor)
    monkeypatch.setattr(tiles, "_SLICE_BYTES", 1)
    sliced = tiled(packer, tensor)
    assert whole.tiles is not None and sliced.tiles is not None
    np.testing.assert_array_equal(whole.tiles.data, sliced.tiles.data)


def test_what_does_not_go_together_is_refused(packer: tiles.Packer) -> None:
    assert tiles.tiles_bytes((16, 256), 12, "nonsense") == -1
    assert tiles.tiles_bytes((16, 256), 12, "q4_0") == -1
    assert tiles.tiles_bytes((16, 255), 12, "q4_k") == -1
    assert tiles.tiles_bytes((1 << 40, 256), 12, "q4_k") == -1
    assert tiles.tiles_bytes((1 << 64, 256), 12, "q4_k") == -1
    tensor = random_tensor("Q4_K", 16)
    in_planes = tiled(packer, tensor)
    assert in_planes.tiles is not None
    out = np.empty(tensor.data.shape, np.uint8)
    with pytest.raises(ValueError, match="bytes of planes"):
        packer.restore("q4_k", 12, tensor.row_values, in_planes.tiles.data[:-1], out)
    with pytest.raises(ValueError, match="does not hold Q4_K"):
        packer.restore("q4_0", 12, tensor.row_values, in_planes.tiles.data, out)
