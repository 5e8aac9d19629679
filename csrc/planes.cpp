#include "planes.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "ggml_pack.h"

namespace culet {
namespace {

using ggml::CodeForm;
using ggml::MinForm;
using ggml::PlaneForm;

uint32_t load32(const uint8_t* p) {
    uint32_t x;
    std::memcpy(&x, p, 4);
    return x;
}
void store32(uint8_t* p, uint32_t x) { std::memcpy(p, &x, 4); }

// ---- codes of one row and block: a dword holds the codes of a quad -----------------------------
constexpr int kVectorBytes = 64;

void pack_codes(int code_bits, const uint8_t* codes, uint8_t* block, int row) {
    uint32_t quad[8];
    for (int j = 0; j < 8; j++) quad[j] = load32(codes + 4 * j);
    uint8_t* p = block + 4 * row;
    if (code_bits == 8) {
        for (int j = 0; j < 8; j++) store32(p + j * kVectorBytes, quad[j]);
        return;
    }
    if (code_bits >= 4) {
        for (int j = 0; j < 4; j++) {
            const uint32_t low = quad[j] & 0x0f0f0f0f, high = quad[j + 4] & 0x0f0f0f0f;
            store32(p + j * kVectorBytes, low | high << 4);
        }
        p += 4 * kVectorBytes;
        for (uint32_t& q : quad) q >>= 4;
    }
    if (code_bits == 6 || code_bits < 4) {
        for (int v = 0; v < 2; v++) {
            uint32_t packed = 0;
            for (int i = 0; i < 4; i++) packed |= (quad[4 * v + i] & 0x03030303) << (2 * i);
            store32(p + v * kVectorBytes, packed);
        }
        p += 2 * kVectorBytes;
        for (uint32_t& q : quad) q >>= 2;
    }
    if (code_bits == 5 || code_bits == 3) {
        uint32_t packed = 0;
        for (int j = 0; j < 8; j++) packed |= (quad[j] & 0x01010101) << j;
        store32(p, packed);
    }
}

void unpack_codes(int code_bits, const uint8_t* block, int row, uint8_t* codes) {
    uint32_t quad[8] = {};
    const uint8_t* p = block + 4 * row;
    int shift = 0;  // of the next part within a code
    if (code_bits == 8) {
        for (int j = 0; j < 8; j++) quad[j] = load32(p + j * kVectorBytes);
    }
    if (code_bits >= 4 && code_bits < 8) {
        for (int j = 0; j < 4; j++) {
            const uint32_t x = load32(p + j * kVectorBytes);
            quad[j] = x & 0x0f0f0f0f;
            quad[j + 4] = x >> 4 & 0x0f0f0f0f;
        }
        p += 4 * kVectorBytes;
        shift = 4;
    }
    if (code_bits == 6 || code_bits < 4) {
        for (int j = 0; j < 8; j++) {
            const uint32_t x = load32(p + j / 4 * kVectorBytes) >> (2 * (j % 4));
            quad[j] |= (x & 0x03030303) << shift;
        }
        p += 2 * kVectorBytes;
        shift += 2;
    }
    if (code_bits == 5 || code_bits == 3) {
        const uint32_t x = load32(p);
        for (int j = 0; j < 8; j++) quad[j] |= (x >> j & 0x01010101) << shift;
    }
    for (int j = 0; j < 8; j++) store32(codes + 4 * j, quad[j]);
}

// ---- which layout a form has -------------------------------------------------------------------
bool fits(const QuantLayout& layout, const PlaneForm& form) {
    const int offset = layout.codebook || layout.offset_log2 < 0 ? 0 : 1 << layout.offset_log2;
    return layout.code_bits == form.code_bits &&
           layout.codebook == (form.code == CodeForm::codebook) && offset == form.offset &&
           layout.scale == form.scale && layout.mins == (form.min != MinForm::none) &&
           (form.sub_group == 0 || layout.sub_group == form.sub_group);
}

LayoutId layout_of(const PlaneForm& form) {
    for (int id = kFirstQuantLayout; id < kNumLayouts; id++) {
        if (fits(quant_layout(static_cast<LayoutId>(id)), form)) return static_cast<LayoutId>(id);
    }
    return LayoutId::f32;  // not reached: the table of forms is fixed, and a test encodes them all
}

// ---- encoding ----------------------------------------------------------------------------------

// Room for the plane content of one row.
struct RowBuffers {
    std::vector<uint8_t> codes;
    std::vector<uint16_t> f16_scales, f16_mins;
    std::vector<int8_t> sub_scales;
    std::vector<uint8_t> sub_mins;

    explicit RowBuffers(int64_t padded_cols)
        : codes(padded_cols),
          f16_scales(padded_cols / 16),
          f16_mins(padded_cols / 16),
          sub_scales(padded_cols / 16),
          sub_mins(padded_cols / 16) {}
    ggml::PlaneRow pointers() {
        return {codes.data(), f16_scales.data(), f16_mins.data(), sub_scales.data(),
                sub_mins.data()};
    }
};

void write_f16(uint8_t* entry, int row, uint16_t value) { std::memcpy(entry + 2 * row, &value, 2); }

void encode_quant_row(const Planes& planes, const RowBuffers& row, int r, uint8_t* tile) {
    const QuantLayout& q = quant_layout(planes.layout);
    const int64_t num_blocks = planes.num_cols / kBlockValues;
    const int entry = q.scale_entry_bytes(), groups = q.unit_sub_groups();
    for (int u = 0; u < planes.num_units; u++) {
        uint8_t* unit = tile + int64_t{u} * q.unit_bytes();
        for (int b = 0; b < q.unit_blocks(); b++) {
            const int64_t block = int64_t{u} * q.unit_blocks() + b;
            if (block >= num_blocks) break;  // zero codes and scales, as the memory is
            pack_codes(q.code_bits, row.codes.data() + block * kBlockValues,
                       unit + b * q.block_code_bytes(), r);
        }
        for (int g = 0; g < groups; g++) {
            const int64_t group = int64_t{u} * groups + g;
            if (group * q.sub_group >= planes.num_cols) break;
            uint8_t* scale = unit + q.scales_offset() + g * entry;
            uint8_t* min = unit + q.mins_offset() + g * entry;
            if (q.scale == ScaleForm::f16) {
                write_f16(scale, r, row.f16_scales[group]);
                if (q.mins) write_f16(min, r, row.f16_mins[group]);
            } else {
                scale[r] = static_cast<uint8_t>(row.sub_scales[group]);
                if (q.mins) min[r] = row.sub_mins[group];
            }
        }
        if (q.sub_scales()) {
            write_f16(unit + q.super_offset(), r, row.f16_scales[u]);
            if (q.mins) write_f16(unit + q.super_offset() + 32, r, row.f16_mins[u]);
        }
    }
}

// The inverse of encode_quant_row.
void read_quant_row(const Planes& planes, const uint8_t* tile, int r, RowBuffers& row) {
    const QuantLayout& q = quant_layout(planes.layout);
    const int entry = q.scale_entry_bytes(), groups = q.unit_sub_groups();
    for (int u = 0; u < planes.num_units; u++) {
        const uint8_t* unit = tile + int64_t{u} * q.unit_bytes();
        for (int b = 0; b < q.unit_blocks(); b++) {
            const int64_t block = int64_t{u} * q.unit_blocks() + b;
            unpack_codes(q.code_bits, unit + b * q.block_code_bytes(), r,
                         row.codes.data() + block * kBlockValues);
        }
        for (int g = 0; g < groups; g++) {
            const int64_t group = int64_t{u} * groups + g;
            const uint8_t* scale = unit + q.scales_offset() + g * entry;
            const uint8_t* min = unit + q.mins_offset() + g * entry;
            if (q.scale == ScaleForm::f16) {
                std::memcpy(&row.f16_scales[group], scale + 2 * r, 2);
                if (q.mins) std::memcpy(&row.f16_mins[group], min + 2 * r, 2);
            } else {
                row.sub_scales[group] = static_cast<int8_t>(scale[r]);
                if (q.mins) row.sub_mins[group] = min[r];
            }
        }
        if (q.sub_scales()) {
            std::memcpy(&row.f16_scales[u], unit + q.super_offset() + 2 * r, 2);
            if (q.mins) std::memcpy(&row.f16_mins[u], unit + q.super_offset() + 32 + 2 * r, 2);
        }
    }
}

void encode_quant_tile(const Planes& planes, const uint8_t* rows, int64_t row_bytes, int64_t tile,
                       RowBuffers& buffers, uint8_t* out) {
    for (int r = 0; r < kTileRows; r++) {
        const int64_t row = tile * kTileRows + r;
        if (row >= planes.num_rows) return;
        ggml::canonical_row(planes.form->ggml_id, rows + row * row_bytes, planes.num_cols,
                            buffers.pointers());
        encode_quant_row(planes, buffers, r, out);
    }
}

float float_value(CodeForm code, const uint8_t* p) {
    if (code == CodeForm::f32) return std::bit_cast<float>(load32(p));
    if (code == CodeForm::f64) {
        double x;
        std::memcpy(&x, p, 8);
        return static_cast<float>(x);
    }
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return code == CodeForm::f16 ? ggml::f16_value(bits) : ggml::bf16_value(bits);
}

// Bytes that lie in a row and in its tile in the same order: two values of bf16 side by side, or
// one of another type that is stored as it is. 0 where values change.
int unit_of_copy(const Planes& planes) {
    switch (planes.form->code) {
        case CodeForm::bf16:
            return planes.num_cols % 2 == 0 ? 4 : 0;
        case CodeForm::f16:
            return planes.layout == LayoutId::f16 ? 2 : 0;
        case CodeForm::f32:
            return planes.layout == LayoutId::f32 ? 4 : 0;
        default:
            return 0;
    }
}

// Copies one row into its place in a tile, or back, `Bytes` at a time.
template <int Bytes, bool kToTile, class Row, class Tile>
void copy_row(int64_t count, Row* row, Tile* place) {
    for (int64_t i = 0; i < count; i++, row += Bytes, place += kTileRows * Bytes) {
        if constexpr (kToTile) {
            std::memcpy(place, row, Bytes);
        } else {
            std::memcpy(row, place, Bytes);
        }
    }
}

// The same for whatever the planes hold; false where values change.
template <bool kToTile, class Row, class Tile>
bool copy_float_row(const Planes& planes, int r, Row* row, Tile* tile) {
    const int bytes = unit_of_copy(planes);
    if (bytes == 0) return false;
    const int64_t count = planes.num_cols * planes.form->block_bytes / bytes;
    if (bytes == 4) {
        copy_row<4, kToTile>(count, row, tile + r * 4);
    } else {
        copy_row<2, kToTile>(count, row, tile + r * 2);
    }
    return true;
}

void encode_float_tile(const Planes& planes, const uint8_t* rows, int64_t row_bytes, int64_t tile,
                       uint8_t* out) {
    const int value_bytes = planes.form->block_bytes;
    for (int r = 0; r < kTileRows; r++) {
        const int64_t row = tile * kTileRows + r;
        if (row >= planes.num_rows) return;
        const uint8_t* p = rows + row * row_bytes;
        if (copy_float_row<true>(planes, r, p, out)) continue;
        for (int64_t k = 0; k < planes.num_cols; k++, p += value_bytes) {
            const uint32_t bits = std::bit_cast<uint32_t>(float_value(planes.form->code, p));
            if (planes.layout == LayoutId::f32) {
                store32(out + (k * kTileRows + r) * 4, bits);
            } else {
                const uint16_t upper = static_cast<uint16_t>(bits >> 16);
                std::memcpy(out + ((k / 2 * kTileRows + r) * 2 + k % 2) * 2, &upper, 2);
            }
        }
    }
}

// bf16 if all values are; F16 stays f16; else f32. False where a double is not a float.
bool float_layout(Pool& pool, const PlaneForm& form, const uint8_t* rows, int64_t num_values,
                  LayoutId* layout) {
    if (form.code == CodeForm::bf16) {
        *layout = LayoutId::bf16;
        return true;
    }
    std::atomic<bool> all_bf16{true}, exact{true};
    constexpr int64_t kSlice = 1 << 16;
    pool.run(static_cast<int>((num_values + kSlice - 1) / kSlice), [&](int slice, int) {
        const int64_t end = std::min(num_values, (slice + 1) * kSlice);
        uint32_t low_bits = 0;
        for (int64_t i = slice * kSlice; i < end; i++) {
            const uint8_t* p = rows + i * form.block_bytes;
            const float x = float_value(form.code, p);
            low_bits |= std::bit_cast<uint32_t>(x) & 0xffff;
            if (form.code == CodeForm::f64) {
                double wide;
                std::memcpy(&wide, p, 8);
                if (static_cast<double>(x) != wide && !std::isnan(wide)) exact = false;
            }
        }
        if (low_bits != 0) all_bf16 = false;
    });
    *layout = all_bf16                     ? LayoutId::bf16
              : form.code == CodeForm::f16 ? LayoutId::f16
                                           : LayoutId::f32;
    return exact;
}

// ---- decoding ----------------------------------------------------------------------------------

float group_scale(const QuantLayout& q, const Planes& planes, const uint8_t* unit, int g, int r) {
    const uint8_t* entry = unit + q.scales_offset() + g * q.scale_entry_bytes();
    uint16_t f16;
    switch (q.scale) {
        case ScaleForm::f16:
            std::memcpy(&f16, entry + 2 * r, 2);
            return ggml::f16_value(f16);
        case ScaleForm::f16_times_int:
            std::memcpy(&f16, unit + q.super_offset() + 2 * r, 2);
            return ggml::f16_value(f16) * planes.sub_factor *
                   static_cast<float>(static_cast<int8_t>(entry[r]));
        case ScaleForm::e8m0:
            return ggml::e8m0_half_value(entry[r]);
        default:
            return ggml::ue4m3_half_value(entry[r]);
    }
}

// The amount added to scale * code.
float group_min(const QuantLayout& q, const uint8_t* unit, int g, int r) {
    if (!q.mins) return 0.0f;
    const uint8_t* entry = unit + q.mins_offset() + g * q.scale_entry_bytes();
    uint16_t f16;
    if (q.scale == ScaleForm::f16) {
        std::memcpy(&f16, entry + 2 * r, 2);
        return ggml::f16_value(f16);
    }
    std::memcpy(&f16, unit + q.super_offset() + 32 + 2 * r, 2);
    return -(ggml::f16_value(f16) * static_cast<float>(entry[r]));
}

// Values of one row of a unit, `step` apart.
void decode_unit_row(const Planes& planes, const uint8_t* unit, int r, float* out, int64_t step) {
    const QuantLayout& q = quant_layout(planes.layout);
    const float offset =
        q.codebook || q.offset_log2 < 0 ? 0.0f : static_cast<float>(1 << q.offset_log2);
    const bool scaled = planes.out_factor != 1.0f;
    uint8_t codes[kBlockValues];
    for (int b = 0; b < q.unit_blocks(); b++) {
        unpack_codes(q.code_bits, unit + b * q.block_code_bytes(), r, codes);
        for (int i = 0; i < kBlockValues; i += q.sub_group) {
            const int g = (b * kBlockValues + i) / q.sub_group;
            const float scale = group_scale(q, planes, unit, g, r);
            const float min = group_min(q, unit, g, r);
            for (int k = i; k < i + q.sub_group; k++, out += step) {
                const float code = q.codebook
                                       ? static_cast<float>(planes.codebook[codes[k]]) - 128.0f
                                       : static_cast<float>(codes[k]) - offset;
                const float value = q.mins ? scale * code + min : scale * code;
                *out = scaled ? value * planes.out_factor : value;
            }
        }
    }
}

float float_tile_value(const Planes& planes, const uint8_t* tile, int r, int64_t k) {
    uint16_t bits;
    switch (planes.layout) {
        case LayoutId::f32:
            return std::bit_cast<float>(load32(tile + (k * kTileRows + r) * 4));
        case LayoutId::f16:
            std::memcpy(&bits, tile + (k * kTileRows + r) * 2, 2);
            return ggml::f16_value(bits);
        default:
            std::memcpy(&bits, tile + ((k / 2 * kTileRows + r) * 2 + k % 2) * 2, 2);
            return ggml::bf16_value(bits);
    }
}

// The f16 bit pattern of a float that came from one.
uint16_t f16_bits(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {  // infinity, NaN with its payload
        return static_cast<uint16_t>(sign | 0x7c00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x38800000u) {  // normal: from bias 127 to bias 15
        return static_cast<uint16_t>(sign | ((magnitude - ((127u - 15u) << 23)) >> 13));
    }
    return static_cast<uint16_t>(sign |
                                 static_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p24f));
}

void store_float(CodeForm code, float value, uint8_t* p) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const double wide = static_cast<double>(value);
    const uint16_t half =
        code == CodeForm::f16 ? f16_bits(value) : static_cast<uint16_t>(bits >> 16);
    switch (code) {
        case CodeForm::f32:
            store32(p, bits);
            break;
        case CodeForm::f64:
            std::memcpy(p, &wide, 8);
            break;
        default:
            std::memcpy(p, &half, 2);
    }
}

}  // namespace

bool choose_layout(Pool& pool, int ggml_id, const uint8_t* rows, int64_t num_values,
                   LayoutId* layout) {
    const PlaneForm& form = *ggml::plane_form(ggml_id);
    if (!form.code_bits) return float_layout(pool, form, rows, num_values, layout);
    *layout = layout_of(form);
    return true;
}

LayoutId stored_layout(const ggml::PlaneForm& form) {
    switch (form.code) {
        case CodeForm::f16:
            return LayoutId::f16;
        case CodeForm::bf16:
            return LayoutId::bf16;
        case CodeForm::f32:
        case CodeForm::f64:
            return LayoutId::f32;
        default:
            return layout_of(form);
    }
}

bool describe_planes(LayoutId layout, int ggml_id, int64_t num_rows, int64_t num_cols,
                     float out_factor, Planes* planes) {
    const PlaneForm* form = ggml::plane_form(ggml_id);
    const bool goes = form->code_bits                ? layout == layout_of(*form)
                      : form->code == CodeForm::bf16 ? layout == LayoutId::bf16
                      : form->code == CodeForm::f16
                          ? layout == LayoutId::f16 || layout == LayoutId::bf16
                          : layout == LayoutId::f32 || layout == LayoutId::bf16;
    if (!goes) return false;
    planes->layout = layout;
    planes->form = form;
    planes->num_rows = num_rows;
    planes->num_cols = num_cols;
    planes->sub_factor = std::ldexp(1.0f, form->factor_log2);
    planes->out_factor = out_factor;
    planes->codebook.fill(0);
    if (form->codebook) {
        for (int i = 0; i < 1 << form->code_bits; i++) {
            planes->codebook[i] = static_cast<uint8_t>(form->codebook[i] + 128);
        }
    }
    const int64_t values = unit_values(layout);
    planes->num_units = static_cast<int>((num_cols + values - 1) / values);
    planes->tile_bytes = int64_t{planes->num_units} * unit_bytes(layout);
    planes->num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    planes->tiles = nullptr;
    return true;
}

void encode_tiles(Pool& pool, const Planes& planes, const uint8_t* rows, uint8_t* out) {
    const bool quantised = is_quantised(planes.layout);
    const int64_t row_bytes = ggml::row_bytes(*planes.form, planes.num_cols);
    std::vector<RowBuffers> buffers;
    for (int t = 0; quantised && t < pool.num_threads(); t++) {
        buffers.emplace_back(planes.padded_cols());
    }
    pool.run(static_cast<int>(planes.num_tiles), [&](int tile, int thread) {
        uint8_t* to = out + tile * planes.tile_bytes;
        if (quantised) {
            encode_quant_tile(planes, rows, row_bytes, tile, buffers[thread], to);
        } else {
            encode_float_tile(planes, rows, row_bytes, tile, to);
        }
    });
}

bool encode_planes(Pool& pool, Slabs& slabs, int ggml_id, const uint8_t* rows, int64_t num_rows,
                   int64_t num_cols, float out_factor, Planes* planes) {
    LayoutId layout;
    if (!choose_layout(pool, ggml_id, rows, num_rows * num_cols, &layout)) return false;
    describe_planes(layout, ggml_id, num_rows, num_cols, out_factor, planes);
    // The kernels prefetch past the end, which is harmless, but never read there.
    planes->memory = slabs.allocate(planes->num_bytes());
    planes->tiles = planes->memory.get();
    encode_tiles(pool, *planes, rows, planes->memory.get());
    return true;
}

bool restore_planes_row(const Planes& planes, int64_t row, uint8_t* out) {
    const uint8_t* tile = planes.tile(row / kTileRows);
    const int r = static_cast<int>(row % kTileRows);
    if (!is_quantised(planes.layout)) {
        if (copy_float_row<false>(planes, r, out, tile)) return true;
        for (int64_t k = 0; k < planes.num_cols; k++, out += planes.form->block_bytes) {
            store_float(planes.form->code, float_tile_value(planes, tile, r, k), out);
        }
        return true;
    }
    if (!ggml::can_pack(planes.form->ggml_id)) return false;
    RowBuffers buffers(planes.padded_cols());
    read_quant_row(planes, tile, r, buffers);
    ggml::pack_row(planes.form->ggml_id, buffers.pointers(), planes.num_cols, out);
    return true;
}

void decode_planes_row(const Planes& planes, int64_t row, float* out) {
    const uint8_t* tile = planes.tile(row / kTileRows);
    const int r = static_cast<int>(row % kTileRows);
    if (!is_quantised(planes.layout)) {
        for (int64_t k = 0; k < planes.num_cols; k++) {
            out[k] = float_tile_value(planes, tile, r, k) * planes.out_factor;
        }
        return;
    }
    const QuantLayout& q = quant_layout(planes.layout);
    const int values = q.unit_values();
    float rest[256];
    for (int u = 0; u < planes.num_units; u++) {
        const uint8_t* unit = tile + int64_t{u} * q.unit_bytes();
        const int64_t begin = int64_t{u} * values, left = planes.num_cols - begin;
        if (left >= values) {
            decode_unit_row(planes, unit, r, out + begin, 1);
        } else {
            decode_unit_row(planes, unit, r, rest, 1);
            std::memcpy(out + begin, rest, left * sizeof(float));
        }
    }
}

void decode_planes_tile(const Planes& planes, int64_t tile, float* out) {
    const uint8_t* p = planes.tile(tile);
    if (!is_quantised(planes.layout)) {
        for (int64_t k = 0; k < planes.padded_cols(); k++) {
            for (int r = 0; r < kTileRows; r++) {
                out[k * kTileRows + r] = float_tile_value(planes, p, r, k) * planes.out_factor;
            }
        }
        return;
    }
    const QuantLayout& q = quant_layout(planes.layout);
    for (int u = 0; u < planes.num_units; u++) {
        for (int r = 0; r < kTileRows; r++) {
            float* column = out + int64_t{u} * q.unit_values() * kTileRows + r;
            decode_unit_row(planes, p + int64_t{u} * q.unit_bytes(), r, column, kTileRows);
        }
    }
}

}  // namespace culet
