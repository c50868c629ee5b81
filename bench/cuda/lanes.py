"""A device, how long work takes there, and lanes that run in turn: what bench/cuda has in Rust, for peers.py."""

import importlib
import time

WARM_UP = 2
AHEAD_BYTES = 1 << 30
PER_COPY = 16

FULL = dict(kv_heads=8, query_heads=32, dim=128, block=16, layers=32, sequences=64, keys=8192, chunk=2048, chunks=4, times=64)
SMALL = dict(kv_heads=2, query_heads=8, dim=64, block=16, layers=3, sequences=3, keys=96, chunk=40, chunks=2, times=2)

class Skip(Exception):
    """Why a lane cannot run here."""


def imported(name):
    """A module; Skip names it where it is missing or does not load."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package that is there may fail to load in many ways
        raise Skip(f"{name}: {type(error).__name__}: {error}") from error


class Place:
    """A device, and how long work takes there: see bench/cuda/src/place."""

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
        name = torch.cuda.get_device_name(0) if self.is_gpu else "the CPU in a GPU's stead"
        return {"device": name, "details": [f"PyTorch {torch.__version__}"]}

    def time(self, times, work):
        """Nanoseconds of one of `times` pieces of work: on the device, on the host."""
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
    """The lanes of a workload; one that cannot be made is noted by its name."""

    def __init__(self, workload, report):
        self.workload, self.report, self.lanes = workload, report, []

    def add(self, name, make, role="peer", times=1, **amount):
        """`make` answers a function that does one piece of work. What it raises is the reason why there is no such lane."""
        try:
            work = make()
            work()
        except Exception as error:  # whatever another package throws: its lane is left out, and the reason is told
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
    """Refuses outputs that are further off than bf16 explains: a peer that is asked something else is no peer."""
    off = (found.float().reshape(-1) - expected.float().reshape(-1)).abs().max().item()
    if not off <= most:
        raise ValueError(f"its outputs are off by {off}")


def copied(place, lanes, count, times=1):
    """PyTorch's copy that reads and writes `count` bytes in all."""
    torch = place.torch
    source = torch.ones(count // 2, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    lanes.add("copy, PyTorch", lambda: lambda: target.copy_(source), role="limit", times=times, bytes=float(count // 2 * 2))
