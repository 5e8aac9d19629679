// Ops on whole rows: look-ups, copies, rotary tables, norms.
#include <sys/mman.h>
#include <unistd.h>
#include <cmath>

#include <cstring>

#include "ops.h"

namespace culet {

// Rows of a mapped table that are read before its pages are let go of.
constexpr uint32_t kReadsMapped = 32;

void PlanesRows::read(int64_t row, int64_t first, int64_t count, float* out, float* scratch) const {
    if (count == planes_.num_cols) {
        decode_planes_row(planes_, row, out);
        return;
    }
    decode_planes_row(planes_, row, scratch);
    std::memcpy(out, scratch + first, count * sizeof(float));
}

StoredRows::StoredRows(int ggml_id, const uint8_t* data, int64_t num_rows, int64_t num_cols,
                       float factor, bool mapped)
    : form_(ggml::plane_form(ggml_id)),
      data_(data),
      num_rows_(num_rows),
      num_cols_(num_cols),
      row_bytes_(ggml::row_bytes(*form_, num_cols)),
      factor_(factor),
      mapped_(mapped) {}

// Touching a row may map megabytes around it that the cache happens to hold; they would count as
// this process's memory for as long as they stay mapped.
void StoredRows::let_go() const {
    static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data_) + page - 1) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(data_ + num_rows_ * row_bytes_) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void StoredRows::prefetch(const int32_t* ids, int64_t count) const {
    static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    for (int64_t i = 0; i < count; i++) {
        const uintptr_t row = reinterpret_cast<uintptr_t>(data_ + ids[i] * row_bytes_);
        const uintptr_t first = row / page * page;
        madvise(reinterpret_cast<void*>(first), row + row_bytes_ - first, MADV_WILLNEED);
    }
}

void StoredRows::read(int64_t row, int64_t first, int64_t count, float* out, float* scratch) const {
    const uint8_t* p = data_ + row * row_bytes_;
    if (first % form_->block_values == 0 && count % form_->block_values == 0) {
        p += first / form_->block_values * form_->block_bytes;
        ggml::decode_row(form_->ggml_id, p, out, count);
    } else {
        ggml::decode_row(form_->ggml_id, p, scratch, num_cols_);
        std::memcpy(out, scratch + first, count * sizeof(float));
    }
    if (factor_ != 1.0f) {
        for (int64_t i = 0; i < count; i++) out[i] *= factor_;
    }
    if (mapped_ && num_reads_.fetch_add(1, std::memory_order_relaxed) % kReadsMapped == 0) let_go();
}

void embed(Context& context, Matrix out, const RowSource& table, const int32_t* ids, float scale) {
    float* scratch = context.arena.array<float>(table.num_cols() * context.num_threads());
    context.each_row(out.rows, [&](int row, int thread) {
        table.read(ids[row], 0, out.cols, out.row(row), scratch + thread * table.num_cols());
        context.kernels.scale(out.row(row), scale, out.cols);
    });
}

void gather_rows(Context&, Matrix out, Matrix x, const int32_t* rows) {
    for (int64_t i = 0; i < out.rows; i++) {
        std::memcpy(out.row(i), x.row(rows[i]), out.cols * sizeof(float));
    }
}

void scatter_rows(Context&, Matrix x, Matrix values, const int32_t* rows) {
    for (int64_t i = 0; i < values.rows; i++) {
        std::memcpy(x.row(rows[i]), values.row(i), values.cols * sizeof(float));
    }
}

namespace {

// sin and cos of any float up to 2^24, in double: relative error of the results is far below half
// an ulp of float32, so that all machines get the same floats.
void sin_cos(double x, double* sine, double* cosine) {
    // x = n pi / 2 + r; pi / 2 as 33 + 53 bits, so that n times the first is exact below 2^20.
    const double n = std::nearbyint(x * 0.63661977236758134308);
    const double r = (x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
    const double z = r * r;
    double s = 1.0 / 355687428096000.0, c = -1.0 / 6402373705728000.0;  // 1 / 17!, -1 / 18!
    constexpr double kSine[] = {
        -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
        -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
    constexpr double kCosine[] = {
        1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
        1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0,        -0.5};
    for (double term : kSine) s = s * z + term;
    for (double term : kCosine) c = c * z + term;
    s = r + r * z * s;
    c = 1.0 + z * c;
    const int quadrant = static_cast<int>(static_cast<int64_t>(n) & 3);
    const double first = quadrant & 1 ? c : s, second = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -first : first;
    *cosine = quadrant == 1 || quadrant == 2 ? -second : second;
}

}  // namespace

void rope_table(Context& context, Matrix cos, Matrix sin, const int32_t* positions,
                const float* frequencies) {
    context.each_row(cos.rows, [&](int row, int) {
        const float position = static_cast<float>(positions[row]);
        for (int64_t i = 0; i < cos.cols; i++) {
            const float angle = position * frequencies[i];
            double s = 0.0, c = 1.0;
            if (angle != 0.0f) sin_cos(angle, &s, &c);
            cos.row(row)[i] = static_cast<float>(c);
            sin.row(row)[i] = static_cast<float>(s);
        }
    });
}

void rms_norm(Context& context, Matrix out, Matrix x, Norm norm) {
    context.each_row(x.rows, [&](int row, int) {
        context.kernels.rms_norm(x.row(row), norm.weight, norm.eps, x.cols, out.row(row));
    });
}

void scale(Context& context, Matrix x, float factor) {
    context.each_row(x.rows,
                     [&](int row, int) { context.kernels.scale(x.row(row), factor, x.cols); });
}

}  // namespace culet
