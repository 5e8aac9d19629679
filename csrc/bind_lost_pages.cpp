// Python's view of lost_pages.h.
#include "bindings.h"
#include "lost_pages.h"

namespace culet {

void bind_lost_pages(nb::module_& m) {
    m.def("explain_lost_pages", &explain_lost_pages, nb::arg("exit_code"),
          "From now on, a mapped file that was cut while in use ends the process with one line.");
}

}  // namespace culet
