"""Measures PyTorch's attention on the processor, one round for each line of input.

    python3 attention.py <folder> <heads> <query heads> <keys> <dim> <layers>

The files `q`, `k` and `v` of the folder are raw floats; each layer has a copy of its own. For each way, the output of the first
layer is written to the file `out-<way>`. The program prints `0` when it is ready. It then answers each line `<way> <threads>` with the
nanoseconds of one query over every layer in turn. With one thread, the time spent waiting for a processor is not counted
(lib/cli/rounds.ts).
"""

import os
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention


def waited():
    """Returns the nanoseconds that this thread was ready to run but had no processor; 0 if the system does not report them."""
    try:
        with open("/proc/thread-self/schedstat") as numbers:
            return int(numbers.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


folder, sizes = sys.argv[1], [int(number) for number in sys.argv[2:]]
heads, query_heads, keys, dim, layer_count = sizes


def read(name, *shape):
    size = torch.Size(shape).numel()
    return torch.from_file(os.path.join(folder, name), shared=False, size=size, dtype=torch.float32).reshape(shape).clone()


q = read("q", 1, query_heads, 1, dim)
k, v = (read(name, 1, heads, keys, dim) for name in "kv")
layers = [(k.clone(), v.clone()) for _ in range(layer_count)]
short = (k[:, :, :64].clone(), v[:, :, :64].clone())

# The heads of a group as queries of one head: the newest token sees all keys, so the result is the same.
grouped = q.reshape(1, heads, query_heads // heads, dim)

WAYS = {
    "enable_gqa": lambda k, v: scaled_dot_product_attention(q, k, v, enable_gqa=True),
    "grouped": lambda k, v: scaled_dot_product_attention(grouped, k, v),
}


def nanoseconds(way, threads):
    torch.set_num_threads(threads)
    attention = WAYS[way]
    # Threads of other lanes poll for work for a while; a first call wakes this lane's threads.
    time.sleep(0.02)
    attention(*short)
    before, start = waited(), time.perf_counter_ns()
    for layer in layers:
        attention(*layer)
    elapsed = time.perf_counter_ns() - start
    return elapsed - (waited() - before if threads == 1 else 0)


with torch.inference_mode():
    for way, attention in WAYS.items():
        attention(*layers[0]).reshape(-1).numpy().tofile(os.path.join(folder, f"out-{way}"))
    print(0, flush=True)
    for line in sys.stdin:
        way, threads = line.split()
        print(nanoseconds(way, int(threads)), flush=True)
