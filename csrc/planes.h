// A weight matrix in tiled planes (layouts.h): re-encoding from stored ggml blocks, and back to
// float32. Knows no kernel and no Python.
#pragma once

#include <array>
#include <cstdint>

#include "layouts.h"
#include "memory.h"
#include "threads.h"

namespace culet {

struct Planes {
    LayoutId layout;
    const ggml::PlaneForm* form;
    int64_t num_rows;
    int64_t num_cols;
    int64_t num_tiles;
    int num_units;  // in a tile
    int64_t tile_bytes;
    float sub_factor;                  // 2^factor_log2, on every f16 d of `f16_times_int` scales
    float out_factor;                  // on every value: the scale a file stores beside NVFP4
    std::array<uint8_t, 16> codebook;  // value + 128
    Memory memory;

    const uint8_t* tile(int64_t index) const { return memory.data() + index * tile_bytes; }
    int64_t padded_cols() const { return int64_t{num_units} * unit_values(layout); }
};

// Re-encodes [num_rows, num_cols] losslessly on all threads of the pool (call between its begin and
// end). The type must be in ggml's table and num_cols whole blocks of it. Float matrices whose
// values are all bf16 become bf16. F64 becomes f32: false if a value does not survive that.
bool encode_planes(Pool& pool, int ggml_id, const uint8_t* rows, int64_t num_rows, int64_t num_cols,
                   float out_factor, Planes* planes);

// out[num_cols] = the row's values, the same bits as ggml::decode_row, times out_factor.
void decode_planes_row(const Planes& planes, int64_t row, float* out);

// out[padded_cols][16] = the values of one tile, k first: the f32 layout.
void decode_planes_tile(const Planes& planes, int64_t tile, float* out);

}  // namespace culet
