"""What the PyTorch sides of the GPU's comparisons share: how a step is timed, what it holds, and rows.

    median_ms        by events on the stream, behind `warm` steps
    peak_bytes       most that the allocator had handed out at once, warm-up not counted
    reserved_bytes   most that it had taken from the GPU
    used_bytes       what is not free on the GPU then: with the context and the code (nobody else should be there)

PEER_DEVICE=cpu runs the same on the CPU, for trying the scripts without a GPU: the clock is the
host's and the bytes are 0. Rows are lines of JSON; bench/cuda_rows.py makes tables of them."""
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
    """Forgets what earlier measurements left; `compiled`: compiled code too."""
    gc.collect()
    if compiled:
        torch._dynamo.reset()
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def time_once(step, held):
    """Milliseconds. `held`: the stream waits until the host has queued most of the step, so that
    a short one is timed as the GPU's work and not the host's."""
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
        """A row of `tags` and what run() returns, or of what stopped it."""
        try:
            self.add(**tags, **run())
        except torch.OutOfMemoryError:
            self.add(**tags, error="out of memory")
        except Exception as e:  # the next measurement may still work
            self.add(**tags, error=f"{type(e).__name__}: {e}"[:300])
