// A block of private zeroed memory, page-aligned, on huge pages where the system has them.
#pragma once

#include <cstdint>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace culet {

class Memory {
public:
    Memory() = default;
    // std::bad_alloc if the system refuses.
    explicit Memory(int64_t num_bytes) : num_bytes_(num_bytes) {
        if (num_bytes == 0) return;
        void* p =
            mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(p);
#if defined(MADV_HUGEPAGE)
        // Small blocks would waste most of a huge page.
        if (num_bytes >= (int64_t{4} << 20)) madvise(p, num_bytes, MADV_HUGEPAGE);
#endif
    }
    ~Memory() {
        if (data_) munmap(data_, num_bytes_);
    }
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(num_bytes_, other.num_bytes_);
        return *this;
    }

    uint8_t* data() const { return data_; }
    int64_t num_bytes() const { return num_bytes_; }

private:
    uint8_t* data_ = nullptr;
    int64_t num_bytes_ = 0;
};

}  // namespace culet
