// Python's view of StringTable: a read-only sequence of bytes objects.
#include <nanobind/ndarray.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "string_table.h"

namespace culet {
namespace {

using FileBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

StringTable scan(FileBytes file, std::uint64_t offset, std::uint64_t count) {
    const std::span<const std::uint8_t> bytes(file.data(), file.size());
    auto owner = std::make_shared<FileBytes>(std::move(file));
    return StringTable::scan(bytes, offset, count, std::move(owner));
}

StringTable copy_of(const nb::list& strings) {
    std::vector<std::string_view> views;
    views.reserve(strings.size());
    for (const nb::handle item : strings) {
        if (!PyBytes_CheckExact(item.ptr())) {
            throw nb::type_error("StringTable.from_list takes a list of bytes objects");
        }
        // Not the macros: they aren't of the stable ABI, for which wheels of Python 3.12 are built.
        views.emplace_back(PyBytes_AsString(item.ptr()),
                           static_cast<std::size_t>(PyBytes_Size(item.ptr())));
    }
    return StringTable::copy_of(views);
}

nb::bytes item(const StringTable& table, Py_ssize_t index) {
    const auto size = static_cast<Py_ssize_t>(table.size());
    if (index < 0) index += size;
    if (index < 0 || index >= size) throw nb::index_error("StringTable index out of range");
    const std::string_view s = table[static_cast<std::size_t>(index)];
    return nb::bytes(s.data(), s.size());
}

}  // namespace

void bind_string_table(nb::module_& m) {
    nb::class_<StringTable>(m, "StringTable", "A read-only sequence of byte strings.")
        .def_static("scan", &scan, nb::arg("file"), nb::arg("offset"), nb::arg("count"),
                    "The strings of a GGUF array of `count` strings at file[offset:], not copied; "
                    "ValueError if they don't fit. `file`: uint8 [n], kept alive by the table.")
        .def_static("from_list", &copy_of, nb::arg("strings"), "Copies a list of bytes objects.")
        .def("__len__", &StringTable::size)
        .def("__getitem__", &item, nb::arg("index"))
        .def("__iter__", [](nb::handle self) { return nb::steal(PySeqIter_New(self.ptr())); })
        .def_prop_ro("end_offset", &StringTable::end_offset,
                     "Offset in the scanned file of the first byte after the array.");
}

}  // namespace culet
