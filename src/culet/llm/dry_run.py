"""Whether a model would load and take text, found out from headers: no weight is read.

The model is built as always, but over weights that are only names, types and shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from culet.chat import vocabulary
from culet.chat.sandbox import Sandbox
from culet.chat.template import own_template_of_folder, own_template_of_gguf
from culet.chat.tokenizer import piece_finder
from culet.errors import ModelFileError
from culet.formats.binding import Binding, check_source
from culet.formats.checkpoint import Checkpoint, folder_of
from culet.llm.defaults import sampling_defaults
from culet.models.config import ModelConfig
from culet.models.registry import build_model
from culet.models.weights import WeightLoader
from culet.quant.tensor import QTensor

_TOKENIZER_FILE = "tokenizer.json"
_SAMPLED_PIECES = 512


def check_weights(config: ModelConfig, checkpoint: Checkpoint, binding: Binding) -> None:
    """Refuse what loading would refuse for its names, types and shapes.

    Raises:
        ModelFileError, UnsupportedModelError: as loading.
    """

    def read(canonical: str) -> QTensor:
        source = binding.sources[canonical]
        info = checkpoint.info(source.name)
        shape = check_source(checkpoint, source)
        return QTensor(source.name, info.qtype, shape, np.empty((0, 0), np.uint8))

    loader = _DryLoader(
        _NoOps(),  # type: ignore[arg-type]
        binding.sources,
        read,
        lambda name: None,
        str(checkpoint.path),
    )
    build_model(config, loader, "disk")


def check_chat(checkpoint: Checkpoint) -> None:
    """Refuse a chat template or default sampling that serving would refuse.

    Raises:
        ModelFileError: the template does not compile, or a setting is out of its range.
    """
    sampling_defaults(checkpoint)
    source = str(checkpoint.path)
    if checkpoint.kind == "gguf":
        template = own_template_of_gguf(checkpoint.metadata, source)
    else:
        template = own_template_of_folder(folder_of(checkpoint.path))
    if template is not None:
        Sandbox().compile_template(template, source)


class VocabularyCheck:
    """Checks the vocabularies of many files, most of which have the same pieces.

    Finding pieces by their bytes takes an index, which takes longer to make than all the rest; the
    last one is kept for files with the same number of pieces and the same ones at many places.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[bytes, ...], Callable[[bytes], int]] | None = None

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse a vocabulary that can't be used.

        Raises:
            ModelFileError, UnsupportedModelError: as making the tokenizer.
        """
        if checkpoint.kind == "gguf":
            metadata, source = checkpoint.metadata, str(checkpoint.path)
            tokens = metadata.get("tokenizer.ggml.tokens")
            if tokens is None:
                raise ModelFileError(
                    f"{source}: the key tokenizer.ggml.tokens is missing, so there is no tokenizer"
                )
            vocabulary.from_gguf(metadata, self._finder(tokens, source), source)
            return
        folder = folder_of(checkpoint.path)
        if not (folder / _TOKENIZER_FILE).is_file():
            raise ModelFileError(f"{folder}: there is no {_TOKENIZER_FILE} beside the weights")

    def _finder(self, tokens: Any, source: str) -> Callable[[bytes], int]:
        if isinstance(tokens, str | np.ndarray) or not hasattr(tokens, "__getitem__"):
            return piece_finder(tokens, source)  # refuses it
        step = max(1, len(tokens) // _SAMPLED_PIECES)
        sample = (str(len(tokens)).encode(), *(tokens[i] for i in range(0, len(tokens), step)))
        if self._known is None or self._known[0] != sample:
            self._known = (sample, piece_finder(tokens, source))
        return self._known[1]


class _DryLoader(WeightLoader):
    """Checks tensors off; the values of small ones are all 1."""

    def values(self, name: str, *shape: int) -> NDArray[np.float32]:
        self.tensor(name, *shape)
        return np.ones(shape, dtype=np.float32)


class _NoWeight:
    """What a dry run has in place of a weight."""

    reads_source = True
    num_bytes = 0


class _NoOps:
    """A backend that holds nothing and computes nothing."""

    name = "none"
    precision = "fast"

    def constant(self, values: NDArray[np.float32]) -> None:
        return None

    def weight(self, source: QTensor) -> Any:
        return _NoWeight()

    def table(self, source: QTensor, placement: str) -> Any:
        return _NoWeight()
