// ARM64 with the dot product extension (ARMv8.2 and later, all Apple CPUs).
#define CULET_SIMD_NEON
#define CULET_LEVEL level_neon
#include "../level.inc"
