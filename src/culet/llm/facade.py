"""`load` and `LLM`: the Python interface. Requests of any number of threads share one engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from culet import system
from culet.chat.constrain import AnswerFormat, Constraint, ConstraintBuilder, ToolRules
from culet.chat.messages import Message, parse_messages, parse_tools
from culet.chat.stream import OutputParser, Start
from culet.chat.template import (
    Renderer,
    choose_template,
    own_template_of_folder,
    own_template_of_gguf,
)
from culet.chat.tokenizer import Tokenizer
from culet.engine.config import EngineConfig
from culet.engine.engine import Engine
from culet.engine.handle import Delta
from culet.engine.request import EnginePrompt, SamplingParams
from culet.engine.runner import num_token_ids
from culet.engine.sampler import new_seed
from culet.engine.scheduler import Want
from culet.errors import RequestError, UsageError
from culet.formats.checkpoint import Checkpoint, folder_of
from culet.formats.opening import open_checkpoint
from culet.formats.packed import LoadMode
from culet.llm.batch import run_batch
from culet.llm.defaults import SamplingDefaults, sampling_defaults
from culet.llm.loading import LoadedModel, bind_checkpoint, load_model
from culet.llm.memory import (
    MemoryGroup,
    MemoryReport,
    held_bytes_by_role,
)
from culet.llm.overhead import ProgramBytes
from culet.llm.placement import (
    EmbedWeights,
    check_table_can_move,
    decide_holding,
    tell_system,
)
from culet.llm.plan import BytePlan, plan_bytes, plan_engine, weight_groups
from culet.llm.results import ChatCompletion, Completion, Piece
from culet.llm.text import Started, chat_pieces, plain_pieces
from culet.models.registry import read_config
from culet.ops.interface import KvType, Ops, Precision
from culet.ops.select import BackendName, load_ops

_log = logging.getLogger("culet")


def load(
    path: str | Path,
    *,
    backend: BackendName = "auto",
    context_length: int | None = None,
    threads: int | None = None,
    kv_type: KvType = "f16",
    max_seqs: int = 16,
    kv_bytes: int | None = None,
    prefix_cache: bool = True,
    precision: Precision = "fast",
    embed_weights: EmbedWeights = "auto",
    load_mode: LoadMode = "mmap",
    chat_template: str | Path | None = None,
) -> LLM:
    """Load a model; use the result in a `with` block, or call its `close`.

    Args:
        path: a GGUF file, a folder of safetensors, or a packed file; of models of the hub,
            `culet pull` prints it.
        context_length: tokens of prompt and answer; None for the model's own, or as many as fit.
        threads: None for the backend's own choice.
        kv_type: how K and V are stored.
        max_seqs: sequences that run at once; further ones wait.
        kv_bytes: what K and V may take, as far as `max_seqs` has a use for it. None: a quarter of
            the free memory, or more where one sequence of `context_length` tokens needs it.
        prefix_cache: keep what was computed for requests that begin alike.
        precision: of activations; `exact` is float32 and slow.
        embed_weights: where the per-layer table is: read by row from the mapped file (`disk`), or
            in memory. `auto` is `disk`, unless `load_mode` is `none`.
        load_mode: how a packed file's weights and the per-layer table are held: mapped (`mmap`),
            read into memory (`none`), or mapped and locked in RAM (`mlock`).
        chat_template: file of a Jinja template to use instead of the model's own.

    Raises:
        UsageError: an option has an impossible value, or nothing can be read at `path`.
        ModelFileError: the file is damaged or incomplete.
        UnsupportedModelError: it is sound, but isn't served.
        CapacityError: the model, or the context that was asked for, does not fit in memory; found
            out before weights are read.
        BackendError: the backend is not built.
    """
    holding = decide_holding(embed_weights, load_mode)
    program = ProgramBytes.of_this_process()
    template = None if chat_template is None else Path(chat_template)
    if template is not None and not template.exists():
        raise UsageError(f"the chat template {template}: no such file")
    ops = load_ops(backend, threads=threads, precision=precision)
    checkpoint = open_checkpoint(path, load_mode=holding.load_mode)
    try:
        config = read_config(checkpoint)
        check_table_can_move(config, embed_weights, str(path))
        asked = config.context_length if context_length is None else context_length
        engine = EngineConfig(
            context_length=asked,
            kv_type=kv_type,
            max_seqs=max_seqs,
            kv_bytes=kv_bytes,
            prefix_cache=prefix_cache,
        )
        binding = bind_checkpoint(config, checkpoint)
        has_planes = ops.name != "reference"
        weights = weight_groups(checkpoint, binding, holding, has_planes=has_planes)
        engine = plan_engine(
            checkpoint,
            config,
            binding,
            holding,
            engine,
            weights=weights if has_planes else (),
            may_shorten=context_length is None,
        )
        _tell_context(path, asked, engine.context_length, config.context_length)
        plan = plan_bytes(
            checkpoint, config, binding, holding, engine, has_planes=has_planes, program=program
        )
        loaded = load_model(config, checkpoint, ops, holding.table)
        checkpoint.check_unchanged()
        tell_system(checkpoint, binding, holding)
        return LLM(checkpoint, loaded, ops, engine, plan, template)
    except BaseException:
        checkpoint.close()
        raise


def _tell_context(path: str | Path, asked: int, given: int, made_for: int) -> None:
    if given < asked:
        _log.info("%s: context cut from %d to %d tokens to fit", path, asked, given)
    if asked > made_for:
        _log.warning(
            "%s: context of %d tokens, but the model was made for %d", path, asked, made_for
        )


class LLM:
    """A loaded model, as `culet.load` makes it.

    Its methods may be called from several threads at once; in a coroutine that is
    `await asyncio.to_thread(llm.chat, messages)`.

    Attributes:
        engine: what runs the requests, for callers who speak token ids.
        context_length: tokens that prompt and answer may have together.
        backend: what computes, such as `cpu (avx2, 2 threads)`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        loaded: LoadedModel,
        ops: Ops,
        engine: EngineConfig,
        plan: BytePlan,
        chat_template: Path | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._loaded = loaded
        self._plan = plan
        self.engine = Engine(loaded.model, ops, engine, check=checkpoint.check_unchanged)
        self.backend = f"{ops.name} ({ops.description})"
        _log.debug("%s", self.engine.cache.plan.describe())
        self._template_override = chat_template
        self._defaults = sampling_defaults(checkpoint)
        self._closed = False
        self.context_length = engine.context_length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is running and let go of the model file; the object is of no use afterwards."""
        if not self._closed:
            self._closed = True
            self.engine.close()
            self._checkpoint.close()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            ModelFileError: the file has none, or a damaged one.
        """
        checkpoint = self._checkpoint
        if checkpoint.kind == "gguf":
            tokenizer = Tokenizer.from_gguf(checkpoint.metadata, str(checkpoint.path))
        else:
            tokenizer = Tokenizer.from_folder(folder_of(checkpoint.path))
        for note in tokenizer.notes:
            _log.info("%s: %s", checkpoint.path, note)
        return tokenizer

    @overload
    def generate(
        self, text: str, *, stream: Literal[False] = ..., **options: Any
    ) -> Completion: ...

    @overload
    def generate(self, text: str, *, stream: Literal[True], **options: Any) -> Iterator[Piece]: ...

    @overload
    def generate(self, text: Sequence[str], **options: Any) -> list[Completion]: ...

    def generate(
        self,
        text: str | Sequence[str],
        *,
        stream: bool = False,
        parse_special: bool = False,
        **options: Any,
    ) -> Completion | Iterator[Piece] | list[Completion]:
        """Go on with a text, or with many at once, without any template.

        Args:
            text: a list of texts gives a list of completions, `n` of them for each text. A batch
                that takes long shows a progress bar on a terminal.
            stream: give pieces as they come; the last one has the whole `Completion`.
            parse_special: take spellings of control tokens in `text` as such.
            options: fields of `SamplingParams`; what is left open is the model's own default.

        Raises:
            RequestError: an option or the text can't be used; names it.
            CapacityError: the text leaves no room in the context.
        """
        params = self._params(options)
        tokenizer = self.tokenizer

        def start(prompt: str) -> Started:
            ids = tokenizer.encode(prompt, add_bos=True, parse_special=parse_special)
            return self._start(ids, params)

        def complete(started: Started, deltas: Iterable[Delta]) -> Completion:
            return cast(Completion, _last(plain_pieces(started, deltas, tokenizer)))

        _require_texts(text)
        if isinstance(text, str):
            _require_one_choice(params)
            started = start(text)
            pieces = plain_pieces(started, started.deltas(), tokenizer)
            return pieces if stream else cast(Completion, _last(pieces))
        if stream:
            raise RequestError("stream", "a list of texts can't be streamed; one text can")
        # Half of the queue is left to other threads.
        max_pending = max(1, self.engine.config.max_waiting // (2 * params.n))
        return run_batch(text, start, complete, max_pending)

    @overload
    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        stream: Literal[False] = ...,
        **options: Any,
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        stream: Literal[True],
        **options: Any,
    ) -> Iterator[Piece]: ...

    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        enable_thinking: bool = False,
        continue_final: bool = False,
        stream: bool = False,
        **options: Any,
    ) -> ChatCompletion | Iterator[Piece]:
        """Answer a conversation.

        Args:
            messages: dicts as in OpenAI's interface, or `Message` objects; a text is the one
                message of a user.
            tools: functions that the model may ask for, as in OpenAI's interface.
            response_format: as in OpenAI's interface: text, json_object or json_schema; also
                `{"type": "regex", "regex": ...}` and `{"type": "grammar", "grammar": ...}` (Lark).
                The answer is bound while it is sampled.
            enable_thinking: let the model think first, if it can.
            continue_final: go on with the last message, which must be the assistant's.
            stream: give pieces as they come; the last one has the whole `ChatCompletion`.
            options: fields of `SamplingParams`; what is left open is the model's own default.

        Raises:
            RequestError: a message or an option can't be used; names it.
            CapacityError: the conversation leaves no room in the context.
        """
        params = self._params(options)
        _require_one_choice(params)
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        answer_format = AnswerFormat.from_request(response_format)
        tool_specs = parse_tools(tools)
        prompt = self.renderer.render(
            parse_messages(messages),
            tools=tool_specs,
            enable_thinking=enable_thinking,
            continue_final=continue_final,
        )
        ids = self.tokenizer.encode_prompt(prompt)
        trusted = [segment.text for segment in prompt.segments if segment.is_trusted]
        schemas = {tool.name: dict(tool.parameters) for tool in tool_specs}
        parser = OutputParser(schemas, Start.of_prompt(trusted[-1] if trusted else ""))
        strict = frozenset(tool.name for tool in tool_specs if tool.is_strict)
        mask = self.constraints.build(
            answer_format,
            ToolRules(schemas, strict) if schemas else None,
            parser.start,
            may_think=enable_thinking and not continue_final,
        )
        started = self._start(ids, params, mask)
        pieces = chat_pieces(started, started.deltas(), self.tokenizer, parser)
        return pieces if stream else cast(ChatCompletion, _last(pieces))

    def logits(self, token_ids: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float32]:
        """Logits [n_tokens, vocab] at every position, after soft-capping; nothing is added.

        Raises:
            RequestError: no ids, or something that is no token's.
            CapacityError: more tokens than the context holds.
        """
        ids = _token_ids(token_ids)
        parts: list[NDArray[np.float32]] = []
        handle = self.engine.submit(
            EnginePrompt(ids),
            SamplingParams(max_tokens=0),
            prompt_want=Want.LOGITS,
            sink=lambda position, rows: parts.append(rows.copy()),
        )
        handle.result()
        return np.concatenate(parts)

    def memory(self) -> MemoryReport:
        """Bytes by group, as planned from headers and as held now."""
        actual: dict[str, int] = held_bytes_by_role(self._loaded.held_bytes())
        cache = self.engine.cache
        actual |= {f"K/V, {kind}": cache.group_bytes(kind) for kind in cache.plan.groups}
        groups = [
            MemoryGroup(
                group.name,
                group.private_bytes,
                actual.get(group.name),
                group.mapped_bytes,
                group.by_row_bytes,
            )
            for group in self._plan.groups
        ]
        return MemoryReport(tuple(groups), system.resident_bytes())

    @cached_property
    def constraints(self) -> ConstraintBuilder:
        """What makes grammars for this tokenizer; its tables come with the first grammar."""
        return ConstraintBuilder(self.tokenizer)

    @property
    def defaults(self) -> SamplingDefaults:
        """Sampling parameters for what a request leaves open."""
        return self._defaults

    @property
    def num_ids(self) -> int:
        """Ids from here on mean no token: tables may be padded past the vocabulary."""
        return min(self.tokenizer.vocab_size, num_token_ids(self._loaded.model.config))

    @cached_property
    def renderer(self) -> Renderer:
        """The chat template, the model's own or a built-in one.

        Raises:
            ModelFileError: it does not compile, or there is none.
            UsageError: the template that was given can't be read.
        """
        checkpoint = self._checkpoint
        source = str(checkpoint.path)
        if checkpoint.kind == "gguf":
            own = own_template_of_gguf(checkpoint.metadata, source)
        else:
            own = own_template_of_folder(folder_of(checkpoint.path))
        config = self._loaded.model.config
        renderer, note = choose_template(
            own,
            self.tokenizer.spelling,
            architecture=config.architecture,
            has_per_layer_inputs=config.ple_dim > 0,
            override=self._template_override,
            source=source,
        )
        is_usual = own is not None and self._template_override is None
        _log.log(logging.DEBUG if is_usual else logging.INFO, "%s", note)
        return renderer

    def _params(self, options: Mapping[str, Any]) -> SamplingParams:
        known = list(SamplingParams.__dataclass_fields__)
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise RequestError(unknown[0], f"there is no such option; there are {', '.join(known)}")
        given = {name: value for name, value in options.items() if value is not None}
        if isinstance(given.get("stop"), str):
            given["stop"] = (given["stop"],)
        elif "stop" in given:
            given["stop"] = tuple(given["stop"])
        return SamplingParams(**(asdict(self._defaults) | given))

    def _start(
        self, ids: Sequence[int], params: SamplingParams, mask: Constraint | None = None
    ) -> Started:
        seed = new_seed() if params.seed is None else params.seed
        handle = self.engine.submit(
            EnginePrompt(ids),
            replace(params, seed=seed),
            eos_ids=self.tokenizer.stop_ids,
            num_ids=self.num_ids,
            mask=None if mask is None else lambda: mask,
        )
        return Started(handle, params, seed)


def _require_texts(text: object) -> None:
    """Raises `RequestError` for what is neither a text nor a list of texts."""
    if isinstance(text, str):
        return
    if not isinstance(text, Sequence) or isinstance(text, (bytes, bytearray)):
        raise RequestError("text", f"must be a text or a list of texts, not {type(text).__name__}")
    for index, item in enumerate(text):
        if not isinstance(item, str):
            hint = "; conversations are for `chat`" if isinstance(item, Mapping) else ""
            raise RequestError(f"text[{index}]", f"must be a text, not {type(item).__name__}{hint}")


def _token_ids(token_ids: Sequence[int] | NDArray[np.integer]) -> list[int]:
    """Plain ints; `RequestError` for what holds anything else."""
    try:
        ids = np.asarray(token_ids)
    except ValueError:  # lists of unequal lengths
        ids = np.array([""])
    if ids.size and ids.dtype.kind not in "iu":
        raise RequestError(
            "token_ids", "must be whole numbers, such as `llm.tokenizer.encode(text)` gives"
        )
    found: list[int] = ids.reshape(-1).tolist()
    return found


def _require_one_choice(params: SamplingParams) -> None:
    if params.n > 1:
        raise RequestError("n", f"{params.n} choices need a list to come in: give a list of texts")


def _last(pieces: Iterator[Piece]) -> Completion | ChatCompletion:
    """Run to the end; the whole answer."""
    completion = None
    for piece in pieces:
        completion = piece.completion
    assert completion is not None
    return completion
