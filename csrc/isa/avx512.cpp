// AVX-512 F, BW, DQ, VL (Skylake-X and later).
#define CULET_SIMD_AVX512
#define CULET_LEVEL level_avx512
#include "../level.inc"
