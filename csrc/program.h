// The command list: ops are recorded, then run in order in one call. Knows what a command needs to
// run (threads, kernels, scratch memory), not what any of them does.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace culet {

// Scratch memory of the command that runs: handed out in order, taken back by scope or all at once.
class Arena {
public:
    // At least num_bytes, aligned to 64; contents undefined.
    uint8_t* bytes(int64_t num_bytes) {
        num_bytes = (num_bytes + 63) / 64 * 64;
        const int64_t begin = used_;
        used_ += num_bytes;
        most_used_ = std::max(most_used_, used_);
        if (used_ <= block_.num_bytes()) return block_.data() + begin;
        extra_.emplace_back(num_bytes);
        return extra_.back().data();
    }
    template <class T>
    T* array(int64_t count) {
        return reinterpret_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
    }
    void reset() {
        if (!extra_.empty()) {  // next time all fits in one block
            extra_.clear();
            block_ = Memory();
            block_ = Memory(most_used_);
        }
        used_ = most_used_ = 0;
    }

    // Takes back, at its end, what was handed out since its beginning.
    class Scope {
    public:
        explicit Scope(Arena& arena) : arena_(arena), used_(arena.used_) {}
        ~Scope() { arena_.used_ = used_; }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

    private:
        Arena& arena_;
        int64_t used_;
    };

private:
    Memory block_;
    std::vector<Memory> extra_;
    int64_t used_ = 0, most_used_ = 0;
};

// What a running command may use.
struct Context {
    Pool& pool;
    const Kernels& kernels;
    bool exact;  // float32 activations and accumulation everywhere
    Arena& arena;

    int num_threads() const { return pool.num_threads(); }
    // body(row, thread) for all rows, on all threads.
    template <class Body>
    void each_row(int64_t num_rows, Body&& body) {
        pool.run(static_cast<int>(num_rows), body);
    }
};

struct OpTime {
    int64_t num_calls = 0;
    double seconds = 0.0;
};

class Program {
public:
    using Command = std::function<void(Context&)>;

    Program(Pool& pool, const Kernels& kernels, bool exact)
        : pool_(pool), kernels_(kernels), exact_(exact) {}

    // `op` is a literal: the name in the profile.
    void add(const char* op, Command command) { commands_.push_back({op, std::move(command)}); }
    bool empty() const { return commands_.empty(); }
    void clear() { commands_.clear(); }

    // Runs and forgets all commands, also when one throws.
    void run();

    void set_profile(bool on) { profile_ = on; }
    const std::map<std::string, OpTime>& times() const { return times_; }
    void clear_times() { times_.clear(); }

private:
    struct Entry {
        const char* op;
        Command command;
    };

    Pool& pool_;
    const Kernels& kernels_;
    bool exact_;
    Arena arena_;
    std::vector<Entry> commands_;
    bool profile_ = false;
    std::map<std::string, OpTime> times_;
};

}  // namespace culet
