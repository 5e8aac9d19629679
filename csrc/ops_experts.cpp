// Gemma 4's dense-beside-routed MLP: rows are gathered per expert, so that each expert's weights
// are read once for all of its tokens.
#include <algorithm>
#include <cstring>

#include "ops.h"

namespace culet {
namespace {

// Which experts each row uses, ascending by index, and with what share.
struct Routing {
    int32_t* experts;  // [rows][num_used]
    float* shares;     // [rows][num_used]
};

Routing route(Context& context, Matrix x, const Experts& experts, float eps) {
    const Kernels& kernels = context.kernels;
    const int64_t num_experts = experts.router->num_rows;
    const int num_used = experts.num_used;
    const Matrix probabilities = scratch_matrix(context.arena, x.rows, num_experts);
    const Norm norm{experts.router_scale, eps};
    norm_linear(context, {probabilities}, x, &norm, {experts.router});
    const Routing routing{context.arena.array<int32_t>(x.rows * num_used),
                          context.arena.array<float>(x.rows * num_used)};
    int32_t* orders = context.arena.array<int32_t>(num_experts * context.num_threads());
    context.each_row(x.rows, [&](int row, int thread) {
        float* p = probabilities.row(row);
        kernels.scale(p, 1.0f / kernels.softmax(p, num_experts), num_experts);
        int32_t* order = orders + thread * num_experts;
        for (int64_t i = 0; i < num_experts; i++) order[i] = static_cast<int32_t>(i);
        std::partial_sort(order, order + num_used, order + num_experts, [p](int32_t a, int32_t b) {
            return p[a] > p[b] || (p[a] == p[b] && a < b);
        });
        std::sort(order, order + num_used);
        float total = 0.0f;
        for (int i = 0; i < num_used; i++) total += p[order[i]];
        for (int i = 0; i < num_used; i++) {
            routing.experts[row * num_used + i] = order[i];
            routing.shares[row * num_used + i] =
                p[order[i]] / total * experts.expert_scale[order[i]];
        }
    });
    return routing;
}

// One row of one matrix [2 * ffn, hidden] as gate and up: results lie side by side.
void gate_up_stacked(Context& context, Matrix out, const Activations& acts, const Planes& weight) {
    const Matrix both = scratch_matrix(context.arena, out.rows, weight.num_rows);
    const Planes* planes = &weight;
    multiply_all(context, &planes, &both, 1, acts);
    context.each_row(out.rows, [&](int row, int) {
        context.kernels.gelu_mul(both.row(row), both.row(row) + out.cols, out.cols, out.row(row));
    });
}

// results[row] = the expert's output for each of the rows that use it.
void run_expert(Context& context, const Experts& experts, int expert, Matrix z, Matrix results) {
    const Planes& down = *experts.down[expert];
    const Matrix hidden = scratch_matrix(context.arena, z.rows, down.num_cols);
    if (experts.up[expert]) {
        const Activations acts =
            normed_activations(context, z, nullptr, {experts.gate[expert], experts.up[expert]});
        gate_up_product(context, hidden, acts, *experts.gate[expert], *experts.up[expert]);
    } else {
        const Activations acts = normed_activations(context, z, nullptr, {experts.gate[expert]});
        gate_up_stacked(context, hidden, acts, *experts.gate[expert]);
    }
    norm_linear(context, {results}, hidden, nullptr, {&down});
}

Matrix routed(Context& context, Matrix x, const Experts& experts, Norm experts_norm) {
    const Kernels& kernels = context.kernels;
    const Routing routing = route(context, x, experts, experts_norm.eps);
    const Matrix z = scratch_matrix(context.arena, x.rows, x.cols);
    rms_norm(context, z, x, experts_norm);
    const Matrix out = scratch_matrix(context.arena, x.rows, x.cols);
    std::memset(out.data, 0, x.rows * x.cols * sizeof(float));
    std::vector<int64_t> rows;
    std::vector<float> shares;
    for (int expert = 0; expert < static_cast<int>(experts.down.size()); expert++) {
        rows.clear();
        shares.clear();
        for (int64_t i = 0; i < x.rows * experts.num_used; i++) {
            if (routing.experts[i] != expert) continue;
            rows.push_back(i / experts.num_used);
            shares.push_back(routing.shares[i]);
        }
        if (rows.empty()) continue;
        const Arena::Scope scope(context.arena);
        const int64_t count = static_cast<int64_t>(rows.size());
        const Matrix inputs = scratch_matrix(context.arena, count, x.cols);
        const Matrix results = scratch_matrix(context.arena, count, x.cols);
        for (int64_t i = 0; i < count; i++) {
            std::memcpy(inputs.row(i), z.row(rows[i]), x.cols * sizeof(float));
        }
        run_expert(context, experts, expert, inputs, results);
        for (int64_t i = 0; i < count; i++) {
            kernels.add_scaled(out.row(rows[i]), results.row(i), shares[i], x.cols);
        }
    }
    return out;
}

}  // namespace

void moe_mlp(Context& context, Matrix x, Norm mlp_norm, const DenseMlp& dense, Norm mlp_post_norm,
             const Experts& experts, Norm experts_norm, Norm experts_post_norm, Norm post_norm) {
    const Matrix hidden = scratch_matrix(context.arena, x.rows, dense.gate->num_rows);
    const Matrix dense_out = scratch_matrix(context.arena, x.rows, x.cols);
    gate_up(context, hidden, x, mlp_norm, *dense.gate, *dense.up);
    norm_linear(context, {dense_out}, hidden, nullptr, {dense.down});
    const Matrix routed_out = routed(context, x, experts, experts_norm);
    const Kernels& kernels = context.kernels;
    context.each_row(x.rows, [&](int row, int) {
        float* sum = dense_out.row(row);
        kernels.rms_norm(sum, mlp_post_norm.weight, mlp_post_norm.eps, x.cols, sum);
        kernels.norm_add(sum, routed_out.row(row), experts_post_norm.weight, experts_post_norm.eps,
                         x.cols);
        kernels.norm_add(x.row(row), sum, post_norm.weight, post_norm.eps, x.cols);
    });
}

}  // namespace culet
