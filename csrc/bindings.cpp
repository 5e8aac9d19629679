// The module `culet._native`: a list of the parts that make it up, nothing else.
#include "bindings.h"

NB_MODULE(_native, m) {
    m.doc() =
        "Native parts of culet: file tables, tokenizer, quantised rows, CPU kernels, lost pages.";
    culet::bind_ggml_blocks(m);
    culet::bind_string_table(m);
    culet::bind_bpe(m);
    culet::bind_cpu(m);
    culet::bind_planes(m);
    culet::bind_lost_pages(m);
}
