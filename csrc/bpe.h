// Byte-pair encoding over the string tables of a model file, in the two forms that Gemma has: pairs
// merged by rank (Gemma 4) or by the score of the joined piece (Gemma 3, SentencePiece's BPE).
// Pieces stay where they lie; only hash tables are made. Knows nothing of files, chat or Python.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "string_table.h"

namespace culet {

// Open-addressing hash from piece to id; 8 bytes a slot, at most half full. The pieces themselves
// stay in the table, which must outlive the index.
class PieceIndex {
public:
    explicit PieceIndex(const StringTable& pieces);

    // The id of `piece`, the first one if it occurs twice; -1 if it does not occur.
    std::int32_t find(std::string_view piece) const;

    // The same in two steps, for many look-ups at once: the hash, whose slot is being fetched
    // meanwhile, and the search.
    std::uint64_t hash_and_prefetch(std::string_view piece) const;
    std::int32_t find(std::string_view piece, std::uint64_t hash) const;

    const StringTable& pieces() const { return pieces_; }

private:
    const StringTable& pieces_;
    std::vector<std::uint64_t> slots_;  // hash in the upper 32 bits, id + 1 in the lower; 0 = empty
    std::size_t max_piece_bytes_ = 0;
};

// Open-addressing hash from a pair of ids to the rank of their merge. One slot is a single word
// (20 + 20 bits of ids, 24 of rank), so a look-up touches one cache line: 8 MiB for the 514,906
// merges of Gemma 4.
class MergeTable {
public:
    struct Merge {
        std::uint32_t rank;
        std::int32_t id;  // of the joined piece; -1: these two don't merge
    };

    static constexpr std::size_t kMaxPieces = (1u << 20) - 1;
    static constexpr std::size_t kMaxMerges = 1u << 24;

    // `merges` holds "left right", the first to be applied first. Throws std::invalid_argument,
    // naming the merge, if one of its three pieces is not in `index`. Merges into a piece that
    // `may_result` has as 0 are left out.
    MergeTable(const StringTable& merges, const PieceIndex& index,
               std::span<const std::uint8_t> may_result);

    Merge find(std::int32_t left, std::int32_t right) const;

private:
    std::vector<std::uint64_t> slots_;
    std::vector<std::int32_t> results_;  // id of the joined piece, by rank
};

// Bytes begin <= i < end of a text.
struct ByteRange {
    std::size_t begin;
    std::size_t end;
};

class Bpe {
public:
    // What the file says beside its tables. Ids must be below the number of pieces.
    struct Marks {
        std::vector<std::int32_t> control;       // never come out of text unless asked for
        std::vector<std::int32_t> user_defined;  // taken whole wherever they are spelled
        std::vector<std::int32_t> inert;         // unused and unknown pieces: no merge makes them
        std::int32_t unknown = -1;               // for bytes without a byte piece; -1: none
    };

    // Both keep a reference to `index`, which must outlive the object; merges and scores are read
    // once. Throws std::invalid_argument if the tables contradict each other.
    Bpe(const PieceIndex& index, const StringTable& merges, const Marks& marks);
    Bpe(const PieceIndex& index, std::span<const float> scores, const Marks& marks);

    // The ids of `text`, which need not be valid UTF-8: what is not becomes byte pieces. Control
    // pieces are matched only if `parse_control`, and not where they touch one of `guarded`
    // (ascending, apart). Throws std::length_error above kMaxTextBytes.
    std::vector<std::int32_t> encode(std::string_view text, bool parse_control,
                                     std::span<const ByteRange> guarded) const;

    static constexpr std::size_t kMaxTextBytes = 1u << 28;

private:
    struct Symbol;
    struct Candidate;
    struct AddedMatch {
        std::int32_t id = -1;
        std::size_t size = 0;
    };

    Bpe(const PieceIndex& index, const Marks& marks, bool marks_first);
    void add_pattern(std::int32_t id, bool is_control, bool marks_first);
    AddedMatch match_added(std::string_view text, std::size_t at, bool parse_control,
                           std::span<const std::uint8_t> is_guarded) const;
    std::int32_t find_in_text(std::string_view piece) const;
    std::vector<Symbol> split_characters(std::string_view text) const;
    bool propose(std::string_view text, const std::vector<Symbol>& symbols, std::uint32_t left,
                 Candidate& out) const;
    void merge_all(std::string_view text, std::vector<Symbol>& symbols) const;
    void encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const;

    const PieceIndex& index_;
    std::vector<std::uint8_t> may_result_;    // by id: 1 if plain text can become this piece
    std::array<std::int32_t, 256> byte_ids_;  // of <0x00>..<0xFF>; the unknown id where missing
    std::array<std::int32_t, 128> ascii_ids_;

    // Added pieces by their spelling in the text that is searched for them; and for each first byte
    // the lengths that occur, longest first.
    struct Added {
        std::int32_t id;
        bool is_control;
    };
    struct HashView {
        using is_transparent = void;  // look-ups by view make no string
        std::size_t operator()(std::string_view s) const {
            return std::hash<std::string_view>{}(s);
        }
    };
    std::unordered_map<std::string, Added, HashView, std::equal_to<>> added_;
    std::array<std::vector<std::size_t>, 256> added_sizes_;

    std::optional<MergeTable> merges_;           // none: then by score
    std::vector<std::uint32_t> score_priority_;  // by id, smaller first; empty: then by rank
};

}  // namespace culet
