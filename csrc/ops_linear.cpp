// Fused ops around products with weight matrices.
#include <algorithm>
#include <cmath>

#include "ops.h"

namespace culet {

Activations normed_activations(Context& context, Matrix x, const Norm* norm,
                               const std::vector<const Planes*>& weights) {
    if (!norm) return Activations(context, weights.data(), weights.size(), x);
    return Activations(context, weights.data(), weights.size(), x.rows,
                       [&](int64_t row, float* scratch) -> const float* {
                           context.kernels.rms_norm(x.row(row), norm->weight, norm->eps, x.cols,
                                                    scratch);
                           return scratch;
                       });
}

void norm_linear(Context& context, const std::vector<Matrix>& outs, Matrix x, const Norm* norm,
                 const std::vector<const Planes*>& weights) {
    const Activations acts = normed_activations(context, x, norm, weights);
    multiply_all(context, weights.data(), outs.data(), weights.size(), acts);
}

void linear_norm_add(Context& context, Matrix x, Matrix a, const Planes& weight, const Norm* norm) {
    const Matrix product = scratch_matrix(context.arena, x.rows, x.cols);
    norm_linear(context, {product}, a, nullptr, {&weight});
    context.each_row(x.rows, [&](int row, int) {
        context.kernels.norm_add(x.row(row), product.row(row), norm ? norm->weight : nullptr,
                                 norm ? norm->eps : 0.0f, x.cols);
    });
}

namespace {

// For few rows, which are bound by reading weights: each thread reads long runs of one matrix.
// Going from gate to up and back with every chunk would lose what is fetched ahead at each turn.
void gate_up_in_turn(Context& context, Matrix out, const Activations& acts, const Planes& gate,
                     const Planes& up) {
    const Matrix products[2] = {scratch_matrix(context.arena, out.rows, out.cols),
                                scratch_matrix(context.arena, out.rows, out.cols)};
    const Planes* weights[2] = {&gate, &up};
    multiply_all(context, weights, products, 2, acts);
    constexpr int64_t kChunkCols = 1024;
    const int64_t per_row = (out.cols + kChunkCols - 1) / kChunkCols;
    context.pool.run(static_cast<int>(out.rows * per_row), [&](int chunk, int) {
        const int64_t row = chunk / per_row, begin = chunk % per_row * kChunkCols;
        context.kernels.gelu_mul(products[0].row(row) + begin, products[1].row(row) + begin,
                                 std::min(kChunkCols, out.cols - begin), out.row(row) + begin);
    });
}

}  // namespace

void gate_up_product(Context& context, Matrix out, const Activations& acts, const Planes& gate,
                     const Planes& up) {
    if (acts.num_tiles() == 1) return gate_up_in_turn(context, out, acts, gate, up);
    const DecodedTiles decoded(context, {&gate, &up});
    const Planes& larger = gate.tile_bytes > up.tile_bytes ? gate : up;
    const int64_t size = chunk_tiles(context, larger, 2);
    const int64_t stride = size * kTileRows, buffer = kMaxTileTokens * stride;
    float* scratch = context.arena.array<float>(2 * buffer * context.num_threads());
    const int64_t num_chunks = (gate.num_tiles + size - 1) / size;
    context.pool.run(static_cast<int>(num_chunks), [&](int chunk, int thread) {
        float* gates = scratch + 2 * buffer * thread;
        float* ups = gates + buffer;
        const int64_t begin = chunk * size, end = std::min(begin + size, gate.num_tiles);
        const int64_t num_cols = std::min(end * kTileRows, out.cols) - begin * kTileRows;
        for (int t = 0; t < acts.num_tiles(); t++) {
            multiply(context, gate, acts, t, begin, end, decoded, thread, gates, stride);
            multiply(context, up, acts, t, begin, end, decoded, thread, ups, stride);
            for (int m = 0; m < acts.tile_tokens(t); m++) {
                context.kernels.gelu_mul(gates + m * stride, ups + m * stride, num_cols,
                                         out.row(acts.tile_begin(t) + m) + begin * kTileRows);
            }
        }
    });
}

void gate_up(Context& context, Matrix out, Matrix x, Norm norm, const Planes& gate,
             const Planes& up) {
    const Activations acts = normed_activations(context, x, &norm, {&gate, &up});
    gate_up_product(context, out, acts, gate, up);
}

void per_layer_step(Context& context, Matrix x, Matrix per_layer, const Planes& gate,
                    const Planes& projection, Norm norm) {
    const Matrix gated = scratch_matrix(context.arena, x.rows, per_layer.cols);
    norm_linear(context, {gated}, x, nullptr, {&gate});
    const Activations acts(context, {&projection}, x.rows, [&](int64_t row, float* scratch) {
        context.kernels.gelu_mul(gated.row(row), per_layer.row(row), gated.cols, scratch);
        return scratch;
    });
    const Matrix product = scratch_matrix(context.arena, x.rows, x.cols);
    const Planes* weight = &projection;
    multiply_all(context, &weight, &product, 1, acts);
    context.each_row(x.rows, [&](int row, int) {
        context.kernels.norm_add(x.row(row), product.row(row), norm.weight, norm.eps, x.cols);
    });
}

void per_layer_inputs(Context& context, Matrix out, const RowSource& table, const int32_t* ids,
                      int first_layer, Matrix x, const Planes& projection, Norm norm,
                      int64_t values_per_layer) {
    norm_linear(context, {out}, x, nullptr, {&projection});
    const float projection_scale = 1.0f / std::sqrt(static_cast<float>(x.cols));
    const float table_scale = std::sqrt(static_cast<float>(values_per_layer));
    const int64_t scratch_size = out.cols + table.num_cols();
    float* scratch = context.arena.array<float>(scratch_size * context.num_threads());
    const Kernels& kernels = context.kernels;
    context.each_row(out.rows, [&](int row, int thread) {
        float* looked_up = scratch + thread * scratch_size;
        float* y = out.row(row);
        table.read(ids[row], first_layer * values_per_layer, out.cols, looked_up,
                   looked_up + out.cols);
        kernels.scale(y, projection_scale, out.cols);
        for (int64_t i = 0; i < out.cols; i += values_per_layer) {
            kernels.rms_norm(y + i, norm.weight, norm.eps, values_per_layer, y + i);
        }
        kernels.add_scaled(y, looked_up, table_scale, out.cols);
        kernels.scale(y, 0.70710678118654752f, out.cols);
    });
}

void logits(Context& context, Matrix out, Matrix hidden, const Planes& head, float softcap) {
    const Activations acts = normed_activations(context, hidden, nullptr, {&head});
    const DecodedTiles decoded(context, {&head});
    const int64_t size = chunk_tiles(context, head, 1);
    const int64_t num_chunks = (head.num_tiles + size - 1) / size;
    context.pool.run(static_cast<int>(num_chunks), [&](int chunk, int thread) {
        const int64_t begin = chunk * size, end = std::min(begin + size, head.num_tiles);
        const int64_t first = begin * kTileRows;
        const int64_t num_cols = std::min(end * kTileRows, out.cols) - first;
        for (int t = 0; t < acts.num_tiles(); t++) {
            float* rows = out.row(acts.tile_begin(t)) + first;
            multiply(context, head, acts, t, begin, end, decoded, thread, rows, out.stride);
            if (softcap == 0.0f) continue;
            for (int m = 0; m < acts.tile_tokens(t); m++) {  // still in the cache
                context.kernels.softcap(rows + m * out.stride, softcap, num_cols);
            }
        }
    });
}

}  // namespace culet
