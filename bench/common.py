"""The memory of the PyTorch side of a comparison.

    peak          the process's peak resident memory
    baseline      resident before the model is built: interpreter, torch, transformers
    state         weights, their gradients and AdamW's two moments, in bytes of their tensors
    rest          peak - baseline - state: activations, temporaries, libraries' buffers

Resident memory can be measured in the same way on both sides; see docs/notes/benchmarks.md."""
import resource


def resident_kib():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


class Memory:
    def __init__(self):
        self.baseline = resident_kib()

    def report(self, model, optimizer):
        size = lambda t: t.numel() * t.element_size()  # noqa: E731
        weights = sum(size(p) for p in model.parameters())
        trained = {p for p in model.parameters() if p in optimizer.state}
        gradients = sum(size(p) for p in trained)
        moments = sum(size(v) for p in trained for v in optimizer.state[p].values() if v.dim())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        state = (weights + gradients + moments) // 1024
        print("peak_kib", peak)
        print("baseline_kib", self.baseline)
        print("state_kib", state)
        print("rest_kib", peak - self.baseline - state)
