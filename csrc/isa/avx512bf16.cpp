// AVX-512 with VNNI and BF16 (Cooper Lake, Sapphire Rapids, Zen 4 and later).
#define CULET_SIMD_AVX512
#define CULET_LEVEL level_avx512bf16
#include "../level.inc"
