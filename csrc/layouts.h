// Tiled plane layouts: how a weight matrix lies in memory for the matmul kernels.
//
// A matrix is cut into tiles of 16 rows (rows padded with zeros), a tile into units of 64 or 256
// values along k (padded with zeros), units of a tile lying one after the other, so that one tile
// is one stream. All sizes are multiples of 64 bytes.
//
// Quantised unit: for each block of 32 k its code planes, then the scales of the whole unit.
//   A code vector is 64 bytes = 16 rows x 4 consecutive k (one "quad" of k, a dword a row); a block
//   has quads 0..7.
//     4-bit part:  4 vectors; low nibbles of vector j are quad j, high nibbles quad j + 4
//     2-bit part:  2 vectors; bits 2i, 2i + 1 of vector v are quad 4v + i
//     1-bit part:  1 vector; bit j is quad j
//     8-bit codes: 8 vectors
//   code_bits 5 = 4 + 1, 6 = 4 + 2, 3 = 2 + 1, low part first.
//   Scales, each entry for 16 rows:
//     f16:     per block an f16 scale; then, with mins, per block an f16 min
//     int:     per sub-group an int8; then, with mins, per sub-group a uint8; then f16 d (and dmin)
//     e8m0, ue4m3: per sub-group a byte
// Float unit of 64 k: f32 and f16 [k][16 rows]; bf16 [k / 2][16 rows][2 k].
//
// The meaning of codes and scales is ggml_blocks.h's; nothing is rounded on the way here.
#pragma once

#include <cstdint>

#include "ggml_blocks.h"

namespace culet {

constexpr int kTileRows = 16;
constexpr int kBlockValues = 32;

// Compile-time description of a quantised layout; kernels are templated over it.
struct QuantLayout {
    int code_bits;
    bool codebook;    // codes index a table of int8 values
    int offset_log2;  // value = code - 2^offset_log2; -1: no offset. With a codebook, 7: tables
                      // hold value + 128
    ggml::ScaleForm scale;
    int sub_group;  // 16 or 32: values that share one scale inside a block
    bool mins;

    constexpr bool wide() const { return code_bits == 8 || codebook; }  // codes above 127
    constexpr bool sub_scales() const { return scale == ggml::ScaleForm::f16_times_int; }
    constexpr int unit_values() const { return sub_scales() ? 256 : 64; }
    constexpr int unit_blocks() const { return unit_values() / kBlockValues; }
    constexpr int block_code_bytes() const { return code_bits * 64; }
    constexpr int scales_offset() const { return unit_blocks() * block_code_bytes(); }
    constexpr int unit_sub_groups() const { return unit_values() / sub_group; }
    // Bytes of one entry (16 rows) of the per-group scale.
    constexpr int scale_entry_bytes() const { return scale == ggml::ScaleForm::f16 ? 32 : 16; }
    constexpr int mins_offset() const {
        return scales_offset() + unit_sub_groups() * scale_entry_bytes();
    }
    constexpr int super_offset() const {  // the f16 d and dmin of an `int` unit
        return mins_offset() + (mins ? unit_sub_groups() * scale_entry_bytes() : 0);
    }
    constexpr int unit_bytes() const {
        const int end = super_offset() + (sub_scales() ? (mins ? 64 : 32) : 0);
        return (end + 63) / 64 * 64;
    }
};

enum class LayoutId : uint8_t {
    f32,
    f16,
    bf16,
    q4_0,  // also the index of the first quantised layout
    q4_1,
    q5_0,
    q5_1,
    q8_0,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    book3_sub32,  // IQ2_XXS, IQ1_S
    book3_sub16,  // IQ2_XS, IQ2_S, IQ1_M
    book4_sub32,  // IQ3_XXS, IQ3_S, IQ4_XS
    book4_f16,    // IQ4_NL
    ternary,      // TQ1_0, TQ2_0, Q1_0, Q2_0
    mxfp4,
    nvfp4,
};
constexpr int kNumLayouts = static_cast<int>(LayoutId::nvfp4) + 1;
constexpr int kFirstQuantLayout = static_cast<int>(LayoutId::q4_0);

using ggml::ScaleForm;
constexpr QuantLayout kQuantLayouts[kNumLayouts - kFirstQuantLayout] = {
    // bits, codebook, offset_log2, scale, sub_group, mins
    {4, false, 3, ScaleForm::f16, 32, false},
    {4, false, -1, ScaleForm::f16, 32, true},
    {5, false, 4, ScaleForm::f16, 32, false},
    {5, false, -1, ScaleForm::f16, 32, true},
    {8, false, 7, ScaleForm::f16, 32, false},
    {2, false, -1, ScaleForm::f16_times_int, 16, true},
    {3, false, 2, ScaleForm::f16_times_int, 16, false},
    {4, false, -1, ScaleForm::f16_times_int, 32, true},
    {5, false, -1, ScaleForm::f16_times_int, 32, true},
    {6, false, 5, ScaleForm::f16_times_int, 16, false},
    {3, true, 7, ScaleForm::f16_times_int, 32, false},
    {3, true, 7, ScaleForm::f16_times_int, 16, false},
    {4, true, 7, ScaleForm::f16_times_int, 32, false},
    {4, true, 7, ScaleForm::f16, 32, false},
    {2, false, 0, ScaleForm::f16, 32, false},
    {4, true, 7, ScaleForm::e8m0, 32, false},
    {4, true, 7, ScaleForm::ue4m3, 16, false},
};

constexpr bool is_quantised(LayoutId id) { return static_cast<int>(id) >= kFirstQuantLayout; }
constexpr const QuantLayout& quant_layout(LayoutId id) {
    return kQuantLayouts[static_cast<int>(id) - kFirstQuantLayout];
}
constexpr int unit_values(LayoutId id) {
    return is_quantised(id) ? quant_layout(id).unit_values() : 64;
}
constexpr int unit_bytes(LayoutId id) {
    if (is_quantised(id)) return quant_layout(id).unit_bytes();
    return kTileRows * 64 * (id == LayoutId::f32 ? 4 : 2);
}

}  // namespace culet
