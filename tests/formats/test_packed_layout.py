"""docs/packed.md is exact: a reader that knows no more than that page decodes every type."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from culet.formats.gguf import open_gguf
from culet.formats.gguf_writer import float_tensor, write_gguf
from culet.formats.packing import source_of_gguf, write_packed
from culet.quant.blocks import decode
from culet.quant.tensor import QTensor
from support.stored_tensors import WEIGHT_TYPES, edge_tensor, random_tensor

PAGE = (Path(__file__).parents[2] / "docs" / "packed.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The cells of the page's table that begins with these words, row by row."""
    lines = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


FLOATS = {row[0].strip("`"): int(row[2]) for row in table("layout | values U")}
LAYOUTS = {row[0].strip("`"): row[1:] for row in table("layout | bits")}
STEPS = {name: row[1:] for row in table("types | step(code)") for name in row[0].split()}
PARTS = {8: [8], 6: [4, 2], 5: [4, 1], 4: [4], 3: [2, 1], 2: [2]}


def index_of(data: bytes) -> dict[str, Any]:
    magic, version, zero, offset, size = struct.unpack_from("<8sIIQQ", data)
    assert (magic.hex(), version, zero) == ("8b43554c45540d1a", 1, 0)
    assert offset + size == len(data) and hashlib.sha256(data[offset:]).digest() == data[32:64]
    index: dict[str, Any] = json.loads(data[offset:])
    assert index["planes_version"] == 1
    return index


def span(data: bytes, place: dict[str, Any]) -> NDArray[np.uint8]:
    part = data[place["offset"] : place["offset"] + place["bytes"]]
    assert hashlib.sha256(part).hexdigest() == place["sha256"]
    return np.frombuffer(part, np.uint8)


def values_of(planes: NDArray[np.uint8], layout: str, type_name: str, n: int, k: int) -> Any:
    """float32 [n, k] of the planes of one matrix."""
    num_tiles = -(-n // 16)
    if layout in FLOATS:
        units = planes.reshape(num_tiles, -1, FLOATS[layout])
        values = [float_unit(unit, layout) for unit in units.reshape(-1, FLOATS[layout])]
    else:
        size = int(LAYOUTS[layout][5])
        units = planes.reshape(num_tiles, -1, size)
        values = [code_unit(unit, layout, type_name) for unit in units.reshape(-1, size)]
    width = values[0].shape[1]
    tiles = np.reshape(values, (num_tiles, -1, 16, width)).transpose(0, 2, 1, 3)
    return tiles.reshape(num_tiles * 16, -1)[:n, :k]


def float_unit(unit: NDArray[np.uint8], layout: str) -> Any:
    if layout == "bf16":
        pairs = unit.view("<u2").reshape(32, 16, 2).transpose(1, 0, 2).reshape(16, 64)
        return (pairs.astype(np.uint32) << 16).view(np.float32)
    return unit.view("<f4" if layout == "f32" else "<f2").reshape(64, 16).T.astype(np.float32)


def block_codes(block: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """uint8 [16, 32] of the codes of one block."""
    codes, shift = np.zeros((16, 32), np.uint8), 0
    for part in PARTS[bits]:
        vectors, block = block[: 64 * part].reshape(part, 16, 4), block[64 * part :]
        for q in range(8):
            where, low = {8: (q, 0), 4: (q % 4, q // 4 * 4), 2: (q // 4, q % 4 * 2), 1: (0, q)}[
                part
            ]
            codes[:, 4 * q : 4 * q + 4] |= (vectors[where] >> low & (1 << part) - 1) << shift
        shift += part
    return codes


def code_unit(unit: NDArray[np.uint8], layout: str, type_name: str) -> Any:
    """float32 [16, U] of the values of one unit."""
    bits, group, scale_form, has_min, width, _, types = LAYOUTS[layout]
    assert type_name in types.split()
    num_blocks, num_groups = int(width) // 32, int(width) // int(group)
    step, factor = STEPS[type_name][0], np.float32(2.0 ** int(STEPS[type_name][1]))
    position = 0

    def take(shape: tuple[int, ...], dtype: str) -> Any:
        nonlocal position
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        position += size
        return unit[position - size : position].view(dtype).reshape(shape)

    blocks = take((num_blocks, 64 * int(bits)), "u1")
    codes = np.concatenate([block_codes(b, int(bits)) for b in blocks], axis=1).astype(np.int32)
    if step.startswith("code"):
        steps = codes - int(step[len("code - ") :] or 0)
    else:
        steps = np.array(step.split(), np.int32)[codes]
    kind = {"f16": "<f2", "f16 x int8": "i1"}.get(scale_form, "u1")
    scale = take((num_groups, 16), kind).astype(np.float32)
    least = np.zeros_like(scale)
    if has_min == "yes":
        least = take((num_groups, 16), "<f2" if scale_form == "f16" else "u1").astype(np.float32)
    if scale_form == "f16 x int8":
        scale = take((16,), "<f2").astype(np.float32) * factor * scale
        if has_min == "yes":
            least = -(take((16,), "<f2").astype(np.float32) * least)
    elif scale_form == "e8m0":
        scale = (2.0 ** (scale.astype(np.float64) - 127) * factor).astype(np.float32)
    elif scale_form == "ue4m3":
        exponent, mantissa = scale.astype(int) >> 3 & 15, scale.astype(int) & 7
        normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        x = np.where(exponent == 0, mantissa * 2.0**-9, normal)
        scale = np.where(scale == 127, 0, factor * x).astype(np.float32)
    products = scale.T.repeat(int(group), axis=1) * steps.astype(np.float32)
    return products + least.T.repeat(int(group), axis=1) if has_min == "yes" else products


def stored_tensors() -> list[QTensor]:
    tensors = [random_tensor(name, num_rows=37) for name in WEIGHT_TYPES]
    tensors += [edge_tensor(name) for name in WEIGHT_TYPES]
    rng = np.random.default_rng(3)
    stack = random_tensor("Q4_K", num_rows=54)  # as three experts of 18 rows
    tensors.append(QTensor("experts", stack.qtype, (3, 18, stack.row_values), stack.data))
    halves = rng.standard_normal((20, 70)).astype(np.float32).view(np.uint32) & 0xFFFF0000
    tensors.append(float_tensor("bf16_in_f32", halves.view(np.float32)))
    return [
        QTensor(f"{i}.{t.name}", t.qtype, t.shape, t.data) for i, t in enumerate(tensors)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    folder = tmp_path_factory.mktemp("layout")
    source = folder / "all.gguf"
    write_gguf(source, {"general.architecture": "gemma4"}, stored_tensors())
    checkpoint = open_gguf(source)
    names = checkpoint.tensor_names()
    write_packed(folder / "all.culet", source_of_gguf(checkpoint), dict.fromkeys(names, "planes"))
    checkpoint.close()
    return (folder / "all.culet").read_bytes(), source


def test_every_type_is_decoded_from_the_page_alone(packed: tuple[bytes, Path]) -> None:
    data, source = packed
    index = index_of(data)
    header = span(data, index["header"]).tobytes()
    assert index["header"]["offset"] == 64 and source.read_bytes().startswith(header)
    seen = set()
    for tensor in stored_tensors():
        entry = index["tensors"][tensor.name]
        assert entry["version"] == 1 and entry["served"]["offset"] % 64 == 0
        assert entry["source_sha256"] == hashlib.sha256(tensor.data.tobytes()).hexdigest()
        if "raw" in entry:
            assert np.array_equal(span(data, entry["raw"]), tensor.data.reshape(-1))
        planes = span(data, entry["served"])
        *stacked, n, k = tensor.shape
        matrices = planes.reshape(int(np.prod(stacked)), -1)
        with np.errstate(all="ignore"):
            name = tensor.qtype.name
            found = [values_of(one, entry["layout"], name, n, k) for one in matrices]
            expected = decode(tensor)
        np.testing.assert_array_equal(np.concatenate(found), expected.reshape(-1, k), tensor.name)
        seen.add(entry["layout"])
    assert seen == {*FLOATS, *LAYOUTS}
