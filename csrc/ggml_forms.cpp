// The table of plane forms, one row per ggml type. `culet/quant/forms.py` states the same table;
// a test compares the two.
#include "ggml_blocks.h"

namespace culet::ggml {
namespace {

// Magnitude (low two bits) and sign (bit 2) of IQ2's grids.
constexpr int8_t kIq2[8] = {8, 25, 43, 0, -8, -25, -43, 0};
// IQ1's ternary digit - 1 in eighths, plus 1 eighth, or minus 1 where bit 2 is set.
constexpr int8_t kIq1[8] = {-7, 1, 9, 0, -9, -1, 7, 0};
// Magnitude (low three bits) and sign (bit 3) of IQ3's grids.
constexpr int8_t kIq3Xxs[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                -4, -12, -20, -28, -36, -44, -52, -62};
constexpr int8_t kIq3S[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};
// E2M1, doubled so that all are integers; bit 3 is the sign.
constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr auto kLinear = CodeForm::linear;
constexpr auto kBook = CodeForm::codebook;
constexpr auto kF16Scale = ScaleForm::f16;
constexpr auto kIntScale = ScaleForm::f16_times_int;
constexpr auto kNoMin = MinForm::none;

constexpr PlaneForm plain(int16_t id, const char* name, int16_t bytes, CodeForm code) {
    return {id, name, 1, bytes, code, 0, 0, nullptr, ScaleForm::none, 0, 0, kNoMin, 0};
}

// clang-format off
constexpr PlaneForm kForms[] = {
    plain(0, "F32", 4, CodeForm::f32),
    plain(1, "F16", 2, CodeForm::f16),
    //id  name     values bytes code bits offset codebook scale      f16 sub  min             factor
    { 2, "Q4_0",     32,  18, kLinear, 4,   8, nullptr, kF16Scale,  32,  0, kNoMin,            0},
    { 3, "Q4_1",     32,  20, kLinear, 4,   0, nullptr, kF16Scale,  32,  0, MinForm::add,      0},
    { 6, "Q5_0",     32,  22, kLinear, 5,  16, nullptr, kF16Scale,  32,  0, kNoMin,            0},
    { 7, "Q5_1",     32,  24, kLinear, 5,   0, nullptr, kF16Scale,  32,  0, MinForm::add,      0},
    { 8, "Q8_0",     32,  34, kLinear, 8, 128, nullptr, kF16Scale,  32,  0, kNoMin,            0},
    {10, "Q2_K",    256,  84, kLinear, 2,   0, nullptr, kIntScale, 256, 16, MinForm::subtract, 0},
    {11, "Q3_K",    256, 110, kLinear, 3,   4, nullptr, kIntScale, 256, 16, kNoMin,            0},
    {12, "Q4_K",    256, 144, kLinear, 4,   0, nullptr, kIntScale, 256, 32, MinForm::subtract, 0},
    {13, "Q5_K",    256, 176, kLinear, 5,   0, nullptr, kIntScale, 256, 32, MinForm::subtract, 0},
    {14, "Q6_K",    256, 210, kLinear, 6,  32, nullptr, kIntScale, 256, 16, kNoMin,            0},
    {16, "IQ2_XXS", 256,  66, kBook,   3,   0, kIq2,    kIntScale, 256, 32, kNoMin,           -3},
    {17, "IQ2_XS",  256,  74, kBook,   3,   0, kIq2,    kIntScale, 256, 16, kNoMin,           -3},
    {18, "IQ3_XXS", 256,  98, kBook,   4,   0, kIq3Xxs, kIntScale, 256, 32, kNoMin,           -2},
    {19, "IQ1_S",   256,  50, kBook,   3,   0, kIq1,    kIntScale, 256, 32, kNoMin,           -3},
    {20, "IQ4_NL",   32,  18, kBook,   4,   0, kIq4,    kF16Scale,  32,  0, kNoMin,            0},
    {21, "IQ3_S",   256, 110, kBook,   4,   0, kIq3S,   kIntScale, 256, 32, kNoMin,            0},
    {22, "IQ2_S",   256,  82, kBook,   3,   0, kIq2,    kIntScale, 256, 16, kNoMin,           -3},
    {23, "IQ4_XS",  256, 136, kBook,   4,   0, kIq4,    kIntScale, 256, 32, kNoMin,            0},
    plain(28, "F64", 8, CodeForm::f64),
    {29, "IQ1_M",   256,  56, kBook,   3,   0, kIq1,    kIntScale, 256, 16, kNoMin,           -3},
    plain(30, "BF16", 2, CodeForm::bf16),
    {34, "TQ1_0",   256,  54, kLinear, 2,   1, nullptr, kF16Scale,  32,  0, kNoMin,            0},
    {35, "TQ2_0",   256,  66, kLinear, 2,   1, nullptr, kF16Scale,  32,  0, kNoMin,            0},
    {39, "MXFP4",    32,  17, kBook,   4,   0, kE2m1,   ScaleForm::e8m0,  0, 32, kNoMin,      -1},
    {40, "NVFP4",    64,  36, kBook,   4,   0, kE2m1,   ScaleForm::ue4m3, 0, 16, kNoMin,      -1},
    {41, "Q1_0",    128,  18, kLinear, 2,   1, nullptr, kF16Scale,  32,  0, kNoMin,            0},
    {42, "Q2_0",     64,  18, kLinear, 2,   1, nullptr, kF16Scale,  32,  0, kNoMin,            0},
};
// clang-format on

}  // namespace

const PlaneForm* plane_form(int ggml_id) {
    for (const PlaneForm& form : kForms) {
        if (form.ggml_id == ggml_id) return &form;
    }
    return nullptr;
}

const PlaneForm* plane_forms(int* count) {
    *count = static_cast<int>(sizeof kForms / sizeof kForms[0]);
    return kForms;
}

}  // namespace culet::ggml
