#!/usr/bin/env python3
"""Golden files for `plimsoll train` on conversations with images of any size: six steps of small Qwen-VLs in PyTorch.

    python tests/golden/make_qwen_vl_train.py [--out DIR] [--only CASE]...

Run it from the repository's root: run.yaml holds paths as seen from there. Each case is one folder:

    config.json, model.safetensors, tokenizer.json, chat_template.jinja, preprocessor_config.json   the model before step 1
    images/*.png, clips/*/*.png      images of mixed sizes, and videos: folders of frames
    chats.jsonl                      conversations with none to three images, or videos
    run.yaml                         the run, as `plimsoll train` reads it
    losses.json                      per step: loss, learning rate, gradient norm

What holds: transformers' image and video processors make the pixels, each conversation is a forward of its own, and the loss of a
step is the sum over the labels of all conversations, divided by their number. A step has all conversations, so their
order and how they share rows change nothing.
"""
import argparse
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import numpy
import torch
import yaml
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoVideoProcessor, PreTrainedTokenizerFast, get_linear_schedule_with_warmup
from transformers.video_utils import VideoMetadata

import common
import make_qwen_vl

STEPS, ROWS, VOCABULARY = 6, 8, 300
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
            "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
            "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# As Qwen2-VL is published with: a system prompt of its own, counted images, parts by key or type.
PUBLISHED = ("{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for message in messages %}"
             "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
             "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}{% for content in message['content'] %}"
             "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}{% set image_count.value = image_count.value + 1 %}"
             "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
             "{% elif content['type'] == 'video' or 'video' in content %}{% set video_count.value = video_count.value + 1 %}"
             "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
             "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SIZES = [(33, 20), (8, 8), (40, 64), (90, 12), (25, 70), (64, 64), (17, 41)]
CLIPS = {"a": (4, 24, 18), "b": (3, 30, 12)}  # frames, width, height
FPS = 24  # of a folder of frames
CHATS = [  # images and videos, question, answer
    ([0], "what is this", "a red boat"), ([1, 2], "which is larger", "the second one is larger"), ([], "say hello", "hello there"),
    ([3], "how wide is it", "very wide"), ([4, 0, 1], "count them", "there are three images"), ([5], "is it square", "yes"),
    ([6, "a"], "compare", "one is tall"), (["b"], "describe the video", "it shows a green field under grey clouds"),
]
CASES = {
    "qwen2_vl": dict(model=make_qwen_vl.case(vocab=VOCABULARY, tied=True, patch=4), packing=False, sequence=160, template=PUBLISHED),
    "qwen2_5_vl": dict(model=make_qwen_vl.case(kind="qwen2_5_vl", vocab=VOCABULARY, patch=4, window=16), packing=True, sequence=140),
    "qwen3_vl": dict(model=make_qwen_vl.case(kind="qwen3_vl", names="memory", style=5, vocab=VOCABULARY, patch=4, head_dim=12, heads=2, kv_heads=1,
                                                   layers=3, sections=[2, 2, 2]), packing=True, sequence=160),
}


def write_folder(folder, c):
    os.makedirs(os.path.join(folder, "images"), exist_ok=True)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([q + " " + a for _, q, a in CHATS] * 4, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL,
                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert t.get_vocab_size() <= VOCABULARY
    t.save(os.path.join(folder, "tokenizer.json"))
    common.write_json(os.path.join(folder, "tokenizer_config.json"), dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|endoftext|>"))
    with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
        f.write(c.get("template", TEMPLATE))
    m = c["model"]
    make_qwen_vl.IMAGE, make_qwen_vl.VIDEO = t.token_to_id("<|image_pad|>"), t.token_to_id("<|video_pad|>")
    make_qwen_vl.START, make_qwen_vl.END = t.token_to_id("<|vision_start|>"), t.token_to_id("<|vision_end|>")
    make_qwen_vl.write_model(folder, m, common.generator_of("train_" + os.path.basename(folder), 0))
    kind = "Qwen2VLImageProcessorFast"
    common.write_json(os.path.join(folder, "preprocessor_config.json"),
                      dict(image_processor_type=kind, patch_size=m["patch"], temporal_patch_size=2, merge_size=m["merge"], min_pixels=256, max_pixels=2560,
                           image_mean=[0.48, 0.45, 0.4], image_std=[0.26, 0.26, 0.27]))
    common.write_json(os.path.join(folder, "video_preprocessor_config.json"),
                      dict(video_processor_type="Qwen3VLVideoProcessor" if m["kind"] == "qwen3_vl" else "Qwen2VLVideoProcessor", patch_size=m["patch"], temporal_patch_size=2,
                           merge_size=m["merge"], size=dict(shortest_edge=256, longest_edge=2560), image_mean=[0.48, 0.45, 0.4], image_std=[0.26, 0.26, 0.27]))
    r = numpy.random.RandomState(7)
    for i, (w, h) in enumerate(SIZES):
        coarse = Image.fromarray(r.randint(0, 256, (4, 4, 3), dtype=numpy.uint8))
        coarse.resize((w, h), Image.BICUBIC).save(os.path.join(folder, "images", f"{i}.png"))
    for name, (frames, w, h) in CLIPS.items():
        os.makedirs(os.path.join(folder, "clips", name), exist_ok=True)
        for i in range(frames):
            coarse = Image.fromarray(r.randint(0, 256, (4, 4, 3), dtype=numpy.uint8))
            coarse.resize((w, h), Image.BICUBIC).save(os.path.join(folder, "clips", name, f"{i}.png"))
    with open(os.path.join(folder, "chats.jsonl"), "w") as f:
        for media, q, a in chats_of(c):
            user = [dict(type="image", image=f"images/{i}.png") if isinstance(i, int) else dict(type="video", video=f"clips/{i}") for i in media] + [dict(type="text", text=q)]
            f.write(json.dumps({"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": [dict(type="text", text=a)]}]}) + "\n")
    return t


def chats_of(c):
    return CHATS * (2 if c["packing"] else 1)


def write_run(folder, c, path):
    run = dict(model=dict(path=path), data=dict(format="conversations", train=path + "/chats.jsonl", sequence=c["sequence"], packing=c["packing"], shuffle=False, max_frames=4),
               train=dict(steps=STEPS, effective_batch=ROWS, learning_rate=0.01, schedule="linear", warmup_steps=2, weight_decay=0.1, beta1=0.9,
                          beta2=0.95, eps=1e-4, clip_norm=2.0, seed=0, out="runs/" + os.path.basename(folder)),
               memory=dict(micro_batch=8, precision="f32"), device="cpu")
    with open(os.path.join(folder, "run.yaml"), "w") as f:
        f.write("# Steps compared with PyTorch (losses.json); made by make_qwen_vl_train.py.\n# Paths are seen from the repository's root.\n")
        yaml.safe_dump(run, f, sort_keys=False)
    return run["train"]


def read_clip(folder, videos, name):
    frames = CLIPS[name][0]
    images = [Image.open(os.path.join(folder, "clips", name, f"{i}.png")) for i in range(frames)]
    values = torch.stack([torch.from_numpy(numpy.array(i.convert("RGB"))).permute(2, 0, 1) for i in images])
    return videos(videos=[values], video_metadata=[VideoMetadata(total_num_frames=frames, fps=FPS, frames_indices=list(range(frames)))], do_sample_frames=False, return_tensors="pt")


def clip_text(kind, grid, merge, frames):
    """Returns the text that replaces <|video_pad|>: Qwen3-VL names the time of each grid."""
    n = int(grid[1] * grid[2]) // merge ** 2
    if kind != "qwen3_vl":
        return "<|video_pad|>" * (int(grid[0]) * n)
    times = [i / FPS for i in list(range(frames)) + [frames - 1] * (frames % 2)]
    return "".join(f"<{(times[2 * t] + times[2 * t + 1]) / 2:.1f} seconds><|vision_start|>" + "<|video_pad|>" * n + "<|vision_end|>" for t in range(int(grid[0])))


def encode(folder, kind, template, hf, processor, videos, media, q, a):
    images, clips = [i for i in media if isinstance(i, int)], [i for i in media if not isinstance(i, int)]
    user = [dict(type="image" if isinstance(i, int) else "video") for i in media] + [dict(type="text", text=q)]
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": a}]
    before = hf.apply_chat_template(messages[:1], chat_template=template, tokenize=False, add_generation_prompt=True)
    whole = hf.apply_chat_template(messages, chat_template=template, tokenize=False)
    assert whole.startswith(before)
    read = [read_clip(folder, videos, name) for name in clips]
    for name, x in zip(clips, read):
        text = clip_text(kind, x["video_grid_thw"][0], processor.merge_size, CLIPS[name][0])
        before, whole = (s.replace("<|video_pad|>", text.replace("<|video_pad|>", "<|clip|>"), 1).replace("<|clip|>", "<|video_pad|>") if len(clips) == 1 else s for s in (before, whole))
    pixels = processor(images=[Image.open(os.path.join(folder, "images", f"{i}.png")) for i in images], return_tensors="pt") if images else None
    encoded, ids, labels, k = hf(whole, return_offsets_mapping=True, add_special_tokens=False), [], [], 0
    for token, (b, e) in zip(encoded["input_ids"], encoded["offset_mapping"]):
        n = 1
        if token == make_qwen_vl.IMAGE:
            n, k = int(pixels["image_grid_thw"][k].prod()) // processor.merge_size ** 2, k + 1
        ids += [token] * n
        labels += [token if b >= len(before) else common.IGNORE] * n
    ids_ = torch.tensor([ids])
    out = dict(input_ids=ids_, mm_token_type_ids=((ids_ == make_qwen_vl.IMAGE).int() + 2 * (ids_ == make_qwen_vl.VIDEO).int()))
    if read:
        out.update(pixel_values_videos=torch.cat([x["pixel_values_videos"].float() for x in read]), video_grid_thw=torch.cat([x["video_grid_thw"] for x in read]))
        if kind == "qwen2_5_vl":
            out.update(second_per_grid_ts=torch.tensor([2 / FPS for _ in read]))
    if images:
        out.update(pixel_values=pixels["pixel_values"].float(), image_grid_thw=pixels["image_grid_thw"])
    return out, torch.tensor(labels)


def train(folder, c, t):
    hf = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    processor, videos = AutoImageProcessor.from_pretrained(folder), AutoVideoProcessor.from_pretrained(folder)
    samples = [encode(folder, c["model"]["kind"], c.get("template", TEMPLATE), hf, processor, videos, *chat) for chat in chats_of(c)]
    model = make_qwen_vl.load_model(folder, torch.float32).train()
    rows = run_steps(folder, model, t, [labels for _, labels in samples], lambda i: model(use_cache=False, **samples[i][0]).logits[0])
    return rows, max(given["input_ids"].shape[1] for given, _ in samples), sum(given["input_ids"].shape[1] for given, _ in samples)


def run_steps(folder, model, t, labels, logits_of):
    """Trains the model and writes losses.json; logits_of(i): those of sample i; None: they cannot be used, and neither
    can the run."""
    count = sum(int((x[1:] != common.IGNORE).sum()) for x in labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=t["learning_rate"], betas=(t["beta1"], t["beta2"]), eps=t["eps"], weight_decay=t["weight_decay"])
    schedule = get_linear_schedule_with_warmup(optimizer, t["warmup_steps"], t["steps"])
    rows = []
    for step in range(t["steps"]):
        loss = 0
        for i, x in enumerate(labels):
            logits = logits_of(i)
            if logits is None:
                return None
            loss = loss + torch.nn.functional.cross_entropy(logits[:-1], x[1:], ignore_index=common.IGNORE, reduction="sum") / count
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), t["clip_norm"])
        rows.append(dict(step=step + 1, loss=loss.item(), learning_rate=schedule.get_last_lr()[0], grad_norm=float(norm)))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    with open(os.path.join(folder, "losses.json"), "w") as f:
        f.write('{"steps": [\n' + ",\n".join(json.dumps(r) for r in rows) + "\n]}\n")
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=os.path.join(common.HERE, "qwen_vl"))
    p.add_argument("--only", action="append")
    a = p.parse_args()
    common.quiet()
    for name, c in CASES.items():
        if a.only and name not in a.only:
            continue
        folder = os.path.join(a.out, name)
        write_folder(folder, c)
        t = write_run(folder, c, os.path.relpath(folder, os.path.join(common.HERE, "..", "..")))
        rows, longest, total = train(folder, c, t)
        print(f"{name:20} longest {longest}, in all {total} tokens, loss {rows[0]['loss']:.5f} to {rows[-1]['loss']:.5f}, {common.folder_bytes(folder)} bytes")


if __name__ == "__main__":
    main()
