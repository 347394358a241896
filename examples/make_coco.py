#!/usr/bin/env python3
"""Writes a small COCO dataset with exact masks, to try a guide without data of your own.

    build/plimsoll data make runs/shapes --images 300 --size 256x192 --masks 4 --extracted
    python3 examples/make_coco.py runs/shapes runs/coco

The images are those of `plimsoll data make --extracted`. The annotations become
annotations/instances_train.json and instances_val.json, where every tenth image is in the second, with
two categories, "large" and "small". Needs Python 3 and nothing else.
"""
import json
import pathlib
import shutil
import sys


def main(source, target):
    target = pathlib.Path(target)
    (target / "images").mkdir(parents=True)
    (target / "annotations").mkdir()
    splits = {"train": ([], []), "val": ([], [])}
    for number, path in enumerate(sorted(pathlib.Path(source).rglob("*.json"))):
        sample = json.loads(path.read_text())
        image = sample["image"]
        images, annotations = splits["val" if number % 10 == 9 else "train"]
        shutil.copy(path.with_suffix(".jpg"), target / "images" / image["file_name"])
        images.append({"id": image["image_id"], "file_name": image["file_name"],
                       "width": image["width"], "height": image["height"]})
        for mask in sample["annotations"]:
            large = mask["area"] > 0.1 * image["width"] * image["height"]
            annotations.append({"id": mask["id"], "image_id": image["image_id"], "category_id": 1 if large else 2,
                                "iscrowd": 0, "area": mask["area"], "bbox": mask["bbox"],
                                "segmentation": mask["segmentation"]})
    categories = [{"id": 1, "name": "large"}, {"id": 2, "name": "small"}]
    for name, (images, annotations) in splits.items():
        for number, annotation in enumerate(annotations):
            annotation["id"] = number + 1
        file = target / "annotations" / f"instances_{name}.json"
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
        print(f"{file}: {len(images)} images, {len(annotations)} masks")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
