"""Writes tests/golden/volume_patches.safetensors: volumes of tests/golden/volumes as the patches of a modality, by PyTorch.

    python tests/golden/make_volume_patches.py

A tensor "FILE|SIZE|PATCH|RANGE" is [tokens,values]. The values of the axial view are those that nibabel and pydicom read
(volumes/expected.safetensors); a window by the range makes them 0 to 1, torch.nn.functional.interpolate (bilinear, antialias) resamples
rows and columns, then depth, and torch.nn.Conv3d's order of a kernel cuts them.
"""
import gzip, pathlib, struct
import numpy, torch
from safetensors.numpy import load_file, save_file

here = pathlib.Path(__file__).parent
expected = load_file(here / "volumes" / "expected.safetensors")
CASES = [
    ("lps.nii.gz", [4, 5, 3], [2, 2, 1], "auto"), ("lps.nii.gz", [5, 6, 7], [2, 3, 2], "window"), ("oblique.nii.gz", [9, 4, 16], [3, 4, 5], "full"),
    ("float32.nii.gz", [6, 8, 10], [3, 4, 5], "auto"), ("uint8.nii", [3, 4, 5], [1, 2, 5], "auto"), ("uint16.nii", [2, 2, 2], [1, 1, 2], "full"),
    ("uint16.nii", [4, 3, 6], [2, 3, 3], "auto"), ("series", [3, 18, 13], [1, 5, 4], "auto"), ("series_j2k", [2, 9, 50], [2, 3, 10], "percentiles"),
    ("four.nii.gz", [2, 4, 5, 6], [1, 2, 5, 3], "auto"), ("four.nii.gz", [7, 3, 6, 4], [3, 1, 3, 4], "auto"), ("four.nii.gz", [3, 4, 5, 6], [2, 4, 5, 2], "full"),
]


def series(name):
    """All volumes of a NIfTI-1 file with axes to the left and the back, as axial views."""
    raw = gzip.open(here / "volumes" / name).read()
    dims, kind = struct.unpack("<8h", raw[40:56]), struct.unpack("<h", raw[70:72])[0]
    offset = int(struct.unpack("<f", raw[108:112])[0])
    a = numpy.frombuffer(raw, {4: "<i2", 16: "<f4", 512: "<u2"}[kind], numpy.prod(dims[1:5]), offset).reshape(dims[1:5], order="F")
    out = numpy.stack([numpy.stack([a[:, :, k, m].T for k in range(a.shape[2])]) for m in range(a.shape[3])])
    for m in range(len(out)):
        if f"{name}|axial|{m}" in expected:
            assert (out[m] == expected[f"{name}|axial|{m}"]).all()
    return out.astype(numpy.float64)


def window(x, name, kind):
    """As src/data/volumes/volume.c finds it."""
    if name == "uint8.nii":
        return 0, 255
    if kind == "auto":
        kind = "window" if min(x.min(), 0) <= -500 and name != "uint16.nii" else "percentiles"
    if kind == "window":
        return -160, 240
    if kind == "full":
        return (0, 65535) if name == "uint16.nii" else (x.min(), x.max())
    v = numpy.sort(x.ravel())
    ground = (v == v[0]).sum() if v[0] < 0 else (v == 0).sum()
    rank = lambda q: v[ground + max(int(numpy.ceil(q / 100 * (len(v) - ground))), 1) - 1]
    return rank(0.5), rank(99.5)


def resample(x, size):
    """[T,D,H,W] to [T,*size]: rows and columns of each slice, then depth."""
    t, d = x.shape[:2]
    x = torch.nn.functional.interpolate(x, size=size[1:], mode="bilinear", antialias=True)
    x = x.flatten(2)[:, None]  # [T,1,D,H W]
    x = torch.nn.functional.interpolate(x, size=(size[0], x.shape[3]), mode="bilinear", antialias=True)
    return x.reshape(t, *size)


def patches(x, patch):
    """Tokens by time, depth, height and width; values in the order of a kernel."""
    n = [s // p for s, p in zip(x.shape, patch)]
    x = x[tuple(slice(k * p) for k, p in zip(n, patch))]
    x = x.reshape(n[0], patch[0], n[1], patch[1], n[2], patch[2], n[3], patch[3])
    return x.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(numpy.prod(n), -1)


out = {}
for name, size, patch, kind in CASES:
    full = [1] * (4 - len(size)) + size
    x = series(name) if len(size) == 4 else expected[f"{name}|axial|0"].astype(numpy.float64)[None]
    times = min(len(x), full[0])
    first = (len(x) - times) // 2
    x = x[first:first + times]
    low, high = window(x[times // 2], name, kind)
    x = torch.from_numpy(numpy.clip((x - low) / (high - low), 0, 1))
    x = resample(x, full[1:])
    x = torch.cat([x, torch.zeros(full[0] - times, *x.shape[1:], dtype=x.dtype)])
    y = patches(x, [1] * (4 - len(patch)) + patch)
    text = lambda l: ",".join(map(str, l))
    out[f"{name}|{text(size)}|{text(patch)}|{kind}"] = y.float().contiguous().numpy()
    print(f"{name:16} {text(size):12} {kind:12} window {low:.6g} {high:.6g} patches {list(y.shape)} mean {float(y.mean()):.4f}")
save_file(out, here / "volume_patches.safetensors")
