// Unpackers of the IQ types, whose codes are looked up 8 (IQ1, IQ2) or 4 (IQ3) at a time in a
// vector codebook. Each function states its block's byte layout.
#include <bit>

#include "ggml_unpack.h"
#include "iq_grids.h"

namespace culet::ggml {
namespace {

// Seven stored sign bits; the eighth makes the number of negative signs even.
uint8_t even_signs(uint32_t signs7) {
    signs7 &= 127;
    return static_cast<uint8_t>(signs7 | static_cast<uint32_t>(std::popcount(signs7) & 1) << 7);
}

// The eight 2-bit indices of an IQ1 or IQ2 grid entry, a byte each.
uint64_t spread_entry(uint16_t entry) {
    const uint64_t upper = spread_pairs(static_cast<uint8_t>(entry >> 8));
    return spread_pairs(static_cast<uint8_t>(entry)) | upper << 32;
}

// Codes of 8 magnitudes of 2 bits with their signs in bit 2.
void store_iq2(uint16_t entry, uint8_t signs, uint8_t* codes) {
    store_u64(spread_entry(entry) | spread_bits(signs) << 2, codes);
}

// Codes of 2 x 4 magnitudes of 3 bits with their signs in bit 3.
void store_iq3(uint16_t first, uint16_t second, uint8_t signs, uint8_t* codes) {
    const uint64_t upper = spread_triples(second);
    store_u64(spread_triples(first) | upper << 32 | spread_bits(signs) << 3, codes);
}

// Codes of 8 ternary digits; bit 2 tells that the group's delta is negative.
void store_iq1(uint16_t entry, bool negative_delta, uint8_t* codes) {
    const uint64_t delta = negative_delta ? 0x0404040404040404u : 0;
    store_u64(spread_entry(entry) | delta, codes);
}

// An IQ sub-scale: the stored s stands for s + 1/2, kept as the integer 2 s + 1.
int8_t odd(uint32_t s) { return static_cast<int8_t>(2 * s + 1); }

// d f16, 8 x (4 grid indices, then u32 of 4 x 7 signs and a scale in the top 4 bits).
void unpack_iq2_xxs(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    for (int run = 0; run < 8; ++run) {
        const uint8_t* indices = b + 2 + run * 8;
        const uint32_t aux = load_u32(indices + 4);
        out.sub_scales[run] = odd(aux >> 28);
        for (int i = 0; i < 4; ++i) {
            store_iq2(kIq2XxsGrid[indices[i]], even_signs(aux >> (7 * i)),
                      out.codes + run * 32 + i * 8);
        }
    }
}

// d f16, 32 x u16 (9 bits of grid index, 7 signs), 8 x two scales.
void unpack_iq2_xs(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    for (int i = 0; i < 32; ++i) {
        const uint16_t entry = load_u16(b + 2 + i * 2);
        store_iq2(kIq2XsGrid[entry & 511], even_signs(entry >> 9), out.codes + i * 8);
    }
    for (int i = 0; i < 16; ++i) out.sub_scales[i] = odd(b[66 + i / 2] >> (i % 2 * 4) & 15);
}

// d f16, 32 low index bytes, 32 sign bytes, 8 bytes of 4 x two high index bits, 8 x two scales.
void unpack_iq2_s(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    for (int i = 0; i < 32; ++i) {
        const int high = b[66 + i / 4] >> (i % 4 * 2) & 3;
        store_iq2(kIq2SGrid[b[2 + i] | high << 8], b[34 + i], out.codes + i * 8);
    }
    for (int i = 0; i < 16; ++i) out.sub_scales[i] = odd(b[74 + i / 2] >> (i % 2 * 4) & 15);
}

// d f16, 64 grid indices, 8 x u32 of 4 x 7 signs and a scale in the top 4 bits.
void unpack_iq3_xxs(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    for (int run = 0; run < 8; ++run) {
        const uint8_t* indices = b + 2 + run * 8;
        const uint32_t aux = load_u32(b + 66 + run * 4);
        out.sub_scales[run] = odd(aux >> 28);
        for (int i = 0; i < 4; ++i) {
            store_iq3(kIq3XxsGrid[indices[2 * i]], kIq3XxsGrid[indices[2 * i + 1]],
                      even_signs(aux >> (7 * i)), out.codes + run * 32 + i * 8);
        }
    }
}

// d f16, 64 low index bytes, 8 bytes of 8 high index bits, 32 sign bytes, 4 x two scales.
void unpack_iq3_s(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    for (int i = 0; i < 32; ++i) {
        const int high = b[66 + i / 4] >> (i % 4 * 2);
        const int first = b[2 + 2 * i] | (high & 1) << 8;
        const int second = b[3 + 2 * i] | (high & 2) << 7;
        store_iq3(kIq3SGrid[first], kIq3SGrid[second], b[74 + i], out.codes + i * 8);
    }
    for (int i = 0; i < 8; ++i) out.sub_scales[i] = odd(b[106 + i / 2] >> (i % 2 * 4) & 15);
}

// d f16, 32 low index bytes, 8 x u16 (4 x three high index bits, three bits of scale, the sign of
// the delta).
void unpack_iq1_s(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    for (int run = 0; run < 8; ++run) {
        const uint32_t aux = load_u16(b + 34 + run * 2);
        out.sub_scales[run] = odd(aux >> 12 & 7);
        for (int i = 0; i < 4; ++i) {
            const uint32_t index = b[2 + run * 4 + i] | (aux >> (3 * i) & 7) << 8;
            store_iq1(kIq1Grid[index], aux >> 15, out.codes + run * 32 + i * 8);
        }
    }
}

// 32 low index bytes, 16 bytes of two nibbles (three high index bits, the sign of the delta),
// 4 x u16 (4 scales of three bits; the top nibbles make up d f16, the lowest first).
void unpack_iq1_m(const uint8_t* b, const PlaneRow& out) {
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t scales = load_u16(b + 48 + i * 2);
        d |= scales >> 12 << (4 * i);
        for (int j = 0; j < 4; ++j) out.sub_scales[i * 4 + j] = odd(scales >> (3 * j) & 7);
    }
    out.f16_scales[0] = static_cast<uint16_t>(d);
    for (int i = 0; i < 32; ++i) {
        const uint32_t high = b[32 + i / 2] >> (i % 2 * 4) & 15;
        store_iq1(kIq1Grid[b[i] | (high & 7) << 8], high & 8, out.codes + i * 8);
    }
}

// d f16, u16 of 8 high pairs of the scales, 4 bytes of their low nibbles, 8 x 16 bytes of the two
// halves of a run. A scale is stored + 32.
void unpack_iq4_xs(const uint8_t* b, const PlaneRow& out) {
    out.f16_scales[0] = load_u16(b);
    const uint32_t high = load_u16(b + 2);
    for (int run = 0; run < 8; ++run) {
        const int low = b[4 + run / 2] >> (run % 2 * 4) & 15;
        const int scale = low | static_cast<int>(high >> (run * 2) & 3) << 4;
        out.sub_scales[run] = static_cast<int8_t>(scale - 32);
        split_nibbles(b + 8 + run * 16, 16, out.codes + run * 32);
    }
}

}  // namespace

UnpackBlock iq_unpacker(int ggml_id) {
    switch (ggml_id) {
        case 16:
            return unpack_iq2_xxs;
        case 17:
            return unpack_iq2_xs;
        case 18:
            return unpack_iq3_xxs;
        case 19:
            return unpack_iq1_s;
        case 21:
            return unpack_iq3_s;
        case 22:
            return unpack_iq2_s;
        case 23:
            return unpack_iq4_xs;
        case 29:
            return unpack_iq1_m;
        default:
            return nullptr;
    }
}

}  // namespace culet::ggml
