// The contract between the engine and the kernels of one ISA level: plain pointers and sizes.
//
// Every level compiles the same sources (*.inc) over its own vector type (simd.h). All levels
// compute the same bits, since a lane is a row (or an absolute position) and the order of float
// operations is fixed, with one exception: a level with `bf16_dots` multiplies bf16 matrices, and
// queries, shares and values of attention, as pairs of bf16.
//
// A result row never depends on how many rows an activation tile has: that is what makes prefill
// in chunks, batches and speculation give the same bits.
#pragma once

#include <cstdint>

#include "layouts.h"

namespace culet {

// How rows of activations are encoded for a layout's kernel. Blocks of 32 k follow one another;
// within a block the rows of the tile.
//   int8: [M][32] int8 codes, then [M] of BlockSums
//   bf16: [M][32] bf16
//   f32:  [M][32] float
enum class Encoding : uint8_t { int8, bf16, f32 };
constexpr int kNumEncodings = 3;

// Beside the int8 codes of one row and block. Sums are negated, as offsets and mins subtract them,
// and multiplied by the offset of their most used layout (Q4_0, Q6_K): a shift for every block and
// token would compete with the dot products for a port.
struct BlockSums {
    float scale;
    int32_t negative_sum_8;           // 8 times the sum of all 32 codes
    int32_t negative_half_sum_32[2];  // 32 times that of codes 0..15 and 16..31
};

constexpr int encoded_block_bytes(Encoding encoding) {
    if (encoding == Encoding::int8) return 32 + static_cast<int>(sizeof(BlockSums));
    return encoding == Encoding::bf16 ? 64 : 128;
}

// Activation tiles hold 1, 2, 4, 6 or 8 rows; a tile with other counts is padded with zero rows.
constexpr int kMaxTileTokens = 8;
constexpr int padded_tokens(int n) { return n <= 2 ? n : (n + 1) / 2 * 2; }

struct MatmulArgs {
    const uint8_t* tiles;  // first weight tile
    int64_t tile_bytes;
    int num_tiles;
    int num_units;  // units in a tile
    int num_rows;   // weight rows from the first tile on; the last tile may have fewer than 16
    const uint8_t* codebook;  // 16 bytes, value + 128; or null
    float sub_factor;         // power of two on every f16 d of layouts with integer sub-scales
    float out_factor;         // on every result (NVFP4's scale of the tensor)
    const uint8_t* acts;      // one encoded activation tile
    int padded_tokens;        // rows it was encoded for
    int num_tokens;           // rows to compute
    float* out;               // [num_tokens][out_stride], first weight row at 0
    int64_t out_stride;
};
using MatmulFn = void (*)(const MatmulArgs&);

enum class KvType : uint8_t { f16, bf16, f32, q8_0 };

// Attention computes in bf16 pairs or in f32. K tiles of 16 tokens are [d / 2][16 tokens][2 d] as
// stored; V tiles [d / 16][8 token pairs][16 d][2 tokens], so that a product reads them in order
// (pairs a power of two apart would fight for the same cache sets). `head_dim` below is padded to
// 16 (q8_0: 32).
struct Kernels {
    const char* name;
    int max_tile_tokens;
    bool bf16_dots;

    MatmulFn matmul[kNumLayouts];
    // The float kernel over decoded values: tiles are f32 [k][16] whatever the layout was.
    // encode: row m of a tile of M rows; k values, zeros up to num_blocks blocks.
    void (*encode)(Encoding, const float* x, int64_t k, int64_t num_blocks, uint8_t* tile, int M,
                   int m);

    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
    // x += rms(y, weight); weight null: x += y.
    void (*norm_add)(float* x, const float* y, const float* weight, float eps, int64_t n);
    void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* out);
    void (*softcap)(float* x, float cap, int64_t n);
    void (*scale)(float* x, float factor, int64_t n);
    void (*scale_to)(const float* x, float factor, int64_t n, float* out);
    // x += y * factor
    void (*add_scaled)(float* x, const float* y, float factor, int64_t n);
    // x[i], x[i + half] rotated by the angle of pair i.
    void (*rope)(float* x, const float* cos, const float* sin, int64_t half);
    // Sum over exp(x - max) and x = exp(x - max).
    float (*softmax)(float* x, int64_t n);

    // One token (slot 0..15 of its tile) of one head into a K or V tile.
    void (*store_k)(KvType, const float* x, int64_t head_dim, int slot, uint8_t* tile);
    void (*store_v)(KvType, const float* x, int64_t head_dim, int slot, uint8_t* tile);
    // A stored tile in compute form: bf16 in the stored order (when `bf16`), else f32 as
    // K [d][16 tokens], V [d / 16][16 tokens][16 d].
    void (*load_k)(KvType, const uint8_t* tile, int64_t head_dim, bool bf16, void* out);
    void (*load_v)(KvType, const uint8_t* tile, int64_t head_dim, bool bf16, void* out);
    // Queries [M rows] scaled and interleaved: bf16 [d / 2][M][2] or f32 [d][M].
    void (*load_q)(const float* q, int64_t head_dim, int64_t stored_dim, float scale, bool bf16,
                   int M, int m, void* out);
    // scores[m * stride + 0..15] of one K tile.
    void (*qk)(const void* q, const void* k, int64_t head_dim, bool bf16, int M, float* scores,
               int64_t stride);
    // In place on scores of one row of a segment: entries outside [begin, end) become 0, the others
    // exp(s - max), rounded to bf16 when `bf16`. Returns max and sum.
    void (*softmax_segment)(float* scores, int begin, int end, int size, bool bf16, float* max,
                            float* sum);
    // mixed[m][d] += sum over the tile's tokens; shares at m * stride + token.
    void (*pv)(const float* shares, int64_t stride, int num_tokens, const void* v, int64_t head_dim,
               bool bf16, int M, float* mixed);
    // Append partial (max, sum, mixed) to the running one.
    void (*merge)(float* max, float* sum, float* mixed, float new_max, float new_sum,
                  const float* new_mixed, int64_t head_dim);
};

// The level in use: the best that this CPU has, or the one named by the environment variable
// CULET_ISA. Null, with a message in *error, if that names no level or one this CPU lacks.
const Kernels* select_kernels(const char* forced, const char** error);

// Names of the levels that this CPU can run, best first, ended by null.
const char* const* supported_levels();

constexpr int64_t kv_stored_dim(KvType type, int64_t head_dim) {
    const int64_t multiple = type == KvType::q8_0 ? 32 : 16;
    return (head_dim + multiple - 1) / multiple * multiple;
}

// Bytes of a tile of 16 tokens of K or of V; stored_dim as from kv_stored_dim.
constexpr int64_t kv_tile_bytes(KvType type, int64_t stored_dim) {
    switch (type) {
        case KvType::f32:
            return 16 * stored_dim * 4;
        case KvType::q8_0:
            return 16 * stored_dim + stored_dim / 32 * 32;  // codes, then [group][16] f16 scales
        default:
            return 16 * stored_dim * 2;
    }
}

}  // namespace culet
