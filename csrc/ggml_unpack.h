// One stored block -> its plane content, per type; shared by ggml_blocks.cpp and the files that
// hold the unpackers. Loads are byte-wise: blocks have no alignment.
#pragma once

#include "ggml_blocks.h"

namespace culet::ggml {

// Writes the plane content of one block; `out` points at the block's own place in each part.
using UnpackBlock = void (*)(const uint8_t* block, const PlaneRow& out);

// The unpacker of a type of 32 to 128 values a block or of a K-quant; nullptr for other types.
UnpackBlock plain_unpacker(int ggml_id);
// The unpacker of an IQ type; nullptr for other types.
UnpackBlock iq_unpacker(int ggml_id);

inline uint16_t load_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

inline uint32_t load_u32(const uint8_t* p) {
    return load_u16(p) | static_cast<uint32_t>(load_u16(p + 2)) << 16;
}

inline uint64_t load_u64(const uint8_t* p) {
    return load_u32(p) | static_cast<uint64_t>(load_u32(p + 4)) << 32;
}

inline void store_u64(uint64_t bytes, uint8_t* p) {
    for (int i = 0; i < 8; ++i) p[i] = static_cast<uint8_t>(bytes >> (8 * i));
}

// The spread functions give a byte to each of the fields packed in a word, the lowest field first:
// each step moves the upper half of every run of fields to where its bytes belong.

inline uint64_t spread_bits(uint8_t eight_bits) {
    uint64_t v = eight_bits;
    v = (v | v << 28) & 0x0000000f0000000fu;
    v = (v | v << 14) & 0x0003000300030003u;
    return (v | v << 7) & 0x0101010101010101u;
}

inline uint32_t spread_pairs(uint8_t four_pairs) {
    uint32_t v = four_pairs;
    v = (v | v << 12) & 0x000f000fu;
    return (v | v << 6) & 0x03030303u;
}

inline uint32_t spread_triples(uint16_t four_triples) {
    uint32_t v = four_triples;
    v = (v | v << 10) & 0x003f003fu;
    return (v | v << 5) & 0x07070707u;
}

// codes[0, n) = low nibbles of packed[0, n), codes[n, 2 n) = high nibbles.
inline void split_nibbles(const uint8_t* packed, int n, uint8_t* codes) {
    for (int i = 0; i < n; ++i) {
        codes[i] = packed[i] & 15;
        codes[n + i] = packed[i] >> 4;
    }
}

}  // namespace culet::ggml
