#include "string_table.h"

#include <cstring>
#include <limits>
#include <stdexcept>

namespace culet {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxTableBytes = std::numeric_limits<std::uint32_t>::max() - kLengthBytes;

// Independent of the machine's byte order; compilers turn it into one load on little-endian ones.
std::uint64_t read_u64_le(const std::uint8_t* p) {
    std::uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | p[i];
    return value;
}

[[noreturn]] void fail(std::uint64_t index, const std::string& what) {
    throw std::invalid_argument("string " + std::to_string(index) + " " + what);
}

}  // namespace

StringTable StringTable::scan(std::span<const std::uint8_t> file, std::uint64_t offset,
                              std::uint64_t count, std::shared_ptr<const void> owner) {
    if (offset > file.size()) {
        throw std::invalid_argument("strings at offset " + std::to_string(offset) +
                                    " begin after the end of the file");
    }
    const std::uint64_t available = file.size() - offset;
    if (count > available / kLengthBytes) {
        throw std::invalid_argument(std::to_string(count) + " strings can't fit in the " +
                                    std::to_string(available) + " bytes that follow");
    }
    StringTable table;
    table.base_ = reinterpret_cast<const char*>(file.data()) + offset;
    table.gap_ = kLengthBytes;
    table.owner_ = std::move(owner);
    table.starts_.reserve(count + 1);
    table.starts_.push_back(kLengthBytes);
    std::uint64_t position = 0;  // of the next length field, relative to base_
    for (std::uint64_t i = 0; i < count; ++i) {
        if (available - position < kLengthBytes) fail(i, "has its length past the end of the file");
        const std::uint64_t length = read_u64_le(file.data() + offset + position);
        position += kLengthBytes;
        if (length > available - position) {
            fail(i, "has a length of " + std::to_string(length) + " bytes where " +
                        std::to_string(available - position) + " follow");
        }
        position += length;
        if (position > kMaxTableBytes) fail(i, "ends more than 4 GiB after the first");
        table.starts_.push_back(static_cast<std::uint32_t>(position + kLengthBytes));
    }
    table.end_offset_ = offset + position;
    return table;
}

StringTable StringTable::copy_of(std::span<const std::string_view> strings) {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < strings.size(); ++i) {
        total += strings[i].size();
        if (total > kMaxTableBytes) fail(i, "ends more than 4 GiB after the first");
    }
    std::shared_ptr<char[]> block(new char[total]);
    StringTable table;
    table.base_ = block.get();
    table.starts_.reserve(strings.size() + 1);
    table.starts_.push_back(0);
    std::uint32_t position = 0;
    for (const std::string_view s : strings) {
        if (!s.empty()) std::memcpy(block.get() + position, s.data(), s.size());
        position += static_cast<std::uint32_t>(s.size());
        table.starts_.push_back(position);
    }
    table.owner_ = std::move(block);
    return table;
}

}  // namespace culet
