"""The table of routes: what there is, which body it takes, and how it is described."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from culet.errors import RequestError
from culet.server import anthropic, metrics, ollama, openai_chat, openai_responses, openai_text
from culet.server.state import ServerState
from culet.server.wire import Body

_MAX_TOKENIZE_CHARS = 4 * 1024 * 1024  # more than any context; ids take far more memory than text
Handler = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """Attributes:
    body: the model of its JSON body; None where it takes none.
    handler: `(state, request, body)`, or `(state, request)` without a body.
    ignored: fields that are taken and have no effect; they are named in the reply's header.
    """

    method: str
    path: str
    handler: Handler
    body: type[Body] | None = None
    ignored: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().splitlines()[0]


class TokenizeRequest(Body):
    """A text to be cut into tokens."""

    content: str
    add_special: bool = True
    parse_special: bool = True


class DetokenizeRequest(Body):
    """Token ids to be joined to a text."""

    tokens: list[int]


async def list_models(state: ServerState, request: Request) -> Response:
    """The model served, under all its names."""
    return JSONResponse(
        {"object": "list", "data": [_model(state, name) for name in state.model.names]}
    )


async def get_model(state: ServerState, request: Request) -> Response:
    """One model by name."""
    name = request.path_params["name"]
    if not state.model.is_named(name):
        raise state.model.not_served(name)
    return JSONResponse(_model(state, name))


def _model(state: ServerState, name: str) -> dict[str, Any]:
    details = state.model.details
    return {
        "id": name,
        "object": "model",
        "created": details.modified_at,
        "owned_by": "culet",
        "max_model_len": state.model.context_length,
        "meta": {
            "architecture": details.architecture,
            "context_length": state.model.context_length,
            "num_parameters": details.num_parameters,
            "quantization": details.quantization,
            "modalities": ["text"],
        },
    }


async def tokenize(state: ServerState, request: Request, body: TokenizeRequest) -> Response:
    """Token ids of a text."""
    tokenizer = state.model.tokenizer
    if len(body.content) > _MAX_TOKENIZE_CHARS:
        raise RequestError(
            "content",
            f"it has {len(body.content)} characters, at most {_MAX_TOKENIZE_CHARS} are allowed",
        )

    def answer() -> Response:
        ids = tokenizer.encode(
            body.content, add_bos=body.add_special, parse_special=body.parse_special
        )
        return JSONResponse({"tokens": ids})

    return await state.in_thread(request, answer)


async def detokenize(state: ServerState, request: Request, body: DetokenizeRequest) -> Response:
    """The text of token ids, control tokens spelled out."""
    tokenizer = state.model.tokenizer
    wrong = next((i for i in body.tokens if not 0 <= i < tokenizer.vocab_size), None)
    if wrong is not None:
        raise RequestError("tokens", f"{wrong} is not an id from 0 to {tokenizer.vocab_size - 1}")
    text = await state.in_thread(request, lambda: tokenizer.decode(body.tokens, skip_special=False))
    return JSONResponse({"content": text})


async def health(state: ServerState, request: Request) -> Response:
    """Whether the server is up."""
    return JSONResponse({"status": "ok"})


async def show_metrics(state: ServerState, request: Request) -> Response:
    """Numbers for Prometheus."""
    return PlainTextResponse(metrics.exposition(state), media_type=metrics.CONTENT_TYPE)


_OPENAI_IGNORED = ("metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier")

API_ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "POST",
        "/v1/chat/completions",
        openai_chat.chat_completions,
        openai_chat.ChatRequest,
        ("user", *_OPENAI_IGNORED),
    ),
    ApiRoute(
        "POST",
        "/v1/completions",
        openai_text.completions,
        openai_text.CompletionRequest,
        ("user",),
    ),
    ApiRoute(
        "POST",
        "/v1/responses",
        openai_responses.responses,
        openai_responses.ResponsesRequest,
        ("user", "metadata", "store", "include"),
    ),
    ApiRoute(
        "POST",
        "/v1/embeddings",
        openai_text.embeddings,
        openai_text.EmbeddingRequest,
        ("user",),
    ),
    ApiRoute("GET", "/v1/models", list_models),
    ApiRoute("GET", "/v1/models/{name:path}", get_model),
    ApiRoute(
        "POST",
        "/v1/messages",
        anthropic.messages,
        anthropic.MessagesRequest,
        ("metadata", "service_tier"),
    ),
    ApiRoute("POST", "/v1/messages/count_tokens", anthropic.count_tokens, anthropic.CountRequest),
    ApiRoute("POST", "/api/chat", ollama.chat, ollama.ChatRequest, ("keep_alive",)),
    ApiRoute("POST", "/api/generate", ollama.generate, ollama.GenerateRequest, ("keep_alive",)),
    ApiRoute(
        "POST",
        "/api/embed",
        ollama.embeddings,
        ollama.EmbedRequest,
        ("keep_alive", "options", "truncate"),
    ),
    ApiRoute(
        "POST",
        "/api/embeddings",
        ollama.old_embeddings,
        ollama.OldEmbedRequest,
        ("keep_alive", "options"),
    ),
    ApiRoute("GET", "/api/tags", ollama.tags),
    ApiRoute("GET", "/api/ps", ollama.running),
    ApiRoute("POST", "/api/show", ollama.show, ollama.NameRequest, ("verbose",)),
    ApiRoute("GET", "/api/version", ollama.version),
    *(ApiRoute("POST", f"/api/{name}", ollama.not_here) for name in ("pull", "create", "push")),
    ApiRoute("POST", "/tokenize", tokenize, TokenizeRequest),
    ApiRoute("POST", "/detokenize", detokenize, DetokenizeRequest),
    ApiRoute("GET", "/health", health),
    ApiRoute("GET", "/metrics", show_metrics),
)
