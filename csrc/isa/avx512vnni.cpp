// AVX-512 with VNNI (Cascade Lake, Ice Lake and later).
#define CULET_SIMD_AVX512
#define CULET_LEVEL level_avx512vnni
#include "../level.inc"
