#include "probes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "memory.h"

namespace culet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// One add per 8 bytes on four chains: far above what memory delivers to a core.
uint64_t sum_bytes(const uint8_t* p, int64_t num_bytes) {
    uint64_t sums[4] = {};
    for (int64_t i = 0; i + 64 <= num_bytes; i += 64) {
        __builtin_prefetch(p + i + 4096);
        uint64_t words[8];
        std::memcpy(words, p + i, 64);
        for (int k = 0; k < 4; k++) sums[k] += words[k] + words[k + 4];
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

double probe_read(Pool& pool, int64_t num_bytes) {
    const Memory buffer(num_bytes);
    std::memset(buffer.data(), 1, num_bytes);  // without it all pages are the one zero page
    constexpr int64_t kChunkBytes = 256 << 10;
    const int num_chunks = static_cast<int>(num_bytes / kChunkBytes);
    std::atomic<uint64_t> total{0};
    double best = 0.0;
    pool.begin();
    for (int repeat = 0; repeat < 3; repeat++) {
        const Clock::time_point begin = Clock::now();
        pool.run(num_chunks, [&](int chunk, int) {
            total += sum_bytes(buffer.data() + chunk * kChunkBytes, kChunkBytes);
        });
        best = std::max(best, num_chunks * kChunkBytes / seconds_since(begin) / 1e9);
    }
    pool.end();
    return total > 0 ? best : 0.0;
}

double probe_fork_join(Pool& pool, int num_loops) {
    pool.begin();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < num_loops; i++) {
        // Every item waits for all: none of them may run two.
        std::atomic<int> num_arrived{0};
        pool.run(pool.num_threads(), [&](int, int) {
            num_arrived++;
            for (int spins = 1; num_arrived < pool.num_threads(); spins++) {
                if (spins % 1000 == 0) std::this_thread::yield();
            }
        });
    }
    const double seconds = seconds_since(begin);
    pool.end();
    return seconds / num_loops * 1e9;
}

}  // namespace culet
