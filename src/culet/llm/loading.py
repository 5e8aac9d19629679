"""From an opened checkpoint to a loaded model. Knows files' names and models; computes nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from culet.formats.binding import Binding, bind_names, load_source
from culet.formats.checkpoint import Checkpoint
from culet.formats.names import LayerFacts, ModelFacts
from culet.llm.progress import PatientProgress
from culet.models.base import Model
from culet.models.config import ModelConfig
from culet.models.config_hf import is_head_tied
from culet.models.registry import build_model
from culet.models.weights import WeightLoader
from culet.ops.interface import Ops, Placement
from culet.quant.tensor import QTensor

_log = logging.getLogger("culet")


def model_facts(config: ModelConfig, checkpoint: Checkpoint) -> ModelFacts:
    """What decides which tensors a checkpoint of this config must have."""
    return ModelFacts(
        architecture=config.architecture,
        layers=[
            LayerFacts(
                owns_kv=spec.owns_kv,
                value_is_key=spec.value_is_key,
                has_experts=spec.num_experts > 0,
                q_rows=spec.num_heads * spec.head_dim,
                kv_rows=spec.num_kv_heads * spec.head_dim,
            )
            for spec in config.layers
        ],
        has_ple=config.ple_dim > 0,
        tied_head=is_head_tied(checkpoint),
    )


def bind_checkpoint(config: ModelConfig, checkpoint: Checkpoint) -> Binding:
    """Which of the checkpoint's tensors the model uses; reads names only.

    Raises:
        ModelFileError: a tensor is missing, or one is there that the model has no place for.
    """
    facts = model_facts(config, checkpoint)
    return bind_names(checkpoint.kind, facts, checkpoint.tensor_names(), str(checkpoint.path))


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model with its weights.

    Attributes:
        held_bytes: gives the memory that its weights hold now, by canonical name.
    """

    model: Model
    binding: Binding
    held_bytes: Callable[[], dict[str, int]]


def load_model(
    config: ModelConfig, checkpoint: Checkpoint, ops: Ops, ple_placement: Placement
) -> LoadedModel:
    """Load all weights. Tensors that the text model leaves alone are told of in one log line.

    Raises:
        ModelFileError: a tensor is missing, left over or of another shape than the config says.
    """
    binding = bind_checkpoint(config, checkpoint)
    unused = binding.describe_unused()
    if unused is not None:
        _log.info("%s: %s", checkpoint.path, unused)
    # A fused tensor is the source of several weights: its pages go back after the last of them.
    left = Counter(source.name for source in binding.sources.values())

    progress = PatientProgress("loading", len(binding.sources))

    def read(canonical: str) -> QTensor:
        progress.tick()
        return load_source(checkpoint, binding.sources[canonical])

    def release(canonical: str) -> None:
        progress.advance()
        name = binding.sources[canonical].name
        left[name] -= 1
        if not left[name]:
            checkpoint.release(name)

    loader = WeightLoader(ops, binding.sources, read, release, str(checkpoint.path))
    with progress:
        model = build_model(config, loader, ple_placement)
    return LoadedModel(model, binding, loader.held_bytes)
