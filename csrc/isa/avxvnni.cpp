// AVX2 with AVX-VNNI (Alder Lake and later, Zen 5).
#define CULET_SIMD_AVX2
#define CULET_LEVEL level_avxvnni
#include "../level.inc"
