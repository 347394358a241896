#!/usr/bin/env python3
"""Writes Parquet tables as Hugging Face `datasets` and pyarrow write them, and what is in them.

    python3 tests/golden/make_parquet.py      from the repository's root; needs datasets, pyarrow, fastparquet, pandas, pillow, numpy

tests/golden/parquet/NAME.parquet   a table
tests/golden/parquet/NAME.jsonl     its rows as test_parquet expects them: bytes are references to cells
tests/golden/parquet/pairs, talks   the images and masks of masks.parquet and the images of talks.parquet as files; talks.json names these
tests/golden/parquet/cells.txt      NAME ROW COLUMN ITEM LENGTH CRC32 of each cell of bytes; - for one that is null
tests/golden/parquet/hostile        tables that no program writes: they claim more than they have
"""
import gzip, io, json, pathlib, zlib
import fastparquet, numpy as np, pandas, pyarrow as pa, pyarrow.parquet as pq
from PIL import Image
from datasets import Dataset, Features, Image as ImageFeature, List, Value

here = pathlib.Path("tests/golden/parquet")
cells = []


def leaves(name, t):
    if pa.types.is_struct(t):
        return [x for f in t for x in leaves(f"{name}.{f.name}", f.type)]
    if pa.types.is_list(t):
        return leaves(name, t.value_type)
    return [name]


def expect(name, schema, rows):
    """Rows with references instead of bytes; each cell of bytes is noted."""
    columns = [x for f in schema for x in leaves(f.name, f.type)]
    path = here / f"{name}.parquet"
    lines = []
    for r, row in enumerate(rows):
        items = {}

        def cell(key, data):
            items[key] = items.get(key, 0) + 1
            column = columns.index(key)
            cells.append(f"{name} {r} {column} {items[key] - 1} " + (f"{len(data)} {zlib.crc32(data)}" if data is not None else "-"))
            return None if data is None else f"parquet:{path}/{r + 1}/{column}/{items[key]}"

        def walk(key, x):
            if isinstance(x, dict) and set(x) == {"bytes", "path"}:
                reference = cell(f"{key}.bytes", x["bytes"])
                return x if reference is None else reference
            if isinstance(x, dict):
                return {k: walk(f"{key}.{k}", v) for k, v in x.items()}
            if isinstance(x, list):
                return [walk(key, v) for v in x]
            return cell(key, x) if isinstance(x, bytes) else x

        lines.append(json.dumps({k: walk(k, v) for k, v in row.items()}, ensure_ascii=False))
    (here / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def put(name, table, rows, **options):
    pq.write_table(table, here / f"{name}.parquet", **options)
    expect(name, table.schema, rows)


def put_dataset(name, dataset, rows):
    dataset.to_parquet(here / f"{name}.parquet")
    expect(name, dataset.features.arrow_schema, rows)


def put_file(path, data):
    (here / path).parent.mkdir(parents=True, exist_ok=True)
    (here / path).write_bytes(data)


def encode(array, kind):
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return out.getvalue()


def scene(i, width=48, height=32):
    """An image with a disc and a box on noise, and its mask of classes 1 and 2."""
    r = np.random.default_rng(i)
    y, x = np.mgrid[:height, :width]
    disc = (x - 12 - i) ** 2 + (y - 14) ** 2 < 60 + 8 * i
    box = (x > 28) & (x < 40) & (y > 6 + i) & (y < 26)
    image = r.integers(0, 60, (height, width, 3), dtype=np.uint8)
    image[disc] = (200, 80, 60)
    image[box] = (60, 90, 210)
    mask = np.zeros((height, width), np.uint8)
    mask[disc], mask[box] = 1, 2
    return image, mask


# conversations, as datasets writes them
chats = [{"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]},
         {"messages": [{"role": "user", "content": "Grüße, \"Welt\"\n\\ ✓"}, {"role": "assistant", "content": "Hallo."}]}]
chats += [{"messages": [{"role": "user", "content": f"Say the number {i}."}, {"role": "assistant", "content": f"It is {i}."}]} for i in range(20)]
put_dataset("chats", Dataset.from_list(chats), chats)
put_dataset("texts", Dataset.from_list([{"text": f"Line {i}, and more of it.", "id": i} for i in range(12)]), [{"text": f"Line {i}, and more of it.", "id": i} for i in range(12)])

# every type, nulls, empty lists, lists of lists, in every codec and both versions of pages
types = []
for i in range(40):
    types.append({"yes": None if i % 7 == 3 else i % 3 == 0, "small": None if i % 5 == 1 else i - 20, "large": i * 10**12 - 7, "single": i / 8, "double": i / 3,
                  "name": None if i % 6 == 2 else f"name {i % 4}", "nested": None if i % 9 == 4 else [[f"{i}-{j}-{k}" if (i + k) % 4 else None for k in range(j)] for j in range(i % 4)],
                  "pair": None if i % 8 == 5 else {"left": i, "right": None if i % 2 else [i / 2, None]}, "blob": None if i % 4 == 1 else bytes([i]) * i})
schema = pa.schema([("yes", pa.bool_()), ("small", pa.int32()), ("large", pa.int64()), ("single", pa.float32()), ("double", pa.float64()), ("name", pa.string()),
                    ("nested", pa.list_(pa.list_(pa.string()))), ("pair", pa.struct([("left", pa.int64()), ("right", pa.list_(pa.float64()))])), ("blob", pa.binary())])
table = pa.Table.from_pylist(types, schema=schema)
for codec in ("none", "snappy", "gzip", "zstd"):
    put(f"types_{codec}", table, types, compression=codec, row_group_size=17)
put("types_v2", table, types, compression="snappy", data_page_version="2.0", row_group_size=23)
put("types_plain", table, types, compression="snappy", use_dictionary=False, data_page_size=64, write_batch_size=4, row_group_size=40)

# images and masks, as datasets writes them now (not compressed) and as it did before (dictionary,
# snappy)
samples = [scene(i) for i in range(6)]
rows = [{"image": {"bytes": encode(im, "JPEG" if i % 2 else "PNG"), "path": f"{i}.png"}, "mask": {"bytes": encode(m, "PNG"), "path": None}, "label": i, "split": "train" if i < 4 else "test"}
        for i, (im, m) in enumerate(samples)]
features = Features({"image": ImageFeature(), "mask": ImageFeature(), "label": Value("int64"), "split": Value("string")})
dataset = Dataset.from_list(rows, features=features)
put_dataset("masks", dataset, rows)
for i, row in enumerate(rows):
    put_file(f"pairs/images/{i}.{'jpg' if i % 2 else 'png'}", row["image"]["bytes"])
    put_file(f"pairs/masks/{i}.png", row["mask"]["bytes"])
put("masks_snappy", pa.Table.from_pylist(rows, schema=pa.schema(dataset.features.arrow_schema.remove_metadata())), rows, compression="snappy", row_group_size=4)
# several masks an image: a list, and two columns
many = [{"pixels": row["image"], "masks": [{"bytes": encode((m == k).astype(np.uint8) * 255, "PNG"), "path": None} for k in (1, 2)][: 1 + i % 2]} for i, (row, (_, m)) in enumerate(zip(rows, samples))]
put_dataset("mask_lists", Dataset.from_list(many, features=Features({"pixels": ImageFeature(), "masks": List(ImageFeature())})), many)
two = [{"image": row["image"], "disc": {"bytes": encode((m == 1).astype(np.uint8) * 255, "PNG"), "path": None}, "box": {"bytes": encode((m == 2).astype(np.uint8), "PNG"), "path": None}}
       for row, (_, m) in zip(rows, samples)]
put_dataset("mask_columns", Dataset.from_list(two, features=Features({"image": ImageFeature(), "disc": ImageFeature(), "box": ImageFeature()})), two)

# images with conversations: lists of images, one of them empty
talks = []
for i in range(6):
    n = (1, 2, 0, 1, 1, 2)[i]
    talks.append({"id": f"t{i}", "images": [{"bytes": encode(scene(i + k)[0], "PNG"), "path": f"{i}-{k}.png"} for k in range(n)],
                  "conversations": [{"from": "human", "value": "<image>\n" * n + "what is it?"}, {"from": "gpt", "value": f"disc {i}."}]})
turn = {"from": Value("string"), "value": Value("string")}
put_dataset("talks", Dataset.from_list(talks, features=Features({"id": Value("string"), "images": List(ImageFeature()), "conversations": List(turn)})), talks)

for talk in talks:
    for x in talk["images"]:
        put_file("talks/" + x["path"], x["bytes"])
(here / "talks.json").write_text(json.dumps([{**talk, "images": ["talks/" + x["path"] for x in talk["images"]]} for talk in talks], indent=0) + "\n")

# a nullable column of text, as fastparquet writes it: its pages state BIT_PACKED for repetition
# levels, which they do not have, as those of Spark do
flat = [{"text": None if i % 5 == 3 else f"Line {i % 7}."} for i in range(30)]
fastparquet.write(str(here / "fast.parquet"), pandas.DataFrame({"text": [r["text"] for r in flat]}), object_encoding="utf8", has_nulls=True, compression="GZIP")
expect("fast", pq.read_schema(here / "fast.parquet").remove_metadata(), flat)
# float16, with and without a dictionary; what has no form in JSON is null
halves = [{"half": None if i % 4 == 2 else (i - 9) / 8 if i < 20 else 6e-8 * (i - 19), "price": None, "uid": None} for i in range(24)]
halves = [{**r, "half": None if r["half"] is None else float(np.float16(r["half"]))} for r in halves]
table = pa.table({"half": pa.array([None if r["half"] is None else np.float16(r["half"]) for r in halves], pa.float16()), "price": pa.array([i * 100 for i in range(24)], pa.int64()).cast(pa.decimal128(21, 2)),
                  "uid": pa.array([bytes([i]) * 16 for i in range(24)], pa.binary(16))})
put("halves", table, halves)
put("halves_plain", table, halves, use_dictionary=False)
# a dictionary that is written as it is has more words than the group has rows
words = pa.DictionaryArray.from_arrays(pa.array([3, None, 1], pa.int32()), pa.array([f"word {i}" for i in range(9)]))
put("words", pa.table({"text": words}), [{"text": "word 3"}, {"text": None}, {"text": "word 1"}])
# an encoding that is not read
pq.write_table(pa.table({"text": ["a", "ab", "abc"]}), here / "delta.parquet", use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})


# --- tables that no program writes: Thrift's compact protocol by hand ---------------------------

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def value(kind, x):
    if kind in (I32, I64):
        return varint(2 * x if x >= 0 else -2 * x - 1)
    if kind == BINARY:
        return varint(len(x)) + x
    if kind == LIST:
        return (bytes([len(x[1]) << 4 | x[0]]) if len(x[1]) < 15 else bytes([0xF0 | x[0]]) + varint(len(x[1]))) + b"".join(value(x[0], v) for v in x[1])
    return fields(x)


def fields(x):
    """x: {number: (type, value)}"""
    out, last = b"", 0
    for number, (kind, v) in x.items():
        out, last = out + bytes([(number - last) << 4 | kind]) + value(kind, v), number
    return out + b"\0"


def page(kind, entries, body, full=None):
    """A page of version 1 (kind 0) or a dictionary (2), in PLAIN or as indices."""
    how = {1: (I32, entries), 2: (I32, 0 if kind == 2 or full is None else 8)}
    if kind == 0:
        how.update({3: (I32, 3), 4: (I32, 4)})
    return fields({1: (I32, kind), 2: (I32, full or len(body)), 3: (I32, len(body)), 5 if kind == 0 else 7: (STRUCT, how)}) + body


def hostile(name, rows, schema, columns, codec=0, at=None, short=0):
    """schema: elements; columns: (path, type, entries, bytes of all pages). The footer says `short` bytes less."""
    data, chunks = b"PAR1", []
    for path, kind, entries, pages in columns:
        chunks.append({2: (I64, 0), 3: (STRUCT, {1: (I32, kind), 2: (LIST, (I32, [0, 3])), 3: (LIST, (BINARY, path)), 4: (I32, codec), 5: (I64, entries), 6: (I64, len(pages) - short), 7: (I64, len(pages) - short),
                                                 9: (I64, len(data) if at is None else at)})})
        data += pages
    footer = fields({1: (I32, 2), 2: (LIST, (STRUCT, schema)), 3: (I64, rows), 4: (LIST, (STRUCT, [{1: (LIST, (STRUCT, chunks)), 2: (I64, 0), 3: (I64, rows)}]))})
    (here / "hostile").mkdir(exist_ok=True)
    (here / "hostile" / f"{name}.parquet").write_bytes(data + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def root(n):
    return {4: (BINARY, b"root"), 5: (I32, n)}


def optional(name, text=True):
    return {1: (I32, 6), 3: (I32, 1), 4: (BINARY, name), **({6: (I32, 0)} if text else {})}


def nulls(rows):
    """One run of definition levels, all 0."""
    run = varint(rows << 1) + b"\0"
    return page(0, rows, len(run).to_bytes(4, "little") + run)


million = 1_000_000
hostile("nulls", 100 * million, [root(1), optional(b"text")], [([b"text"], 6, 100 * million, nulls(100 * million))])
hostile("image_nulls", 100 * million, [root(2), optional(b"image", False), optional(b"mask", False)], [([c], 6, 100 * million, nulls(100 * million)) for c in (b"image", b"mask")])
# four columns, each with a dictionary of 5 million empty words for one row
body = bytes(20 * million)
packed = pa.compress(body, "zstd", asbytes=True)
entry = (2).to_bytes(4, "little") + b"\2\1" + b"\1\2\0"  # one definition level of 1; indices of 1 bit: one 0
one = pa.compress(entry, "zstd", asbytes=True)
pages = page(2, 5 * million, packed, len(body)) + page(0, 1, one, len(entry))
hostile("dictionaries", 1, [root(4)] + [optional(n) for n in (b"text", b"prompt", b"completion", b"system")], [([n], 6, 1, pages) for n in (b"text", b"prompt", b"completion", b"system")], codec=6)
# no row, and a position that is none
hostile("no_rows", 0, [root(1), optional(b"text")], [([b"text"], 6, 0, b"")], at=0)
# two gzip members, which are one
entry = (2).to_bytes(4, "little") + b"\4\1" + b"\3\0\0\0two\7\0\0\0members"
members = gzip.compress(entry[:9], mtime=0) + gzip.compress(entry[9:], mtime=0)
two = fields({1: (I32, 0), 2: (I32, len(entry)), 3: (I32, len(members)), 5: (STRUCT, {1: (I32, 2), 2: (I32, 0), 3: (I32, 3), 4: (I32, 4)})}) + members
hostile("members", 2, [root(1), optional(b"text")], [([b"text"], 6, 2, two)], codec=2)
# a chunk whose size lacks the header of its dictionary's page, as parquet-mr wrote them before
# 1.2.9
words = b"\3\0\0\0one\3\0\0\0two"
entry = (2).to_bytes(4, "little") + b"\4\1" + b"\1\3\2"  # two definition levels of 1; indices of 1 bit: 0 and 1
pages = page(2, 2, words), page(0, 2, entry, len(entry))
hostile("short", 2, [root(1), optional(b"text")], [([b"text"], 6, 2, pages[0] + pages[1])], short=len(pages[0]) - len(words))

(here / "cells.txt").write_text("\n".join(cells) + "\n")
