// A pool of spinning threads for loops that take microseconds.
//
// `run` hands out items 0..n-1: every thread first takes its own contiguous share, in order, then
// steals from the others, so that a thread that lost its core delays only the item it holds.
// Between begin() and end() the workers spin (and yield); outside they sleep after a millisecond.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace culet {

// Physical cores that this process may use: the affinity mask without second hardware threads, and
// no more than the cgroup's CPU quota.
int default_num_threads();

class Pool {
public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return num_threads_; }

    // Brackets a run of loops. One caller at a time. After a fork the child's first begin() starts
    // new workers, since threads don't survive it.
    void begin();
    void end();

    // Calls body(item, thread) for every item in [0, num_items) and waits. The body must not throw.
    // Writes made by it are visible to the caller afterwards.
    template <class Body>
    void run(int num_items, Body&& body) {
        if (num_items <= 1 || num_threads_ == 1) {
            for (int i = 0; i < num_items; i++) body(i, 0);
            return;
        }
        using Plain = std::remove_reference_t<Body>;
        const auto call = [](void* context, int item, int thread) {
            (*static_cast<Plain*>(context))(item, thread);
        };
        run_erased(num_items, call, const_cast<void*>(static_cast<const void*>(&body)));
    }

private:
    using Call = void (*)(void* context, int item, int thread);

    // Items [next, end) that are left of one thread's share, tagged with the loop they belong to: a
    // thread that comes late must not take an item of another loop.
    struct alignas(64) Share {
        std::atomic<uint64_t> state{0};
    };

    void run_erased(int num_items, Call call, void* context);
    void work(uint64_t loop, int thread);
    bool take(Share& share, uint64_t loop, int* item);
    void worker(int thread);
    void start();
    void wake();

    int num_threads_;
    int64_t owner_pid_ = 0;
    std::vector<std::thread> workers_;
    std::unique_ptr<Share[]> shares_;

    alignas(64) std::atomic<uint64_t> loop_{0};  // number of the newest loop
    std::atomic<Call> call_{nullptr};
    std::atomic<void*> context_{nullptr};
    alignas(64) std::atomic<int> num_done_{0};
    alignas(64) std::atomic<bool> active_{false};
    std::atomic<bool> stop_{false};
    std::atomic<int> num_asleep_{0};
    std::mutex sleep_mutex_;
    std::condition_variable wake_up_;
};

}  // namespace culet
