// Compares the kernels of one ISA level with those of the portable level, bit for bit, on random
// data: for levels that the machine at hand can only emulate. The portable level is tested from
// Python against float64.
//
//   compare_levels LEVEL      exit status 0 if all agree; names the first kernel that does not
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kernels.h"

namespace {

using namespace culet;

std::mt19937 generator(1);

std::vector<float> normal(size_t count) {
    std::normal_distribution<float> distribution;
    std::vector<float> values(count);
    for (float& value : values) value = distribution(generator);
    return values;
}

int failures = 0;

template <class T>
void expect_equal(const std::vector<T>& found, const std::vector<T>& expected, const char* what,
                  int detail) {
    if (std::memcmp(found.data(), expected.data(), found.size() * sizeof(T)) == 0) return;
    std::printf("%s (%d) differs\n", what, detail);
    failures++;
}

// Random bytes whose f16 and f32 numbers are finite and not large: all bytes below 0x40.
std::vector<uint8_t> weight_bytes(size_t count) {
    std::uniform_int_distribution<int> byte(0, 0x3f);
    std::vector<uint8_t> bytes(count);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(byte(generator));
    return bytes;
}

void compare_matmul(const Kernels& level, const Kernels& portable, int id, int tokens) {
    const LayoutId layout = static_cast<LayoutId>(id);
    constexpr int kNumTiles = 2, kNumRows = 27, kNumUnits = 3;
    const int k = kNumUnits * unit_values(layout), num_blocks = k / kBlockValues;
    const Encoding encoding = is_quantised(layout) ? Encoding::int8 : Encoding::f32;
    // Past the end: what the kernels prefetch.
    const std::vector<uint8_t> tiles = weight_bytes(kNumTiles * kNumUnits * unit_bytes(layout));
    std::vector<uint8_t> codebook(16);
    for (int i = 0; i < 16; i++) codebook[i] = static_cast<uint8_t>(3 + 16 * i);
    const std::vector<float> x = normal(static_cast<size_t>(tokens) * k);
    std::vector<float> results[2];
    const Kernels* both[] = {&level, &portable};
    for (int i = 0; i < 2; i++) {
        results[i].assign(static_cast<size_t>(tokens) * kNumRows, 0.0f);
        // A row's result does not depend on its tile, so that levels may differ in tiles.
        const int most = both[i]->max_tile_tokens;
        for (int begin = 0; begin < tokens; begin += most) {
            const int count = std::min(most, tokens - begin), padded = padded_tokens(count);
            std::vector<uint8_t> acts(static_cast<size_t>(padded) * num_blocks *
                                      encoded_block_bytes(encoding));
            for (int m = 0; m < count; m++) {
                both[i]->encode(encoding, x.data() + (begin + m) * k, k, num_blocks, acts.data(),
                                padded, m);
            }
            MatmulArgs args{};
            args.tiles = tiles.data();
            args.tile_bytes = kNumUnits * unit_bytes(layout);
            args.num_tiles = kNumTiles;
            args.num_units = kNumUnits;
            args.num_rows = kNumRows;
            args.codebook = codebook.data();
            args.sub_factor = 0.125f;
            args.out_factor = 1.5f;
            args.acts = acts.data();
            args.padded_tokens = padded;
            args.num_tokens = count;
            args.out = results[i].data() + begin * kNumRows;
            args.out_stride = kNumRows;
            both[i]->matmul[id](args);
        }
    }
    expect_equal(results[0], results[1], "matmul", id * 100 + tokens);
}

void compare_rows(const Kernels& level, const Kernels& portable, int n) {
    const std::vector<float> x = normal(n), y = normal(n), weight = normal(n);
    const Kernels* both[] = {&level, &portable};
    std::vector<float> results[2];
    for (int i = 0; i < 2; i++) {
        const Kernels& kernels = *both[i];
        std::vector<float> row(n), all;
        const auto take = [&] { all.insert(all.end(), row.begin(), row.end()); };
        kernels.rms_norm(x.data(), weight.data(), 1e-6f, n, row.data());
        take();
        kernels.norm_add(row.data(), y.data(), weight.data(), 1e-6f, n);
        take();
        kernels.gelu_mul(x.data(), y.data(), n, row.data());
        take();
        kernels.softcap(row.data(), 3.0f, n);
        take();
        kernels.add_scaled(row.data(), y.data(), 0.7f, n);
        take();
        kernels.rope(row.data(), x.data(), y.data(), n / 2);
        take();
        all.push_back(kernels.softmax(row.data(), n));
        take();
        results[i] = all;
    }
    expect_equal(results[0], results[1], "rows", n);
}

void compare_attention(const Kernels& level, const Kernels& portable, KvType type, int queries) {
    constexpr int kHeadDim = 40;
    const int64_t stored = kv_stored_dim(type, kHeadDim);
    const Kernels* both[] = {&level, &portable};
    const std::vector<float> keys = normal(16 * kHeadDim), values = normal(16 * kHeadDim);
    const std::vector<float> q = normal(static_cast<size_t>(queries) * kHeadDim);
    std::vector<uint8_t> tiles[2];
    std::vector<float> results[2];
    for (int i = 0; i < 2; i++) {
        const Kernels& kernels = *both[i];
        const int64_t tile_bytes = kv_tile_bytes(type, stored);
        tiles[i].assign(2 * tile_bytes, 0);
        uint8_t *k_tile = tiles[i].data(), *v_tile = k_tile + tile_bytes;
        for (int t = 0; t < 16; t++) {
            kernels.store_k(type, keys.data() + t * kHeadDim, kHeadDim, t, k_tile);
            kernels.store_v(type, values.data() + t * kHeadDim, kHeadDim, t, v_tile);
        }
        std::vector<float> query(queries * stored), tile(16 * stored), mixed(queries * stored);
        std::vector<float> scores(queries * 32), max(queries), sum(queries);
        kernels.load_k(type, k_tile, stored, false, tile.data());
        const int most = std::min(queries, kernels.max_tile_tokens);
        for (int begin = 0; begin < queries; begin += most) {
            for (int m = 0; m < most; m++) {
                kernels.load_q(q.data() + (begin + m) * kHeadDim, kHeadDim, stored, 0.2f, false,
                               most, m, query.data());
            }
            kernels.qk(query.data(), tile.data(), stored, false, most, scores.data() + begin * 32,
                       32);
        }
        for (int m = 0; m < queries; m++) {
            kernels.softmax_segment(scores.data() + m * 32, 2, 13, 16, false, &max[m], &sum[m]);
        }
        kernels.load_v(type, v_tile, stored, false, tile.data());
        for (int begin = 0; begin < queries; begin += most) {
            kernels.pv(scores.data() + begin * 32, 32, 16, tile.data(), stored, false, most,
                       mixed.data() + begin * stored);
        }
        std::vector<float> total(mixed.begin(), mixed.begin() + stored);
        kernels.merge(&max[0], &sum[0], total.data(), 0.3f, 2.0f, mixed.data(), stored);
        for (const auto* part : {&scores, &max, &sum, &mixed, &total}) {
            results[i].insert(results[i].end(), part->begin(), part->end());
        }
    }
    expect_equal(tiles[0], tiles[1], "stored K and V", static_cast<int>(type));
    expect_equal(results[0], results[1], "attention", static_cast<int>(type) * 100 + queries);
}

}  // namespace

int main(int argc, char** argv) {
    const char* error = "no level given";
    const Kernels* level = argc == 2 ? select_kernels(argv[1], &error) : nullptr;
    if (!level) {
        std::printf("%s\n", error);
        return 2;
    }
    const Kernels& portable = *select_kernels("portable", &error);
    for (int tokens : {1, 2, 3, 4, 6, 8}) {
        for (int id = 0; id < kNumLayouts; id++) {
            if (id == static_cast<int>(LayoutId::bf16) && level->bf16_dots) continue;
            compare_matmul(*level, portable, id, tokens);
        }
        if (tokens == 3 || tokens == 6) continue;  // no whole tiles on every level
        for (KvType type : {KvType::f16, KvType::bf16, KvType::f32, KvType::q8_0}) {
            compare_attention(*level, portable, type, tokens);
        }
    }
    for (int n : {8, 16, 52, 256}) compare_rows(*level, portable, n);
    std::printf("%s: %d differences\n", level->name, failures);
    return failures == 0 ? 0 : 1;
}
