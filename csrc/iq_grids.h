// The vector codebooks of the IQ types, packed: `value index j of entry i` is
// (grid[i] >> (bits * j)) & ((1 << bits) - 1), with 2 bits and 8 values for IQ1 and IQ2, 3 bits and
// 4 values for IQ3.
#pragma once

#include <cstdint>

namespace culet::ggml {

extern const uint16_t kIq2XxsGrid[256];
extern const uint16_t kIq2XsGrid[512];
extern const uint16_t kIq2SGrid[1024];
extern const uint16_t kIq1Grid[2048];
extern const uint16_t kIq3XxsGrid[256];
extern const uint16_t kIq3SGrid[512];

}  // namespace culet::ggml
