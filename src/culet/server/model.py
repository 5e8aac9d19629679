"""The one model that a server serves: engine, tokenizer, template, names and defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from culet.chat.constrain import ConstraintBuilder
from culet.chat.template import Renderer
from culet.chat.tokenizer import Tokenizer
from culet.engine.choice import PromptSink
from culet.engine.handle import RequestHandle
from culet.engine.metrics import EngineMetrics
from culet.engine.request import EnginePrompt, SamplingParams
from culet.engine.sampler import TokenMask
from culet.engine.scheduler import Want
from culet.errors import CuletError
from culet.server.errors import ApiError


class ServingEngine(Protocol):
    """The part of `engine.Engine` that a server uses."""

    metrics: EngineMetrics
    failed_with: CuletError | None

    def submit(
        self,
        prompt: EnginePrompt,
        params: SamplingParams,
        *,
        eos_ids: Collection[int] = (),
        num_ids: int | None = None,
        mask: Callable[[], TokenMask] | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        prompt_want: Want = Want.NONE,
        sink: PromptSink | None = None,
    ) -> RequestHandle: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What clients may ask about a model.

    Attributes:
        num_parameters: of the text model, tables included.
        quantization: the most common type of its weights, as Ollama spells it (`Q4_0`).
        modified_at: of the file, in seconds since 1970.
    """

    architecture: str = "gemma4"
    num_parameters: int = 0
    quantization: str = "unknown"
    file_bytes: int = 0
    digest: str = ""
    modified_at: int = 0
    hidden_size: int = 0
    num_layers: int = 0
    template: str = ""


@dataclass(frozen=True)
class ServedModel:
    """Attributes:
    name: in lists and answers; `aliases` are listed too.
    constraints: makes grammars for the tokenizer.
    num_ids: ids from here on are never drawn; tables may be padded past the vocabulary.
    defaults: sampling parameters for what a request leaves open.
    thinks_by_default: for requests that do not say.
    strict_names: an unknown model name is refused instead of served.
    """

    name: str
    engine: ServingEngine
    tokenizer: Tokenizer
    template: Renderer
    context_length: int
    num_ids: int
    constraints: ConstraintBuilder
    defaults: Mapping[str, Any] = field(default_factory=dict)
    details: ModelDetails = field(default_factory=ModelDetails)
    aliases: tuple[str, ...] = ()
    thinks_by_default: bool = False
    strict_names: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def check_name(self, name: str | None) -> None:
        """Clients send names of their own; `strict_names` refuses those that are not listed."""
        if self.strict_names and name is not None and not self.is_named(name):
            raise self.not_served(name)

    def not_served(self, name: str) -> ApiError:
        """The refusal of a name that is none of ours."""
        return ApiError(
            404,
            f"the model {name!r} is not served here; there is {', '.join(self.names)}",
            code="model_not_found",
            param="model",
        )

    def is_named(self, name: str) -> bool:
        return name in self.names or name.removesuffix(":latest") in self.names
