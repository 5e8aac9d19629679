"""What Gemma 4 and Gemma 3 have alike: a step's buffers, rotary tables, attention, MLP and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from culet.models.base import Step, StepOutput
from culet.models.config import AttentionKind, LayerSpec, ModelConfig
from culet.models.weights import WeightLoader
from culet.ops.interface import Array, Int32Array, KvLayer, Ops, PageTable, Weight


class Scratch:
    """Buffers of one step. Layers use the same ones by name, since they run one after another."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._held: dict[tuple[str, int, int], Array] = {}

    def take(self, name: str, num_rows: int, width: int) -> Array:
        """The buffer [num_rows, width] of that name; its old content is lost."""
        key = (name, num_rows, width)
        if key not in self._held:
            self._held[key] = self._ops.empty(num_rows, width)
        return self._held[key]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Where the rows of a (part of a) step stand: page table and angles per attention kind."""

    num_rows: int
    pages: Mapping[AttentionKind, PageTable]
    cos: dict[AttentionKind, Array]
    sin: dict[AttentionKind, Array]


class RopeTables:
    """Inverse frequencies of each attention kind, and the angles of a step's rows."""

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        self._ops = ops
        self._half = {kind: spec.head_dim // 2 for kind, spec in config.ropes.items()}
        self._inverse = {
            kind: ops.constant(spec.inverse_frequencies()) for kind, spec in config.ropes.items()
        }

    def all_rows(self, step: Step) -> Rows:
        """Enqueue the tables of all rows of a step."""
        return self._tables(step.positions, step.pages)

    def kept_rows(self, step: Step, rows: Rows) -> Rows:
        """The same of the kept rows; `rows` itself if these are all."""
        if len(step.kept_rows) == rows.num_rows:
            return rows
        return self._tables(step.positions[step.kept_rows], step.kept_pages)

    def _tables(self, positions: Int32Array, pages: Mapping[AttentionKind, PageTable]) -> Rows:
        num_rows = len(positions)
        cos, sin = {}, {}
        for kind, inverse in self._inverse.items():
            cos[kind] = self._ops.empty(num_rows, self._half[kind])
            sin[kind] = self._ops.empty(num_rows, self._half[kind])
            if num_rows:
                self._ops.rope_table(cos[kind], sin[kind], positions, inverse)
        return Rows(num_rows, pages, cos, sin)


class Attention:
    """Projections, head norms, rotary embedding and paged attention of one layer.

    A layer that owns no K/V has only Q and reads its owner's pages.
    """

    def __init__(self, config: ModelConfig, spec: LayerSpec, loader: WeightLoader) -> None:
        self.spec = spec
        self.ops = loader.ops
        self.eps = config.rms_eps
        self.scale = config.attention_scale
        # Gemma 4 norms V, without a weight; Gemma 3 stores it as projected.
        self.normalize_v = config.architecture == "gemma4"
        name = f"layers.{spec.index}."
        self.hidden_size = hidden = config.hidden_size
        self.q_width = spec.num_heads * spec.head_dim
        self.kv_width = spec.num_kv_heads * spec.head_dim
        self.norm = loader.vector(name + "attn_norm", hidden)
        self.post_norm = loader.vector(name + "post_attention_norm", hidden)
        self.q = loader.linear(name + "attn_q", self.q_width, hidden)
        self.q_norm = loader.vector(name + "attn_q_norm", spec.head_dim)
        self.output = loader.linear(name + "attn_output", hidden, self.q_width)
        self.k: Weight | None = None
        self.v: Weight | None = None
        self.k_norm: Array | None = None
        if spec.owns_kv:
            self.k = loader.linear(name + "attn_k", self.kv_width, hidden)
            self.k_norm = loader.vector(name + "attn_k_norm", spec.head_dim)
            if not spec.value_is_key:
                self.v = loader.linear(name + "attn_v", self.kv_width, hidden)

    def run(self, x: Array, rows: Rows, kv: KvLayer, scratch: Scratch) -> None:
        """x += the attention block's output, for rows whose K and V are written here as well."""
        self._project(x, rows, kv, scratch, with_q=True, with_kv=self.spec.owns_kv)
        self._attend(x, rows, kv, scratch)

    def run_last_owner(
        self, x: Array, rows: Rows, kept: Rows, step: Step, kv: KvLayer, scratch: Scratch
    ) -> Array:
        """The block in the last layer that owns K/V, where rows end of which nothing is wanted.

        All rows' K and V are written; only kept rows go on. Returns x of these, [num_kept, hidden].
        """
        if kept is rows:
            self.run(x, rows, kv, scratch)
            return x
        self._project(x, rows, kv, scratch, with_q=False, with_kv=True)
        going_on = self.ops.empty(kept.num_rows, self.hidden_size)
        if kept.num_rows:
            self.ops.gather_rows(going_on, x, step.kept_rows)
            self._project(going_on, kept, kv, scratch, with_q=True, with_kv=False)
            self._attend(going_on, kept, kv, scratch)
        return going_on

    def _project(
        self, x: Array, rows: Rows, kv: KvLayer, scratch: Scratch, with_q: bool, with_kv: bool
    ) -> None:
        q = scratch.take("q", rows.num_rows, self.q_width) if with_q else None
        k = scratch.take("k", rows.num_rows, self.kv_width) if with_kv else None
        v = None
        if with_kv and self.v is not None:
            v = scratch.take("v", rows.num_rows, self.kv_width)
        outs, weights = [], []
        for out, weight in ((q, self.q), (k, self.k), (v, self.v)):
            if out is not None:
                assert weight is not None
                outs.append(out)
                weights.append(weight)
        self.ops.norm_linear(outs, x, self.norm, self.eps, weights)
        kind = self.spec.attention
        self.ops.attention_inputs(
            q,
            k,
            v,
            self.q_norm if with_q else None,
            self.k_norm if with_kv else None,
            self.normalize_v,
            self.eps,
            rows.cos[kind],
            rows.sin[kind],
            kv if with_kv else None,
            rows.pages[kind],
        )

    def _attend(self, x: Array, rows: Rows, kv: KvLayer, scratch: Scratch) -> None:
        q = scratch.take("q", rows.num_rows, self.q_width)
        mixed = scratch.take("mixed", rows.num_rows, self.q_width)
        pages = rows.pages[self.spec.attention]
        self.ops.attention(mixed, q, kv, pages, self.spec.window, self.scale)
        self.ops.linear_norm_add(x, mixed, self.output, self.post_norm, self.eps)


class GatedMlp:
    """The feed-forward block: gate, up, down, between two norms."""

    def __init__(self, config: ModelConfig, spec: LayerSpec, loader: WeightLoader) -> None:
        self.ops = loader.ops
        self.eps = config.rms_eps
        self.width = spec.ffn_dim
        name = f"layers.{spec.index}."
        hidden = config.hidden_size
        self.norm = loader.vector(name + "ffn_norm", hidden)
        self.gate = loader.linear(name + "ffn_gate", spec.ffn_dim, hidden)
        self.up = loader.linear(name + "ffn_up", spec.ffn_dim, hidden)
        self.down = loader.linear(name + "ffn_down", hidden, spec.ffn_dim)
        self.post_norm = loader.vector(name + "post_ffw_norm", hidden)

    def run(self, x: Array, rows: Rows, scratch: Scratch) -> None:
        """x += the block's output."""
        gated = scratch.take("gated", rows.num_rows, self.width)
        self.ops.gate_up(gated, x, self.norm, self.eps, self.gate, self.up)
        self.ops.linear_norm_add(x, gated, self.down, self.post_norm, self.eps)


class Head:
    """Output norm and LM head; the head is the token embedding unless the file has another."""

    def __init__(self, config: ModelConfig, loader: WeightLoader) -> None:
        self.config = config
        self.ops = loader.ops
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = loader.linear("token_embd", *shape)
        self.norm = loader.vector("output_norm", config.hidden_size)
        self.output_table = self.embedding
        if "output" in loader:
            self.output_table = loader.linear("output", *shape)

    def embed(self, step: Step) -> Array:
        """Embeddings [n, hidden]: looked up and scaled, or as given for some rows."""
        x = self.ops.empty(len(step.token_ids), self.config.hidden_size)
        self.ops.embed(x, self.embedding, step.token_ids, self.config.embed_scale)
        if step.embedding_rows is not None and step.embeddings is not None:
            self.ops.scatter_rows(x, self.ops.constant(step.embeddings), step.embedding_rows)
        return x

    def output(self, x: Array, step: Step) -> StepOutput:
        """What was wanted of the kept rows x [m, hidden]."""
        config = self.config
        hidden = self.ops.empty(len(step.kept_rows), config.hidden_size)
        if len(step.kept_rows):
            self.ops.rms_norm(hidden, x, self.norm, config.rms_eps)
        num_logits = len(step.wants_logits)
        if not num_logits:
            return StepOutput(hidden, None)
        chosen = self.ops.empty(num_logits, config.hidden_size)
        self.ops.gather_rows(chosen, hidden, step.wants_logits)
        logits = self.ops.empty(num_logits, config.vocab_size)
        self.ops.logits(logits, chosen, self.output_table, config.logit_softcap)
        return StepOutput(hidden, logits)
