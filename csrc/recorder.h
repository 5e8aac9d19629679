// Python's side of the command list: checks arguments, records commands, keeps buffers alive.
#pragma once

#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings.h"
#include "ops.h"

namespace culet {

// Something to look rows up in, as Python holds it.
struct Table {
    std::unique_ptr<RowSource> rows;
    const StoredRows* mapped_rows = nullptr;  // the same rows, if they are read from a mapped file
    nb::object source;                        // keeps mapped bytes alive; null for planes in memory
    int64_t num_bytes = 0;  // of memory that is held; not what is read from a mapped file
    bool reads_source = false;
};

// A weight matrix: planes, of which rows can be looked up as well.
struct Weight : Table {
    Planes planes;
};

struct KvLayer {
    KvStore store;
};

// A page table as read from its Python object, checked.
struct CheckedPages {
    PageTableView view;
    int32_t largest_page;
    // Smallest token of each row's sequence whose page is present.
    std::vector<int64_t> first_token;
};

// The rows of a stored tensor, checked against its type and shape.
const uint8_t* stored_rows(int ggml_id, int64_t num_rows, int64_t num_cols, nb::handle data);

// Fills `planes` from the layout's name and the shape, but for its tiles; returns the bytes of
// `data`, which must be as many as the tiles have. ValueError where they don't go together.
const uint8_t* described_tiles(const std::string& layout, int ggml_id, int64_t num_rows,
                               int64_t num_cols, nb::handle data, Planes* planes);

// What models call; see culet/ops/interface.py for what each op computes. Every argument is
// checked when it is recorded: TypeError for the kind of array, ValueError for shapes and indices.
class Recorder {
public:
    Recorder(int num_threads, bool exact, const std::optional<std::string>& isa);

    std::unique_ptr<Weight> weight(int ggml_id, int64_t num_rows, int64_t num_cols, nb::handle data,
                                   float factor);
    // Planes that lie somewhere already; `data` is kept alive. Not `owned`: it is a mapped file's.
    std::unique_ptr<Weight> mapped_weight(const std::string& layout, int ggml_id, int64_t num_rows,
                                          int64_t num_cols, nb::handle data, float factor,
                                          bool owned);
    std::unique_ptr<Table> table(int ggml_id, int64_t num_rows, int64_t num_cols, nb::handle data,
                                 float factor, bool copy, bool mapped);
    void sync();

    void embed(nb::handle out, const Table& table, nb::handle ids, float scale);
    void gather_rows(nb::handle out, nb::handle x, nb::handle rows);
    void scatter_rows(nb::handle x, nb::handle values, nb::handle rows);
    void rope_table(nb::handle cos, nb::handle sin, nb::handle positions, nb::handle frequencies);
    void per_layer_inputs(nb::handle out, const Table& table, nb::handle ids, int first_layer,
                          nb::handle x, const Weight& projection, nb::handle norm, float eps);
    void norm_linear(nb::sequence outs, nb::handle x, nb::handle norm, float eps,
                     nb::sequence weights);
    void attention_inputs(nb::handle q, nb::handle k, nb::handle v, nb::handle q_norm,
                          nb::handle k_norm, bool normalize_v, float eps, nb::handle cos,
                          nb::handle sin, nb::handle kv, nb::handle pages);
    void attention(nb::handle out, nb::handle q, const KvLayer& kv, nb::handle pages,
                   std::optional<int64_t> window, float scale);
    void copy_page(KvLayer& kv, int64_t source, int64_t target);
    void linear_norm_add(nb::handle x, nb::handle a, const Weight& weight, nb::handle norm,
                         float eps);
    void gate_up(nb::handle out, nb::handle x, nb::handle norm, float eps, const Weight& gate,
                 const Weight& up);
    void per_layer_step(nb::handle x, nb::handle per_layer, const Weight& gate,
                        const Weight& projection, nb::handle norm, float eps);
    void scale(nb::handle x, float factor);
    void moe_mlp(nb::handle x, nb::handle mlp_norm, const Weight& gate, const Weight& up,
                 const Weight& down, nb::handle mlp_post_norm, nb::handle experts,
                 nb::handle experts_norm, nb::handle experts_post_norm, nb::handle post_norm,
                 float eps);
    void rms_norm(nb::handle out, nb::handle x, nb::handle norm, float eps);
    void logits(nb::handle out, nb::handle hidden, const Weight& head,
                std::optional<float> softcap);

    const char* isa() const { return kernels_->name; }
    int num_threads() const { return pool_.num_threads(); }
    void set_profile(bool on) { program_.set_profile(on); }
    nb::dict take_profile();

private:
    void keep(nb::handle object) { kept_.push_back(nb::borrow(object)); }
    void add(const char* op, Program::Command command);

    // Arguments: `name` is for messages. Optional ones may be None.
    Matrix matrix(nb::handle array, const char* name, bool writable);
    // [rows, layers, width] as rows of all layers.
    Matrix layered_matrix(nb::handle array, const char* name, int64_t* width);
    Matrix optional_matrix(nb::handle array, const char* name);
    const float* vector(nb::handle array, const char* name, int64_t size);
    const float* optional_vector(nb::handle array, const char* name, int64_t size);
    const int32_t* indices(nb::handle array, const char* name, int64_t size, int64_t limit);
    const CheckedPages& checked_pages(nb::handle pages, int64_t num_rows);
    void check_pages_of(const CheckedPages& pages, const KvStore& kv) const;
    std::shared_ptr<const Experts> experts_of(nb::handle experts, int64_t hidden);

    const Kernels* kernels_;
    Pool pool_;
    Program program_;
    Slabs slabs_;
    bool running_ = false;
    std::vector<nb::object> kept_;
    // Of this list of commands: the objects are kept alive in kept_, so their addresses are unique.
    std::unordered_map<PyObject*, std::unique_ptr<CheckedPages>> pages_;
    struct KnownExperts {
        nb::object object;
        std::shared_ptr<const Experts> experts;
    };
    std::unordered_map<PyObject*, KnownExperts> experts_;
};

}  // namespace culet
