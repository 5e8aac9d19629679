// Products with weight matrices: encoding of activations and the order of work. Knows planes and
// kernels; the fused ops are in ops.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "planes.h"
#include "program.h"

namespace culet {

// Rows of float32, `stride` floats apart.
struct Matrix {
    float* data = nullptr;
    int64_t rows = 0;
    int64_t cols = 0;
    int64_t stride = 0;

    float* row(int64_t i) const { return data + i * stride; }
};

inline Matrix scratch_matrix(Arena& arena, int64_t rows, int64_t cols) {
    return {arena.array<float>(rows * cols), rows, cols, cols};
}

// The encoding that a weight's kernel wants.
Encoding encoding_of(const Context& context, const Planes& weight);

// Rows of activations, encoded once for all weights that read them.
class Activations {
public:
    // `source(row, scratch)` gives a pointer to the k values of a row, which may be at scratch
    // (k floats). It is called once a row, from any thread.
    template <class Source>
    Activations(Context& context, std::initializer_list<const Planes*> weights, int64_t num_rows,
                Source&& source)
        : Activations(context, weights.begin(), weights.size(), num_rows, source) {}

    template <class Source>
    Activations(Context& context, const Planes* const* weights, size_t num_weights,
                int64_t num_rows, Source&& source)
        : num_rows_(num_rows), k_(weights[0]->num_cols) {
        for (size_t i = 0; i < num_weights; i++) need(encoding_of(context, *weights[i]));
        allocate(context);
        float* scratch = context.arena.array<float>(k_ * context.num_threads());
        context.each_row(num_rows, [&](int row, int thread) {
            const float* x = source(row, scratch + thread * k_);
            encode_row(context, row, x, 0, num_blocks_);
        });
    }

    // Rows as they are: few long ones are shared out by columns.
    Activations(Context& context, const Planes* const* weights, size_t num_weights, Matrix rows);

    int64_t num_rows() const { return num_rows_; }
    int num_tiles() const { return num_tiles_; }
    int64_t tile_begin(int tile) const { return num_rows_ * tile / num_tiles_; }
    int tile_tokens(int tile) const {
        return static_cast<int>(tile_begin(tile + 1) - tile_begin(tile));
    }
    const uint8_t* tile(Encoding encoding, int tile) const {
        const int e = static_cast<int>(encoding);
        return streams_[e] + tile * tile_bytes_[e];
    }

private:
    void need(Encoding encoding) { needed_[static_cast<int>(encoding)] = true; }
    void allocate(Context& context);
    // Blocks [begin, end) of a row; x is the whole row.
    void encode_row(Context& context, int64_t row, const float* x, int64_t begin, int64_t end);

    int64_t num_rows_;
    int64_t k_;
    int64_t num_blocks_ = 0;  // of 32 values, whole units of every layout
    int num_tiles_ = 0;
    bool needed_[kNumEncodings] = {};
    uint8_t* streams_[kNumEncodings] = {};
    int64_t tile_bytes_[kNumEncodings] = {};
};

// Room for one decoded weight tile per thread, where the fast kernel is not used.
struct DecodedTiles {
    float* data = nullptr;
    int64_t stride = 0;

    DecodedTiles(Context& context, std::initializer_list<const Planes*> weights);
    DecodedTiles(Context& context, const Planes* const* weights, size_t num_weights);
};

// out[token][row - 16 * tile_begin] of one activation tile with weight tiles [tile_begin,
// tile_end).
void multiply(const Context& context, const Planes& weight, const Activations& acts, int act_tile,
              int64_t tile_begin, int64_t tile_end, const DecodedTiles& decoded, int thread,
              float* out, int64_t out_stride);

// Weight tiles a thread works on at a time: 128 KB stay in the L2 cache while all tokens pass;
// smaller where that leaves threads without work.
int64_t chunk_tiles(const Context& context, const Planes& weight, int num_matrices);

// outs[i] [n, rows] = acts weights[i]^T. Each thread has the same share of the rows of every
// weight.
void multiply_all(Context& context, const Planes* const* weights, const Matrix* outs,
                  size_t num_weights, const Activations& acts);

}  // namespace culet
