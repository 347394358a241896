#!/usr/bin/env python3
"""Writes Parquet tables as Hugging Face `datasets` and pyarrow write them, and what is in them.

    python3 tests/golden/make_parquet.py      from the repository's root; needs datasets, pyarrow, pillow, numpy

tests/golden/parquet/NAME.parquet   a table
tests/golden/parquet/NAME.jsonl     its rows as test_parquet expects them: bytes are references to cells
tests/golden/parquet/pairs, talks   the images and masks of masks.parquet and the images of talks.parquet as files; talks.json names these
tests/golden/parquet/cells.txt      NAME ROW COLUMN ITEM LENGTH CRC32 of each cell of bytes; - for one that is null
"""
import io, json, pathlib, zlib
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
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

# images and masks, as datasets writes them now (not compressed) and as it did before (dictionary, snappy)
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

(here / "cells.txt").write_text("\n".join(cells) + "\n")
