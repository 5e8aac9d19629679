// Chooses the ISA level once at start.
#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "kernels.h"

namespace culet {

const Kernels* level_portable(const char* name);
#if defined(__x86_64__)
const Kernels* level_avx2(const char* name);
const Kernels* level_avxvnni(const char* name);
const Kernels* level_avx512(const char* name);
const Kernels* level_avx512vnni(const char* name);
const Kernels* level_avx512bf16(const char* name);
#elif defined(__aarch64__)
const Kernels* level_neon(const char* name);
#endif

namespace {

struct Level {
    const char* name;
    const Kernels* (*make)(const char* name);
    bool (*supported)();
};

#if defined(__x86_64__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
bool has_avxvnni() {
    // GCC 12 has no name for it: CPUID leaf 7, subleaf 1, EAX bit 4.
    if (!has_avx2()) return false;
    unsigned a = 7, b = 0, c = 1, d = 0;
    unsigned highest = 0;
    __asm__("cpuid" : "+a"(highest), "=b"(b), "=c"(c), "=d"(d) : "2"(0));
    if (highest < 7) return false;
    c = 1;
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (a >> 4 & 1) != 0;
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
bool has_avx512bf16() { return has_avx512vnni() && __builtin_cpu_supports("avx512bf16"); }
#elif defined(__aarch64__) && defined(__linux__)
bool has_neon() {  // ARMv8.0, as in a Raspberry Pi 4, has neither
    const unsigned long needed = HWCAP_ASIMDDP | HWCAP_ASIMDHP;
    return (getauxval(AT_HWCAP) & needed) == needed;
}
#elif defined(__aarch64__)
bool has_neon() { return true; }  // all of Apple's
#endif
bool always() { return true; }

// Best first.
constexpr Level kLevels[] = {
#if defined(__x86_64__)
    {"avx512bf16", level_avx512bf16, has_avx512bf16},
    {"avx512vnni", level_avx512vnni, has_avx512vnni},
    {"avx512", level_avx512, has_avx512},
    {"avxvnni", level_avxvnni, has_avxvnni},
    {"avx2", level_avx2, has_avx2},
#elif defined(__aarch64__)
    {"neon", level_neon, has_neon},
#endif
    {"portable", level_portable, always},
};
constexpr int kNumLevels = sizeof kLevels / sizeof kLevels[0];

}  // namespace

const char* const* supported_levels() {
    static const char* names[kNumLevels + 1];
    int count = 0;
    for (const Level& level : kLevels) {
        if (level.supported()) names[count++] = level.name;
    }
    names[count] = nullptr;
    return names;
}

const Kernels* select_kernels(const char* forced, const char** error) {
    bool known = false;
    for (const Level& level : kLevels) {
        const bool named = forced && std::strcmp(forced, level.name) == 0;
        known = known || named;
        if ((named || !forced) && level.supported()) return level.make(level.name);
    }
    *error = known ? "this CPU lacks its instructions" : "no such level";
    return nullptr;
}

}  // namespace culet
