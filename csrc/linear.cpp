#include "linear.h"

#include <algorithm>

namespace culet {
namespace {

// Whether the weight must be decoded to float32 before it is multiplied.
bool decodes(const Context& context, const Planes& weight) {
    if (!context.exact) return false;
    return is_quantised(weight.layout) ||
           (weight.layout == LayoutId::bf16 && context.kernels.bf16_dots);
}

}  // namespace

Encoding encoding_of(const Context& context, const Planes& weight) {
    if (context.exact) return Encoding::f32;
    if (is_quantised(weight.layout)) return Encoding::int8;
    return weight.layout == LayoutId::bf16 && context.kernels.bf16_dots ? Encoding::bf16
                                                                        : Encoding::f32;
}

void Activations::allocate(Context& context) {
    constexpr int64_t kLargestUnit = 256;
    num_blocks_ = (k_ + kLargestUnit - 1) / kLargestUnit * (kLargestUnit / kBlockValues);
    const int most = context.kernels.max_tile_tokens;
    num_tiles_ = static_cast<int>((num_rows_ + most - 1) / most);
    for (int e = 0; e < kNumEncodings; e++) {
        if (!needed_[e]) continue;
        const Encoding encoding = static_cast<Encoding>(e);
        tile_bytes_[e] = most * num_blocks_ * encoded_block_bytes(encoding);
        streams_[e] = context.arena.bytes(num_tiles_ * tile_bytes_[e]);
        static const float nothing[1] = {0.0f};
        for (int t = 0; t < num_tiles_; t++) {
            const int tokens = tile_tokens(t), padded = padded_tokens(tokens);
            uint8_t* tile = streams_[e] + t * tile_bytes_[e];
            for (int m = tokens; m < padded; m++) {
                context.kernels.encode(encoding, nothing, 0, num_blocks_, tile, padded, m);
            }
        }
    }
}

void Activations::encode_row(Context& context, int64_t row, const float* x) {
    // Tiles are even shares: the inverse of tile_begin.
    int t = static_cast<int>((row * num_tiles_ + num_tiles_ - 1) / num_rows_);
    while (tile_begin(t) > row) t--;
    while (tile_begin(t + 1) <= row) t++;
    const int padded = padded_tokens(tile_tokens(t));
    for (int e = 0; e < kNumEncodings; e++) {
        if (!needed_[e]) continue;
        context.kernels.encode(static_cast<Encoding>(e), x, k_, num_blocks_,
                               streams_[e] + t * tile_bytes_[e], padded,
                               static_cast<int>(row - tile_begin(t)));
    }
}

DecodedTiles::DecodedTiles(Context& context, std::initializer_list<const Planes*> weights)
    : DecodedTiles(context, weights.begin(), weights.size()) {}

DecodedTiles::DecodedTiles(Context& context, const Planes* const* weights, size_t num_weights) {
    for (size_t i = 0; i < num_weights; i++) {
        if (decodes(context, *weights[i])) {
            stride = std::max(stride, weights[i]->padded_cols() * kTileRows);
        }
    }
    if (stride > 0) data = context.arena.array<float>(stride * context.num_threads());
}

void multiply(const Context& context, const Planes& weight, const Activations& acts, int act_tile,
              int64_t tile_begin, int64_t tile_end, const DecodedTiles& decoded, int thread,
              float* out, int64_t out_stride) {
    MatmulArgs args;
    args.tiles = weight.tile(tile_begin);
    args.tile_bytes = weight.tile_bytes;
    args.num_tiles = static_cast<int>(tile_end - tile_begin);
    args.num_units = weight.num_units;
    args.num_rows = static_cast<int>(weight.num_rows - tile_begin * kTileRows);
    args.codebook = weight.codebook.data();
    args.sub_factor = weight.sub_factor;
    args.out_factor = weight.out_factor;
    args.acts = acts.tile(encoding_of(context, weight), act_tile);
    args.num_tokens = acts.tile_tokens(act_tile);
    args.padded_tokens = padded_tokens(args.num_tokens);
    args.out = out;
    args.out_stride = out_stride;
    if (!decodes(context, weight)) {
        context.kernels.matmul[static_cast<int>(weight.layout)](args);
        return;
    }
    float* tile = decoded.data + thread * decoded.stride;
    args.tiles = reinterpret_cast<const uint8_t*>(tile);
    args.num_tiles = 1;
    args.num_units = static_cast<int>(weight.padded_cols() / unit_values(LayoutId::f32));
    args.out_factor = 1.0f;  // decoded values have it already
    for (int64_t t = tile_begin; t < tile_end; t++) {
        decode_planes_tile(weight, t, tile);
        context.kernels.matmul[static_cast<int>(LayoutId::f32)](args);
        args.out += kTileRows;
        args.num_rows -= kTileRows;
    }
}

int64_t chunk_tiles(const Context& context, const Planes& weight, int num_matrices) {
    constexpr int64_t kChunkBytes = 128 << 10;
    const int64_t by_bytes = kChunkBytes / (weight.tile_bytes * num_matrices);
    const int64_t by_share = weight.num_tiles / (4 * context.num_threads());
    return std::max<int64_t>(1, std::min(by_bytes, by_share));
}

void multiply_all(Context& context, const Planes* const* weights, const Matrix* outs,
                  size_t num_weights, const Activations& acts) {
    const DecodedTiles decoded(context, weights, num_weights);
    struct Chunk {
        int weight;
        int64_t begin, end;
    };
    int64_t num_chunks = 0;
    for (size_t i = 0; i < num_weights; i++) {
        const int64_t size = chunk_tiles(context, *weights[i], 1);
        num_chunks += (weights[i]->num_tiles + size - 1) / size;
    }
    Chunk* chunks = context.arena.array<Chunk>(num_chunks);
    int64_t count = 0;
    for (size_t i = 0; i < num_weights; i++) {
        const int64_t size = chunk_tiles(context, *weights[i], 1);
        for (int64_t begin = 0; begin < weights[i]->num_tiles; begin += size) {
            chunks[count++] = {static_cast<int>(i), begin,
                               std::min(begin + size, weights[i]->num_tiles)};
        }
    }
    context.pool.run(static_cast<int>(num_chunks), [&](int item, int thread) {
        const Chunk& chunk = chunks[item];
        const Matrix& out = outs[chunk.weight];
        for (int t = 0; t < acts.num_tiles(); t++) {
            multiply(context, *weights[chunk.weight], acts, t, chunk.begin, chunk.end, decoded,
                     thread, out.row(acts.tile_begin(t)) + chunk.begin * kTileRows, out.stride);
        }
    });
}

}  // namespace culet
