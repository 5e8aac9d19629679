// One bind function per part of the native module; bindings.cpp calls them all. Python headers are
// included only by files named bind_*.cpp and by bindings.cpp; kernels know plain pointers.
#pragma once

#include <nanobind/nanobind.h>

namespace culet {

namespace nb = nanobind;

void bind_ggml_blocks(nb::module_& m);
void bind_string_table(nb::module_& m);
void bind_bpe(nb::module_& m);
void bind_cpu(nb::module_& m);
void bind_planes(nb::module_& m);

}  // namespace culet
