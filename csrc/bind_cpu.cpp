// Python's view of the CPU backend: the recorder and what it works on.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "probes.h"
#include "recorder.h"

namespace culet {
namespace {

std::vector<std::string> isa_levels() {
    std::vector<std::string> names;
    for (const char* const* name = supported_levels(); *name; name++) names.emplace_back(*name);
    return names;
}

void decode_rows(const Table& table, int64_t first,
                 nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    const int64_t cols = table.rows->num_cols(), count = static_cast<int64_t>(out.shape(0));
    if (first < 0 || first + count > table.rows->num_rows() ||
        static_cast<int64_t>(out.shape(1)) != cols) {
        refuse("out does not fit the rows of the table");
    }
    std::vector<float> scratch(cols);
    for (int64_t i = 0; i < count; i++) {
        table.rows->read(first + i, 0, cols, out.data() + i * cols, scratch.data());
    }
}

double read_gb_per_s(int num_threads, int64_t num_bytes) {
    if (num_bytes < 1 << 20) refuse("a probe needs at least 1 MiB");
    const nb::gil_scoped_release release;
    Pool pool(num_threads);
    return probe_read(pool, num_bytes);
}

double fork_join_ns(int num_threads, int num_loops) {
    if (num_loops < 1) refuse("a probe needs at least 1 loop");
    const nb::gil_scoped_release release;
    Pool pool(num_threads);
    return probe_fork_join(pool, num_loops);
}

void bind_recorder(nb::module_& m) {
    using R = Recorder;
    const auto none = [](const char* name) { return nb::arg(name).none(); };
    nb::class_<R>(m, "Recorder")
        .def(nb::init<int, bool, const std::optional<std::string>&>(), nb::arg("num_threads"),
             nb::arg("exact"), nb::arg("isa").none())
        .def_prop_ro("isa", &R::isa)
        .def_prop_ro("num_threads", &R::num_threads)
        .def("set_profile", &R::set_profile, nb::arg("on"))
        .def("take_profile", &R::take_profile)
        .def("encode_weight", &R::weight, nb::arg("ggml_id"), nb::arg("num_rows"),
             nb::arg("num_cols"), nb::arg("data"), nb::arg("factor"))
        .def("mapped_weight", &R::mapped_weight, nb::arg("layout"), nb::arg("ggml_id"),
             nb::arg("num_rows"), nb::arg("num_cols"), nb::arg("data"), nb::arg("factor"),
             nb::arg("owned"))
        .def("stored_table", &R::table, nb::arg("ggml_id"), nb::arg("num_rows"),
             nb::arg("num_cols"), nb::arg("data"), nb::arg("factor"), nb::arg("copy"),
             nb::arg("mapped"))
        .def("sync", &R::sync)
        .def("embed", &R::embed, nb::arg("out"), nb::arg("table"), nb::arg("ids"), nb::arg("scale"))
        .def("gather_rows", &R::gather_rows, nb::arg("out"), nb::arg("x"), nb::arg("rows"))
        .def("scatter_rows", &R::scatter_rows, nb::arg("x"), nb::arg("values"), nb::arg("rows"))
        .def("rope_table", &R::rope_table, nb::arg("cos"), nb::arg("sin"), nb::arg("positions"),
             nb::arg("inverse_frequencies"))
        .def("per_layer_inputs", &R::per_layer_inputs, nb::arg("out"), nb::arg("table"),
             nb::arg("ids"), nb::arg("first_layer"), nb::arg("x"), nb::arg("projection"),
             nb::arg("norm"), nb::arg("eps"))
        .def("norm_linear", &R::norm_linear, nb::arg("outs"), nb::arg("x"), none("norm"),
             nb::arg("eps"), nb::arg("weights"))
        .def("attention_inputs", &R::attention_inputs, none("q"), none("k"), none("v"),
             none("q_norm"), none("k_norm"), nb::arg("normalize_v"), nb::arg("eps"), nb::arg("cos"),
             nb::arg("sin"), none("kv"), nb::arg("pages"))
        .def("attention", &R::attention, nb::arg("out"), nb::arg("q"), nb::arg("kv"),
             nb::arg("pages"), none("window"), nb::arg("scale"))
        .def("copy_page", &R::copy_page, nb::arg("kv"), nb::arg("source"), nb::arg("target"))
        .def("linear_norm_add", &R::linear_norm_add, nb::arg("x"), nb::arg("a"), nb::arg("weight"),
             none("norm"), nb::arg("eps"))
        .def("gate_up", &R::gate_up, nb::arg("out"), nb::arg("x"), nb::arg("norm"), nb::arg("eps"),
             nb::arg("gate"), nb::arg("up"))
        .def("per_layer_step", &R::per_layer_step, nb::arg("x"), nb::arg("per_layer"),
             nb::arg("gate"), nb::arg("projection"), nb::arg("norm"), nb::arg("eps"))
        .def("scale", &R::scale, nb::arg("x"), nb::arg("factor"))
        .def("moe_mlp", &R::moe_mlp, nb::arg("x"), nb::arg("mlp_norm"), nb::arg("gate"),
             nb::arg("up"), nb::arg("down"), nb::arg("mlp_post_norm"), nb::arg("experts"),
             nb::arg("experts_norm"), nb::arg("experts_post_norm"), nb::arg("post_norm"),
             nb::arg("eps"))
        .def("rms_norm", &R::rms_norm, nb::arg("out"), nb::arg("x"), nb::arg("norm"),
             nb::arg("eps"))
        .def("logits", &R::logits, nb::arg("out"), nb::arg("hidden"), nb::arg("head"),
             none("softcap"));
}

}  // namespace

void bind_cpu(nb::module_& m) {
    nb::class_<Table>(m, "Table")
        .def_ro("num_bytes", &Table::num_bytes)
        .def_ro("reads_source", &Table::reads_source)
        .def("decode_rows", &decode_rows, nb::arg("first"), nb::arg("out").noconvert());
    nb::class_<Weight, Table>(m, "Weight");
    nb::class_<KvLayer>(m, "KvLayer")
        .def(
            "__init__",
            [](KvLayer* self, int64_t num_pages, int page_tokens, int num_heads, int64_t head_dim,
               int kv_type) {
                if (num_pages < 1 || page_tokens < 1 || num_heads < 1 || head_dim < 1 ||
                    kv_type < 0 || kv_type > static_cast<int>(KvType::q8_0)) {
                    refuse("sizes of K/V storage must be positive");
                }
                new (self) KvLayer{KvStore(static_cast<KvType>(kv_type), num_pages, page_tokens,
                                           num_heads, head_dim)};
            },
            nb::arg("num_pages"), nb::arg("page_tokens"), nb::arg("num_kv_heads"),
            nb::arg("head_dim"), nb::arg("kv_type"))
        .def_prop_ro("num_bytes", [](const KvLayer& self) { return self.store.value_bytes(); });
    bind_recorder(m);
    m.def("isa_levels", &isa_levels);
    m.def("default_num_threads", &default_num_threads);
    m.def("probe_read", &read_gb_per_s, nb::arg("num_threads"), nb::arg("num_bytes"));
    m.def("probe_fork_join", &fork_join_ns, nb::arg("num_threads"), nb::arg("num_loops"));
}

}  // namespace culet
