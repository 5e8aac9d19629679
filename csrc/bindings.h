// One bind function per part of the native module; bindings.cpp calls them all. Python headers are
// included only by files named bind*.cpp and by the recorder; kernels know plain pointers.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>

namespace culet {

namespace nb = nanobind;

// nanobind turns std::invalid_argument into ValueError.
[[noreturn]] inline void refuse(const std::string& message) {
    throw std::invalid_argument(message);
}

void bind_ggml_blocks(nb::module_& m);
void bind_string_table(nb::module_& m);
void bind_bpe(nb::module_& m);
void bind_cpu(nb::module_& m);
void bind_planes(nb::module_& m);
void bind_lost_pages(nb::module_& m);

}  // namespace culet
