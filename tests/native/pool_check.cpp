// Drives the thread pool hard, for ThreadSanitizer: every loop reads what other threads wrote in
// the loop before, shares are uneven so that items are stolen, workers fall asleep between runs,
// and pools end while their workers still spin. The sums show that each item ran exactly once.
//
//   pool_check      exit status 0 if all is right; says what is not
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "threads.h"

namespace {

using culet::Pool;

// Long enough that another thread may steal what comes after.
void linger(int item) {
    volatile int steps = item % 5 == 0 ? 2000 : 10;
    while (steps > 0) steps = steps - 1;
}

// Shifts and increments `num_items` numbers `num_loops` times between two plain arrays.
bool run_loops(Pool& pool, int num_items, int num_loops) {
    std::vector<int64_t> from(num_items), to(num_items);
    for (int i = 0; i < num_items; i++) from[i] = i;
    pool.begin();
    for (int loop = 0; loop < num_loops; loop++) {
        pool.run(num_items, [&](int item, int) {
            linger(item + loop);
            to[item] = from[(item + 1) % num_items] + 1;
        });
        from.swap(to);
    }
    pool.end();
    for (int i = 0; i < num_items; i++) {
        if (from[i] != (i + num_loops) % num_items + num_loops) return false;
    }
    return true;
}

bool check(int num_threads) {
    Pool pool(num_threads);
    bool is_right = true;
    for (int num_items : {1, 2, num_threads, num_threads + 1, 37}) {
        is_right &= run_loops(pool, num_items, 200);
    }
    // Workers sleep after a millisecond; some are caught on their way.
    for (int pause_us : {0, 500, 1000, 1100, 5000}) {
        std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
        is_right &= run_loops(pool, 9, 3);
    }
    return is_right;
}

}  // namespace

int main() {
    bool is_right = true;
    for (int num_threads : {1, 2, 3, 8}) {
        for (int repeat = 0; repeat < 3; repeat++) is_right &= check(num_threads);
    }
    // Two pools at once, each with its own caller.
    bool other = false;
    std::thread caller([&] { other = check(4); });
    is_right &= check(3);
    caller.join();
    is_right &= other;
    std::puts(is_right ? "the pool is right" : "an item ran twice, or not at all");
    return is_right ? 0 : 1;
}
