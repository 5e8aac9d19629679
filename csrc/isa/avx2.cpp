// x86-64-v3: AVX2, FMA, F16C (Haswell, Zen and later).
#define CULET_SIMD_AVX2
#define CULET_LEVEL level_avx2
#include "../level.inc"
