"""Measures the work of bench/cuda with PyTorch, FlashInfer and vLLM, if they are installed.

    python3 peers.py [--only <start of ids>] [--rounds <n>] [--out <file>] [--device cuda|cpu]

The report has the form of the Rust program's: each round of each lane in nanoseconds, on the device and on the host. Lanes run in
turn. Packages that can't be imported are reported as SKIPPED by name, and so is everything without PyTorch or a GPU. With
`--device cpu` everything runs once with small sizes, and times say nothing.
"""

import argparse
import importlib
import json
import sys
import time

WARM_UP = 2
AHEAD_BYTES = 1 << 30
PER_COPY = 16

FULL = dict(kv_heads=8, query_heads=32, dim=128, block=16, layers=32, sequences=64, keys=8192, chunk=2048, chunks=4, times=64)
SMALL = dict(kv_heads=2, query_heads=8, dim=64, block=16, layers=3, sequences=3, keys=96, chunk=40, chunks=2, times=2)

class Skip(Exception):
    """The reason why a lane cannot run here."""


def imported(name):
    """Imports a module; raises Skip with its name if it is missing or does not load."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package that is there may fail to load in many ways
        raise Skip(f"{name}: {type(error).__name__}: {error}") from error


class Place:
    """A device that runs work and times it: see bench/cuda/src/place."""

    def __init__(self, torch, name):
        self.torch = torch
        self.is_gpu = name == "cuda"
        self.device = torch.device("cuda:0" if self.is_gpu else "cpu")
        self.sizes = FULL if self.is_gpu else SMALL
        torch.manual_seed(1)
        if self.is_gpu:
            self.ahead = torch.zeros(2, AHEAD_BYTES, dtype=torch.uint8, device=self.device)

    def random(self, *shape, most=1.0):
        torch = self.torch
        return ((torch.rand(shape, device=self.device, dtype=torch.bfloat16) - 0.5) * (2 * most)).contiguous()

    def machine(self):
        torch = self.torch
        name = torch.cuda.get_device_name(0) if self.is_gpu else "the CPU, emulating a GPU"
        return {"device": name, "details": [f"PyTorch {torch.__version__}"]}

    def time(self, times, work):
        """Returns the nanoseconds of one of `times` pieces of work: on the device, on the host."""
        torch = self.torch
        if self.is_gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            for _ in range(1 + times // PER_COPY):
                self.ahead[1].copy_(self.ahead[0])
            start.record()
        before = time.perf_counter_ns()
        for _ in range(times):
            work()
        host = time.perf_counter_ns() - before
        device = host
        if self.is_gpu:
            end.record()
            end.synchronize()
            device = start.elapsed_time(end) * 1e6
        return device / times, host / times


class Lanes:
    """The lanes of a workload; a lane that cannot be made is reported by its name."""

    def __init__(self, workload, report):
        self.workload, self.report, self.lanes = workload, report, []

    def add(self, name, make, role="peer", times=1, **amount):
        """Adds a lane. `make` returns a function that does one piece of work; if it raises, its message is the reason for skipping."""
        try:
            work = make()
            work()
        except Exception as error:  # any error of another package: its lane is skipped, with the reason
            text = str(error) if isinstance(error, Skip) else f"{type(error).__name__}: {error}"
            reason = f"{name}: {text.strip().splitlines()[0] if text.strip() else 'no reason was given'}"
            print(f"SKIPPED: {self.workload}: {reason}")
            self.report["skipped"].append({"id": self.workload, "skipped": reason})
            return
        lane = {"name": name, "role": role, "bytes": None, "flops": None, "nanoseconds": [], "host": []}
        self.lanes.append(({**lane, **amount}, times, work))

    def measure(self, place, rounds, title):
        for turn in range(WARM_UP + rounds):
            for at in range(len(self.lanes)):
                lane, times, work = self.lanes[(turn + at) % len(self.lanes)]
                device, host = place.time(times, work)
                if turn >= WARM_UP:
                    lane["nanoseconds"].append(device)
                    lane["host"].append(host)
        if self.lanes:
            lanes = [lane for lane, _, _ in self.lanes]
            self.report["workloads"].append({"id": self.workload, "title": title, "lanes": lanes})
            for lane in lanes:
                middle = sorted(lane["nanoseconds"])[len(lane["nanoseconds"]) // 2] / 1000
                print(f"{self.workload}: {lane['name']}: {middle:.3g} us")


def near(place, found, expected, most):
    """Raises if outputs differ by more than bf16 explains, because the peer then computes something else."""
    off = (found.float().reshape(-1) - expected.float().reshape(-1)).abs().max().item()
    if not off <= most:
        raise ValueError(f"its outputs differ by {off}")


def copied(place, lanes, count, times=1):
    """Adds a lane of PyTorch's copy that reads and writes `count` bytes in total."""
    torch = place.torch
    source = torch.ones(count // 2, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    lanes.add("copy, PyTorch", lambda: lambda: target.copy_(source), role="limit", times=times, bytes=float(count // 2 * 2))


def flash(torch):
    """Computes attention with PyTorch's flash backend, without a fallback."""
    attention = imported("torch.nn.attention")
    function = torch.nn.functional.scaled_dot_product_attention

    def call(*args, **options):
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            return function(*args, **options)

    return call


def paged(place, k, v):
    """Returns the same keys in blocks in random order: [blocks, 2, block, heads, dim], and the blocks of each sequence."""
    torch, block = place.torch, place.sizes["block"]
    batch, heads, keys, dim = k.shape
    each = keys // block
    order = torch.randperm(batch * each, device=place.device)
    pages = torch.empty(batch * each, 2, block, heads, dim, dtype=k.dtype, device=place.device)
    for part, rows in enumerate((k, v)):
        pages[order, part] = rows.transpose(1, 2).reshape(batch * each, block, heads, dim)
    return pages, order.reshape(batch, each).int()


def decode(place, report, rounds):
    torch, of = place.torch, place.sizes
    batch, keys, heads, group = of["sequences"], of["keys"], of["kv_heads"], of["query_heads"] // of["kv_heads"]
    q = place.random(batch, of["query_heads"], 1, of["dim"], most=8.0)
    k, v = (place.random(batch, heads, keys, of["dim"]) for _ in range(2))
    expected = torch.nn.functional.scaled_dot_product_attention(q.float()[:1], k.float()[:1], v.float()[:1], enable_gqa=True)
    amount = dict(bytes=float(2 * k.numel() * 2))
    lanes = Lanes("decode", report)

    def checked(work, pick=lambda out: out):
        near(place, pick(work())[:1], expected, 0.01)
        return work

    def grouped():
        call, rows = flash(torch), q.reshape(batch, heads, group, of["dim"])
        return checked(lambda: call(rows, k, v))

    def by_flashinfer():
        library = imported("flashinfer")
        pages, tables = paged(place, k, v)
        space = torch.empty(256 << 20, dtype=torch.uint8, device=place.device)
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=True)
        each = keys // of["block"]
        ends = torch.arange(batch + 1, dtype=torch.int32, device=place.device) * each
        last = torch.full((batch,), of["block"], dtype=torch.int32, device=place.device)
        shape = (of["query_heads"], heads, of["dim"], of["block"])
        wrapper.plan(ends, tables.reshape(-1), last, *shape, q_data_type=q.dtype, kv_data_type=k.dtype)
        return checked(lambda: wrapper.run(q[:, :, 0], pages))

    def by_vllm():
        library = imported("vllm.vllm_flash_attn")
        pages, tables = paged(place, k, v)
        k_pages, v_pages = pages[:, 0].contiguous(), pages[:, 1].contiguous()
        ends = torch.arange(batch + 1, dtype=torch.int32, device=place.device)
        lengths = torch.full((batch,), keys, dtype=torch.int32, device=place.device)
        rows = q[:, :, 0].contiguous()
        options = dict(max_seqlen_q=1, cu_seqlens_q=ends, max_seqlen_k=keys, seqused_k=lengths, block_table=tables, causal=True)
        return checked(lambda: library.flash_attn_varlen_func(rows, k_pages, v_pages, **options))

    lanes.add("PyTorch, flash", lambda: checked(lambda: flash(torch)(q, k, v, enable_gqa=True)), **amount)
    lanes.add("PyTorch, flash, heads of a group as queries", grouped, **amount)
    lanes.add("FlashInfer, pages", by_flashinfer, **amount)
    lanes.add("vLLM, pages", by_vllm, **amount)
    copied(place, lanes, int(amount["bytes"]))
    lanes.measure(place, rounds, f"attention of one query, {batch} sequences of {keys} keys")


def prefill(place, report, rounds):
    torch, of = place.torch, place.sizes
    batch, keys, chunk = of["chunks"], of["keys"], of["chunk"]
    q = place.random(batch, of["query_heads"], chunk, of["dim"], most=8.0)
    k, v = (place.random(batch, of["kv_heads"], keys, of["dim"]) for _ in range(2))
    seen = sum(keys - chunk + query + 1 for query in range(chunk))
    flops = float(4 * of["dim"] * of["query_heads"] * batch * seen)
    lanes = Lanes("prefill", report)

    def causal():
        bias = imported("torch.nn.attention.bias").causal_lower_right(chunk, keys)
        group = of["query_heads"] // of["kv_heads"]
        # Repeated once, outside the timing, because the masked call does not support groups.
        wide = [rows.repeat_interleave(group, dim=1) for rows in (k, v)]
        call = flash(torch) if place.is_gpu else torch.nn.functional.scaled_dot_product_attention
        return lambda: call(q, *wide, attn_mask=bias)

    def by_flashinfer():
        library = imported("flashinfer")
        pages, tables = paged(place, k, v)
        space = torch.empty(256 << 20, dtype=torch.uint8, device=place.device)
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(space, "NHD")
        counts = torch.arange(batch + 1, dtype=torch.int32, device=place.device)
        last = torch.full((batch,), of["block"], dtype=torch.int32, device=place.device)
        shape = (of["query_heads"], of["kv_heads"], of["dim"], of["block"])
        ends = counts * (keys // of["block"])
        wrapper.plan(counts * chunk, ends, tables.reshape(-1), last, *shape, causal=True, q_data_type=q.dtype, kv_data_type=k.dtype)
        rows = q.transpose(1, 2).reshape(batch * chunk, of["query_heads"], of["dim"]).contiguous()
        return lambda: wrapper.run(rows, pages)

    lanes.add("PyTorch, flash", causal, flops=flops)
    lanes.add("FlashInfer, pages", by_flashinfer, flops=flops)
    lanes.measure(place, rounds, f"attention of the last {chunk} of {keys} tokens, {batch} sequences")


def appended(place, report, rounds, workload, batch, tokens):
    torch, of = place.torch, place.sizes
    held, times = of["keys"] // 2, of["times"] if tokens == 1 else 4
    new = [place.random(batch, of["kv_heads"], tokens, of["dim"]) for _ in range(2)]
    old = [place.random(batch, of["kv_heads"], held, of["dim"]) for _ in range(2)]
    room = [torch.zeros(batch, of["kv_heads"], of["keys"], of["dim"], dtype=torch.bfloat16, device=place.device) for _ in range(2)]
    count = 2 * 2 * new[0].numel() * 2
    places = torch.arange(held, held + tokens, device=place.device)
    lanes = Lanes(workload, report)

    def index_copy():
        for rows, more in zip(room, new):
            rows.index_copy_(2, places, more)

    def cat():
        return [torch.cat((rows, more), dim=2) for rows, more in zip(old, new)]

    lanes.add("PyTorch, index_copy_", lambda: index_copy, times=times, bytes=float(count))
    lanes.add("PyTorch, cat", lambda: cat, times=times, bytes=float(count))
    copied(place, lanes, count, times)
    lanes.measure(place, rounds, f"append of {tokens} tokens to {held}, {batch} sequences")


def step_append(place, report, rounds):
    torch, of = place.torch, place.sizes
    batch, layers, heads, dim, block = of["sequences"], of["layers"], of["kv_heads"], of["dim"], of["block"]
    k, v = (place.random(layers, batch, heads, dim) for _ in range(2))
    slots = torch.randperm(batch * 8, device=place.device)[:batch] * block
    count = 2 * 2 * k.numel() * 2
    lanes = Lanes("step-append", report)

    def by_vllm():
        function = imported("vllm._custom_ops").reshape_and_cache_flash
        pages = [torch.empty(layers, batch * 8, block, heads, dim, dtype=k.dtype, device=place.device) for _ in range(2)]
        one = torch.ones(1, device=place.device)

        def work():
            for layer in range(layers):
                function(k[layer], v[layer], pages[0][layer], pages[1][layer], slots, "auto", one, one)

        return work

    def index_put():
        pages = torch.zeros(2, layers, batch * 8 * block, heads, dim, dtype=k.dtype, device=place.device)

        def work():
            for part, rows in enumerate((k, v)):
                pages[part].index_copy_(1, slots, rows)

        return work

    lanes.add("PyTorch, index_copy_ of all layers", index_put, times=of["times"], bytes=float(count))
    lanes.add("vLLM, a launch for each layer", by_vllm, times=of["times"], bytes=float(count))
    copied(place, lanes, count, of["times"])
    lanes.measure(place, rounds, f"one token of {batch} sequences, {layers} layers")


WORK = {
    "decode": decode,
    "prefill": prefill,
    "append-token": lambda place, report, rounds: appended(place, report, rounds, "append-token", place.sizes["sequences"], 1),
    "append-chunk": lambda place, report, rounds: appended(place, report, rounds, "append-chunk", place.sizes["chunks"], place.sizes["chunk"]),
    "step-append": step_append,
}


def run(place, report, rounds, only):
    for workload in filter(lambda name: name.startswith(only), WORK):
        try:
            WORK[workload](place, report, rounds)
        except Exception as error:  # the others still run
            print(f"FAILED: {workload}: {error}", file=sys.stderr)
            report["failed"].append({"id": workload, "error": f"{type(error).__name__}: {error}"})
        if place.is_gpu:
            place.torch.cuda.empty_cache()


def opened(name):
    """Returns the device of this name; raises Skip with the reason if there is none."""
    torch = imported("torch")
    if name == "cuda" and not torch.cuda.is_available():
        raise Skip("torch: found no GPU")
    return Place(torch, name)


def main():
    parser = argparse.ArgumentParser(description="Measures other programs with the work of bench/cuda.")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds}: expected a whole number above 0")
    report = {"suite": "cuda-peers", "rounds": asked.rounds, "machine": None, "workloads": [], "skipped": [], "failed": []}
    try:
        place = opened(asked.device)
        report["machine"] = place.machine()
        with place.torch.inference_mode():
            run(place, report, asked.rounds, asked.only)
    except Skip as reason:
        print(f"SKIPPED: {reason}")
        report["skipped"] += [{"id": workload, "skipped": str(reason)} for workload in WORK if workload.startswith(asked.only)]
    if asked.out:
        with open(asked.out, "w", encoding="utf-8") as file:
            json.dump(report, file)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
