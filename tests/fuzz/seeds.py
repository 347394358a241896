#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets whose input is a file with a byte or two before it.

    python3 tests/fuzz/seeds.py RUN      from the repository's root; RUN: the folder of a finished run

They are stored in tests/fuzz/corpus; no test needs this script.
"""
import json, pathlib, struct, sys

corpus = pathlib.Path("tests/fuzz/corpus")


def put(target, name, data):
    folder = corpus / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def npy(descr, shape, data, version=1, fortran=False):
    head = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    head += b" " * (64 - (len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(head)) + head + data


arrays = {
    "u2": npy("<u2", (8,), bytes(16)),
    "u1_2d": npy("|u1", (2, 4), bytes(range(8))),
    "i8_v2": npy("<i8", (4,), struct.pack("<4q", 1, 2, 3, -1), 2),
    "u4_v3": npy("<u4", (3, 1), struct.pack("<3I", 1, 2, 70000), 3),
    "fortran": npy("<i4", (2, 2), bytes(16), 1, True),
    "big": npy(">u2", (4,), bytes(8)),
    "empty": npy("<u2", (0,), b""),
    "huge": npy("<u2", (1 << 62, 4), bytes(8)),
    "cut": npy("<u2", (8,), bytes(16))[:40],
}
for name, data in arrays.items():
    put("npy", name, data)
    put("tokens", "npy_" + name, b"\0\0" + data)
header = json.dumps({"tokens": {"dtype": "U16", "shape": [6], "data_offsets": [0, 12]}}).encode()
put("tokens", "safetensors", b"\1\0" + struct.pack("<Q", len(header)) + header + struct.pack("<6H", 1, 2, 3, 4, 5, 60000))
put("tokens", "llmc16", b"\2\0" + struct.pack("<256i", 20240520, 1, 6, *[0] * 253) + struct.pack("<6H", 1, 2, 3, 4, 5, 6))
put("tokens", "llmc32", b"\2\0" + struct.pack("<256i", 20240801, 7, 3, *[0] * 253) + struct.pack("<3I", 1, 2, 3))
put("tokens", "raw16", b"\3\0" + struct.pack("<9H", *range(1, 10)))
put("tokens", "raw32", b"\4\3" + struct.pack("<9I", *range(1, 10)))
put("tokens", "raw64", b"\4\5" + struct.pack("<9q", *range(-1, 8)))
put("tokens", "text", b"\2\0It was the best of times.\n" * 3)
put("tokens", "bytes", b"\5\0It was the best of times.\n")

for image in sorted((corpus / "png").iterdir()):
    for mode in (0, 1, 2) if image.name in ("palette", "grey8", "grey16") else (1,):
        put("label", f"png_{image.name}_{mode}", bytes([mode | (36 if mode == 2 else 0)]) + image.read_bytes())
for name in ("grey", "exif6", "base", "cmyk", "truncated"):
    put("label", "jpg_" + name, b"\0" + (corpus / "jpeg" / name).read_bytes())
    put("loader", "jpg_" + name, b"\x09" + (corpus / "jpeg" / name).read_bytes())
for name in ("list", "odd", "polygons"):
    put("loader", "json_" + name, b"\x2a" + (corpus / "annotation" / name).read_bytes())
sound = '{"image": {"image_id": 1, "width": 16, "height": 8, "file_name": "b.jpg"}, "annotations": [%s]}'
mask = '{"id": %d, "segmentation": {"size": [8, 16], "counts": %s}, "bbox": [0, 0, 16, 8], "area": 8, "predicted_iou": 0.9, "stability_score": 0.9, "crop_box": [0, 0, 16, 8], "point_coords": [[5, 4]]}'
for i, counts in enumerate(("[40, 8, 80]", "[0, 128]", '"X1"', "[1, 1, 126]", "[127, 1]")):
    put("loader", f"json_mask{i}", bytes([i << 5 | 8 * (i % 2)]) + (sound % ", ".join(mask % (k, counts) for k in range(6))).encode())

run = pathlib.Path(sys.argv[1])
plan = json.loads((run / "plan.json").read_text())
plan.pop("storages", None)
put("plan", "plan", json.dumps(plan).encode())
put("report", "plan", b"\1" + json.dumps(plan).encode())
put("report", "metrics", b"\0" + (run / "metrics.jsonl").read_bytes()[:3000])
put("report", "config", b"\2" + (run / "config.yaml").read_bytes()[:500])
put("report", "eval", b"\3step 1\nprompt iou <b>\n")
put("report", "worst", b'\4[{"file": "01-box-0.100.png", "prompt": "<i>", "iou": 1e308, "sample": 3, "mask": -1}, 7]')
put("report", "png", b"\5" + (corpus / "png" / "grey8").read_bytes())
put("report", "torn", b'\0{"step":1,"loss":null}\n{"step":2,"loss":1e999}\n{"step":3,"lo')
newest = max(run.glob("checkpoints/step-*"), key=lambda p: int(p.name[5:]))
state = (newest / "state.json").read_text()
put("state", "state", state.encode())
old = {k: v for k, v in json.loads(state).items() if "crc" not in k}
put("state", "older", json.dumps(old).encode())
put("state", "f16", json.dumps({**old, "loss_scale": 65536.0, "good_steps": 3, "skipped_in_a_row": 0}).encode())
put("state", "format", json.dumps({**old, "format": 9}).encode())
for events in (run / "tb").iterdir():
    put("events", "run", b"\3" + events.read_bytes()[:800])
put("events", "torn", b"\3" + events.read_bytes()[:333])
put("config", "run", (run / "config.yaml").read_bytes())
for example in pathlib.Path("examples").glob("*.yaml"):
    put("config", example.stem, example.read_bytes())
put("config", "groups", b"train: {groups: [{match: ['*.bias'], learning_rate: 0.1, weight_decay: 0}], no_decay: ['*norm*']}\nmemory: {budget: 16GiB, modules: [{match: ['a.*'], precision: f32}]}\n")
for config in pathlib.Path("tests/golden").glob("*/config.json"):
    put("model", config.parent.name, config.read_bytes()[:6000])
# The index of a shard after its facts: report, two counts, pairs, names.
put("index", "one", struct.pack("<10Q", 2, *[0] * 9) + struct.pack("<2Q", 1, 2) + struct.pack("<2Q4I", 512, 1024, 0, 0, 0, 0) + b"a\0")
put("index", "outside", struct.pack("<10Q", 2, *[0] * 9) + struct.pack("<2Q", 1, 2) + struct.pack("<2Q4I", 512, 1 << 63, 9, 9, 0, 0) + b"a\0")
put("index", "none", struct.pack("<12Q", *[0] * 12))
put("index", "many", struct.pack("<10Q", 2, *[0] * 9) + struct.pack("<2Q", 1 << 60, 2) + b"a\0")


def four_bit(nested=True, shape=(3, 50), block=64, kind="nf4", codes=75, scales=3, cut=0):
    state = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(shape)}
    if nested:
        state.update({"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25})
    text = json.dumps(state).encode()
    levels = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
              0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
    magnitudes = [10.0 ** (i - 6) * (0.1 + 0.9 / 2**i * (k + 0.5)) for i in range(7) for k in range(2**i)]
    tensors = {"": ("U8", [codes, 1], bytes(codes)), ".quant_map": ("F32", [16], struct.pack("<16f", *levels)),
               ".absmax": ("U8" if nested else "F32", [scales], bytes(scales * (1 if nested else 4))),
               ".quant_state.bitsandbytes__" + kind: ("U8", [len(text)], text)}
    if nested:
        tensors[".nested_absmax"] = ("F32", [1], bytes(4))
        tensors[".nested_quant_map"] = ("F32", [256], struct.pack("<256f", *[-x for x in magnitudes[::-1]], 0, *magnitudes, 1))
    header, data = {}, b""
    for end, (dtype, dims, part) in tensors.items():
        header["layer.weight" + end] = {"dtype": dtype, "shape": dims, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    head = json.dumps(header).encode()
    return text, (struct.pack("<Q", len(head)) + head + data)[: -cut or None]


for name, options in {"nested": {}, "single": {"nested": False}, "fp4": {"kind": "fp4"}, "block": {"block": 128}, "shape": {"shape": (3, 51)}, "codes": {"codes": 74},
                      "scales": {"scales": 2}, "cut": {"cut": 9}, "huge": {"shape": (1 << 40, 1 << 40)}, "negative": {"shape": (-3, 50)}, "rank": {"shape": (1,) * 9}}.items():
    text, whole = four_bit(**options)
    put("quant_state", "state_" + name, b"\0" + text)
    put("quant_state", "folder_" + name, b"\1" + whole)

# Files of conversations, in each format.
put("conversation", "messages", b'{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n')
put("conversation", "parts", b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "q"}]}, {"role": "assistant", "content": "a"}]}\n')
put("conversation", "llava", b'[{"id": "0", "image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\\nq"}, {"from": "gpt", "value": "a"}]},\n {"videos": ["b.mp4"], "conversations": []}]\n')
put("conversation", "sharegpt", b'{"system": "s", "tools": "[{\\"name\\": \\"f\\"}]", "conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{\\"name\\": \\"f\\"}"}, {"from": "observation", "value": "1"}, {"from": "gpt", "value": "a"}]}\n')
put("conversation", "alpaca", b'[{"instruction": "q", "input": "i", "output": "a", "history": [["b", "c"]]}]')
put("conversation", "completion", b'{"prompt": "q", "completion": "a"}\n{"text": "t"}\n{"prompt": [], "completion": []}')
put("conversation", "cut", b'[{"text": "t"}, {"text": "u')

# A token store of three samples, with the options of rows before it: `plimsoll data tokenize` of lines of
# tests/golden/chat/chats.jsonl wrote it; the stored inputs were made from it by putting a byte in front.
