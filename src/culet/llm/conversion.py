"""A model as the GGUF file that it would be: Hugging Face folders renamed, matrices quantised.

Nothing is written here; `source_of` gives what `formats.packing` reads, tensor by tensor.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from culet.chat import tokenizer_json
from culet.chat.template import own_template_of_folder
from culet.chat.vocabulary import Vocabulary
from culet.errors import UnsupportedModelError, UsageError
from culet.formats.binding import Binding, load_source
from culet.formats.checkpoint import Checkpoint, TensorInfo, folder_of
from culet.formats.gguf import GgufCheckpoint
from culet.formats.gguf_header import DEFAULT_ALIGNMENT
from culet.formats.gguf_writer import Scalar, encode_key, float_tensor
from culet.formats.names import gguf_name
from culet.formats.packing import PackSource, source_of_gguf, source_of_parts
from culet.llm.defaults import sampling_defaults
from culet.llm.loading import bind_checkpoint
from culet.models.config import ModelConfig
from culet.models.config_to_gguf import gguf_metadata, rope_divisors
from culet.quant.blocks import decode
from culet.quant.encode import encode
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME, QuantType

_log = logging.getLogger("culet")

# Types to quantise to, and the one of at least 6 bits that tables, head and small gates get.
QUANT_TYPES = {"q8_0": "Q8_0", "q6_k": "Q6_K", "q5_k": "Q6_K", "q4_k": "Q6_K", "q4_0": "Q6_K"}
_SENSITIVE = ("token_embd", "output", "per_layer_token_embd", "ple_gate", "ple_proj")
# 4 bits there double the divergence of the whole model, and it is small.
_KEPT = ("per_layer_model_proj", "router")
_FLOATS = ("F32", "F16", "BF16")
_SLICE_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is to be done with each tensor.

    Attributes:
        quant: what matrices become; None leaves them as they are.
        table_quant: the same of tables, head and small gates.
    """

    quant: QuantType | None = None
    table_quant: QuantType | None = None

    @property
    def changes_types(self) -> bool:
        return self.quant is not None


def plan_conversion(type_name: str | None, table_type_name: str | None) -> Conversion:
    """The conversion that two options mean.

    Raises:
        UsageError: there is no such type, or a type for tables alone.
    """
    for name in (type_name, table_type_name):
        if name is not None and name not in QUANT_TYPES:
            raise UsageError(
                f"type {name!r} can't be quantised to; there are {', '.join(QUANT_TYPES)}"
            )
    if type_name is None:
        if table_type_name is not None:
            raise UsageError("a type for the tables goes with a type for the rest")
        return Conversion()
    table = QUANT_TYPES[type_name]
    if table_type_name is not None:
        table = table_type_name.upper()
        if BY_NAME[table].row_bytes(256) < BY_NAME["Q6_K"].row_bytes(256):
            _log.warning(
                "tables, head and gates as %s: below 6 bits these models lose much of their "
                "quality",
                table_type_name,
            )
    return Conversion(BY_NAME[type_name.upper()], BY_NAME[table])


def source_of(
    checkpoint: Checkpoint, config: ModelConfig, conversion: Conversion, scratch: Path
) -> PackSource:
    """The model as a GGUF file; a GGUF file whose types stay is given as it lies.

    Args:
        scratch: a folder for large tensors while they are quantised.

    Raises:
        UnsupportedModelError: GGUF has no way to say what the folder says.
        ModelFileError: the tokenizer's files can't be used.
    """
    if isinstance(checkpoint, GgufCheckpoint) and not conversion.changes_types:
        return source_of_gguf(checkpoint)
    binding = bind_checkpoint(config, checkpoint)
    converter = _Converter(checkpoint, config, binding, conversion, scratch)
    if conversion.changes_types and not converter.quantises_anything():
        _log.warning(
            "%s: no matrix is quantised: none of them is F32, F16 or BF16", checkpoint.path
        )
    keys = converter.keys()
    return source_of_parts(
        keys,
        [converter.info(name) for name in converter.names],
        DEFAULT_ALIGNMENT,
        converter.read,
        converter.release,
    )


class _Converter:
    """Tensors by their GGUF names, in the model's order."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        binding: Binding,
        conversion: Conversion,
        scratch: Path,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.binding = binding
        self.conversion = conversion
        self.scratch = scratch
        self.canonical = {gguf_name(c): c for c in binding.sources}
        self.names = list(self.canonical)
        self.divisors = None if checkpoint.kind == "gguf" else rope_divisors(config)
        if self.divisors is not None:
            self.names.append("rope_freqs.weight")
        unused = binding.describe_unused()
        if unused is not None:
            _log.info("%s: left out, %s", checkpoint.path, unused)

    def keys(self) -> list[bytes]:
        if isinstance(self.checkpoint, GgufCheckpoint):
            file, header = self.checkpoint.shards[0]
            dropped = ("general.file_type", "general.alignment")
            return [
                file.data[start:end].tobytes()
                for key, (start, end) in header.key_spans.items()
                if key not in dropped and not key.startswith("split.")
            ]
        label = str(self.checkpoint.path)
        folder = folder_of(self.checkpoint.path.resolve())  # of a name even where it is `.`
        metadata: dict[str, Any] = {
            "general.architecture": self.config.architecture,
            "general.type": "model",
            "general.name": folder.name,
        }
        metadata |= gguf_metadata(self.config, label)
        metadata |= _sampling(self.checkpoint)
        metadata |= tokenizer_metadata(folder, label)
        return [encode_key(key, value) for key, value in metadata.items()]

    def info(self, name: str) -> TensorInfo:
        """Type, shape and size after conversion."""
        if name not in self.canonical:
            assert self.divisors is not None
            return TensorInfo(name, BY_NAME["F32"], self.divisors.shape, self.divisors.nbytes)
        source = self.binding.sources[self.canonical[name]]
        info = self.checkpoint.info(source.name)
        shape = info.shape
        if source.rows is not None:
            shape = (source.rows[1] - source.rows[0], info.shape[-1])
        qtype = self._type_after(self.canonical[name], info.qtype, shape)
        num_rows = int(np.prod(shape[:-1], dtype=np.int64))
        return TensorInfo(name, qtype, shape, num_rows * qtype.row_bytes(shape[-1]))

    def quantises_anything(self) -> bool:
        """Whether any tensor gets fewer bits."""
        return any(
            self.info(name).qtype.name not in _FLOATS
            and self.checkpoint.info(self.binding.sources[self.canonical[name]].name).qtype.name
            in _FLOATS
            for name in self.canonical
        )

    def read(self, name: str) -> QTensor:
        """The tensor after conversion."""
        if name not in self.canonical:
            assert self.divisors is not None
            return float_tensor(name, self.divisors)
        tensor = replace(
            load_source(self.checkpoint, self.binding.sources[self.canonical[name]]), name=name
        )
        if tensor.scale is not None:
            raise UnsupportedModelError(
                f"{self.checkpoint.path}: NVFP4 tensors with factors can't be converted"
            )
        wanted = self.info(name).qtype
        if wanted is tensor.qtype:
            return tensor
        return self._requantised(tensor, wanted)

    def release(self, name: str) -> None:
        if name in self.canonical:
            self.checkpoint.release(self.binding.sources[self.canonical[name]].name)

    def _type_after(self, canonical: str, qtype: QuantType, shape: tuple[int, ...]) -> QuantType:
        """Vectors as F32, float matrices as the conversion says; what is quantised stays."""
        part = canonical.rsplit(".", 1)[-1]
        if len(shape) < 2:
            return BY_NAME["F32"] if qtype.name in _FLOATS else qtype
        if self.conversion.quant is None or qtype.name not in _FLOATS or part in _KEPT:
            return qtype
        wanted = self.conversion.quant
        if part in _SENSITIVE and self.conversion.table_quant is not None:
            wanted = self.conversion.table_quant
        for candidate in (wanted, BY_NAME["Q8_0"]):
            if shape[-1] % candidate.block_values == 0:
                return candidate
        return qtype  # rows of no whole number of blocks

    def _requantised(self, tensor: QTensor, wanted: QuantType) -> QTensor:
        """Encoded a slice at a time; a large result lies in a file, not in memory."""
        row_bytes = wanted.row_bytes(tensor.row_values)
        with tempfile.TemporaryFile(dir=self.scratch) as file:
            file.truncate(tensor.num_rows * row_bytes)
            out = np.memmap(file, np.uint8, "r+", shape=(tensor.num_rows, row_bytes))
        step = max(1, _SLICE_VALUES // tensor.row_values)
        for begin in range(0, tensor.num_rows, step):
            rows = slice(begin, begin + step)
            data = tensor.data[rows]
            part = replace(tensor, shape=(len(data), tensor.row_values), data=data)
            out[rows] = encode(decode(part), wanted)
        return QTensor(tensor.name, wanted, tensor.shape, np.asarray(out))


def tokenizer_metadata(folder: Path, label: str) -> dict[str, Any]:
    """The tokenizer.ggml keys of a folder's tokenizer.json, and its chat template.

    Raises:
        ModelFileError, UnsupportedModelError: the files can't be used.
    """
    words = tokenizer_json.from_folder(folder)
    assert words.merges is not None, "tokenizer.json always has merges"
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": list(words.pieces),
        "tokenizer.ggml.merges": list(words.merges),
        "tokenizer.ggml.scores": np.full(len(words.pieces), -1000, np.float32),
        "tokenizer.ggml.token_type": _token_types(words),
        "tokenizer.ggml.bos_token_id": words.bos_id,
        "tokenizer.ggml.eos_token_id": words.eos_id,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }
    if words.unknown_id >= 0:
        metadata["tokenizer.ggml.unknown_token_id"] = words.unknown_id
    template = own_template_of_folder(folder)
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata


def _token_types(words: Vocabulary) -> np.ndarray[Any, np.dtype[np.int32]]:
    types = np.ones(len(words.pieces), np.int32)
    for index, piece in enumerate(words.pieces):
        if len(piece) == 6 and piece.startswith(b"<0x") and piece.endswith(b">"):
            types[index] = 6
    types[list(words.inert_ids)] = 5
    types[list(words.user_defined_ids)] = 4
    types[list(words.control_ids)] = 3
    return types


def _sampling(checkpoint: Checkpoint) -> Mapping[str, Any]:
    found = sampling_defaults(checkpoint)
    return {
        "general.sampling.temp": Scalar("f32", found.temperature),
        "general.sampling.top_k": found.top_k,
        "general.sampling.top_p": Scalar("f32", found.top_p),
    }
