// Values and plane content of whole rows: walks the blocks, unpacks each into its plane parts and,
// for values, evaluates the formula of ggml_blocks.h on them.
#include "ggml_blocks.h"

#include "ggml_unpack.h"

namespace culet::ggml {
namespace {

constexpr int kMaxBlockValues = 256;

UnpackBlock unpacker(int ggml_id) {
    const UnpackBlock unpack = plain_unpacker(ggml_id);
    return unpack ? unpack : iq_unpacker(ggml_id);
}

// scale(k) of the header for the group that starts at value k of a block.
float group_scale(const PlaneForm& form, const PlaneRow& block, int k, float factor) {
    switch (form.scale) {
        case ScaleForm::f16:
            return f16_value(block.f16_scales[k / form.f16_group]);
        case ScaleForm::f16_times_int: {
            const float sub = static_cast<float>(block.sub_scales[k / form.sub_group]);
            return f16_value(block.f16_scales[0]) * sub * factor;
        }
        case ScaleForm::e8m0:
            return e8m0_half_value(static_cast<uint8_t>(block.sub_scales[k / form.sub_group]));
        case ScaleForm::ue4m3:
            return ue4m3_half_value(static_cast<uint8_t>(block.sub_scales[k / form.sub_group]));
        case ScaleForm::none:
            break;
    }
    return 1.0f;
}

void evaluate_block(const PlaneForm& form, const PlaneRow& block, float* dst) {
    const int group = form.sub_group ? form.sub_group : form.f16_group;
    const float factor = form.factor_log2 < 0 ? 1.0f / static_cast<float>(1 << -form.factor_log2)
                                              : static_cast<float>(1 << form.factor_log2);
    float values[16];
    if (form.code == CodeForm::codebook) {
        for (int i = 0; i < 1 << form.code_bits; ++i) {
            values[i] = static_cast<float>(form.codebook[i]);
        }
    }
    for (int k = 0; k < form.block_values; k += group) {
        const uint8_t* codes = block.codes + k;
        float* out = dst + k;
        const float scale = group_scale(form, block, k, factor);
        if (form.code == CodeForm::codebook) {
            for (int i = 0; i < group; ++i) out[i] = scale * values[codes[i]];
        } else if (form.min == MinForm::none) {
            const int offset = form.offset;
            for (int i = 0; i < group; ++i) out[i] = scale * static_cast<float>(codes[i] - offset);
        } else {
            const float f16_min = f16_value(block.f16_mins[k / form.f16_group]);
            const float min = form.min == MinForm::add
                                  ? f16_min
                                  : -(f16_min * static_cast<float>(block.sub_mins[k / group]));
            for (int i = 0; i < group; ++i) out[i] = scale * static_cast<float>(codes[i]) + min;
        }
    }
}

bool decode_f64(const uint8_t* src, float* dst, int64_t num_values) {
    const auto value = [src](int64_t i) { return std::bit_cast<double>(load_u64(src + 8 * i)); };
    for (int64_t i = 0; i < num_values; ++i) {
        const double v = value(i);
        // A NaN differs from itself, and has a float32 counterpart.
        if (v == v && static_cast<double>(static_cast<float>(v)) != v) return false;
    }
    for (int64_t i = 0; i < num_values; ++i) dst[i] = static_cast<float>(value(i));
    return true;
}

bool decode_plain(CodeForm code, const uint8_t* src, float* dst, int64_t num_values) {
    switch (code) {
        case CodeForm::f32:
            for (int64_t i = 0; i < num_values; ++i) {
                dst[i] = std::bit_cast<float>(load_u32(src + 4 * i));
            }
            return true;
        case CodeForm::f16:
            for (int64_t i = 0; i < num_values; ++i) dst[i] = f16_value(load_u16(src + 2 * i));
            return true;
        case CodeForm::bf16:
            for (int64_t i = 0; i < num_values; ++i) dst[i] = bf16_value(load_u16(src + 2 * i));
            return true;
        case CodeForm::f64:
            return decode_f64(src, dst, num_values);
        case CodeForm::linear:
        case CodeForm::codebook:
            break;
    }
    return false;
}

}  // namespace

bool decode_row(int ggml_id, const uint8_t* src, float* dst, int64_t num_values) {
    const PlaneForm* form = plane_form(ggml_id);
    if (!form || row_bytes(*form, num_values) < 0) return false;
    if (form->code_bits == 0) return decode_plain(form->code, src, dst, num_values);
    const UnpackBlock unpack = unpacker(ggml_id);
    uint8_t codes[kMaxBlockValues];
    uint16_t f16_scales[8], f16_mins[8];
    int8_t sub_scales[16];
    uint8_t sub_mins[16];
    const PlaneRow block{codes, f16_scales, f16_mins, sub_scales, sub_mins};
    for (int64_t k = 0; k < num_values; k += form->block_values) {
        unpack(src, block);
        evaluate_block(*form, block, dst + k);
        src += form->block_bytes;
    }
    return true;
}

bool canonical_row(int ggml_id, const uint8_t* src, int64_t num_values, const PlaneRow& out) {
    const PlaneForm* form = plane_form(ggml_id);
    if (!form || form->code_bits == 0 || row_bytes(*form, num_values) < 0) return false;
    const UnpackBlock unpack = unpacker(ggml_id);
    PlaneRow place = out;
    for (int64_t k = 0; k < num_values; k += form->block_values) {
        unpack(src, place);
        advance(*form, form->block_values, place);
        src += form->block_bytes;
    }
    return true;
}

}  // namespace culet::ggml
