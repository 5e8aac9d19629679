#include "threads.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include <sched.h>
#include <unistd.h>

namespace culet {
namespace {

// A share's state: loop number (20 bits), next item (22), end (22).
constexpr int kItemBits = 22;
constexpr uint64_t kItemMask = (uint64_t{1} << kItemBits) - 1;
constexpr uint64_t kLoopMask = (uint64_t{1} << 20) - 1;

constexpr uint64_t pack(uint64_t loop, uint64_t next, uint64_t end) {
    return (loop & kLoopMask) << (2 * kItemBits) | next << kItemBits | end;
}

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Spins with pauses, and gives the core away once in a while: a waiting thread must not starve the
// one it waits for.
class Spinner {
public:
    void wait() {
        pause_cpu();
        if (++count_ % 1000 == 0) sched_yield();
    }
    int count() const { return count_; }

private:
    int count_ = 0;
};

// Microseconds of quota and period: the cores that they are, rounded; 0 where there is no limit.
int cores_of(double quota, double period) {
    return quota > 0 && period > 0 ? std::max(1, static_cast<int>(quota / period + 0.5)) : 0;
}

// Version 2: "max 100000" or "150000 100000" in one file.
int unified_cores(const std::string& group) {
    std::ifstream file(group + "/cpu.max");
    std::string quota;
    double period = 0;
    return file >> quota >> period ? cores_of(std::atof(quota.c_str()), period) : 0;
}

// Version 1: two files, a quota of -1 is no limit.
int legacy_cores(const std::string& group) {
    std::ifstream quota_file(group + "/cpu.cfs_quota_us"),
        period_file(group + "/cpu.cfs_period_us");
    double quota = 0, period = 0;
    return quota_file >> quota && period_file >> period ? cores_of(quota, period) : 0;
}

// The least that the control groups from `group` up to their root allow; 0 where none has a limit.
// In a container the group that the system names may not be there; the root is the container's own.
int least_cores(const std::string& root, std::string group, int (*cores_at)(const std::string&)) {
    int least = 0;
    while (true) {
        const int cores = cores_at(root + group);
        if (cores > 0) least = least > 0 ? std::min(least, cores) : cores;
        if (group.empty()) return least;
        group.erase(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
    }
}

int cgroup_cores() {
    std::ifstream memberships(
        "/proc/self/cgroup");  // lines such as "4:cpu,cpuacct:/a/b", "0::/a/b"
    int least = 0;
    for (std::string line; std::getline(memberships, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        std::string controllers = line.substr(first + 1, second - first - 1);
        controllers.push_back(',');
        const std::string group = line.substr(second + 1);
        int cores = 0;
        if (controllers == ",") cores = least_cores("/sys/fs/cgroup", group, unified_cores);
        if (controllers.starts_with("cpu,") || controllers.find(",cpu,") != std::string::npos) {
            cores = least_cores("/sys/fs/cgroup/cpu", group, legacy_cores);
        }
        if (cores > 0) least = least > 0 ? std::min(least, cores) : cores;
    }
    return least;
}

#if defined(__linux__)
int affinity_cores() {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return static_cast<int>(std::thread::hardware_concurrency());
    }
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        const std::string topology =
            "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list";
        std::ifstream file(topology);
        std::string siblings;
        if (!(file >> siblings)) siblings = std::to_string(cpu);
        cores.insert(siblings);
    }
    return static_cast<int>(cores.size());
}
#else
int affinity_cores() { return static_cast<int>(std::thread::hardware_concurrency()); }
#endif

}  // namespace

int default_num_threads() {
    const int cores = std::max(1, affinity_cores());
    const int quota = cgroup_cores();
    return quota > 0 ? std::min(cores, quota) : cores;
}

Pool::Pool(int num_threads)
    : num_threads_(std::max(1, num_threads)), shares_(new Share[std::max(1, num_threads)]) {}

Pool::~Pool() {
    if (workers_.empty()) return;
    if (owner_pid_ != getpid()) {  // a forked child: these threads don't exist here
        new std::vector<std::thread>(std::move(workers_));
        return;
    }
    stop_.store(true);
    wake();
    for (std::thread& worker : workers_) worker.join();
}

void Pool::start() {
    if (!workers_.empty()) new std::vector<std::thread>(std::move(workers_));  // lost in a fork
    workers_.clear();
    num_asleep_.store(0);
    owner_pid_ = getpid();
    for (int t = 1; t < num_threads_; t++) workers_.emplace_back([this, t] { worker(t); });
}

void Pool::wake() {
    // The lock orders this after a worker's decision to sleep, so that no wake-up is lost.
    const std::lock_guard<std::mutex> lock(sleep_mutex_);
    wake_up_.notify_all();
}

void Pool::begin() {
    if (num_threads_ == 1) return;
    if (owner_pid_ != getpid()) start();
    active_.store(true);
    if (num_asleep_.load() > 0) wake();
}

void Pool::end() { active_.store(false); }

bool Pool::take(Share& share, uint64_t loop, int* item) {
    uint64_t state = share.state.load(std::memory_order_acquire);
    for (;;) {
        const uint64_t next = state >> kItemBits & kItemMask, end = state & kItemMask;
        if (state >> (2 * kItemBits) != (loop & kLoopMask) || next >= end) return false;
        if (share.state.compare_exchange_weak(state, state + (uint64_t{1} << kItemBits),
                                              std::memory_order_acq_rel)) {
            *item = static_cast<int>(next);
            return true;
        }
    }
}

void Pool::work(uint64_t loop, int thread) {
    int num_done = 0;
    for (int i = 0; i < num_threads_; i++) {
        Share& share = shares_[(thread + i) % num_threads_];
        int item;
        // An item taken keeps its loop from ending, so call and context are this loop's.
        while (take(share, loop, &item)) {
            call_.load(std::memory_order_relaxed)(context_.load(std::memory_order_relaxed), item,
                                                  thread);
            num_done++;
        }
    }
    if (num_done > 0) num_done_.fetch_add(num_done, std::memory_order_acq_rel);
}

void Pool::run_erased(int num_items, Call call, void* context) {
    const uint64_t loop = loop_.load(std::memory_order_relaxed) + 1;
    call_.store(call, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_done_.store(0, std::memory_order_relaxed);
    for (int t = 0; t < num_threads_; t++) {
        const uint64_t begin = static_cast<uint64_t>(num_items) * t / num_threads_;
        const uint64_t end = static_cast<uint64_t>(num_items) * (t + 1) / num_threads_;
        shares_[t].state.store(pack(loop, begin, end), std::memory_order_release);
    }
    loop_.store(loop, std::memory_order_release);
    work(loop, 0);
    Spinner spinner;
    while (num_done_.load(std::memory_order_acquire) != num_items) spinner.wait();
}

void Pool::worker(int thread) {
    using Clock = std::chrono::steady_clock;
    uint64_t seen = 0;
    Spinner spinner;
    Clock::time_point idle_since = Clock::now();
    while (!stop_.load(std::memory_order_relaxed)) {
        const uint64_t loop = loop_.load(std::memory_order_acquire);
        if (loop != seen) {
            seen = loop;
            work(loop, thread);
            spinner = Spinner();
            continue;
        }
        spinner.wait();
        if (spinner.count() % 1000 != 0) continue;
        if (active_.load(std::memory_order_relaxed)) {
            idle_since = Clock::now();
        } else if (Clock::now() - idle_since > std::chrono::milliseconds(1)) {
            std::unique_lock<std::mutex> lock(sleep_mutex_);
            num_asleep_.fetch_add(1);
            wake_up_.wait(lock, [this] { return active_.load() || stop_.load(); });
            num_asleep_.fetch_sub(1);
            idle_since = Clock::now();
        }
    }
}

}  // namespace culet
