"""Functions that the PyTorch sides of the GPU's comparisons share: timing, memory and rows.

    median_ms        timed by events on the stream, after `warm` steps
    peak_bytes       peak of the allocator's allocated bytes, without warm-up
    reserved_bytes   peak of the bytes that the allocator reserved on the GPU
    used_bytes       memory in use on the GPU, with context and code (no other process should use the GPU)

PEER_DEVICE=cpu runs the same on the CPU, to test the scripts without a GPU: times are the host's and
the bytes are 0. Rows are lines of JSON; bench/cuda_rows.py prints tables of them."""
import gc
import json
import os
import sys
import time

import torch

DEVICE = os.environ.get("PEER_DEVICE", "cuda")
GPU = DEVICE == "cuda"
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True


def synchronize():
    if GPU:
        torch.cuda.synchronize()


def clean(compiled=False):
    """Frees what earlier measurements left; `compiled`: compiled code too."""
    gc.collect()
    if compiled:
        torch._dynamo.reset()
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def time_once(step, held):
    """Milliseconds of a step. `held`: the stream waits until the host has queued most of the step, so that
    a short step measures the GPU's time and not the host's."""
    if not GPU:
        begun = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - begun)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if held:
        torch.cuda._sleep(8_000_000)
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def measure(step, warm=2, steps=5, held=False):
    begun = time.perf_counter()
    for _ in range(warm):
        step()
    synchronize()
    warmed = time.perf_counter() - begun
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    times = sorted(time_once(step, held) for _ in range(steps))
    out = {"median_ms": (times[(steps - 1) // 2] + times[steps // 2]) / 2, "mean_ms": sum(times) / steps, "warm_seconds": warmed}
    out |= dict.fromkeys(("peak_bytes", "reserved_bytes", "used_bytes"), 0)
    if GPU:
        free, total = torch.cuda.mem_get_info()
        out |= {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(), "used_bytes": total - free}
    return out


class Rows:
    def __init__(self, path):
        self.path = path

    def add(self, **row):
        line = json.dumps(row)
        with open(self.path, "a") as f:
            f.write(line + "\n")
        print(line, file=sys.stderr, flush=True)

    def attempt(self, run, **tags):
        """Adds a row of `tags` and the result of run(), or its error."""
        try:
            self.add(**tags, **run())
        except torch.OutOfMemoryError:
            self.add(**tags, error="out of memory")
        except Exception as e:  # the next measurement may still work
            self.add(**tags, error=f"{type(e).__name__}: {e}"[:300])
