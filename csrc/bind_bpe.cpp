// Python's view of Bpe: texts as bytes in, lists of ids out; the GIL is released while encoding.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bindings.h"
#include "bpe.h"

namespace culet {
namespace {

using Ids = std::vector<std::int32_t>;
using Scores = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Bpe::Marks checked_marks(const PieceIndex& index, Ids control, Ids user_defined, Ids inert,
                         std::int32_t unknown) {
    const auto num_pieces = static_cast<std::int64_t>(index.pieces().size());
    for (const Ids* ids : {&control, &user_defined, &inert}) {
        for (const std::int32_t id : *ids) {
            if (id < 0 || id >= num_pieces) throw nb::value_error("a marked id is not a piece");
        }
    }
    if (unknown >= num_pieces) throw nb::value_error("the unknown id is not a piece");
    return {std::move(control), std::move(user_defined), std::move(inert), unknown};
}

Bpe* ranked(const PieceIndex& index, const StringTable& merges, Ids control, Ids user_defined,
            Ids inert, std::int32_t unknown) {
    return new Bpe(index, merges,
                   checked_marks(index, std::move(control), std::move(user_defined),
                                 std::move(inert), unknown));
}

Bpe* scored(const PieceIndex& index, const Scores& scores, Ids control, Ids user_defined, Ids inert,
            std::int32_t unknown) {
    return new Bpe(index, std::span(scores.data(), scores.size()),
                   checked_marks(index, std::move(control), std::move(user_defined),
                                 std::move(inert), unknown));
}

Ids encode(const Bpe& bpe, const nb::bytes& text, bool parse_control,
           const std::vector<std::pair<std::size_t, std::size_t>>& guarded) {
    std::vector<ByteRange> ranges;
    ranges.reserve(guarded.size());
    for (const auto& [begin, end] : guarded) ranges.push_back({begin, end});
    const std::string_view view(text.c_str(), text.size());  // bytes objects never change
    const nb::gil_scoped_release release;
    return bpe.encode(view, parse_control, ranges);
}

}  // namespace

void bind_bpe(nb::module_& m) {
    nb::class_<PieceIndex>(m, "PieceIndex", "Finds pieces of a StringTable by their bytes.")
        .def(nb::init<const StringTable&>(), nb::arg("pieces"), nb::keep_alive<1, 2>())
        .def(
            "find",
            [](const PieceIndex& index, const nb::bytes& piece) {
                return index.find({piece.c_str(), piece.size()});
            },
            nb::arg("piece"), "The id of a piece, -1 if there is none.");
    nb::class_<Bpe>(m, "Bpe", "Byte-pair encoding over the tables of a file; see csrc/bpe.h.")
        .def_static("ranked", &ranked, nb::arg("index"), nb::arg("merges"), nb::arg("control"),
                    nb::arg("user_defined"), nb::arg("inert"), nb::arg("unknown"),
                    nb::keep_alive<0, 1>(),
                    "Pairs merge by rank: merges[i] is b'left right', lower i first. ValueError if "
                    "a merge names a piece that does not exist.")
        .def_static("scored", &scored, nb::arg("index"), nb::arg("scores"), nb::arg("control"),
                    nb::arg("user_defined"), nb::arg("inert"), nb::arg("unknown"),
                    nb::keep_alive<0, 1>(),
                    "Pairs merge by the score (f32 [pieces]) of the joined piece, higher first.")
        .def("encode", &encode, nb::arg("text"), nb::arg("parse_control"), nb::arg("guarded"),
             "The ids of `text`. Control pieces are matched if `parse_control`, but not where they "
             "touch a byte range (begin, end) of `guarded`, which must be ascending.");
}

}  // namespace culet
