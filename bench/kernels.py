"""Products of one weight matrix: GB/s of its planes at few rows, GOPS at many.

    python bench/kernels.py [--types Q4_0,Q6_K] [--rows 1,4,8,512] [--shape 6144x1536] [--threads 1]

Beside them the rate of a read-only pass. With one thread the time is CPU time, so that a busy
neighbour disturbs less. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from culet import _native
from culet.ops.cpu.backend import CpuOps
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME

Float32Array = NDArray[np.float32]

# Together larger than any cache, so that few-row products read memory as decode does.
WORKING_SET_BYTES = 256 << 20


def random_matrix(name: str, num_rows: int, num_cols: int) -> QTensor:
    """Random blocks; values do not matter here, but NaN and subnormal scales would cost time."""
    qtype = BY_NAME[name]
    rng = np.random.default_rng(0)
    shape = (num_rows, qtype.row_bytes(num_cols))
    # Every byte below 0x40 keeps f16 and bf16 numbers finite and, nearly always, normal.
    return QTensor(name, qtype, (num_rows, num_cols), rng.integers(8, 60, shape, dtype=np.uint8))


def multiply_all(
    ops: CpuOps, weights: list[_native.Weight], x: Float32Array, out: Float32Array
) -> None:
    for weight in weights:
        ops.norm_linear([out], x, None, 1e-6, [weight])
    ops.sync()


def best_seconds(action: Callable[[], None], threads: int, repeats: int) -> float:
    clock = time.process_time if threads == 1 else time.perf_counter
    best = float("inf")
    for _ in range(repeats):
        begin = clock()
        action()
        best = min(best, clock() - begin)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default="Q4_0,Q4_K,Q5_K,Q6_K,Q8_0,BF16")
    parser.add_argument("--rows", default="1,2,4,8,64,512")
    parser.add_argument("--shape", default="6144x1536")
    parser.add_argument("--threads", type=int, default=_native.default_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    out_rows, cols = (int(n) for n in options.shape.split("x"))
    ops = CpuOps(threads=options.threads)
    results: list[dict[str, object]] = []
    for name in options.types.split(","):
        source = random_matrix(name, out_rows, cols)
        first = ops.weight(source)
        copies = max(1, WORKING_SET_BYTES // first.num_bytes)
        weights = [first] + [ops.weight(source) for _ in range(copies - 1)]
        for num_rows in (int(n) for n in options.rows.split(",")):
            used = weights if num_rows <= 16 else weights[:2]
            x = np.random.default_rng(1).standard_normal((num_rows, cols)).astype(np.float32)
            out = np.empty((num_rows, out_rows), np.float32)

            seconds = best_seconds(
                partial(multiply_all, ops, used, x, out), options.threads, options.repeats
            )
            num_bytes = first.num_bytes * len(used)
            probe = _native.probe_read(options.threads, WORKING_SET_BYTES)
            operations = 2 * num_rows * out_rows * cols * len(used)

            row = {
                "type": name,
                "rows": num_rows,
                "gb_per_s": round(num_bytes / seconds / 1e9, 1),
                "probe_gb_per_s": round(probe, 1),
                "gops": round(operations / seconds / 1e9, 1),
            }
            results.append(row)
            print(" ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps({"isa": ops.isa, "threads": options.threads, "results": results}))


if __name__ == "__main__":
    main()
