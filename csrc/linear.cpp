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

Activations::Activations(Context& context, const Planes* const* weights, size_t num_weights,
                         Matrix rows)
    : num_rows_(rows.rows), k_(weights[0]->num_cols) {
    for (size_t i = 0; i < num_weights; i++) need(encoding_of(context, *weights[i]));
    allocate(context);
    // A thread reads what it is likely to have written itself.
    constexpr int64_t kLeastBlocks = 32;
    const int64_t wanted =
        (context.num_threads() + num_rows_ - 1) / std::max<int64_t>(num_rows_, 1);
    const int64_t pieces = std::max<int64_t>(1, std::min(wanted, num_blocks_ / kLeastBlocks));
    context.pool.run(static_cast<int>(num_rows_ * pieces), [&](int item, int) {
        const int64_t row = item / pieces, piece = item % pieces;
        encode_row(context, row, rows.row(row), num_blocks_ * piece / pieces,
                   num_blocks_ * (piece + 1) / pieces);
    });
}

void Activations::encode_row(Context& context, int64_t row, const float* x, int64_t begin,
                             int64_t end) {
    // Tiles are even shares: the inverse of tile_begin.
    int t = static_cast<int>((row * num_tiles_ + num_tiles_ - 1) / num_rows_);
    while (tile_begin(t) > row) t--;
    while (tile_begin(t + 1) <= row) t++;
    const int padded = padded_tokens(tile_tokens(t));
    for (int e = 0; e < kNumEncodings; e++) {
        if (!needed_[e]) continue;
        const Encoding encoding = static_cast<Encoding>(e);
        uint8_t* tile = streams_[e] + t * tile_bytes_[e];
        context.kernels.encode(encoding, x + begin * kBlockValues, k_ - begin * kBlockValues,
                               end - begin, tile + begin * padded * encoded_block_bytes(encoding),
                               padded, static_cast<int>(row - tile_begin(t)));
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
    // A thread's chunks follow one another in memory. The last of all are smaller: how long the
    // first thread that is done waits for the others is a part of one chunk.
    constexpr int64_t kLastPieces = 4;
    const int64_t num_threads = context.num_threads();
    struct Chunk {
        int weight;
        int64_t begin, end;
    };
    int64_t per_thread = kLastPieces - 1;
    int64_t* counts = context.arena.array<int64_t>(static_cast<int64_t>(num_weights));
    for (size_t i = 0; i < num_weights; i++) {
        const int64_t share = (weights[i]->num_tiles + num_threads - 1) / num_threads;
        const int64_t size = chunk_tiles(context, *weights[i], 1);
        counts[i] = (share + size - 1) / size;
        per_thread += counts[i];
    }
    Chunk* chunks = context.arena.array<Chunk>(per_thread * num_threads);
    int64_t count = 0;
    for (int64_t t = 0; t < num_threads; t++) {
        for (size_t i = 0; i < num_weights; i++) {
            const int64_t first = weights[i]->num_tiles * t / num_threads;
            const int64_t share = weights[i]->num_tiles * (t + 1) / num_threads - first;
            const bool is_last = i + 1 == num_weights;
            // In quarters of a chunk where the last one is cut.
            const int64_t parts = counts[i] * kLastPieces;
            for (int64_t p = 0; p < parts;) {
                const int64_t step = is_last && p >= parts - kLastPieces ? 1 : kLastPieces;
                chunks[count++] = {static_cast<int>(i), first + share * p / parts,
                                   first + share * (p + step) / parts};
                p += step;
            }
        }
    }
    context.pool.run(static_cast<int>(count), [&](int item, int thread) {
        const Chunk& chunk = chunks[item];
        if (chunk.begin == chunk.end) return;
        const Matrix& out = outs[chunk.weight];
        for (int t = 0; t < acts.num_tiles(); t++) {
            multiply(context, *weights[chunk.weight], acts, t, chunk.begin, chunk.end, decoded,
                     thread, out.row(acts.tile_begin(t)) + chunk.begin * kTileRows, out.stride);
        }
    });
}

}  // namespace culet
