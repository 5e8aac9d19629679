// Writing K and V into pages, and attention over them.
//
// A work unit is one sequence, one K/V head and up to 64 query rows (token x head of the group).
// Scores of a unit against one absolute segment of 512 tokens give a partial (max, sum, mixed
// values); partials are merged left to right. Units of few rows over long contexts are spread over
// threads by segment, others by unit: the arithmetic is the same.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops.h"

namespace culet {
namespace {

constexpr int kSegmentTokens = 512;  // ATTENTION_SEGMENT_TOKENS of culet/ops/interface.py
// Query rows of a unit: enough that turning stored K and V into compute form is small beside the
// products, few enough that scores and mixed values stay in the L2 cache.
constexpr int kUnitRows = 64;

struct Unit {
    int seq;
    int head;           // K/V head
    int64_t first_row;  // step row of the first token
    int num_tokens;
    int64_t seen_begin, seen_end;  // tokens that any row sees

    int64_t first_segment() const { return seen_begin / kSegmentTokens; }
    int64_t num_segments() const {
        return (seen_end + kSegmentTokens - 1) / kSegmentTokens - first_segment();
    }
};

// Partial results of a unit's rows over one segment, or merged over several.
struct Partial {
    float* max;    // [rows]
    float* sum;    // [rows]
    float* mixed;  // [rows][stored_dim]
};

class Attention {
public:
    Attention(Context& context, Matrix out, Matrix q, const KvStore& kv, const PageTableView& pages,
              int64_t window, float scale)
        : context_(context),
          kernels_(context.kernels),
          out_(out),
          q_(q),
          kv_(kv),
          pages_(pages),
          window_(window),
          scale_(scale),
          bf16_(context.kernels.bf16_dots && !context.exact),
          group_(static_cast<int>(q.cols / (kv.num_heads * kv.head_dim))) {
        make_units();
    }

    void run() {
        const int num_units = static_cast<int>(units_.size());
        if (num_units >= 2 * context_.num_threads() || context_.num_threads() == 1) {
            run_by_unit(num_units);
        } else {
            run_by_segment(num_units);
        }
    }

private:
    // ---- shapes --------------------------------------------------------------------------------
    int tile_rows() const { return kernels_.max_tile_tokens; }
    int max_rows() const {  // of a unit, with every query tile padded to its full size
        const int rows = std::max(kUnitRows, group_);
        return (rows + tile_rows() - 1) / tile_rows() * tile_rows();
    }
    int num_rows(const Unit& unit) const { return unit.num_tokens * group_; }
    int num_query_tiles(const Unit& unit) const {
        return (num_rows(unit) + tile_rows() - 1) / tile_rows();
    }
    int query_tile_rows(const Unit& unit, int tile) const {
        return std::min(tile_rows(), num_rows(unit) - tile * tile_rows());
    }
    int64_t position(const Unit& unit, int row) const {
        return pages_.positions[unit.first_row + row / group_];
    }
    int64_t seen_begin(int64_t position) const {
        return window_ > 0 ? std::max<int64_t>(0, position - window_ + 1) : 0;
    }
    int64_t query_tile_bytes() const { return tile_rows() * kv_.stored_dim * (bf16_ ? 2 : 4); }
    int64_t score_stride() const { return kSegmentTokens + 16; }  // a whole tile past the end

    Partial new_partial(int64_t count = 1) {
        return {context_.arena.array<float>(count * max_rows()),
                context_.arena.array<float>(count * max_rows()),
                context_.arena.array<float>(count * max_rows() * kv_.stored_dim)};
    }
    Partial at(const Partial& partials, int64_t i) const {
        return {partials.max + i * max_rows(), partials.sum + i * max_rows(),
                partials.mixed + i * max_rows() * kv_.stored_dim};
    }

    void make_units() {
        const int tokens = std::max(1, kUnitRows / group_);
        int64_t begin = 0;
        while (begin < q_.rows) {
            const int seq = pages_.row_seq[begin];
            int64_t end = begin;
            while (end < q_.rows && pages_.row_seq[end] == seq) end++;
            for (int head = 0; head < kv_.num_heads; head++) {
                for (int64_t row = begin; row < end; row += tokens) {
                    const int n = static_cast<int>(std::min<int64_t>(tokens, end - row));
                    units_.push_back({seq, head, row, n, seen_begin(pages_.positions[row]),
                                      pages_.positions[row + n - 1] + int64_t{1}});
                }
            }
            begin = end;
        }
    }

    // ---- one unit, one segment -----------------------------------------------------------------
    void load_queries(const Unit& unit, uint8_t* queries) {
        for (int t = 0; t < num_query_tiles(unit); t++) {
            uint8_t* tile = queries + t * query_tile_bytes();
            const int rows = query_tile_rows(unit, t), padded = padded_tokens(rows);
            for (int m = 0; m < padded; m++) {
                const int row = t * tile_rows() + m;
                const int head = unit.head * group_ + row % group_;
                const float* q = m < rows
                                     ? q_.row(unit.first_row + row / group_) + head * kv_.head_dim
                                     : nullptr;
                kernels_.load_q(q, q ? kv_.head_dim : 0, kv_.stored_dim, scale_, bf16_, padded, m,
                                tile);
            }
        }
    }

    // Calls body(first token within the segment, stored K tile, stored V tile) for the tiles of a
    // segment that hold tokens in [begin, end).
    template <class Body>
    void each_tile(const Unit& unit, int64_t segment_begin, int64_t begin, int64_t end,
                   Body&& body) {
        const int step = kv_.tile_tokens;
        for (int64_t token = begin / step * step; token < end; token += step) {
            const int64_t page = pages_.page_of(unit.seq, token);
            const int tile = static_cast<int>(token % kv_.page_tokens / step);
            body(static_cast<int>(token - segment_begin), kv_.tile(kv_.k, page, unit.head, tile),
                 kv_.tile(kv_.v, page, unit.head, tile));
        }
    }

    // Whether any row of a query tile sees tokens [begin, end).
    bool sees(const Unit& unit, int tile, int64_t begin, int64_t end) const {
        const int first = tile * tile_rows(), last = first + query_tile_rows(unit, tile) - 1;
        return begin <= position(unit, last) && end > seen_begin(position(unit, first));
    }

    struct Scratch {
        float* scores;  // [max_rows][score_stride]
        void* tile;     // one K or V tile in compute form
    };

    Scratch new_scratch() {
        return {context_.arena.array<float>(max_rows() * score_stride()),
                context_.arena.bytes(16 * kv_.stored_dim * 4)};
    }

    void attend_segment(const Unit& unit, int64_t segment, const uint8_t* queries,
                        const Scratch& scratch, const Partial& out) {
        const int64_t segment_begin = segment * kSegmentTokens;
        const int64_t begin = std::max(unit.seen_begin, segment_begin);
        const int64_t end = std::min(unit.seen_end, segment_begin + kSegmentTokens);
        const int64_t dim = kv_.stored_dim, stride = score_stride();
        const int num_tiles = num_query_tiles(unit);
        each_tile(unit, segment_begin, begin, end,
                  [&](int offset, const uint8_t* k, const uint8_t*) {
                      const void* keys = k;
                      if (!bf16_ || kv_.type != KvType::bf16) {
                          kernels_.load_k(kv_.type, k, dim, bf16_, scratch.tile);
                          keys = scratch.tile;
                      }
                      const int64_t token = segment_begin + offset;
                      for (int t = 0; t < num_tiles; t++) {
                          if (!sees(unit, t, token, token + kv_.tile_tokens)) continue;
                          kernels_.qk(queries + t * query_tile_bytes(), keys, dim, bf16_,
                                      padded_tokens(query_tile_rows(unit, t)),
                                      scratch.scores + t * tile_rows() * stride + offset, stride);
                      }
                  });
        for (int row = 0; row < num_tiles * tile_rows(); row++) {
            soften(unit, row, segment_begin, scratch.scores + row * stride, out.max + row,
                   out.sum + row);
        }
        std::memset(out.mixed, 0, num_tiles * tile_rows() * dim * sizeof(float));
        each_tile(unit, segment_begin, begin, end,
                  [&](int offset, const uint8_t*, const uint8_t* v) {
                      const void* values = v;
                      if (!bf16_ || kv_.type != KvType::bf16) {
                          kernels_.load_v(kv_.type, v, dim, bf16_, scratch.tile);
                          values = scratch.tile;
                      }
                      const int64_t token = segment_begin + offset;
                      for (int t = 0; t < num_tiles; t++) {
                          if (!sees(unit, t, token, token + kv_.tile_tokens)) continue;
                          kernels_.pv(scratch.scores + t * tile_rows() * stride + offset, stride,
                                      kv_.tile_tokens, values, dim, bf16_,
                                      padded_tokens(query_tile_rows(unit, t)),
                                      out.mixed + t * tile_rows() * dim);
                      }
                  });
    }

    // Scores of one row become shares; a row that sees nothing of the segment, or only pads its
    // query tile, gets none.
    void soften(const Unit& unit, int row, int64_t segment_begin, float* scores, float* max,
                float* sum) {
        int64_t begin = 0, end = 0;
        if (row < num_rows(unit)) {
            const int64_t at = position(unit, row);
            begin = std::max(seen_begin(at) - segment_begin, int64_t{0});
            end = std::min(at + 1 - segment_begin, int64_t{kSegmentTokens});
        }
        if (begin >= end) {
            std::memset(scores, 0, kSegmentTokens * sizeof(float));
            *max = -INFINITY;
            *sum = 0.0f;
            return;
        }
        kernels_.softmax_segment(scores, static_cast<int>(begin), static_cast<int>(end),
                                 kSegmentTokens, bf16_, max, sum);
    }

    void clear(const Unit& unit, const Partial& total) {
        for (int row = 0; row < num_rows(unit); row++) {
            total.max[row] = -INFINITY;
            total.sum[row] = 0.0f;
        }
        std::memset(total.mixed, 0, num_rows(unit) * kv_.stored_dim * sizeof(float));
    }

    void append(const Unit& unit, const Partial& total, const Partial& next) {
        for (int row = 0; row < num_rows(unit); row++) {
            if (next.sum[row] == 0.0f) continue;
            kernels_.merge(total.max + row, total.sum + row, total.mixed + row * kv_.stored_dim,
                           next.max[row], next.sum[row], next.mixed + row * kv_.stored_dim,
                           kv_.stored_dim);
        }
    }

    void write(const Unit& unit, const Partial& total) {
        for (int row = 0; row < num_rows(unit); row++) {
            const int head = unit.head * group_ + row % group_;
            float* out = out_.row(unit.first_row + row / group_) + head * kv_.head_dim;
            kernels_.scale_to(total.mixed + row * kv_.stored_dim, 1.0f / total.sum[row],
                              kv_.head_dim, out);
        }
    }

    // ---- order of work -------------------------------------------------------------------------
    void run_by_unit(int num_units) {
        const int num_threads = context_.num_threads();
        std::vector<Scratch> scratch;
        std::vector<Partial> next, total;
        std::vector<uint8_t*> queries;
        for (int t = 0; t < num_threads; t++) {
            scratch.push_back(new_scratch());
            next.push_back(new_partial());
            total.push_back(new_partial());
            queries.push_back(context_.arena.bytes(max_rows() / tile_rows() * query_tile_bytes()));
        }
        context_.pool.run(num_units, [&](int item, int thread) {
            const Unit& unit = units_[item];
            load_queries(unit, queries[thread]);
            clear(unit, total[thread]);
            for (int64_t s = 0; s < unit.num_segments(); s++) {
                attend_segment(unit, unit.first_segment() + s, queries[thread], scratch[thread],
                               next[thread]);
                append(unit, total[thread], next[thread]);
            }
            write(unit, total[thread]);
        });
    }

    void run_by_segment(int num_units) {
        struct Item {
            int unit;
            int64_t segment;
        };
        std::vector<Item> items;
        std::vector<int64_t> first_item;
        for (int u = 0; u < num_units; u++) {
            first_item.push_back(static_cast<int64_t>(items.size()));
            for (int64_t s = 0; s < units_[u].num_segments(); s++) {
                items.push_back({u, units_[u].first_segment() + s});
            }
        }
        const int64_t queries_bytes = max_rows() / tile_rows() * query_tile_bytes();
        uint8_t* queries = context_.arena.bytes(num_units * queries_bytes);
        for (int u = 0; u < num_units; u++) load_queries(units_[u], queries + u * queries_bytes);
        std::vector<Scratch> scratch;
        for (int t = 0; t < context_.num_threads(); t++) scratch.push_back(new_scratch());
        const Partial partials = new_partial(static_cast<int64_t>(items.size()));
        context_.pool.run(static_cast<int>(items.size()), [&](int i, int thread) {
            attend_segment(units_[items[i].unit], items[i].segment,
                           queries + items[i].unit * queries_bytes, scratch[thread],
                           at(partials, i));
        });
        const Partial total = new_partial();
        for (int u = 0; u < num_units; u++) {
            clear(units_[u], total);
            for (int64_t s = 0; s < units_[u].num_segments(); s++) {
                append(units_[u], total, at(partials, first_item[u] + s));
            }
            write(units_[u], total);
        }
    }

    Context& context_;
    const Kernels& kernels_;
    Matrix out_, q_;
    const KvStore& kv_;
    const PageTableView& pages_;
    int64_t window_;
    float scale_;
    bool bf16_;
    int group_;  // query heads of a K/V head
    std::vector<Unit> units_;
};

}  // namespace

KvStore::KvStore(KvType type, int64_t num_pages, int page_tokens, int num_heads, int64_t head_dim)
    : type(type),
      num_pages(num_pages),
      page_tokens(page_tokens),
      num_heads(num_heads),
      head_dim(head_dim),
      stored_dim(kv_stored_dim(type, head_dim)),
      tile_tokens(std::min(16, page_tokens)),
      tiles_per_page((page_tokens + 15) / 16),
      tile_bytes(kv_tile_bytes(type, stored_dim)),
      // Zeroed: shares of 0 multiply tokens that were never written.
      k(num_pages * num_heads * tiles_per_page * tile_bytes),
      v(num_pages * num_heads * tiles_per_page * tile_bytes) {}

void attention_inputs(Context& context, const AttentionInputs& in, KvStore* kv,
                      const PageTableView& pages) {
    const Kernels& kernels = context.kernels;
    const int64_t half = in.cos.cols, dim = 2 * half;
    const int64_t num_rows = in.q.data ? in.q.rows : in.k.rows;
    float* raw_keys = context.arena.array<float>(dim * context.num_threads());
    context.each_row(num_rows, [&](int row, int thread) {
        for (int64_t i = 0; in.q.data && i < in.q.cols; i += dim) {
            float* q = in.q.row(row) + i;
            kernels.rms_norm(q, in.q_norm, in.eps, dim, q);
            kernels.rope(q, in.cos.row(row), in.sin.row(row), half);
        }
        if (!in.k.data) return;
        const int64_t token = pages.positions[row];
        const int64_t page = pages.page_of(pages.row_seq[row], token);
        const int in_page = static_cast<int>(token % kv->page_tokens);
        const int tile = in_page / kv->tile_tokens, slot = in_page % kv->tile_tokens;
        for (int head = 0; head < kv->num_heads; head++) {
            float* k = in.k.row(row) + head * dim;
            float* v = raw_keys + thread * dim;
            if (in.v.data) {
                v = in.v.row(row) + head * dim;
            } else {
                std::memcpy(v, k, dim * sizeof(float));
            }
            if (in.normalize_v) kernels.rms_norm(v, nullptr, in.eps, dim, v);
            kernels.rms_norm(k, in.k_norm, in.eps, dim, k);
            kernels.rope(k, in.cos.row(row), in.sin.row(row), half);
            kernels.store_k(kv->type, k, dim, slot, kv->tile(kv->k, page, head, tile));
            kernels.store_v(kv->type, v, dim, slot, kv->tile(kv->v, page, head, tile));
        }
    });
}

void attention(Context& context, Matrix out, Matrix q, const KvStore& kv,
               const PageTableView& pages, int64_t window, float scale) {
    Attention(context, out, q, kv, pages, window, scale).run();
}

}  // namespace culet
