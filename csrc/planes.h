// A weight matrix in tiled planes (layouts.h): re-encoding from stored ggml blocks, and back to
// float32. Knows no kernel and no Python.
#pragma once

#include <array>
#include <cstdint>

#include "layouts.h"
#include "memory.h"
#include "threads.h"

namespace culet {

// Files hold planes under these names; the version changes whenever a byte of any layout does.
constexpr int kPlanesVersion = 1;
constexpr const char* kLayoutNames[kNumLayouts] = {
    "f32",         "f16",         "bf16",      "q4_0",    "q4_1",  "q5_0",  "q5_1",
    "q8_0",        "q2_k",        "q3_k",      "q4_k",    "q5_k",  "q6_k",  "book3_sub32",
    "book3_sub16", "book4_sub32", "book4_f16", "ternary", "mxfp4", "nvfp4",
};

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
    const uint8_t* tiles;              // in `memory`, or bytes that someone else keeps alive
    std::shared_ptr<uint8_t> memory;

    const uint8_t* tile(int64_t index) const { return tiles + index * tile_bytes; }
    int64_t num_bytes() const { return num_tiles * tile_bytes; }
    int64_t padded_cols() const { return int64_t{num_units} * unit_values(layout); }
};

// The layout that a stored matrix gets. Float matrices whose values are all bf16 become bf16. F64
// becomes f32: false if a value does not survive that. Call between the pool's begin and end.
bool choose_layout(Pool& pool, int ggml_id, const uint8_t* rows, int64_t num_values,
                   LayoutId* layout);

// The same without looking at values: floats are not known to be bf16.
LayoutId stored_layout(const ggml::PlaneForm& form);

// Planes of that layout without tiles: only sizes and factors. False unless type and layout go
// together.
bool describe_planes(LayoutId layout, int ggml_id, int64_t num_rows, int64_t num_cols,
                     float out_factor, Planes* planes);

// Writes all tiles to `out`, which holds zeros.
void encode_tiles(Pool& pool, const Planes& planes, const uint8_t* rows, uint8_t* out);

// Re-encodes [num_rows, num_cols] losslessly on all threads of the pool (call between its begin and
// end). The type must be in ggml's table and num_cols whole blocks of it. False as choose_layout.
bool encode_planes(Pool& pool, Slabs& slabs, int ggml_id, const uint8_t* rows, int64_t num_rows,
                   int64_t num_cols, float out_factor, Planes* planes);

// The stored blocks that the row came from. False for types with several encodings of the same
// values (see ggml_pack.h); whoever needs the very bytes compares.
bool restore_planes_row(const Planes& planes, int64_t row, uint8_t* out);

// out[num_cols] = the row's values, the same bits as ggml::decode_row, times out_factor.
void decode_planes_row(const Planes& planes, int64_t row, float* out);

// out[padded_cols][16] = the values of one tile, k first: the f32 layout.
void decode_planes_tile(const Planes& planes, int64_t tile, float* out);

}  // namespace culet
