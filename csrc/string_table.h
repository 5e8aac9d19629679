// A table of byte strings that stay where they lie (usually in a mapped GGUF file): 4 bytes of
// index for each string, no copies. Knows nothing of tokens, vocabularies or Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace culet {

class StringTable {
public:
    // Strings as GGUF stores an array of them: `count` times (u64 little-endian length, bytes),
    // beginning at file[offset]. `owner` keeps the bytes alive. Throws std::invalid_argument,
    // naming the string, if one reaches past the end of `file` or the array is longer than 4 GiB.
    // Never allocates more than half of what `file` holds after `offset`.
    static StringTable scan(std::span<const std::uint8_t> file, std::uint64_t offset,
                            std::uint64_t count, std::shared_ptr<const void> owner);

    // Strings that the table itself holds, copied into one block.
    static StringTable copy_of(std::span<const std::string_view> strings);

    std::size_t size() const { return starts_.size() - 1; }

    // The bytes of string `index`, which must be below size(); valid as long as the table lives.
    std::string_view operator[](std::size_t index) const {
        // Lengths come from our own index, never again from the file, which may have changed since.
        const std::uint32_t start = starts_[index];
        return {base_ + start, starts_[index + 1] - start - gap_};
    }

    // Offset in the scanned file of the first byte after the array; 0 for copied strings.
    std::uint64_t end_offset() const { return end_offset_; }

private:
    StringTable() = default;

    const char* base_ = nullptr;
    std::uint32_t gap_ = 0;  // bytes between two strings: a length field, or nothing
    std::vector<std::uint32_t>
        starts_;  // size() + 1; the last is where one more string would start
    std::uint64_t end_offset_ = 0;
    std::shared_ptr<const void> owner_;
};

}  // namespace culet
