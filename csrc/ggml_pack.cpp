// Each function writes the block whose layout its counterpart in ggml_unpack.cpp states.
#include "ggml_pack.h"

namespace culet::ggml {
namespace {

using PackBlock = void (*)(const PlaneRow& in, uint8_t* b);

void put_u16(uint16_t value, uint8_t* p) {
    p[0] = static_cast<uint8_t>(value);
    p[1] = static_cast<uint8_t>(value >> 8);
}

// packed[i] = low nibbles of codes[i] and codes[n + i].
void join_nibbles(const uint8_t* codes, int n, uint8_t* packed) {
    for (int i = 0; i < n; ++i) {
        packed[i] = static_cast<uint8_t>((codes[i] & 15) | codes[n + i] << 4);
    }
}

// Bit `shift` of 32 codes as 32 bits.
void join_high_bits(const uint8_t* codes, int shift, uint8_t* bits) {
    for (int i = 0; i < 4; ++i) {
        int byte = 0;
        for (int j = 0; j < 8; ++j) byte |= (codes[i * 8 + j] >> shift & 1) << j;
        bits[i] = static_cast<uint8_t>(byte);
    }
}

// Bit `shift` of 8 runs of 32 codes as 32 bytes, run r in bit r.
void join_bit_planes(const uint8_t* codes, int shift, uint8_t* bytes) {
    for (int i = 0; i < 32; ++i) {
        int byte = 0;
        for (int run = 0; run < 8; ++run) byte |= (codes[run * 32 + i] >> shift & 1) << run;
        bytes[i] = static_cast<uint8_t>(byte);
    }
}

// Low pairs of four runs of 32 codes as 32 bytes.
void join_pairs(const uint8_t* codes, uint8_t* packed) {
    for (int i = 0; i < 32; ++i) {
        int byte = 0;
        for (int run = 0; run < 4; ++run) byte |= (codes[run * 32 + i] & 3) << (run * 2);
        packed[i] = static_cast<uint8_t>(byte);
    }
}

void pack_q4_0(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    join_nibbles(in.codes, 16, b + 2);
}

void pack_q4_1(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    put_u16(in.f16_mins[0], b + 2);
    join_nibbles(in.codes, 16, b + 4);
}

void pack_q5_0(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    join_high_bits(in.codes, 4, b + 2);
    join_nibbles(in.codes, 16, b + 6);
}

void pack_q5_1(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    put_u16(in.f16_mins[0], b + 2);
    join_high_bits(in.codes, 4, b + 4);
    join_nibbles(in.codes, 16, b + 8);
}

void pack_q8_0(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    for (int i = 0; i < 32; ++i) b[2 + i] = in.codes[i] ^ 0x80;
}

void pack_q1_0(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    for (int run = 0; run < 4; ++run) join_high_bits(in.codes + run * 32, 1, b + 2 + run * 4);
}

void pack_q2_0(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    for (int i = 0; i < 16; ++i) {
        int byte = 0;
        for (int j = 0; j < 4; ++j) byte |= (in.codes[i * 4 + j] & 3) << (2 * j);
        b[2 + i] = static_cast<uint8_t>(byte);
    }
}

void pack_tq2_0(const PlaneRow& in, uint8_t* b) {
    for (int half = 0; half < 2; ++half) join_pairs(in.codes + half * 128, b + half * 32);
    put_u16(in.f16_scales[0], b + 64);
}

void pack_mxfp4(const PlaneRow& in, uint8_t* b) {
    b[0] = static_cast<uint8_t>(in.sub_scales[0]);
    join_nibbles(in.codes, 16, b + 1);
}

void pack_nvfp4(const PlaneRow& in, uint8_t* b) {
    for (int sub = 0; sub < 4; ++sub) {
        b[sub] = static_cast<uint8_t>(in.sub_scales[sub]);
        join_nibbles(in.codes + sub * 16, 8, b + 4 + sub * 8);
    }
}

void pack_q2_k(const PlaneRow& in, uint8_t* b) {
    for (int i = 0; i < 16; ++i) {
        b[i] = static_cast<uint8_t>((in.sub_scales[i] & 15) | in.sub_mins[i] << 4);
    }
    for (int half = 0; half < 2; ++half) join_pairs(in.codes + half * 128, b + 16 + half * 32);
    put_u16(in.f16_scales[0], b + 80);
    put_u16(in.f16_mins[0], b + 82);
}

void pack_q3_k(const PlaneRow& in, uint8_t* b) {
    join_bit_planes(in.codes, 2, b);
    for (int half = 0; half < 2; ++half) join_pairs(in.codes + half * 128, b + 32 + half * 32);
    uint8_t* scales = b + 96;
    for (int i = 0; i < 12; ++i) scales[i] = 0;
    for (int i = 0; i < 16; ++i) {
        const int scale = in.sub_scales[i] + 32;
        scales[i % 8] |= static_cast<uint8_t>((scale & 15) << (i / 8 * 4));
        scales[8 + i % 4] |= static_cast<uint8_t>(scale >> 4 << (i / 4 * 2));
    }
    put_u16(in.f16_scales[0], b + 108);
}

void pack_scales_k4(const PlaneRow& in, uint8_t* packed) {
    for (int i = 0; i < 4; ++i) {
        const int high_scale = in.sub_scales[4 + i], high_min = in.sub_mins[4 + i];
        packed[i] = static_cast<uint8_t>((in.sub_scales[i] & 63) | high_scale >> 4 << 6);
        packed[4 + i] = static_cast<uint8_t>((in.sub_mins[i] & 63) | high_min >> 4 << 6);
        packed[8 + i] = static_cast<uint8_t>((high_scale & 15) | (high_min & 15) << 4);
    }
}

void pack_q4_k(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    put_u16(in.f16_mins[0], b + 2);
    pack_scales_k4(in, b + 4);
    for (int pair = 0; pair < 4; ++pair) join_nibbles(in.codes + pair * 64, 32, b + 16 + pair * 32);
}

void pack_q5_k(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    put_u16(in.f16_mins[0], b + 2);
    pack_scales_k4(in, b + 4);
    join_bit_planes(in.codes, 4, b + 16);
    for (int pair = 0; pair < 4; ++pair) join_nibbles(in.codes + pair * 64, 32, b + 48 + pair * 32);
}

void pack_q6_k(const PlaneRow& in, uint8_t* b) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t* codes = in.codes + half * 128;
        uint8_t* low = b + half * 64;
        uint8_t* high = b + 128 + half * 32;
        join_nibbles(codes, 64, low);
        for (int i = 0; i < 32; ++i) {
            high[i] = static_cast<uint8_t>(codes[i] >> 4 | (codes[32 + i] >> 4) << 2 |
                                           (codes[64 + i] >> 4) << 4 | (codes[96 + i] >> 4) << 6);
        }
    }
    for (int i = 0; i < 16; ++i) b[192 + i] = static_cast<uint8_t>(in.sub_scales[i]);
    put_u16(in.f16_scales[0], b + 208);
}

void pack_iq4_xs(const PlaneRow& in, uint8_t* b) {
    put_u16(in.f16_scales[0], b);
    uint32_t high = 0;
    for (int i = 0; i < 4; ++i) b[4 + i] = 0;
    for (int run = 0; run < 8; ++run) {
        const uint32_t scale = static_cast<uint32_t>(in.sub_scales[run] + 32);
        b[4 + run / 2] |= static_cast<uint8_t>((scale & 15) << (run % 2 * 4));
        high |= scale >> 4 << (run * 2);
        join_nibbles(in.codes + run * 32, 16, b + 8 + run * 16);
    }
    put_u16(static_cast<uint16_t>(high), b + 2);
}

PackBlock packer(int ggml_id) {
    switch (ggml_id) {
        case 2:
        case 20:
            return pack_q4_0;  // IQ4_NL differs by its codebook only
        case 3:
            return pack_q4_1;
        case 6:
            return pack_q5_0;
        case 7:
            return pack_q5_1;
        case 8:
            return pack_q8_0;
        case 10:
            return pack_q2_k;
        case 11:
            return pack_q3_k;
        case 12:
            return pack_q4_k;
        case 13:
            return pack_q5_k;
        case 14:
            return pack_q6_k;
        case 23:
            return pack_iq4_xs;
        case 35:
            return pack_tq2_0;
        case 39:
            return pack_mxfp4;
        case 40:
            return pack_nvfp4;
        case 41:
            return pack_q1_0;
        case 42:
            return pack_q2_0;
        default:
            return nullptr;
    }
}

}  // namespace

bool can_pack(int ggml_id) { return packer(ggml_id) != nullptr; }

void pack_row(int ggml_id, const PlaneRow& row, int64_t num_values, uint8_t* dst) {
    const PlaneForm* form = plane_form(ggml_id);
    const PackBlock pack = packer(ggml_id);
    PlaneRow place = row;
    for (int64_t k = 0; k < num_values; k += form->block_values) {
        pack(place, dst);
        advance(*form, form->block_values, place);
        dst += form->block_bytes;
    }
}

}  // namespace culet::ggml
