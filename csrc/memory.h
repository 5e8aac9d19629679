// Private zeroed memory, on huge pages where the system has them: without them the kernels read
// weights a quarter slower.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace culet {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// One mapping of its own. std::bad_alloc if the system refuses.
class Memory {
public:
    Memory() = default;
    explicit Memory(int64_t num_bytes) : num_bytes_(num_bytes) {
        if (num_bytes == 0) return;
        // Small blocks would waste most of a huge page. Larger ones begin at a multiple of its
        // size.
        const bool huge = num_bytes >= 2 * kHugePageBytes;
        const int64_t slack = huge ? kHugePageBytes : 0;
        void* p = mmap(nullptr, num_bytes + slack, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(p);
        if (!huge) return;
        const int64_t page_bytes = sysconf(_SC_PAGESIZE);
        const int64_t head =
            (kHugePageBytes - reinterpret_cast<intptr_t>(data_) % kHugePageBytes) % kHugePageBytes;
        const int64_t end = (num_bytes + page_bytes - 1) / page_bytes * page_bytes;
        if (head > 0) munmap(data_, head);
        if (head + end < num_bytes + slack) {
            munmap(data_ + head + end, num_bytes + slack - head - end);
        }
        data_ += head;
#if defined(MADV_HUGEPAGE)
        madvise(data_, num_bytes, MADV_HUGEPAGE);
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

// Pieces of shared blocks, so that weights of a few megabytes lie on huge pages without each being
// rounded up to whole ones. A block goes back to the system with its last piece.
class Slabs {
public:
    std::shared_ptr<uint8_t> allocate(int64_t num_bytes) {
        num_bytes = (num_bytes + 63) / 64 * 64;
        if (num_bytes > kSlabBytes / 2) {
            auto own = std::make_shared<Memory>(num_bytes);
            return {own, own->data()};
        }
        if (!slab_ || used_ + num_bytes > kSlabBytes) {
            slab_ = std::make_shared<Memory>(kSlabBytes);
            used_ = 0;
        }
        used_ += num_bytes;
        return {slab_, slab_->data() + used_ - num_bytes};
    }

private:
    static constexpr int64_t kSlabBytes = int64_t{64} << 20;
    std::shared_ptr<Memory> slab_;
    int64_t used_ = 0;
};

}  // namespace culet
