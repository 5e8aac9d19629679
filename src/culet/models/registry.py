"""From an architecture's name to its config reader and model class."""

from __future__ import annotations

from culet.formats.checkpoint import Checkpoint
from culet.models.base import Model
from culet.models.config import ModelConfig
from culet.models.config_gguf import config_from_gguf
from culet.models.config_hf import config_from_hf
from culet.models.gemma3 import Gemma3
from culet.models.gemma4 import Gemma4
from culet.models.weights import WeightLoader
from culet.ops.interface import Placement


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """The config of an opened checkpoint; reads metadata, tensor names and shapes only.

    Raises:
        ModelFileError: a key is missing or has an impossible value.
        UnsupportedModelError: a sound file that isn't served.
    """
    if checkpoint.kind == "gguf":
        return config_from_gguf(checkpoint)
    return config_from_hf(checkpoint)


def build_model(config: ModelConfig, loader: WeightLoader, ple_placement: Placement) -> Model:
    """Load every weight of the model that `config` describes.

    Raises:
        ModelFileError: a tensor is missing, left over or of another shape than the config says.
    """
    model: Model
    if config.architecture == "gemma4":
        model = Gemma4(config, loader, ple_placement)
    else:
        model = Gemma3(config, loader)
    loader.finish()
    return model
