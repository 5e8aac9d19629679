// The vector type that all kernels use: F holds kLanes floats, I as many int32 (or 4 bytes each).
//
// Included once by each file of isa/, inside that level's namespace, after it has defined one of
// CULET_SIMD_AVX512, CULET_SIMD_AVX2, CULET_SIMD_NEON, or none (portable). No function here, nor in
// the *.inc files, may call an inline function of the standard library that is not always inlined:
// the linker would keep one copy of it, possibly compiled for an ISA that the CPU lacks.
//
// Where there is no dot product of four bytes, CULET_SIMD_PAIRS is defined: dp_pairs gives sums of
// two products in 16 bits, which add_i16 may sum as long as they fit and add_pairs adds to 32-bit
// lanes.
//
// Operations mean the same at every level: IEEE single, round to nearest even, no flush to zero.

// For functions that only prefetch: GCC takes them for functions without an effect, and drops calls
// that it has not inlined early.
#define CULET_PREFETCH inline __attribute__((always_inline))

// ---- AVX-512: F, BW, DQ, VL; VNNI and BF16 where the file was compiled for them ----------------
#if defined(CULET_SIMD_AVX512)
constexpr int kLanes = 16;
using F = __m512;
using I = __m512i;

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
inline F set1(float x) { return _mm512_set1_ps(x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F select_lt(F a, F b, F x, F y) {  // a < b ? x : y
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
inline I as_i(F a) { return _mm512_castps_si512(a); }
inline F as_f(I a) { return _mm512_castsi512_ps(a); }
inline F to_f(I a) { return _mm512_cvtepi32_ps(a); }
inline I round_i(F a) { return _mm512_cvtps_epi32(a); }

inline I loadi(const void* p) { return _mm512_loadu_si512(p); }
inline void storei(void* p, I a) { _mm512_storeu_si512(p, a); }
inline I set1i(int32_t x) { return _mm512_set1_epi32(x); }
inline I addi(I a, I b) { return _mm512_add_epi32(a, b); }
inline I subi(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I andi(I a, I b) { return _mm512_and_si512(a, b); }
inline I ori(I a, I b) { return _mm512_or_si512(a, b); }
inline I or_masked(I a, I b, I mask) {  // a | (b & mask)
    return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}
template <int n>
inline I shl(I a) {
    return _mm512_slli_epi32(a, n);
}
template <int n>
inline I shr(I a) {
    return _mm512_srli_epi32(a, n);
}
template <int n>
inline I sar(I a) {
    return _mm512_srai_epi32(a, n);
}
inline I not_equal(I a, I b) {  // all ones where a != b
    return _mm512_movm_epi32(_mm512_cmpneq_epi32_mask(a, b));
}
inline I load_s8i(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
}
inline I load_u8i(const void* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
inline I load_s16i(const void* p) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p));
}
inline void store_s8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }
inline F load_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline void store_f16(uint16_t* p, F a) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
// Of kLanes pairs of f16: the first, the second of each.
inline F load_even_f16(const void* p) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_loadu_si512(p)));
}
inline F load_odd_f16(const void* p) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(p), 16)));
}
inline I load_table(const uint8_t* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p));
}
inline I lookup(I table, I index) { return _mm512_shuffle_epi8(table, index); }
CULET_PREFETCH void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
CULET_PREFETCH void prefetch_l2(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }
// Over all lanes; exact, so that the order does not matter.
inline float reduce_max(F a) { return _mm512_reduce_max_ps(a); }
inline int32_t reduce_add(I a) { return _mm512_reduce_add_epi32(a); }

#if defined(__AVX512VNNI__)
constexpr bool kWideIsSigned = false;
inline I dp(I acc, I codes, I acts) { return _mm512_dpbusd_epi32(acc, codes, acts); }
inline I dp_wide(I acc, I codes, I acts) { return dp(acc, codes, acts); }
// With the 4 activations at p for every lane. GCC 12 does not fold the broadcast into the dot
// product, which makes one instruction more of each: 40% of all that a matmul executes.
inline I dp4(I acc, I codes, const uint8_t* p) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(acc)
            : "v"(codes), "m"(*reinterpret_cast<const uint8_t (*)[4]>(p)));
    return acc;
}
#define CULET_SIMD_DP4
#else
constexpr bool kWideIsSigned = true;
inline I dp_pairs(I codes, I acts) { return _mm512_maddubs_epi16(codes, acts); }
inline I add_i16(I a, I b) { return _mm512_add_epi16(a, b); }
inline I add_pairs(I acc, I pairs) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
inline I dp(I acc, I codes, I acts) { return add_pairs(acc, dp_pairs(codes, acts)); }
#define CULET_SIMD_PAIRS
inline I dp_wide(I acc, I codes, I acts) {
    // |w - 128| <= 128 and |a| <= 127: two products stay below 2^15.
    const I w = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
    const I a = _mm512_mask_sub_epi8(acts, _mm512_movepi8_mask(w), _mm512_setzero_si512(), acts);
    return dp(acc, _mm512_abs_epi8(w), a);
}
#endif

#if defined(__AVX512BF16__)
constexpr bool kBf16Dots = true;
// With the bf16 pair at p for every lane; in assembly for the same reason as dp4.
inline F dp_bf16(F acc, I a, const void* p) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0"
            : "+v"(acc)
            : "v"(a), "m"(*reinterpret_cast<const uint8_t (*)[4]>(p)));
    return acc;
}
// 2 kLanes floats as bf16, round to nearest even, in order.
inline I pack_bf16(F low, F high) { return (I)_mm512_cvtne2ps_pbh(high, low); }
#else
constexpr bool kBf16Dots = false;
#endif

// ---- AVX2 with FMA and F16C; AVX-VNNI where the file was compiled for it -----------------------
#elif defined(CULET_SIMD_AVX2)
constexpr int kLanes = 8;
using F = __m256;
using I = __m256i;

// Pinned values are computed in the order of their pins. GCC 12 gathers all products of a block
// before it sums any, which 16 registers can't hold.
inline void pin(I& a) { __asm__ volatile("" : "+x"(a)); }
#define CULET_SIMD_PIN

inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F a) { _mm256_storeu_ps(p, a); }
inline F set1(float x) { return _mm256_set1_ps(x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F select_lt(F a, F b, F x, F y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
inline I as_i(F a) { return _mm256_castps_si256(a); }
inline F as_f(I a) { return _mm256_castsi256_ps(a); }
inline F to_f(I a) { return _mm256_cvtepi32_ps(a); }
inline I round_i(F a) { return _mm256_cvtps_epi32(a); }

inline I loadi(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline void storei(void* p, I a) { _mm256_storeu_si256((__m256i*)p, a); }
inline I set1i(int32_t x) { return _mm256_set1_epi32(x); }
inline I addi(I a, I b) { return _mm256_add_epi32(a, b); }
inline I subi(I a, I b) { return _mm256_sub_epi32(a, b); }
inline I andi(I a, I b) { return _mm256_and_si256(a, b); }
inline I ori(I a, I b) { return _mm256_or_si256(a, b); }
inline I or_masked(I a, I b, I mask) { return ori(a, andi(b, mask)); }
template <int n>
inline I shl(I a) {
    return _mm256_slli_epi32(a, n);
}
template <int n>
inline I shr(I a) {
    return _mm256_srli_epi32(a, n);
}
template <int n>
inline I sar(I a) {
    return _mm256_srai_epi32(a, n);
}
inline I not_equal(I a, I b) {
    return _mm256_xor_si256(_mm256_cmpeq_epi32(a, b), _mm256_set1_epi32(-1));
}
inline I load_s8i(const void* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
inline I load_u8i(const void* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
inline I load_s16i(const void* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p));
}
inline __m128i narrow16(I a) {  // the low halves of the lanes, in order
    const I low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    const I packed = _mm256_packus_epi32(low, low);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
inline void store_s8(int8_t* p, I a) {
    const __m128i words = narrow16(a);
    _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(words, words));
}
inline F load_f16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline void store_f16(uint16_t* p, F a) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
inline F load_even_f16(const void* p) { return _mm256_cvtph_ps(narrow16(loadi(p))); }
inline F load_odd_f16(const void* p) { return _mm256_cvtph_ps(narrow16(shr<16>(loadi(p)))); }
inline I load_table(const uint8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p));
}
inline I lookup(I table, I index) { return _mm256_shuffle_epi8(table, index); }
CULET_PREFETCH void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
CULET_PREFETCH void prefetch_l2(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }
inline float reduce_max(F a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
inline int32_t reduce_add(I a) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

#if defined(__AVXVNNI__)
constexpr bool kWideIsSigned = false;
inline I dp(I acc, I codes, I acts) { return _mm256_dpbusd_avx_epi32(acc, codes, acts); }
inline I dp_wide(I acc, I codes, I acts) { return dp(acc, codes, acts); }
#else
constexpr bool kWideIsSigned = true;
inline I dp_pairs(I codes, I acts) { return _mm256_maddubs_epi16(codes, acts); }
inline I add_i16(I a, I b) { return _mm256_add_epi16(a, b); }
inline I add_pairs(I acc, I pairs) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline I dp(I acc, I codes, I acts) { return add_pairs(acc, dp_pairs(codes, acts)); }
#define CULET_SIMD_PAIRS
inline I dp_wide(I acc, I codes, I acts) {
    // |w - 128| <= 128 and |a| <= 127: two products stay below 2^15.
    const I w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    return dp(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(acts, w));
}
#endif
constexpr bool kBf16Dots = false;

// ---- NEON with the dot product extension -------------------------------------------------------
#elif defined(CULET_SIMD_NEON)
constexpr int kLanes = 4;
using F = float32x4_t;
using I = int32x4_t;

inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F a) { vst1q_f32(p, a); }
inline F set1(float x) { return vdupq_n_f32(x); }
inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F sub(F a, F b) { return vsubq_f32(a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F div(F a, F b) { return vdivq_f32(a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
// As on x86: the second operand unless the comparison holds.
inline F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline F select_lt(F a, F b, F x, F y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
inline I as_i(F a) { return vreinterpretq_s32_f32(a); }
inline F as_f(I a) { return vreinterpretq_f32_s32(a); }
inline F to_f(I a) { return vcvtq_f32_s32(a); }
inline I round_i(F a) { return vcvtnq_s32_f32(a); }

inline I loadi(const void* p) { return vreinterpretq_s32_u8(vld1q_u8((const uint8_t*)p)); }
inline void storei(void* p, I a) { vst1q_u8((uint8_t*)p, vreinterpretq_u8_s32(a)); }
inline I set1i(int32_t x) { return vdupq_n_s32(x); }
inline I addi(I a, I b) { return vaddq_s32(a, b); }
inline I subi(I a, I b) { return vsubq_s32(a, b); }
inline I andi(I a, I b) { return vandq_s32(a, b); }
inline I ori(I a, I b) { return vorrq_s32(a, b); }
inline I or_masked(I a, I b, I mask) { return ori(a, andi(b, mask)); }
template <int n>
inline I shl(I a) {
    if constexpr (n == 0) return a;
    return vshlq_n_s32(a, n);
}
template <int n>
inline I shr(I a) {
    if constexpr (n == 0) {
        return a;
    } else {
        return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), n));
    }
}
template <int n>
inline I sar(I a) {
    return vshrq_n_s32(a, n);
}
inline I not_equal(I a, I b) { return vmvnq_s32(vreinterpretq_s32_u32(vceqq_s32(a, b))); }
inline I load_s8i(const void* p) {
    int32_t bytes;
    __builtin_memcpy(&bytes, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes)))));
}
inline I load_u8i(const void* p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, 4);
    const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
}
inline I load_s16i(const void* p) { return vmovl_s16(vld1_s16((const int16_t*)p)); }
inline void store_s8(int8_t* p, I a) {
    const int16x4_t words = vqmovn_s32(a);
    const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
    const int32_t lane = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
    __builtin_memcpy(p, &lane, 4);
}
inline F load_f16(const void* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)p)));
}
inline void store_f16(uint16_t* p, F a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
inline F load_even_f16(const void* p) {
    return vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(loadi(p))));
}
inline F load_odd_f16(const void* p) {
    return vcvt_f32_f16(vreinterpret_f16_s16(vshrn_n_s32(loadi(p), 16)));
}
inline I load_table(const uint8_t* p) { return loadi(p); }
inline I lookup(I table, I index) {
    return vreinterpretq_s32_u8(
        vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(index)));
}
CULET_PREFETCH void prefetch(const void* p) { __builtin_prefetch(p); }
CULET_PREFETCH void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
inline float reduce_max(F a) { return vmaxvq_f32(a); }
inline int32_t reduce_add(I a) { return vaddvq_s32(a); }
constexpr bool kWideIsSigned = true;
inline I dp(I acc, I codes, I acts) {  // codes <= 127: signed and unsigned agree
    return vdotq_s32(acc, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(acts));
}
inline I dp_wide(I acc, I codes, I acts) {
    return dp(acc, veorq_s32(codes, vdupq_n_s32(INT32_C(-0x7f7f7f80))), acts);
}
constexpr bool kBf16Dots = false;

// ---- Portable C++: the vector extension of GCC and Clang, on whatever the target has ------------
#else
constexpr int kLanes = 4;
typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
typedef uint32_t U __attribute__((vector_size(16)));

inline F load(const float* p) {
    F r;
    __builtin_memcpy(&r, p, sizeof r);
    return r;
}
inline void store(float* p, F a) { __builtin_memcpy(p, &a, sizeof a); }
inline F set1(float x) { return F{x, x, x, x}; }
inline F add(F a, F b) { return a + b; }
inline F sub(F a, F b) { return a - b; }
inline F mul(F a, F b) { return a * b; }
inline F div(F a, F b) { return a / b; }
inline F fma(F a, F b, F c) {
    return F{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
             __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
inline F max(F a, F b) { return a > b ? a : b; }
inline F min(F a, F b) { return a < b ? a : b; }
inline F select_lt(F a, F b, F x, F y) { return a < b ? x : y; }
inline I as_i(F a) { return (I)a; }
inline F as_f(I a) { return (F)a; }
inline F to_f(I a) { return __builtin_convertvector(a, F); }
inline I round_i(F a) {
    // Adding 1.5 * 2^23 rounds |x| < 2^22 to the nearest even integer.
    return __builtin_convertvector((a + 12582912.0f) - 12582912.0f, I);
}

inline I loadi(const void* p) {
    I r;
    __builtin_memcpy(&r, p, sizeof r);
    return r;
}
inline void storei(void* p, I a) { __builtin_memcpy(p, &a, sizeof a); }
inline I set1i(int32_t x) { return I{x, x, x, x}; }
inline I addi(I a, I b) { return (I)((U)a + (U)b); }
inline I subi(I a, I b) { return (I)((U)a - (U)b); }
inline I andi(I a, I b) { return a & b; }
inline I ori(I a, I b) { return a | b; }
inline I or_masked(I a, I b, I mask) { return a | (b & mask); }
template <int n>
inline I shl(I a) {
    return (I)((U)a << n);
}
template <int n>
inline I shr(I a) {
    return (I)((U)a >> n);
}
template <int n>
inline I sar(I a) {
    return a >> n;
}
inline I not_equal(I a, I b) { return a != b; }
inline I load_s8i(const void* p) {
    const int8_t* x = static_cast<const int8_t*>(p);
    return I{x[0], x[1], x[2], x[3]};
}
inline I load_u8i(const void* p) {
    const uint8_t* x = static_cast<const uint8_t*>(p);
    return I{x[0], x[1], x[2], x[3]};
}
inline I load_s16i(const void* p) {
    int16_t x[4];
    __builtin_memcpy(x, p, sizeof x);
    return I{x[0], x[1], x[2], x[3]};
}
inline void store_s8(int8_t* p, I a) {
    for (int i = 0; i < 4; i++) p[i] = static_cast<int8_t>(a[i]);
}
// Of f16 bits in the low half of each lane.
inline F f16_to_f(I bits) {
    const I magnitude = bits & 0x7fff, sign = shl<16>(bits & 0x8000);
    const I normal = shl<13>(magnitude) + (112 << 23);
    const I infinite = shl<13>(magnitude) | 0x7f800000;
    const I subnormal = as_i(to_f(magnitude) * 0x1p-24f);
    return as_f(sign | (magnitude < 0x400 ? subnormal : magnitude < 0x7c00 ? normal : infinite));
}
inline uint16_t float_to_f16(float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // above 65504
    if (magnitude < 0x38800000u) {  // subnormal: the addition rounds at 2^-24
        const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000u));
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((magnitude - (112u << 23)) >> 13));
}
inline F load_f16(const void* p) {
    uint16_t x[4];
    __builtin_memcpy(x, p, sizeof x);
    return f16_to_f(I{x[0], x[1], x[2], x[3]});
}
inline void store_f16(uint16_t* p, F a) {
    for (int i = 0; i < 4; i++) p[i] = float_to_f16(a[i]);
}
inline F load_even_f16(const void* p) { return f16_to_f(loadi(p) & 0xffff); }
inline F load_odd_f16(const void* p) { return f16_to_f(shr<16>(loadi(p))); }
inline I load_table(const uint8_t* p) { return loadi(p); }
inline I lookup(I table, I index) {
    uint8_t t[16], x[16];
    __builtin_memcpy(t, &table, 16);
    __builtin_memcpy(x, &index, 16);
    for (int i = 0; i < 16; i++) x[i] = t[x[i] & 15];
    __builtin_memcpy(&index, x, 16);
    return index;
}
CULET_PREFETCH void prefetch(const void* p) { __builtin_prefetch(p); }
CULET_PREFETCH void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
inline float reduce_max(F a) {
    float top = a[0];
    for (int i = 1; i < 4; i++) top = a[i] > top ? a[i] : top;
    return top;
}
inline int32_t reduce_add(I a) { return a[0] + a[1] + a[2] + a[3]; }
constexpr bool kWideIsSigned = false;
inline I dp(I acc, I codes, I acts) {  // bytes of a lane: codes unsigned, activations signed
    acc += (codes & 255) * sar<24>(shl<24>(acts));
    acc += (shr<8>(codes) & 255) * sar<24>(shl<16>(acts));
    acc += (shr<16>(codes) & 255) * sar<24>(shl<8>(acts));
    return acc + shr<24>(codes) * sar<24>(acts);
}
inline I dp_wide(I acc, I codes, I acts) { return dp(acc, codes, acts); }
constexpr bool kBf16Dots = false;
#endif

// ---- The same for all levels -------------------------------------------------------------------
inline F zero() { return set1(0.0f); }
inline F abs(F a) { return as_f(andi(as_i(a), set1i(0x7fffffff))); }
inline F load_even_bf16(const void* p) { return as_f(shl<16>(loadi(p))); }
inline F load_odd_bf16(const void* p) { return as_f(andi(loadi(p), set1i(INT32_C(-0x10000)))); }
inline I broadcast4(const void* p) {
    int32_t bytes;
    __builtin_memcpy(&bytes, p, 4);
    return set1i(bytes);
}
inline F broadcast(const float* p) { return set1(*p); }
#if !defined(CULET_SIMD_PIN)
inline void pin(I&) {}
#endif
#if !defined(CULET_SIMD_DP4)
inline I dp4(I acc, I codes, const uint8_t* p) { return dp(acc, codes, broadcast4(p)); }
#endif

// The sum over 16 lanes of absolute index % 16, always in this order.
constexpr int kParts = 16 / kLanes;
inline float sum16(const F* parts) {
    float lanes[16];
    for (int p = 0; p < kParts; p++) store(lanes + p * kLanes, parts[p]);
    for (int step = 8; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
    }
    return lanes[0];
}
