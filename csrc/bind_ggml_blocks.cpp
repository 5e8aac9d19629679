// Python's view of the ggml block codecs: gathers of rows, plane content, and the tables.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings.h"
#include "ggml_blocks.h"
#include "iq_grids.h"

namespace culet {
namespace {

using ggml::PlaneForm;

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = Matrix<const uint8_t>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const PlaneForm& known_form(int ggml_id) {
    const PlaneForm* form = ggml::plane_form(ggml_id);
    if (!form) refuse("type id " + std::to_string(ggml_id) + " has no codec");
    return *form;
}

void check_row_bytes(const PlaneForm& form, int64_t found_bytes, int64_t num_values) {
    const int64_t bytes = ggml::row_bytes(form, num_values);
    if (bytes != found_bytes) {
        refuse("rows of " + std::to_string(found_bytes) + " bytes can't hold " +
               std::to_string(num_values) + " values of " + form.name);
    }
}

void gather_rows(int ggml_id, const Rows& data, const Ids& ids, const Matrix<float>& out,
                 float scale) {
    const PlaneForm& form = known_form(ggml_id);
    const auto num_rows = static_cast<int64_t>(data.shape(0));
    const auto row_bytes = static_cast<int64_t>(data.shape(1));
    const auto num_values = static_cast<int64_t>(out.shape(1));
    check_row_bytes(form, row_bytes, num_values);
    if (out.shape(0) != ids.shape(0)) {
        refuse(std::to_string(ids.shape(0)) + " ids need as many rows of out, not " +
               std::to_string(out.shape(0)));
    }
    for (size_t i = 0; i < ids.shape(0); ++i) {
        if (ids.data()[i] < 0 || ids.data()[i] >= num_rows) {
            refuse("row " + std::to_string(ids.data()[i]) + " is outside of 0 to " +
                   std::to_string(num_rows - 1));
        }
    }
    bool exact = true;
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < ids.shape(0) && exact; ++i) {
            float* row = out.data() + static_cast<int64_t>(i) * num_values;
            exact =
                ggml::decode_row(ggml_id, data.data() + ids.data()[i] * row_bytes, row, num_values);
            if (scale != 1.0f) {
                for (int64_t k = 0; k < num_values; ++k) row[k] *= scale;
            }
        }
    }
    if (!exact) refuse("an F64 row holds a value that float32 can't hold exactly");
}

// The rows of a part with `group` values an entry, or nullptr where the form lacks the part.
template <typename T>
T* part(const std::optional<Matrix<T>>& array, bool needed, const Rows& data, int64_t num_values,
        int group, const char* name) {
    if (!needed) return nullptr;
    if (!array || array->shape(0) != data.shape(0) ||
        static_cast<int64_t>(array->shape(1)) != num_values / group) {
        refuse(std::string(name) + " must be [rows, values / " + std::to_string(group) + "]");
    }
    return array->data();
}

void canonical_rows(int ggml_id, const Rows& data, const Matrix<uint8_t>& codes,
                    const std::optional<Matrix<uint16_t>>& f16_scales,
                    const std::optional<Matrix<uint16_t>>& f16_mins,
                    const std::optional<Matrix<int8_t>>& sub_scales,
                    const std::optional<Matrix<uint8_t>>& sub_mins) {
    const PlaneForm& form = known_form(ggml_id);
    if (form.code_bits == 0) refuse(std::string(form.name) + " has no codes");
    const auto num_rows = static_cast<int64_t>(data.shape(0));
    const auto row_bytes = static_cast<int64_t>(data.shape(1));
    const auto num_values = static_cast<int64_t>(codes.shape(1));
    check_row_bytes(form, row_bytes, num_values);
    if (codes.shape(0) != data.shape(0)) refuse("codes must have the rows of data");
    const bool has_min = form.min != ggml::MinForm::none;
    ggml::PlaneRow row{
        codes.data(),
        part(f16_scales, form.f16_group > 0, data, num_values, form.f16_group, "f16_scales"),
        part(f16_mins, has_min, data, num_values, form.f16_group, "f16_mins"),
        part(sub_scales, form.sub_group > 0, data, num_values, form.sub_group, "sub_scales"),
        part(sub_mins, form.min == ggml::MinForm::subtract, data, num_values, form.sub_group,
             "sub_mins")};
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < num_rows; ++i) {
        ggml::canonical_row(ggml_id, data.data() + i * row_bytes, num_values, row);
        ggml::advance(form, num_values, row);
    }
}

nb::list plane_forms() {
    static constexpr const char* kCodes[] = {"linear", "codebook", "f32", "f16", "bf16", "f64"};
    static constexpr const char* kScales[] = {"none", "f16", "f16_times_int", "e8m0", "ue4m3"};
    static constexpr const char* kMins[] = {"none", "add", "subtract"};
    nb::list rows;
    int count = 0;
    const PlaneForm* forms = ggml::plane_forms(&count);
    for (const PlaneForm* f = forms; f != forms + count; ++f) {
        nb::list codebook;
        for (int i = 0; f->codebook && i < 1 << f->code_bits; ++i) codebook.append(f->codebook[i]);
        rows.append(nb::make_tuple(
            f->ggml_id, f->name, f->block_values, f->block_bytes, kCodes[static_cast<int>(f->code)],
            f->code_bits, f->offset, nb::tuple(codebook), kScales[static_cast<int>(f->scale)],
            f->f16_group, f->sub_group, kMins[static_cast<int>(f->min)], f->factor_log2));
    }
    return rows;
}

nb::bytes iq_grid(const std::string& name) {
    if (name == "IQ2_XXS") return nb::bytes(ggml::kIq2XxsGrid, sizeof ggml::kIq2XxsGrid);
    if (name == "IQ2_XS") return nb::bytes(ggml::kIq2XsGrid, sizeof ggml::kIq2XsGrid);
    if (name == "IQ2_S") return nb::bytes(ggml::kIq2SGrid, sizeof ggml::kIq2SGrid);
    if (name == "IQ1") return nb::bytes(ggml::kIq1Grid, sizeof ggml::kIq1Grid);
    if (name == "IQ3_XXS") return nb::bytes(ggml::kIq3XxsGrid, sizeof ggml::kIq3XxsGrid);
    if (name == "IQ3_S") return nb::bytes(ggml::kIq3SGrid, sizeof ggml::kIq3SGrid);
    refuse("no vector codebook is called " + name);
}

}  // namespace

void bind_ggml_blocks(nb::module_& m) {
    m.def("gather_rows", &gather_rows, nb::arg("ggml_id"), nb::arg("data").noconvert(),
          nb::arg("ids").noconvert(), nb::arg("out").noconvert(), nb::arg("scale") = 1.0f,
          "out[i] = scale * the values of row ids[i] of data (uint8 [rows, row_bytes]); ValueError "
          "for an id outside of data, an unknown type or shapes that don't fit.");
    m.def("canonical_rows", &canonical_rows, nb::arg("ggml_id"), nb::arg("data").noconvert(),
          nb::arg("codes").noconvert(), nb::arg("f16_scales").noconvert().none(),
          nb::arg("f16_mins").noconvert().none(), nb::arg("sub_scales").noconvert().none(),
          nb::arg("sub_mins").noconvert().none(),
          "The plane content of all rows of data, written to arrays of the shapes that the type's "
          "form asks for; None for parts that it lacks.");
    m.def("plane_forms", &plane_forms, "The rows of the table of plane forms, as tuples.");
    m.def("iq_grid", &iq_grid, nb::arg("name"),
          "The packed vector codebook of an IQ type, as little-endian uint16.");
}

}  // namespace culet
