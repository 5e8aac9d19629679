// The fused ops of culet/ops/interface.py over plain memory; that file says what each computes.
// Shapes were checked by the binding.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "linear.h"

namespace culet {

// Something that rows of float32 are looked up in.
class RowSource {
public:
    virtual ~RowSource() = default;
    // out[count] = values [first, first + count) of a row; scratch holds a whole row.
    virtual void read(int64_t row, int64_t first, int64_t count, float* out,
                      float* scratch) const = 0;
    virtual int64_t num_rows() const = 0;
    virtual int64_t num_cols() const = 0;
};

class PlanesRows : public RowSource {
public:
    explicit PlanesRows(const Planes& planes) : planes_(planes) {}
    void read(int64_t row, int64_t first, int64_t count, float* out, float* scratch) const override;
    int64_t num_rows() const override { return planes_.num_rows; }
    int64_t num_cols() const override { return planes_.num_cols; }

private:
    const Planes& planes_;
};

// Rows of stored ggml blocks, decoded as they are read.
class StoredRows : public RowSource {
public:
    // `mapped`: the bytes are a read-only file mapping, whose pages may be let go of at any time.
    StoredRows(int ggml_id, const uint8_t* data, int64_t num_rows, int64_t num_cols, float factor,
               bool mapped);
    void read(int64_t row, int64_t first, int64_t count, float* out, float* scratch) const override;
    int64_t num_rows() const override { return num_rows_; }
    int64_t num_cols() const override { return num_cols_; }
    // Asks the system to read the pages of these rows of a mapped file, all at once and in the
    // background: one by one, each missing page would stop the thread that touches it.
    void prefetch(const int32_t* ids, int64_t count) const;

private:
    void let_go() const;

    const ggml::PlaneForm* form_;
    const uint8_t* data_;
    int64_t num_rows_, num_cols_, row_bytes_;
    float factor_;
    bool mapped_;
    mutable std::atomic<uint32_t> num_reads_{0};
};

struct Norm {
    const float* weight;  // null: 1
    float eps;
};

// ---- rows (ops_rows.cpp) -----------------------------------------------------------------------
void embed(Context&, Matrix out, const RowSource& table, const int32_t* ids, float scale);
void gather_rows(Context&, Matrix out, Matrix x, const int32_t* rows);
void scatter_rows(Context&, Matrix x, Matrix values, const int32_t* rows);
void rope_table(Context&, Matrix cos, Matrix sin, const int32_t* positions,
                const float* frequencies);
void rms_norm(Context&, Matrix out, Matrix x, Norm norm);
void scale(Context&, Matrix x, float factor);

// ---- linear (ops_linear.cpp) -------------------------------------------------------------------
void per_layer_inputs(Context&, Matrix out, const RowSource& table, const int32_t* ids,
                      int first_layer, Matrix x, const Planes& projection, Norm norm,
                      int64_t values_per_layer);
// `norm` null: x as it is.
void norm_linear(Context&, const std::vector<Matrix>& outs, Matrix x, const Norm* norm,
                 const std::vector<const Planes*>& weights);
// `norm` null: the product as it is.
void linear_norm_add(Context&, Matrix x, Matrix a, const Planes& weight, const Norm* norm);
void gate_up(Context&, Matrix out, Matrix x, Norm norm, const Planes& gate, const Planes& up);
void per_layer_step(Context&, Matrix x, Matrix per_layer, const Planes& gate,
                    const Planes& projection, Norm norm);
// softcap 0: none.
void logits(Context&, Matrix out, Matrix hidden, const Planes& head, float softcap);

// Building blocks shared with the experts.
void gate_up_product(Context&, Matrix out, const Activations& acts, const Planes& gate,
                     const Planes& up);
Activations normed_activations(Context&, Matrix x, const Norm* norm,
                               const std::vector<const Planes*>& weights);

// ---- attention (ops_attention.cpp) -------------------------------------------------------------
// K and V of one layer: tiles of 16 tokens (fewer where a page is smaller), [page][head][tile].
struct KvStore {
    KvType type;
    int64_t num_pages;
    int page_tokens;
    int num_heads;
    int64_t head_dim;
    int64_t stored_dim;
    int tile_tokens;  // tokens used of a tile's 16
    int tiles_per_page;
    int64_t tile_bytes;
    Memory k, v;

    KvStore(KvType type, int64_t num_pages, int page_tokens, int num_heads, int64_t head_dim);
    // Bytes of K and V as planned: without the padding of small pages and odd heads.
    int64_t value_bytes() const {
        const int64_t per_16 = kv_tile_bytes(type, head_dim);
        return 2 * num_pages * num_heads * page_tokens * per_16 / 16;
    }
    uint8_t* tile(const Memory& memory, int64_t page, int head, int tile) const {
        return memory.data() + ((page * num_heads + head) * tiles_per_page + tile) * tile_bytes;
    }
};

struct PageTableView {
    int page_tokens;
    int64_t num_rows;
    const int32_t *row_seq, *positions, *seq_pages, *first_page, *pages;

    int32_t page_of(int seq, int64_t token) const {
        return pages[seq_pages[seq] + token / page_tokens - first_page[seq]];
    }
};

struct AttentionInputs {
    Matrix q, k, v;  // data null where absent
    const float *q_norm, *k_norm;
    bool normalize_v;
    float eps;
    Matrix cos, sin;
};

void attention_inputs(Context&, const AttentionInputs& inputs, KvStore* kv,
                      const PageTableView& pages);
// window 0: none.
void attention(Context&, Matrix out, Matrix q, const KvStore& kv, const PageTableView& pages,
               int64_t window, float scale);

// ---- experts (ops_experts.cpp) -----------------------------------------------------------------
struct Experts {
    const Planes* router;
    const float* router_scale;
    // One matrix [2 * ffn, hidden] (up null) or two of [ffn, hidden] per expert.
    std::vector<const Planes*> gate, up, down;
    const float* expert_scale;
    int num_used;
};

struct DenseMlp {
    const Planes *gate, *up, *down;
};

void moe_mlp(Context&, Matrix x, Norm mlp_norm, const DenseMlp& dense, Norm mlp_post_norm,
             const Experts& experts, Norm experts_norm, Norm experts_post_norm, Norm post_norm);

}  // namespace culet
