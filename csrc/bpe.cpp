#include "bpe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <queue>
#include <stdexcept>
#include <utility>

namespace culet {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581 stands for a space in pieces

std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
}

std::uint64_t hash_bytes(std::string_view s) {
    std::uint64_t h = s.size() * 0x9E3779B97F4A7C15u;
    std::size_t i = 0;
    for (; i + 8 <= s.size(); i += 8) {
        std::uint64_t word;
        std::memcpy(&word, s.data() + i, 8);
        h = mix(h ^ word);
    }
    if (i < s.size()) {
        std::uint64_t word = 0;
        std::memcpy(&word, s.data() + i, s.size() - i);
        h = mix(h ^ word);
    }
    return h;
}

// Slots for `count` entries at a load of at most one half, so that probes stay short.
std::size_t num_slots(std::size_t count) { return std::bit_ceil(2 * count + 2); }

std::string with_space_marks(std::string_view text) {
    std::string out;
    out.reserve(text.size() + text.size() / 2);
    for (const char c : text) {
        if (c == ' ') {
            out += kSpaceMark;
        } else {
            out += c;
        }
    }
    return out;
}

// Bytes of the UTF-8 character at text[at]; 0 if there is no valid one (overlong forms, surrogates
// and values above U+10FFFF are not valid: RFC 3629, section 4).
std::size_t utf8_length(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t i) -> unsigned {
        return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
    };
    const auto is_tail = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
    const unsigned lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return is_tail(1) ? 2 : 0;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (!is_tail(1) || !is_tail(2)) return 0;
        const bool is_overlong = lead == 0xE0 && byte(1) < 0xA0;
        const bool is_surrogate = lead == 0xED && byte(1) >= 0xA0;
        return is_overlong || is_surrogate ? 0 : 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (!is_tail(1) || !is_tail(2) || !is_tail(3)) return 0;
        const bool is_overlong = lead == 0xF0 && byte(1) < 0x90;
        const bool is_too_high = lead == 0xF4 && byte(1) >= 0x90;
        return is_overlong || is_too_high ? 0 : 4;
    }
    return 0;
}

// A key that sorts ascending where scores sort descending.
std::uint32_t descending_key(float score) {
    const auto bits = std::bit_cast<std::uint32_t>(score);
    const std::uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

}  // namespace

PieceIndex::PieceIndex(const StringTable& pieces) : pieces_(pieces) {
    if (pieces.size() > MergeTable::kMaxPieces) {
        throw std::invalid_argument(std::to_string(pieces.size()) + " pieces, at most " +
                                    std::to_string(MergeTable::kMaxPieces) + " are allowed");
    }
    slots_.resize(num_slots(pieces.size()));
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t id = 0; id < pieces.size(); ++id) {
        const std::string_view piece = pieces[id];
        max_piece_bytes_ = std::max(max_piece_bytes_, piece.size());
        const std::uint64_t tag = hash_bytes(piece) & 0xFFFFFFFF00000000u;
        std::size_t slot = (tag >> 32) & mask;
        for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
            const bool same_hash = (slots_[slot] & 0xFFFFFFFF00000000u) == tag;
            if (same_hash && pieces[(slots_[slot] & 0xFFFFFFFFu) - 1] == piece) break;
        }
        if (slots_[slot] == 0) slots_[slot] = tag | (id + 1);
    }
}

std::int32_t PieceIndex::find(std::string_view piece) const {
    if (piece.size() > max_piece_bytes_) return -1;
    return find(piece, hash_bytes(piece));
}

std::uint64_t PieceIndex::hash_and_prefetch(std::string_view piece) const {
    const std::uint64_t hash = hash_bytes(piece);
    __builtin_prefetch(&slots_[(hash >> 32) & (slots_.size() - 1)]);
    return hash;
}

std::int32_t PieceIndex::find(std::string_view piece, std::uint64_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    const std::uint64_t tag = hash & 0xFFFFFFFF00000000u;
    for (std::size_t slot = (tag >> 32) & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
        if ((slots_[slot] & 0xFFFFFFFF00000000u) != tag) continue;
        const auto id = static_cast<std::int32_t>((slots_[slot] & 0xFFFFFFFFu) - 1);
        if (pieces_[static_cast<std::size_t>(id)] == piece) return id;
    }
    return -1;
}

namespace {

constexpr std::uint64_t kNoMerge = ~0ull;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 44 | static_cast<std::uint64_t>(right) << 24;
}

struct ResolvedMerge {
    std::int32_t left, right, joined;
};

// One merge on its way through the index. Its three look-ups miss the cache, so the slots are
// fetched kAhead merges before they are needed; a third of the time for the 514,906 of Gemma 4.
class PendingMerge {
public:
    static constexpr std::size_t kAhead = 16;

    void start(std::string_view merge, const PieceIndex& index) {
        merge_ = merge;
        split_at(merge.find(' ', 1), index);
    }

    // The ids of the three pieces, all -1 if one does not exist. A piece may itself hold a space,
    // so every space is tried as the separator, the first one first.
    ResolvedMerge finish(const PieceIndex& index) {
        while (separator_ != std::string_view::npos) {
            const ResolvedMerge found{index.find(merge_.substr(0, separator_), left_hash_),
                                      index.find(merge_.substr(separator_ + 1), right_hash_),
                                      index.find(joined_, joined_hash_)};
            if (found.left >= 0 && found.right >= 0 && found.joined >= 0) return found;
            split_at(merge_.find(' ', separator_ + 1), index);
        }
        return {-1, -1, -1};
    }

private:
    void split_at(std::size_t separator, const PieceIndex& index) {
        separator_ = separator;
        if (separator == std::string_view::npos) return;
        const std::string_view left = merge_.substr(0, separator);
        const std::string_view right = merge_.substr(separator + 1);
        joined_.assign(left);
        joined_ += right;
        left_hash_ = index.hash_and_prefetch(left);
        right_hash_ = index.hash_and_prefetch(right);
        joined_hash_ = index.hash_and_prefetch(joined_);
    }

    std::string_view merge_;
    std::size_t separator_ = std::string_view::npos;
    std::string joined_;
    std::uint64_t left_hash_ = 0, right_hash_ = 0, joined_hash_ = 0;
};

std::vector<ResolvedMerge> resolve_all(const StringTable& merges, const PieceIndex& index) {
    std::vector<ResolvedMerge> resolved(merges.size());
    std::array<PendingMerge, PendingMerge::kAhead> pending;
    for (std::size_t i = 0; i < merges.size() + pending.size(); ++i) {
        PendingMerge& here = pending[i % pending.size()];
        if (i >= pending.size()) {
            const std::size_t rank = i - pending.size();
            resolved[rank] = here.finish(index);
            if (resolved[rank].joined < 0) {
                throw std::invalid_argument(
                    "merge " + std::to_string(rank) +
                    " does not join two pieces of the vocabulary into a third");
            }
        }
        if (i < merges.size()) here.start(merges[i], index);
    }
    return resolved;
}

}  // namespace

MergeTable::MergeTable(const StringTable& merges, const PieceIndex& index,
                       std::span<const std::uint8_t> may_result) {
    if (merges.size() > kMaxMerges) {
        throw std::invalid_argument(std::to_string(merges.size()) + " merges, at most " +
                                    std::to_string(kMaxMerges) + " are allowed");
    }
    const std::vector<ResolvedMerge> resolved = resolve_all(merges, index);
    slots_.assign(num_slots(merges.size()), kNoMerge);
    results_.resize(merges.size());
    const std::size_t mask = slots_.size() - 1;
    const auto home = [&](std::size_t rank) {
        return (mix(pair_key(resolved[rank].left, resolved[rank].right)) >> 16) & mask;
    };
    for (std::size_t rank = 0; rank < resolved.size(); ++rank) {
        if (rank + PendingMerge::kAhead < resolved.size()) {
            __builtin_prefetch(&slots_[home(rank + PendingMerge::kAhead)], 1);
        }
        const ResolvedMerge& merge = resolved[rank];
        results_[rank] = merge.joined;
        if (!may_result[static_cast<std::size_t>(merge.joined)]) continue;
        const std::uint64_t key = pair_key(merge.left, merge.right);
        std::size_t slot = home(rank);
        while (slots_[slot] != kNoMerge && (slots_[slot] & ~0xFFFFFFull) != key) {
            slot = (slot + 1) & mask;
        }
        if (slots_[slot] == kNoMerge) slots_[slot] = key | rank;
    }
}

MergeTable::Merge MergeTable::find(std::int32_t left, std::int32_t right) const {
    const std::size_t mask = slots_.size() - 1;
    const std::uint64_t key = pair_key(left, right);
    for (std::size_t slot = (mix(key) >> 16) & mask; slots_[slot] != kNoMerge;
         slot = (slot + 1) & mask) {
        if ((slots_[slot] & ~0xFFFFFFull) == key) {
            const auto rank = static_cast<std::uint32_t>(slots_[slot] & 0xFFFFFFu);
            return {rank, results_[rank]};
        }
    }
    return {0, -1};
}

struct Bpe::Symbol {
    std::uint32_t begin;
    std::uint32_t size;  // 0: joined to the symbol on its left
    std::int32_t id;     // -1: not in the vocabulary
    std::uint32_t previous, next;
};

struct Bpe::Candidate {
    std::uint32_t priority;  // smaller merges first; among equals the leftmost
    std::uint32_t left, right;
    std::uint32_t size;  // of both together: differs once either has grown since
    std::int32_t id;

    bool operator<(const Candidate& other) const {  // for a max-heap: true if `other` goes first
        return priority != other.priority ? priority > other.priority : left > other.left;
    }
};

namespace {
constexpr std::uint32_t kNone = ~0u;
}

Bpe::Bpe(const PieceIndex& index, const Marks& marks, bool marks_first)
    : index_(index), may_result_(index.pieces().size(), 1) {
    constexpr char kHex[] = "0123456789ABCDEF";
    for (unsigned byte = 0; byte < 256; ++byte) {
        const char spelled[] = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
        const std::int32_t id = index_.find({spelled, sizeof spelled});
        byte_ids_[byte] = id >= 0 ? id : marks.unknown;
        if (id >= 0) may_result_[static_cast<std::size_t>(id)] = 0;
        if (byte_ids_[byte] < 0) {
            throw std::invalid_argument("neither the piece " + std::string(spelled, 6) +
                                        " nor an unknown piece exists");
        }
    }
    for (const std::int32_t id : marks.inert) may_result_[static_cast<std::size_t>(id)] = 0;
    for (const std::int32_t id : marks.control) {
        may_result_[static_cast<std::size_t>(id)] = 0;
        add_pattern(id, true, marks_first);
    }
    for (const std::int32_t id : marks.user_defined) add_pattern(id, false, marks_first);
    for (auto& sizes : added_sizes_) {
        std::sort(sizes.begin(), sizes.end(), std::greater<>());
        sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    }
    for (unsigned c = 0; c < 128; ++c) {
        const char spelled = static_cast<char>(c);
        ascii_ids_[c] = find_in_text({&spelled, 1});
    }
}

Bpe::Bpe(const PieceIndex& index, const StringTable& merges, const Marks& marks)
    : Bpe(index, marks, false) {
    merges_.emplace(merges, index_, may_result_);
}

Bpe::Bpe(const PieceIndex& index, std::span<const float> scores, const Marks& marks)
    : Bpe(index, marks, true) {
    if (scores.size() != index.pieces().size()) {
        throw std::invalid_argument(std::to_string(scores.size()) + " scores for " +
                                    std::to_string(index.pieces().size()) + " pieces");
    }
    score_priority_.reserve(scores.size());
    for (const float score : scores) {
        if (std::isnan(score)) throw std::invalid_argument("a score is not a number");
        score_priority_.push_back(descending_key(score));
    }
}

void Bpe::add_pattern(std::int32_t id, bool is_control, bool marks_first) {
    const std::string_view piece = index_.pieces()[static_cast<std::size_t>(id)];
    std::string spelled = marks_first ? with_space_marks(piece) : std::string(piece);
    if (spelled.empty()) return;
    added_sizes_[static_cast<unsigned char>(spelled[0])].push_back(spelled.size());
    added_.try_emplace(std::move(spelled), Added{id, is_control});
}

Bpe::AddedMatch Bpe::match_added(std::string_view text, std::size_t at, bool parse_control,
                                 std::span<const std::uint8_t> is_guarded) const {
    for (const std::size_t size : added_sizes_[static_cast<unsigned char>(text[at])]) {
        if (size > text.size() - at) continue;
        const auto found = added_.find(text.substr(at, size));
        if (found == added_.end()) continue;
        if (found->second.is_control) {
            if (!parse_control) continue;
            const auto here = is_guarded.empty() ? is_guarded : is_guarded.subspan(at, size);
            if (std::find(here.begin(), here.end(), 1) != here.end()) continue;
        }
        return {found->second.id, size};
    }
    return {};
}

// The id of a piece that plain text may become, or -1.
std::int32_t Bpe::find_in_text(std::string_view piece) const {
    const std::int32_t id = index_.find(piece);
    return id >= 0 && may_result_[static_cast<std::size_t>(id)] ? id : -1;
}

std::vector<Bpe::Symbol> Bpe::split_characters(std::string_view text) const {
    std::vector<Symbol> symbols;
    symbols.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = utf8_length(text, at);
        Symbol s{};
        s.begin = static_cast<std::uint32_t>(at);
        s.size = static_cast<std::uint32_t>(std::max<std::size_t>(length, 1));
        if (length == 1) {
            s.id = ascii_ids_[static_cast<unsigned char>(text[at])];
        } else {
            s.id = length == 0 ? -1 : find_in_text(text.substr(at, length));
        }
        s.previous = static_cast<std::uint32_t>(symbols.size()) - 1;  // kNone for the first
        s.next = static_cast<std::uint32_t>(symbols.size()) + 1;
        symbols.push_back(s);
        at += s.size;
    }
    if (!symbols.empty()) symbols.back().next = kNone;
    return symbols;
}

// Fills `out` with the merge of `left` and its right neighbour; false if they don't merge.
bool Bpe::propose(std::string_view text, const std::vector<Symbol>& symbols, std::uint32_t left,
                  Candidate& out) const {
    const Symbol& a = symbols[left];
    if (a.next == kNone) return false;
    const Symbol& b = symbols[a.next];
    out.left = left;
    out.right = a.next;
    out.size = a.size + b.size;
    if (score_priority_.empty()) {
        if (a.id < 0 || b.id < 0) return false;
        const MergeTable::Merge merge = merges_->find(a.id, b.id);
        out.priority = merge.rank;
        out.id = merge.id;
        return merge.id >= 0;
    }
    out.id = find_in_text(text.substr(a.begin, out.size));
    if (out.id < 0) return false;
    out.priority = score_priority_[static_cast<std::size_t>(out.id)];
    return true;
}

void Bpe::merge_all(std::string_view text, std::vector<Symbol>& symbols) const {
    std::vector<Candidate> initial;
    initial.reserve(symbols.size());
    Candidate candidate{};
    for (std::uint32_t i = 0; i + 1 < symbols.size(); ++i) {
        if (propose(text, symbols, i, candidate)) initial.push_back(candidate);
    }
    std::priority_queue<Candidate> queue({}, std::move(initial));
    while (!queue.empty()) {
        const Candidate top = queue.top();
        queue.pop();
        Symbol& a = symbols[top.left];
        Symbol& b = symbols[top.right];
        if (a.size == 0 || b.size == 0 || a.size + b.size != top.size) continue;
        a.size = top.size;
        a.id = top.id;
        a.next = b.next;
        b.size = 0;
        if (a.next != kNone) symbols[a.next].previous = top.left;
        if (a.previous != kNone && propose(text, symbols, a.previous, candidate)) {
            queue.push(candidate);
        }
        if (propose(text, symbols, top.left, candidate)) queue.push(candidate);
    }
}

void Bpe::encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const {
    std::vector<Symbol> symbols = split_characters(text);
    merge_all(text, symbols);
    for (std::uint32_t i = 0; i < symbols.size(); i = symbols[i].next) {
        const Symbol& s = symbols[i];
        if (s.id >= 0) {
            ids.push_back(s.id);
            continue;
        }
        for (std::uint32_t k = 0; k < s.size; ++k) {
            ids.push_back(byte_ids_[static_cast<unsigned char>(text[s.begin + k])]);
        }
    }
}

std::vector<std::int32_t> Bpe::encode(std::string_view text, bool parse_control,
                                      std::span<const ByteRange> guarded) const {
    if (text.size() > kMaxTextBytes) {
        throw std::length_error("a text of " + std::to_string(text.size()) + " bytes, at most " +
                                std::to_string(kMaxTextBytes));
    }
    // Where pairs merge by rank, added pieces are sought in the text as it is (tokenizers); where
    // they merge by score, in the text with its spaces marked (SentencePiece).
    const bool marks_first = !score_priority_.empty();
    const std::string marked = marks_first ? with_space_marks(text) : std::string();
    const std::string_view view = marks_first ? marked : text;
    std::vector<std::uint8_t> is_guarded;  // by byte of `view`; empty: none is
    if (!guarded.empty()) {
        is_guarded.reserve(view.size());
        std::size_t range = 0;
        for (std::size_t i = 0; i < text.size(); ++i) {
            while (range < guarded.size() && guarded[range].end <= i) ++range;
            const bool inside = range < guarded.size() && guarded[range].begin <= i;
            const std::size_t width = marks_first && text[i] == ' ' ? kSpaceMark.size() : 1;
            is_guarded.insert(is_guarded.end(), width, inside);
        }
    }
    std::vector<std::int32_t> ids;
    ids.reserve(text.size() / 3);
    const auto encode_gap = [&](std::size_t begin, std::size_t end) {
        const std::string_view gap = view.substr(begin, end - begin);
        if (marks_first) {
            encode_plain(gap, ids);
        } else {
            encode_plain(with_space_marks(gap), ids);
        }
    };
    std::size_t plain_from = 0;
    for (std::size_t at = 0; at < view.size();) {
        const AddedMatch match = match_added(view, at, parse_control, is_guarded);
        if (match.id < 0) {
            ++at;
            continue;
        }
        encode_gap(plain_from, at);
        ids.push_back(match.id);
        at += match.size;
        plain_from = at;
    }
    encode_gap(plain_from, view.size());
    return ids;
}

}  // namespace culet
