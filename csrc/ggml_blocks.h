// Stored ggml blocks: their values, and their canonical plane content.
//
// Knows the byte layout of every ggml tensor type that a file can hold; knows neither Python nor
// any kernel's tile layout. All functions are pure, re-entrant and bounded by `num_values`.
//
// Plane content of one row of K values (PlaneForm says which parts a type has):
//
//   codes      uint8 [K]              one code a value; value_of(code) = code - offset, or
//                                     codebook[code]; always below 1 << code_bits
//   f16_scales uint16 [K / f16_group] f16 bit patterns
//   f16_mins   uint16 [K / f16_group] f16 bit patterns
//   sub_scales int8 [K / sub_group]   a signed factor, or the raw byte of an E8M0 or UE4M3 scale
//   sub_mins   uint8 [K / sub_group]  a factor of f16_mins
//
//   scale(k) = 2^factor_log2 * f16_scales[k / f16_group] * sub_scales[k / sub_group]
//   value(k) = scale(k) * value_of(codes[k])  + f16_mins[k / f16_group] (MinForm::add)
//                                             - f16_mins[..] * sub_mins[k / sub_group] (subtract)
//
// where an absent part counts as 1 (scales) or 0 (mins). Every product above is exact in float32
// (11 bits of f16, at most 7 of a sub-scale and 6 of a code), so the only rounding of a value is
// the final addition or subtraction of the min: a kernel that keeps the factors apart loses
// nothing. The factor on NVFP4's values that a file stores as a separate tensor is not in here.
#pragma once

#include <bit>
#include <cstdint>

namespace culet::ggml {

enum class CodeForm : uint8_t {
    linear,    // value_of(code) = code - offset
    codebook,  // value_of(code) = codebook[code]
    f32,       // no codes: the row is plain floating-point numbers
    f16,
    bf16,
    f64,
};

enum class ScaleForm : uint8_t {
    none,
    f16,            // f16_scales only, one per 32 values (coarser ones are replicated)
    f16_times_int,  // f16_scales per 256 values, sub_scales per sub_group
    e8m0,           // sub_scales hold e: scale = 2^(e - 127 + factor_log2), one rounding-free step
    ue4m3,          // sub_scales hold x: scale = ue4m3(x) * 2^factor_log2
};

enum class MinForm : uint8_t {
    none,
    add,       // + f16_mins per 32 values
    subtract,  // - f16_mins per 256 values * sub_mins per sub_group
};

struct PlaneForm {
    int16_t ggml_id;
    const char* name;
    int16_t block_values;
    int16_t block_bytes;
    CodeForm code;
    int8_t code_bits;        // 8, 6 (4+2), 5 (4+1), 4, 3 (2+1), 2; 0 for plain floating point
    int16_t offset;          // linear only
    const int8_t* codebook;  // codebook only: 1 << code_bits values, unused codes hold 0
    ScaleForm scale;
    int16_t f16_group;  // values per f16 scale and min; 0 without
    int16_t sub_group;  // values per sub-scale and sub-min; 0 without
    MinForm min;
    int8_t factor_log2;
};

// Destination of `canonical_row`; pointers of parts that the form lacks are not touched.
struct PlaneRow {
    uint8_t* codes;
    uint16_t* f16_scales;
    uint16_t* f16_mins;
    int8_t* sub_scales;
    uint8_t* sub_mins;
};

// Moves every part of `row` that `form` has forward by `num_values` values.
inline void advance(const PlaneForm& form, int64_t num_values, PlaneRow& row) {
    row.codes += num_values;
    if (form.f16_group) {
        row.f16_scales += num_values / form.f16_group;
        if (form.min != MinForm::none) row.f16_mins += num_values / form.f16_group;
    }
    if (form.sub_group) {
        row.sub_scales += num_values / form.sub_group;
        if (form.min == MinForm::subtract) row.sub_mins += num_values / form.sub_group;
    }
}

// The form of a type, or nullptr if the id is not one that culet serves.
const PlaneForm* plane_form(int ggml_id);

// All forms, ascending by id.
const PlaneForm* plane_forms(int* count);

// Bytes of `num_values` values, or -1 unless they are whole blocks.
inline int64_t row_bytes(const PlaneForm& form, int64_t num_values) {
    if (num_values < 0 || num_values % form.block_values) return -1;
    return num_values / form.block_values * form.block_bytes;
}

// dst[num_values] = the values of the blocks at src, exactly as ggml's reference decodes them.
// False, with dst untouched, for an unknown id, a part of a block, or an F64 value that float32
// cannot hold.
bool decode_row(int ggml_id, const uint8_t* src, float* dst, int64_t num_values);

// The plane content of the blocks at src (a row, or any run of whole blocks of one).
// False, with out untouched, for an unknown id, a part of a block, or a floating-point type.
bool canonical_row(int ggml_id, const uint8_t* src, int64_t num_values, const PlaneRow& out);

// The value of an f16 bit pattern; NaN payloads are kept.
inline float f16_value(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) {  // infinity, NaN
        return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    }
    if (magnitude >= 0x0400u) {  // normal: move the exponent from bias 15 to bias 127
        return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
    }
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

inline float bf16_value(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// 2^(e - 128): an E8M0 scale halved, since the E2M1 codebook holds doubled values. e = 255 is no
// NaN in ggml but 2^127; e = 0 and 1 are subnormal.
inline float e8m0_half_value(uint8_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
    return std::bit_cast<float>(bits);
}

// A UE4M3 scale halved (4 exponent bits of bias 7, 3 mantissa bits, bit 7 ignored); the NaN
// pattern 0x7f counts as 0, as in ggml. Exactly representable as f16 too.
inline float ue4m3_half_value(uint8_t x) {
    if (x == 0x7f) return 0.0f;
    const uint32_t exponent = (x >> 3) & 15u;
    const uint32_t mantissa = x & 7u;
    if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
    return std::bit_cast<float>(((exponent + 127u - 8u) << 23) | (mantissa << 20));
}

}  // namespace culet::ggml
