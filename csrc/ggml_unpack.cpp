// Unpackers of the types without vector codebooks. Each function states its block's byte layout.
#include "ggml_unpack.h"

namespace culet::ggml {
namespace {

// Adds bit i of 32 stored bits to code i, at the weight 1 << shift.
void add_high_bits(const uint8_t* bits, int shift, uint8_t* codes) {
    for (int i = 0; i < 4; ++i) {
        store_u64(load_u64(codes + i * 8) | spread_bits(bits[i]) << shift, codes + i * 8);
    }
}

// Adds bit r of 32 bytes to the codes of run r of 32, at the weight 1 << shift; 8 runs.
void add_bit_planes(const uint8_t* bytes, int shift, uint8_t* codes) {
    for (int run = 0; run < 8; ++run) {
        for (int i = 0; i < 32; ++i) {
            const int bit = bytes[i] >> run & 1;
            codes[run * 32 + i] = static_cast<uint8_t>(codes[run * 32 + i] | bit << shift);
        }
    }
}

void replicate(uint16_t value, int times, uint16_t* out) {
    for (int i = 0; i < times; ++i) out[i] = value;
}

// d f16, 16 x two codes. Also IQ4_NL.
void unpack_q4_0(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    split_nibbles(b + 2, 16, out.codes);
}

// d f16, min f16, 16 x two codes.
void unpack_q4_1(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    out.f16_mins[0] = load_u16(b + 2);
    split_nibbles(b + 4, 16, out.codes);
}

// d f16, 32 high bits, 16 x two low nibbles.
void unpack_q5_0(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    split_nibbles(b + 6, 16, out.codes);
    add_high_bits(b + 2, 4, out.codes);
}

// d f16, min f16, 32 high bits, 16 x two low nibbles.
void unpack_q5_1(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    out.f16_mins[0] = load_u16(b + 2);
    split_nibbles(b + 8, 16, out.codes);
    add_high_bits(b + 4, 4, out.codes);
}

// d f16, 32 x int8; the code is the value + 128.
void unpack_q8_0(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    uint8_t* codes = out.codes;  // a local: `out` itself might be what a byte store changes
    for (int i = 0; i < 32; ++i) codes[i] = b[2 + i] ^ 0x80;
}

// d f16, 128 bits; a set bit is +d (code 2), a clear one -d (code 0).
void unpack_q1_0(const uint8_t* b, const PlaneRow& out) {
    replicate(load_u16(b), 4, out.f16_scales);
    for (int i = 0; i < 16; ++i) store_u64(spread_bits(b[2 + i]) << 1, out.codes + i * 8);
}

// d f16, 16 x four consecutive codes.
void unpack_q2_0(const uint8_t* b, const PlaneRow& out) {
    replicate(load_u16(b), 2, out.f16_scales);
    for (int i = 0; i < 8; ++i) {
        const uint64_t upper = spread_pairs(b[3 + i * 2]);
        store_u64(spread_pairs(b[2 + i * 2]) | upper << 32, out.codes + i * 8);
    }
}

// `digits` base-3 digits of each of n bytes, most significant first, digit-major. A byte b stands
// for the fraction b / 256; multiplying by 3 moves the next digit above the point.
uint8_t* ternary_digits(const uint8_t* packed, int n, int digits, uint8_t* codes) {
    uint8_t power = 1;
    for (int digit = 0; digit < digits; ++digit) {
        for (int i = 0; i < n; ++i) {
            const uint8_t fraction = static_cast<uint8_t>(packed[i] * power);
            *codes++ = static_cast<uint8_t>(fraction * 3 >> 8);
        }
        power = static_cast<uint8_t>(power * 3);
    }
    return codes;
}

// 32 bytes of 5 digits, 16 bytes of 5 digits, 4 bytes of 4 digits, d f16.
void unpack_tq1_0(const uint8_t* b, const PlaneRow& out) {
    uint8_t* codes = ternary_digits(b, 32, 5, out.codes);
    codes = ternary_digits(b + 32, 16, 5, codes);
    ternary_digits(b + 48, 4, 4, codes);
    replicate(load_u16(b + 52), 8, out.f16_scales);
}

// 2-bit fields of 32 bytes as four runs of 32 codes: run r is bits 2 r, 2 r + 1.
void split_pairs(const uint8_t* packed, uint8_t* codes) {
    for (int run = 0; run < 4; ++run) {
        for (int i = 0; i < 32; ++i) codes[run * 32 + i] = packed[i] >> (run * 2) & 3;
    }
}

// Two halves of 32 bytes of four codes, d f16.
void unpack_tq2_0(const uint8_t* b, const PlaneRow& out) {
    for (int half = 0; half < 2; ++half) split_pairs(b + half * 32, out.codes + half * 128);
    replicate(load_u16(b + 64), 8, out.f16_scales);
}

// E8M0 scale, 16 x two E2M1 codes.
void unpack_mxfp4(const uint8_t* b, const PlaneRow& out) {
    out.sub_scales[0] = static_cast<int8_t>(b[0]);
    split_nibbles(b + 1, 16, out.codes);
}

// 4 x UE4M3 scale, 4 x 8 bytes of two E2M1 codes.
void unpack_nvfp4(const uint8_t* b, const PlaneRow& out) {
    for (int sub = 0; sub < 4; ++sub) {
        out.sub_scales[sub] = static_cast<int8_t>(b[sub]);
        split_nibbles(b + 4 + sub * 8, 8, out.codes + sub * 16);
    }
}

// 16 x (scale low nibble, min high nibble), 64 bytes of codes, d f16, dmin f16.
void unpack_q2_k(const uint8_t* b, const PlaneRow& out) {
    for (int i = 0; i < 16; ++i) {
        out.sub_scales[i] = static_cast<int8_t>(b[i] & 15);
        out.sub_mins[i] = b[i] >> 4;
    }
    for (int half = 0; half < 2; ++half) split_pairs(b + 16 + half * 32, out.codes + half * 128);
    out.f16_scales[0] = load_u16(b + 80);
    out.f16_mins[0] = load_u16(b + 82);
}

// 32 bytes of high bits (bit r of byte i: run r of 32 codes), 64 bytes of low bits, 12 bytes of
// scales (8 bytes of low nibbles, 4 bytes of high pairs), d f16. A scale is stored + 32.
void unpack_q3_k(const uint8_t* b, const PlaneRow& out) {
    for (int half = 0; half < 2; ++half) split_pairs(b + 32 + half * 32, out.codes + half * 128);
    add_bit_planes(b, 2, out.codes);
    const uint8_t* scales = b + 96;
    for (int i = 0; i < 16; ++i) {
        const int low = scales[i % 8] >> (i / 8 * 4) & 15;
        const int high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
        out.sub_scales[i] = static_cast<int8_t>((low | high << 4) - 32);
    }
    out.f16_scales[0] = load_u16(b + 108);
}

// The 8 scales and 8 mins of 6 bits in 12 bytes: 4 scales with the high pairs of scales 4 to 7
// above them, 4 mins with the high pairs of mins 4 to 7, then 4 x (scale low, min low nibble).
void unpack_scales_k4(const uint8_t* packed, const PlaneRow& out) {
    for (int i = 0; i < 4; ++i) {
        const uint8_t scale = packed[i];
        const uint8_t min = packed[4 + i];
        const uint8_t low = packed[8 + i];
        out.sub_scales[i] = static_cast<int8_t>(scale & 63);
        out.sub_mins[i] = min & 63;
        out.sub_scales[4 + i] = static_cast<int8_t>((low & 15) | scale >> 6 << 4);
        out.sub_mins[4 + i] = static_cast<uint8_t>(low >> 4 | min >> 6 << 4);
    }
}

// d f16, dmin f16, 12 bytes of scales and mins, 4 x 32 bytes of two runs of 32 codes.
void unpack_q4_k(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    out.f16_mins[0] = load_u16(b + 2);
    unpack_scales_k4(b + 4, out);
    for (int pair = 0; pair < 4; ++pair)
        split_nibbles(b + 16 + pair * 32, 32, out.codes + pair * 64);
}

// d f16, dmin f16, 12 bytes of scales and mins, 32 bytes of high bits (bit r of byte i: run r),
// 4 x 32 bytes of the low nibbles of two runs.
void unpack_q5_k(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    out.f16_mins[0] = load_u16(b + 2);
    unpack_scales_k4(b + 4, out);
    for (int pair = 0; pair < 4; ++pair)
        split_nibbles(b + 48 + pair * 32, 32, out.codes + pair * 64);
    add_bit_planes(b + 16, 4, out.codes);
}

// Two halves of 64 bytes of low nibbles, two halves of 32 bytes of high pairs, 16 x int8 scale,
// d f16.
void unpack_q6_k(const uint8_t* b, const PlaneRow& out) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t* low = b + half * 64;
        const uint8_t* high = b + 128 + half * 32;
        uint8_t* codes = out.codes + half * 128;
        for (int i = 0; i < 32; ++i) {
            codes[i] = static_cast<uint8_t>((low[i] & 15) | (high[i] & 3) << 4);
            codes[32 + i] = static_cast<uint8_t>((low[32 + i] & 15) | (high[i] & 12) << 2);
            codes[64 + i] = static_cast<uint8_t>(low[i] >> 4 | (high[i] & 48));
            codes[96 + i] = static_cast<uint8_t>(low[32 + i] >> 4 | (high[i] & 192) >> 2);
        }
    }
    for (int i = 0; i < 16; ++i) out.sub_scales[i] = static_cast<int8_t>(b[192 + i]);
    out.f16_scales[0] = load_u16(b + 208);
}

}  // namespace

UnpackBlock plain_unpacker(int ggml_id) {
    switch (ggml_id) {
        case 2:
        case 20:
            return unpack_q4_0;  // IQ4_NL differs by its codebook only
        case 3:
            return unpack_q4_1;
        case 6:
            return unpack_q5_0;
        case 7:
            return unpack_q5_1;
        case 8:
            return unpack_q8_0;
        case 10:
            return unpack_q2_k;
        case 11:
            return unpack_q3_k;
        case 12:
            return unpack_q4_k;
        case 13:
            return unpack_q5_k;
        case 14:
            return unpack_q6_k;
        case 34:
            return unpack_tq1_0;
        case 35:
            return unpack_tq2_0;
        case 39:
            return unpack_mxfp4;
        case 40:
            return unpack_nvfp4;
        case 41:
            return unpack_q1_0;
        case 42:
            return unpack_q2_0;
        default:
            return nullptr;
    }
}

}  // namespace culet::ggml
