"""Writes tests/golden/pth and tests/fuzz/corpus/pth: PyTorch checkpoints for the reader.

    python tests/golden/make_pth.py

The tensors' values follow from their names (value), so that tests/test_pth.c, which has the
same formula, needs no second file. Needs torch.
"""
import collections
import os
import pathlib
import pickle
import shutil

import torch

here = pathlib.Path(__file__).parent
out = here / "pth"
corpus = here.parent / "fuzz" / "corpus" / "pth"


def value(name, shape, dtype=torch.float32):
    """Element i is (i * 7 + length of the name) % 101 - 50: whole numbers that every type but u8 holds."""
    n = 1
    for d in shape:
        n *= d
    x = (torch.arange(n) * 7 + len(name)) % 101
    if dtype != torch.uint8:
        x = x - 50
    return x.reshape(shape).to(dtype)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)


class Evil:
    """What a hostile file does: a call that Python would make while it reads."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def plain():
    return {"weight": value("weight", (4, 3)), "bias": value("bias", (4,)), "count": value("count", (), torch.int64)}


def typed():
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]
    d = {str(t).split(".")[1]: value(str(t).split(".")[1], (2, 5), t) for t in types}
    d["bool"] = torch.tensor([True, False])
    d["empty"] = torch.zeros(0, 3)
    return d


def views():
    """Each is value(name, shape) once it is read, whatever lies in the storage."""
    d = collections.OrderedDict()
    d["transposed"] = value("transposed", (3, 5)).t().contiguous().t()
    big = torch.zeros(8, 9)
    big[2:5, 1:8:2] = value("sliced", (3, 4))
    d["sliced"] = big[2:5, 1:8:2]
    d["last"] = torch.cat([torch.zeros(6), value("last", (4,))])[6:]
    d["first"] = value("first", (6,))
    d["shared"] = d["first"]
    d["expanded"] = torch.full((1, 1), 3.0).expand(2, 3)
    d["permuted"] = value("permuted", (2, 3, 4)).permute(2, 0, 1).contiguous().permute(1, 2, 0)
    return d


def checkpoints():
    w = {"module." + k: v for k, v in plain().items()}
    yield "zip", plain(), {}
    yield "legacy", plain(), {"_use_new_zipfile_serialization": False}
    yield "types", typed(), {}
    yield "types_legacy", typed(), {"_use_new_zipfile_serialization": False}
    yield "views", views(), {}
    yield "views_legacy", views(), {"_use_new_zipfile_serialization": False}
    yield "parameters", {k: torch.nn.Parameter(v, requires_grad=v.is_floating_point()) for k, v in plain().items()}, {}
    yield "module_prefix", w, {}
    yield "wrapped_twice", {"module._orig_mod." + k: v for k, v in plain().items()}, {}
    yield "protocol4", plain(), {"pickle_protocol": 4}
    net = Net()
    with torch.no_grad():
        net.fc.weight.copy_(value("fc.weight", (2, 3)))
        net.fc.bias.copy_(value("fc.bias", (2,)))
    yield "state_dict", net.state_dict(), {}
    moments = {0: {"exp_avg": torch.zeros(4, 3), "step": torch.tensor(3.0)}}
    nested = {"epoch": 7, "best_loss": torch.tensor(0.5), "optimizer": {"state": moments, "param_groups": [{"lr": 1e-4}]},
              "model": plain(), "model_ema": {k: v * 0 for k, v in plain().items()}, "args": ("a", None, True, 2.5)}
    yield "nested", nested, {}
    yield "nested_legacy", nested, {"_use_new_zipfile_serialization": False}
    yield "whole_module", net, {}
    yield "evil", Evil("touch plimsoll-was-here"), {}
    yield "evil_value", {**plain(), "hook": Evil("touch plimsoll-was-here")}, {}
    yield "no_tensors", {"lr": 0.1}, {}


def main():
    for folder in (out, corpus):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name, what, how in checkpoints():
        torch.save(what, out / (name + ".pth"), **how)
    (out / "bare_pickle.pth").write_bytes(pickle.dumps({"weight": [1.0, 2.0]}))
    for name in ("zip", "legacy", "types", "views", "views_legacy", "nested", "nested_legacy", "parameters", "protocol4", "evil_value",
                 "state_dict"):
        shutil.copy(out / (name + ".pth"), corpus / name)
    for name in ("zip", "legacy"):
        whole = (out / (name + ".pth")).read_bytes()
        (corpus / (name + "_cut")).write_bytes(whole[: len(whole) * 2 // 3])
    # 2^63 elements, but for the 0 that comes last
    torch.save({"none": torch.empty(0).as_strided((1 << 32, 1 << 31, 0), (0, 0, 1))}, corpus / "empty")


main()
