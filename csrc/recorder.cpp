#include "recorder.h"

#include <cstring>

namespace culet {
namespace {

void check(bool holds, const char* message) {
    if (!holds) refuse(message);
}

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const Kernels* kernels_for(const std::optional<std::string>& isa) {
    const char* error = nullptr;
    const Kernels* kernels = select_kernels(isa ? isa->c_str() : nullptr, &error);
    if (!kernels) {
        std::string message = "ISA level " + *isa + ": " + error + "; this CPU can run";
        for (const char* const* name = supported_levels(); *name; name++) {
            message += std::string(name == supported_levels() ? " " : ", ") + *name;
        }
        refuse(message);
    }
    return kernels;
}

// Runs for as long as a native call that uses the pool.
struct PoolSession {
    Pool& pool;
    explicit PoolSession(Pool& p) : pool(p) { pool.begin(); }
    ~PoolSession() { pool.end(); }
};

}  // namespace

const uint8_t* stored_rows(int ggml_id, int64_t num_rows, int64_t num_cols, nb::handle data) {
    const ggml::PlaneForm* form = ggml::plane_form(ggml_id);
    if (!form) refuse("type id " + std::to_string(ggml_id) + " has no codec");
    Bytes rows;
    if (!nb::try_cast<Bytes>(data, rows, false)) {
        throw nb::type_error("data must be a contiguous uint8 matrix");
    }
    const int64_t row_bytes = ggml::row_bytes(*form, num_cols);
    if (num_rows < 1 || num_cols < 1 || row_bytes < 0 ||
        static_cast<int64_t>(rows.shape(0)) != num_rows ||
        static_cast<int64_t>(rows.shape(1)) != row_bytes) {
        refuse("data of " + std::to_string(rows.shape(0)) + " x " + std::to_string(rows.shape(1)) +
               " bytes is not " + std::to_string(num_rows) + " x " + std::to_string(num_cols) +
               " values of " + form->name);
    }
    return rows.data();
}

const uint8_t* described_tiles(const std::string& layout, int ggml_id, int64_t num_rows,
                               int64_t num_cols, nb::handle data, Planes* planes) {
    int id = 0;
    while (id < kNumLayouts && layout != kLayoutNames[id]) id++;
    if (id == kNumLayouts) refuse("layout " + layout + " does not exist");
    const ggml::PlaneForm* form = ggml::plane_form(ggml_id);
    if (!form || num_rows < 1 || num_cols < 1 || ggml::row_bytes(*form, num_cols) < 0) {
        refuse("type id " + std::to_string(ggml_id) + " has no rows of that size");
    }
    if (!describe_planes(static_cast<LayoutId>(id), ggml_id, num_rows, num_cols, 1.0f, planes)) {
        refuse("layout " + layout + " does not hold " + form->name);
    }
    nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> bytes;
    if (!nb::try_cast(data, bytes, false)) throw nb::type_error("data must be contiguous uint8");
    if (static_cast<int64_t>(bytes.size()) != planes->num_bytes()) {
        refuse(std::to_string(bytes.size()) + " bytes of planes, but the matrix has " +
               std::to_string(planes->num_bytes()));
    }
    return bytes.data();
}

Recorder::Recorder(int num_threads, bool exact, const std::optional<std::string>& isa)
    : kernels_(kernels_for(isa)),
      pool_(num_threads > 0 ? num_threads : default_num_threads()),
      program_(pool_, *kernels_, exact) {}

std::unique_ptr<Weight> Recorder::weight(int ggml_id, int64_t num_rows, int64_t num_cols,
                                         nb::handle data, float factor) {
    check(!running_, "another thread is inside sync()");
    const uint8_t* rows = stored_rows(ggml_id, num_rows, num_cols, data);
    auto weight = std::make_unique<Weight>();
    bool exact = false;
    running_ = true;
    {
        const nb::gil_scoped_release release;
        const PoolSession session(pool_);
        exact = encode_planes(pool_, slabs_, ggml_id, rows, num_rows, num_cols, factor,
                              &weight->planes);
    }
    running_ = false;
    check(exact, "F64 values that float32 can't hold");
    weight->rows = std::make_unique<PlanesRows>(weight->planes);
    weight->num_bytes = weight->planes.num_bytes();
    return weight;
}

std::unique_ptr<Weight> Recorder::mapped_weight(const std::string& layout, int ggml_id,
                                                int64_t num_rows, int64_t num_cols, nb::handle data,
                                                float factor, bool owned) {
    auto weight = std::make_unique<Weight>();
    Planes& planes = weight->planes;
    const uint8_t* tiles = described_tiles(layout, ggml_id, num_rows, num_cols, data, &planes);
    check(reinterpret_cast<uintptr_t>(tiles) % 64 == 0, "planes must be aligned to 64 bytes");
    planes.tiles = tiles;
    planes.out_factor = factor;
    weight->source = nb::borrow(data);
    weight->rows = std::make_unique<PlanesRows>(planes);
    weight->num_bytes = owned ? planes.num_bytes() : 0;
    weight->reads_source = !owned;
    return weight;
}

std::unique_ptr<Table> Recorder::table(int ggml_id, int64_t num_rows, int64_t num_cols,
                                       nb::handle data, float factor, bool copy, bool mapped) {
    const uint8_t* rows = stored_rows(ggml_id, num_rows, num_cols, data);
    auto table = std::make_unique<Table>();
    table->source = copy ? nb::object(data.attr("copy")()) : nb::borrow(data);
    if (copy) rows = nb::cast<Bytes>(table->source).data();
    auto stored =
        std::make_unique<StoredRows>(ggml_id, rows, num_rows, num_cols, factor, mapped && !copy);
    if (!copy) table->mapped_rows = stored.get();
    table->rows = std::move(stored);
    table->num_bytes = copy ? num_rows * ggml::row_bytes(*ggml::plane_form(ggml_id), num_cols) : 0;
    table->reads_source = !copy;
    return table;
}

void Recorder::add(const char* op, Program::Command command) {
    check(!running_, "another thread is inside sync()");
    program_.add(op, std::move(command));
}

void Recorder::sync() {
    check(!running_, "another thread is inside sync()");
    struct End {  // with the GIL held again: buffers are given back
        Recorder& recorder;
        ~End() {
            recorder.running_ = false;
            recorder.kept_.clear();
            recorder.pages_.clear();
        }
    } end{*this};
    running_ = true;
    if (program_.empty()) return;
    const nb::gil_scoped_release release;
    program_.run();
}

void Recorder::embed(nb::handle out, const Table& table, nb::handle ids, float scale) {
    const Matrix y = matrix(out, "out", true);
    const RowSource& rows = *table.rows;
    const int32_t* list = indices(ids, "ids", y.rows, rows.num_rows());
    check(y.cols == rows.num_cols(), "out and table differ in width");
    keep(nb::find(table));
    add("embed", [=, &rows](Context& c) { culet::embed(c, y, rows, list, scale); });
}

void Recorder::gather_rows(nb::handle out, nb::handle x, nb::handle rows) {
    const Matrix y = matrix(out, "out", true), from = matrix(x, "x", false);
    const int32_t* list = indices(rows, "rows", y.rows, from.rows);
    check(y.cols == from.cols, "out and x differ in width");
    add("gather_rows", [=](Context& c) { culet::gather_rows(c, y, from, list); });
}

void Recorder::scatter_rows(nb::handle x, nb::handle values, nb::handle rows) {
    const Matrix to = matrix(x, "x", true), from = matrix(values, "values", false);
    const int32_t* list = indices(rows, "rows", from.rows, to.rows);
    check(to.cols == from.cols, "x and values differ in width");
    add("scatter_rows", [=](Context& c) { culet::scatter_rows(c, to, from, list); });
}

void Recorder::rope_table(nb::handle cos, nb::handle sin, nb::handle positions,
                          nb::handle frequencies) {
    const Matrix c = matrix(cos, "cos", true), s = matrix(sin, "sin", true);
    check(c.rows == s.rows && c.cols == s.cols, "cos and sin differ in shape");
    constexpr int64_t kPositions = int64_t{1} << 31;
    const int32_t* at = indices(positions, "positions", c.rows, kPositions);
    const float* f = vector(frequencies, "inverse_frequencies", c.cols);
    add("rope_table", [=](Context& context) { culet::rope_table(context, c, s, at, f); });
}

void Recorder::per_layer_inputs(nb::handle out, const Table& table, nb::handle ids, int first_layer,
                                nb::handle x, const Weight& projection, nb::handle norm,
                                float eps) {
    int64_t width = 0;
    const Matrix y = layered_matrix(out, "out", &width), h = matrix(x, "x", false);
    const RowSource& rows = *table.rows;
    const int32_t* list = indices(ids, "ids", y.rows, rows.num_rows());
    const Norm n{vector(norm, "norm", width), eps};
    const Planes& planes = projection.planes;
    check(first_layer >= 0 && first_layer * width + y.cols <= rows.num_cols(),
          "the layers of out are not in the table");
    check(h.rows == y.rows && h.cols == planes.num_cols && y.cols == planes.num_rows,
          "x, projection and out do not fit");
    if (table.mapped_rows) table.mapped_rows->prefetch(list, y.rows);
    keep(nb::find(table));
    keep(nb::find(projection));
    add("per_layer_inputs", [=, &rows, &planes](Context& c) {
        culet::per_layer_inputs(c, y, rows, list, first_layer, h, planes, n, width);
    });
}

void Recorder::norm_linear(nb::sequence outs, nb::handle x, nb::handle norm, float eps,
                           nb::sequence weights) {
    const Matrix h = matrix(x, "x", false);
    std::vector<Matrix> results;
    std::vector<const Planes*> planes;
    for (nb::handle out : outs) results.push_back(matrix(out, "outs", true));
    for (nb::handle item : weights) {
        planes.push_back(&nb::cast<const Weight&>(item).planes);
        keep(item);
    }
    check(!planes.empty() && planes.size() == results.size(), "outs and weights differ in number");
    for (size_t i = 0; i < planes.size(); i++) {
        check(results[i].rows == h.rows && results[i].cols == planes[i]->num_rows &&
                  h.cols == planes[i]->num_cols,
              "x, a weight and its out do not fit");
    }
    const bool has_norm = !norm.is_none();
    const Norm n{optional_vector(norm, "norm", h.cols), eps};
    add("norm_linear", [=, results = std::move(results), planes = std::move(planes)](Context& c) {
        culet::norm_linear(c, results, h, has_norm ? &n : nullptr, planes);
    });
}

void Recorder::attention_inputs(nb::handle q, nb::handle k, nb::handle v, nb::handle q_norm,
                                nb::handle k_norm, bool normalize_v, float eps, nb::handle cos,
                                nb::handle sin, nb::handle kv, nb::handle pages) {
    AttentionInputs in;
    in.q = optional_matrix(q, "q");
    in.k = optional_matrix(k, "k");
    in.v = optional_matrix(v, "v");
    in.cos = matrix(cos, "cos", false);
    in.sin = matrix(sin, "sin", false);
    const int64_t dim = 2 * in.cos.cols, num_rows = in.cos.rows;
    in.q_norm = optional_vector(q_norm, "q_norm", dim);
    in.k_norm = optional_vector(k_norm, "k_norm", dim);
    in.normalize_v = normalize_v;
    in.eps = eps;
    check(in.sin.rows == num_rows && in.sin.cols == in.cos.cols, "cos and sin differ in shape");
    check(in.q.data || in.k.data, "neither q nor k is given");
    check(!in.q.data || (in.q.rows == num_rows && in.q.cols % dim == 0), "q does not fit cos");
    const CheckedPages& table = checked_pages(pages, num_rows);
    KvStore* store = nullptr;
    if (in.k.data) {
        check(!kv.is_none(), "k is given without kv");
        store = &nb::cast<KvLayer&>(kv).store;
        keep(kv);
        const int64_t width = store->num_heads * store->head_dim;
        check(store->head_dim == dim && in.k.rows == num_rows && in.k.cols == width,
              "k does not fit cos or kv");
        check(!in.v.data || (in.v.rows == num_rows && in.v.cols == width), "v does not fit kv");
        check_pages_of(table, *store);
    }
    add("attention_inputs", [in, store, view = table.view](Context& c) {
        culet::attention_inputs(c, in, store, view);
    });
}

void Recorder::attention(nb::handle out, nb::handle q, const KvLayer& kv, nb::handle pages,
                         std::optional<int64_t> window, float scale) {
    const Matrix y = matrix(out, "out", true), queries = matrix(q, "q", false);
    const KvStore& store = kv.store;
    const CheckedPages& table = checked_pages(pages, queries.rows);
    check_pages_of(table, store);
    check(y.rows == queries.rows && y.cols == queries.cols, "out and q differ in shape");
    check(queries.cols % (store.num_heads * store.head_dim) == 0, "q does not fit kv");
    check(!window || *window > 0, "window must be positive");
    for (int64_t row = 0; row < queries.rows; row++) {
        const int64_t first = window ? table.view.positions[row] - *window + 1 : 0;
        check(std::max<int64_t>(first, 0) >= table.first_token[row],
              "a token that a row sees has no page");
    }
    keep(nb::find(kv));
    add("attention", [=, &store, view = table.view](Context& c) {
        culet::attention(c, y, queries, store, view, window.value_or(0), scale);
    });
}

void Recorder::copy_page(KvLayer& kv, int64_t source, int64_t target) {
    KvStore& store = kv.store;
    check(source >= 0 && source < store.num_pages && target >= 0 && target < store.num_pages &&
              source != target,
          "copy_page needs two pages of the storage");
    keep(nb::find(kv));
    add("copy_page", [=, &store](Context&) {
        const int64_t bytes = store.num_heads * store.tiles_per_page * store.tile_bytes;
        for (const Memory* memory : {&store.k, &store.v}) {
            std::memcpy(memory->data() + target * bytes, memory->data() + source * bytes, bytes);
        }
    });
}

void Recorder::linear_norm_add(nb::handle x, nb::handle a, const Weight& weight, nb::handle norm,
                               float eps) {
    const Matrix h = matrix(x, "x", true), in = matrix(a, "a", false);
    const Planes& planes = weight.planes;
    check(h.rows == in.rows && h.cols == planes.num_rows && in.cols == planes.num_cols,
          "x, a and weight do not fit");
    const bool has_norm = !norm.is_none();
    const Norm n{optional_vector(norm, "norm", h.cols), eps};
    keep(nb::find(weight));
    add("linear_norm_add", [=, &planes](Context& c) {
        culet::linear_norm_add(c, h, in, planes, has_norm ? &n : nullptr);
    });
}

void Recorder::gate_up(nb::handle out, nb::handle x, nb::handle norm, float eps, const Weight& gate,
                       const Weight& up) {
    const Matrix y = matrix(out, "out", true), h = matrix(x, "x", false);
    const Planes &g = gate.planes, &u = up.planes;
    check(y.rows == h.rows && g.num_cols == h.cols && u.num_cols == h.cols &&
              g.num_rows == y.cols && u.num_rows == y.cols,
          "x, gate, up and out do not fit");
    const Norm n{vector(norm, "norm", h.cols), eps};
    keep(nb::find(gate));
    keep(nb::find(up));
    add("gate_up", [=, &g, &u](Context& c) { culet::gate_up(c, y, h, n, g, u); });
}

void Recorder::per_layer_step(nb::handle x, nb::handle per_layer, const Weight& gate,
                              const Weight& projection, nb::handle norm, float eps) {
    const Matrix h = matrix(x, "x", true), inputs = matrix(per_layer, "per_layer", false);
    const Planes &g = gate.planes, &p = projection.planes;
    check(h.rows == inputs.rows && g.num_cols == h.cols && g.num_rows == inputs.cols &&
              p.num_cols == inputs.cols && p.num_rows == h.cols,
          "x, per_layer, gate and projection do not fit");
    const Norm n{vector(norm, "norm", h.cols), eps};
    keep(nb::find(gate));
    keep(nb::find(projection));
    add("per_layer_step",
        [=, &g, &p](Context& c) { culet::per_layer_step(c, h, inputs, g, p, n); });
}

void Recorder::scale(nb::handle x, float factor) {
    const Matrix h = matrix(x, "x", true);
    add("scale", [=](Context& c) { culet::scale(c, h, factor); });
}

void Recorder::moe_mlp(nb::handle x, nb::handle mlp_norm, const Weight& gate, const Weight& up,
                       const Weight& down, nb::handle mlp_post_norm, nb::handle experts,
                       nb::handle experts_norm, nb::handle experts_post_norm, nb::handle post_norm,
                       float eps) {
    const Matrix h = matrix(x, "x", true);
    const DenseMlp dense{&gate.planes, &up.planes, &down.planes};
    const int64_t ffn = dense.gate->num_rows;
    check(dense.gate->num_cols == h.cols && dense.up->num_cols == h.cols &&
              dense.up->num_rows == ffn && dense.down->num_cols == ffn &&
              dense.down->num_rows == h.cols,
          "x, gate, up and down do not fit");
    const Norm before{vector(mlp_norm, "mlp_norm", h.cols), eps};
    const Norm after{vector(mlp_post_norm, "mlp_post_norm", h.cols), eps};
    const Norm before_experts{vector(experts_norm, "experts_norm", h.cols), eps};
    const Norm after_experts{vector(experts_post_norm, "experts_post_norm", h.cols), eps};
    const Norm after_both{vector(post_norm, "post_norm", h.cols), eps};
    const std::shared_ptr<const Experts> routed = experts_of(experts, h.cols);
    for (const Weight* weight : {&gate, &up, &down}) keep(nb::find(*weight));
    add("moe_mlp", [=](Context& c) {
        culet::moe_mlp(c, h, before, dense, after, *routed, before_experts, after_experts,
                       after_both);
    });
}

void Recorder::rms_norm(nb::handle out, nb::handle x, nb::handle norm, float eps) {
    const Matrix y = matrix(out, "out", true), h = matrix(x, "x", false);
    check(y.rows == h.rows && y.cols == h.cols, "out and x differ in shape");
    const Norm n{vector(norm, "norm", h.cols), eps};
    add("rms_norm", [=](Context& c) { culet::rms_norm(c, y, h, n); });
}

void Recorder::logits(nb::handle out, nb::handle hidden, const Weight& head,
                      std::optional<float> softcap) {
    const Matrix y = matrix(out, "out", true), h = matrix(hidden, "hidden", false);
    const Planes& planes = head.planes;
    check(y.rows == h.rows && y.cols == planes.num_rows && h.cols == planes.num_cols,
          "hidden, head and out do not fit");
    check(!softcap || *softcap > 0.0f, "softcap must be positive");
    keep(nb::find(head));
    add("logits",
        [=, &planes](Context& c) { culet::logits(c, y, h, planes, softcap.value_or(0.0f)); });
}

nb::dict Recorder::take_profile() {
    nb::dict result;
    for (const auto& [op, time] : program_.times()) {
        result[op.c_str()] = nb::make_tuple(time.num_calls, time.seconds);
    }
    program_.clear_times();
    return result;
}

}  // namespace culet
