// Two measurements of the machine that benchmarks put beside their own: what memory gives at most,
// and what an empty parallel loop costs.
#pragma once

#include <cstdint>

#include "threads.h"

namespace culet {

// GB/s of a read-only pass over a buffer, the best of three.
double probe_read(Pool& pool, int64_t num_bytes);

// Nanoseconds of a loop of one item per thread that only waits for the others, mean of num_loops.
double probe_fork_join(Pool& pool, int num_loops);

}  // namespace culet
