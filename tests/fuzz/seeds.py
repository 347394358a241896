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
put("events", "pointer", b"\3version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n")
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

# Files of texts that describe masks.
put("queries", "table", b'image,query,mask_id\nsa_1.jpg,"the left, red one",7\n')
put("queries", "tabs", b'Mask_ID\tcaption\tfile_name\n-2\ty\tb\n')
put("queries", "list", b'[{"image": "a", "query": "x", "mask_id": 3}, {"image_id": 12, "text": "y", "annotation_id": "4"}]')
put("queries", "lines", b'{"image": "a", "expression": "x", "target": 3}\n\n{"image": "b", "phrase": "z", "mask": 9}\n')

# Files of conversations, in each format.
put("conversation", "messages", b'{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n')
put("conversation", "parts", b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "q"}]}, {"role": "assistant", "content": "a"}]}\n')
put("conversation", "llava", b'[{"id": "0", "image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\\nq"}, {"from": "gpt", "value": "a"}]},\n {"videos": ["b.mp4"], "conversations": []}]\n')
put("conversation", "sharegpt", b'{"system": "s", "tools": "[{\\"name\\": \\"f\\"}]", "conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{\\"name\\": \\"f\\"}"}, {"from": "observation", "value": "1"}, {"from": "gpt", "value": "a"}]}\n')
put("conversation", "alpaca", b'[{"instruction": "q", "input": "i", "output": "a", "history": [["b", "c"]]}]')
put("conversation", "completion", b'{"prompt": "q", "completion": "a"}\n{"text": "t"}\n{"prompt": [], "completion": []}')
put("conversation", "cut", b'[{"text": "t"}, {"text": "u')
put("conversation", "images", b'{"images": ["a.png", {"path": "b.png"}], "messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}, {"type": "image"}]}, {"role": "assistant", "content": "<image>"}]}\n')

put("conversation", "volumes", b'{"modality_paths": {"T1": "a.nii.gz", "f": ["b.nii", null]}, "conversations": [{"from": "human", "value": "<image><image>q"}, {"from": "gpt", "value": "a"}]}\n{"images": [{"path": "c", "modality": "T1", "token": "<image>"}, "d.nii"], "messages": [{"role": "user", "content": [{"type": "image"}, {"type": "image", "modality": "PET", "path": "e.dcm"}]}, {"role": "assistant", "content": "a"}]}\n')
put("conversation", "two_in_a_line", b'{"text": "a"} {"text": "b"}\n{"text": "c"}')
put("conversation", "plain", "\ufeffA text.\n\nÄ second paragraph.\n".encode())

# Text with images: the layout, ranges of the data, the text.
for layout, name in enumerate(("tokens", "tiles", "pieces", "crops", "anyres")):
    put("chat_images", name, bytes([layout + 64 if name in ("tiles", "crops") else layout, 2, 3, 9, 4, 12]) + "USER: <image>\nÄ cat<image> and <image></s>\n<image>".encode())
put("chat_images", "none", b"\x00\x00<s>no image")
put("chat_images", "video", b"\xbd\x00<image><image> and <video>")
put("chat_images", "video_in_crops", b"\xbf\x00<image><image> and <video>")

# A token store of three samples, with the options of rows before it: `plimsoll data tokenize` of
# lines of tests/golden/chat/chats.jsonl wrote it; the stored inputs were made from it by putting a
# byte in front.

# Tokenizers: each part of a tokenizer.json, and SentencePiece models of each type of piece.
def tokenizer(model=None, **parts):
    pieces = ["<unk>", "a", "b", "ab", "t", "h", "e", "th", "he", "the", "\u0120", "\u0120the", "\u2581", "\u2581the", "\u00c3", "\u00a9"]
    bpe = {"type": "BPE", "vocab": {p: i for i, p in enumerate(pieces)}, "merges": ["a b", "t h", "th e", "h e", "\u0120 the", ["\u2581", "the"]]}
    return json.dumps({"version": "1.0", **parts, "model": {**bpe, **(model or {})}}, ensure_ascii=False).encode()


level = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
tail = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]
bytes_too = {p: i for i, p in enumerate(["<unk>", "a", "b", "ab", "\u2581"] + ["<0x%02X>" % b for b in range(256)])}
put("tokenizer", "byte_level", tokenizer(pre_tokenizer=level, decoder=level, added_tokens=[{"id": 16, "content": "<s>", "special": True, "lstrip": True, "rstrip": True}],
    post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "s"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"s": {"ids": [16]}}}))
put("tokenizer", "split", tokenizer({"ignore_merges": True}, pre_tokenizer={"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}|\\s+(?!\\S)|(?i:x)"}, "behavior": "MergedWithNext", "invert": True}, {"type": "Digits", "individual_digits": True}, {**level, "use_regex": False}]}))
put("tokenizer", "string", tokenizer(pre_tokenizer={"type": "Split", "pattern": {"String": ""}, "behavior": "Contiguous", "invert": False}))
put("tokenizer", "fallback", tokenizer({"vocab": bytes_too, "merges": ["a b"], "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, decoder={"type": "Sequence", "decoders": tail},
    normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}))
put("tokenizer", "metaspace", tokenizer({"unk_token": "<unk>"}, pre_tokenizer=meta, decoder=meta, added_tokens=[{"id": 20, "content": "the", "normalized": True, "single_word": True}]))
for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
    put("tokenizer", form.lower(), tokenizer(normalizer={"type": form}, pre_tokenizer=level, decoder=level))
put("tokenizer", "affixes", tokenizer({"vocab": {"a": 0, "##b": 1, "b</w>": 2, "ab": 3}, "merges": ["a ##b"], "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>"}))
put("tokenizer", "unigram", tokenizer({"type": "Unigram", "vocab": [["<unk>", 0], ["a", -1.5], ["ab", -2], ["\u2581", -3]], "unk_id": 0, "byte_fallback": True}, pre_tokenizer=meta))
put("tokenizer", "unknown_merge", tokenizer({"merges": ["a c"]}))
put("tokenizer", "backtracks", tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(?:a|a)*(?:a|a)*\\z"}, "behavior": "Isolated", "invert": False}))
put("tokenizer", "looks_at_all", tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(?=(a*))a|a*b|a"}, "behavior": "Removed", "invert": False}))
put("tokenizer", "doubles", tokenizer(normalizer={"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 30}))
put("tokenizer", "text_twice", tokenizer(post_processor={"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] * 9, "special_tokens": {}}))
put("tokenizer", "cut", tokenizer()[:200])
for name in ("bert", "whitespace", "delimiter", "punctuation_Isolated", "gpt1", "t5"):
    put("tokenizer", "golden_" + name, pathlib.Path(f"tests/golden/tokenizers/{name}/tokenizer.json").read_bytes())
for name in ("sp_unigram", "sp_char", "sp_rules"):
    put("sentencepiece", "golden_" + name, pathlib.Path(f"tests/golden/tokenizers/{name}/tokenizer.model").read_bytes())
for name, source in {
        "unique": "{{ range(2000)|unique|list|length }}", "upper": "{% for i in range(20) %}{% set x = ('\u00df' * 100000)|upper %}{% endfor %}",
        "nested": "{% set n = namespace(a=[1]) %}{% for i in range(14) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a|tojson }}",
        "names": "{% set a = 1 %}" * 50 + "".join("{%% set v%d = %d %%}" % (i, i) for i in range(200)), "range_end": "{{ range(0, 9223372036854775807, 4611686018427387904)[::1]|list }}"}.items():
    put("template", name, source.encode())


def field(number, data):
    if isinstance(data, int):
        return bytes([number << 3 & 127 | (128 if number > 15 else 0)]) + (bytes([number >> 4]) if number > 15 else b"") + bytes([data])
    return bytes([number << 3 | 2]) + (bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])) + data


def sentencepiece(pieces, trainer=b"", normalizer=b""):
    body = b"".join(field(1, field(1, p.encode()) + b"\x15" + struct.pack("<f", s) + field(3, t)) for p, s, t in pieces)
    return body + field(2, field(3, 2) + trainer) + field(3, field(1, b"identity") + normalizer)


pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("\u2581the", -1, 1), ("th", -2, 1), ("the", -3, 1), ("he", -3, 1), ("\u2581\u2581", -1e9, 1), ("\u2581", -4, 1), ("t", -5, 1), ("e", -6, 1)]
put("sentencepiece", "plain", sentencepiece(pieces, b"", field(4, 0)))
put("sentencepiece", "bytes", sentencepiece(pieces + [("<0x%02X>" % b, 0, 6) for b in range(256)], field(35, 1), field(4, 0)))
put("sentencepiece", "defined", sentencepiece(pieces + [("<s", 0, 4), ("a ", 0, 4)], b"", field(3, 0)))
put("sentencepiece", "unused", sentencepiece([(p, s, 5 if p in ("the", "\u2581the") else t) for p, s, t in pieces], field(24, 1)))
put("sentencepiece", "cut", sentencepiece(pieces)[:90])

tables = pathlib.Path("tests/golden/parquet")
for name in ("chats", "texts", "types_v2", "types_plain", "types_gzip", "types_zstd"):
    put("parquet", name, b"\1" + (tables / f"{name}.parquet").read_bytes())
for codec in range(8):
    put("parquet", f"texts_codec{codec}", bytes([codec << 1 | 1]) + (tables / "texts.parquet").read_bytes())
for path in sorted((tables / "hostile").glob("*.parquet")):
    put("parquet", f"hostile_{path.stem}", b"\0" + path.read_bytes())
for name in ("fast", "halves", "words"):
    put("parquet", name, b"\0" + (tables / f"{name}.parquet").read_bytes())
