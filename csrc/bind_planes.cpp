// Python's view of tiled planes as bytes: what a packed file holds. No kernels.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>

#include "bindings.h"
#include "ggml_pack.h"
#include "recorder.h"

namespace culet {
namespace {

using OutBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check(bool holds, const char* message) {
    if (!holds) refuse(message);
}

// Threads that re-encode between stored rows and planes.
class Packer {
public:
    explicit Packer(int num_threads)
        : pool_(num_threads > 0 ? num_threads : default_num_threads()) {}

    std::string layout(int ggml_id, int64_t num_rows, int64_t num_cols, nb::handle data) {
        const uint8_t* rows = stored_rows(ggml_id, num_rows, num_cols, data);
        LayoutId id = LayoutId::f32;
        bool exact = false;
        run([&] { exact = choose_layout(pool_, ggml_id, rows, num_rows * num_cols, &id); });
        check(exact, "F64 values that float32 can't hold");
        return kLayoutNames[static_cast<int>(id)];
    }

    // `out` must hold zeros.
    void encode(const std::string& layout, int ggml_id, int64_t num_rows, int64_t num_cols,
                nb::handle data, OutBytes out) {
        const uint8_t* rows = stored_rows(ggml_id, num_rows, num_cols, data);
        Planes planes;
        described_tiles(layout, ggml_id, num_rows, num_cols, nb::cast(out), &planes);
        run([&] { encode_tiles(pool_, planes, rows, out.data()); });
    }

    // False where the type has several encodings of the same values; `out` is then undefined.
    bool restore(const std::string& layout, int ggml_id, int64_t num_cols, nb::handle tiles,
                 OutRows out) {
        const int64_t num_rows = static_cast<int64_t>(out.shape(0));
        stored_rows(ggml_id, num_rows, num_cols, nb::cast(out));
        const int64_t row_bytes = static_cast<int64_t>(out.shape(1));
        Planes planes;
        planes.tiles = described_tiles(layout, ggml_id, num_rows, num_cols, tiles, &planes);
        std::atomic<bool> restored{true};
        each_tile(planes, [&](int64_t row) {
            if (!restore_planes_row(planes, row, out.data() + row * row_bytes)) restored = false;
        });
        return restored;
    }

    void decode(const std::string& layout, int ggml_id, nb::handle tiles, OutFloats out) {
        const int64_t num_cols = static_cast<int64_t>(out.shape(1));
        Planes planes;
        planes.tiles = described_tiles(layout, ggml_id, static_cast<int64_t>(out.shape(0)),
                                       num_cols, tiles, &planes);
        each_tile(planes, [&](int64_t row) {
            decode_planes_row(planes, row, out.data() + row * num_cols);
        });
    }

private:
    template <class Work>
    void run(Work&& work) {
        const nb::gil_scoped_release release;
        pool_.begin();
        work();
        pool_.end();
    }

    template <class RowWork>
    void each_tile(const Planes& planes, RowWork&& work) {
        run([&] {
            pool_.run(static_cast<int>(planes.num_tiles), [&](int tile, int) {
                const int64_t first = int64_t{tile} * kTileRows;
                const int64_t end = std::min(first + kTileRows, planes.num_rows);
                for (int64_t row = first; row < end; row++) work(row);
            });
        });
    }

    Pool pool_;
};

std::string layout_name(int ggml_id) {
    const ggml::PlaneForm* form = ggml::plane_form(ggml_id);
    check(form, "the type has no planes");
    return kLayoutNames[static_cast<int>(stored_layout(*form))];
}

int64_t planes_bytes(const std::string& layout, int ggml_id, int64_t num_rows, int64_t num_cols) {
    for (int id = 0; id < kNumLayouts; id++) {
        if (layout != kLayoutNames[id]) continue;
        const ggml::PlaneForm* form = ggml::plane_form(ggml_id);
        Planes planes;
        const bool sound =
            form && num_rows > 0 && num_cols > 0 && ggml::row_bytes(*form, num_cols) > 0 &&
            num_rows < int64_t{1} << 31 && num_cols < int64_t{1} << 31 &&
            describe_planes(static_cast<LayoutId>(id), ggml_id, num_rows, num_cols, 1.0f, &planes);
        return sound ? planes.num_bytes() : -1;
    }
    return -1;
}

}  // namespace

void bind_planes(nb::module_& m) {
    nb::class_<Packer>(m, "Packer")
        .def(nb::init<int>(), nb::arg("num_threads"))
        .def("layout", &Packer::layout, nb::arg("ggml_id"), nb::arg("num_rows"),
             nb::arg("num_cols"), nb::arg("data"))
        .def("encode", &Packer::encode, nb::arg("layout"), nb::arg("ggml_id"), nb::arg("num_rows"),
             nb::arg("num_cols"), nb::arg("data"), nb::arg("out").noconvert())
        .def("restore", &Packer::restore, nb::arg("layout"), nb::arg("ggml_id"),
             nb::arg("num_cols"), nb::arg("tiles"), nb::arg("out").noconvert())
        .def("decode", &Packer::decode, nb::arg("layout"), nb::arg("ggml_id"), nb::arg("tiles"),
             nb::arg("out").noconvert());
    // Bytes of a matrix in that layout; -1 if there is no such layout or it doesn't hold the type.
    m.def("planes_bytes", &planes_bytes, nb::arg("layout"), nb::arg("ggml_id"), nb::arg("num_rows"),
          nb::arg("num_cols"));
    m.def("stored_layout", &layout_name, nb::arg("ggml_id"));
    m.attr("PLANES_VERSION") = kPlanesVersion;
}

}  // namespace culet
