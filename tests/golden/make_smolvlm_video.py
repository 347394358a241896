#!/usr/bin/env python3
"""Makes tests/golden/smolvlm_video: conversations with videos as SmolVLM's processor gives them.

    python3 tests/golden/make_smolvlm_video.py    from the repository's root, after make_llava_text.py; needs transformers, torchvision >= 0.27, num2words, pillow

    NAME/K.png             the frames of videos
    chats.jsonl            conversations, in LLaVA's form, as OpenAI messages, with two videos, and with an image besides
    expected.jsonl         for each: {"fps", "ids", "labels", "prompt", "text", "answer"}: fps is the rate of the frames, data.fps here; labels are -100 where
                           nothing is trained; prompt: the ids of all messages but the last with the generation prompt; text: the whole, where a frame
                           has one <image>; answer: NEW tokens of model.generate(do_sample=False) in float32 for the prompt
    pixels.safetensors     NAME: [frames,3,S,S] of each video
    words.txt              numbers in words, by num2words

The folder of the model is tests/golden/llava_text/smolvlm.
"""
import json, os, pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np, safetensors.torch, torch, transformers
from num2words import num2words
from PIL import Image
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

here = pathlib.Path("tests/golden/smolvlm_video")
folder = "tests/golden/llava_text/smolvlm"
NEW = 6
VIDEOS = {"clip": (4, 40, 24), "other": (4, 9, 31), "long": (13, 16, 16), "one": (1, 21, 21)}  # frames, width, height

for k, (name, (n, w, h)) in enumerate(VIDEOS.items()):
    (here / name).mkdir(parents=True, exist_ok=True)
    for i in range(n):
        im = Image.new("RGB", (w, h))
        im.putdata([((60 * k + 9 * x + 17 * i) % 256, (30 + 5 * y + 40 * i) % 256, (11 * (x // 3) + 60 * (y // 5 % 2) + 5 * i) % 256) for y in range(h) for x in range(w)])
        im.save(here / name / f"{i:02d}.png")


def say(role, *parts):
    return {"role": role, "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


video = lambda name: {"type": "video", "path": name}
image = lambda name: {"type": "image", "path": f"../llava_text/images/{name}.png"}
CHATS = [
    (1, [say("user", video("clip"), "What happens?"), say("assistant", "The cat sat.")]),
    (24, [say("user", video("long"), "How long is it?"), say("assistant", "A second.")]),
    (0.05, [say("user", "Look at this:", video("clip"), "and say what it is."), say("assistant", "A bird."), say("user", "And then?"), say("assistant", "It flew.")]),
    (2, [say("user", video("clip"), video("other"), "Which is red?"), say("assistant", "The first.")]),
    (3, [say("user", video("one"), "Who?"), say("assistant", "The cat."), say("user", image("wide"), "And here?"), say("assistant", "A dog.")]),
    (0.001, [say("user", video("long"), "What is this?"), say("assistant", "A red bird.")]),
]

hf = transformers.AutoTokenizer.from_pretrained(folder)
config = json.loads(pathlib.Path(folder, "preprocessor_config.json").read_text())
config.pop("image_processor_type")
side = config["max_image_size"]["longest_edge"]
seq = (side // 4) ** 2 // 4
images = transformers.SmolVLMImageProcessor(**config)
videos = SmolVLMVideoProcessor(size=config["size"], max_image_size=config["max_image_size"])
videos.num_frames, videos.fps = 64, 1  # apply_chat_template asks for them; nothing is sampled here
processor = transformers.SmolVLMProcessor(images, hf, videos, image_seq_len=seq)


def frames_of(name):
    return [np.asarray(Image.open(p)) for p in sorted((here / name).glob("*.png"))]


def metadata(name, fps):
    n = VIDEOS[name][0]
    return dict(total_num_frames=n, fps=fps, duration=n / fps, frames_indices=list(range(n)))


def media(messages, kind):
    return [p["path"] for m in messages for p in m["content"] if p["type"] == kind]


def inputs(messages, fps, prompt):
    text = processor.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
    v, i = media(messages, "video"), media(messages, "image")
    more = dict(videos=[frames_of(x) for x in v], video_metadata=[metadata(x, fps) for x in v], do_sample_frames=False) if v else {}
    if not i:
        return processor(text=[text], add_special_tokens=False, return_tensors="pt", **more)
    # The processor takes no sample with both: each replaces its own tokens.
    for x in v:
        values = videos([frames_of(x)], video_metadata=[metadata(x, fps)], do_sample_frames=False, return_metadata=True, return_tensors="pt")
        text = text.replace("<video>", processor.replace_video_token(values, 0).replace("<image>", "<frame>"), 1)
    stills = images([[Image.open(here / x)] for x in i], return_row_col_info=True)
    for k in range(len(i)):
        text = text.replace("<image>", processor.replace_image_token(stills, k).replace("<image>", "<frame>"), 1)
    return dict(input_ids=[hf(text.replace("<frame>", "<image>"), add_special_tokens=False)["input_ids"]])


def ids_of(x):
    return [int(t) for t in x["input_ids"][0]]


def compact(ids):
    """The text, where the tokens of a frame are one <image>."""
    return hf.decode(ids).replace("<image>" * seq, "<image>")


model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
lines = []
for fps, messages in CHATS:
    x = inputs(messages, fps, False)
    ids, labels = ids_of(x), []
    labels = [-100] * len(ids)
    for k, m in enumerate(messages):
        if m["role"] == "assistant":
            before, after = ids_of(inputs(messages[:k], fps, True)), ids_of(inputs(messages[: k + 1], fps, False))
            assert ids[: len(before)] == before and ids[: len(after)] == after
            labels[len(before) : len(after)] = ids[len(before) : len(after)]
    p = inputs(messages[:-1], fps, True)
    line = dict(fps=fps, ids=ids, labels=labels, prompt=ids_of(p), text=compact(ids))
    if not media(messages, "image"):
        out = model.generate(input_ids=p["input_ids"], attention_mask=torch.ones_like(p["input_ids"]), pixel_values=p["pixel_values"].flatten(0, 1)[None], do_sample=False,
                             max_new_tokens=NEW, pad_token_id=0, output_scores=True, return_dict_in_generate=True)
        tops = [torch.topk(s[0], 2).values for s in out.scores]
        print(fps, [round((t[0] - t[1]).item(), 4) for t in tops])
        line["answer"] = out.sequences[0, p["input_ids"].shape[1] :].tolist()
    lines.append(line)
    print(line["text"])
(here / "chats.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for _, m in CHATS))
(here / "expected.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
pixels = {name: videos([frames_of(name)], return_tensors="pt", do_sample_frames=False)["pixel_values"][0].contiguous() for name in VIDEOS}
safetensors.torch.save_file(pixels, here / "pixels.safetensors")
NUMBERS = list(range(1, 22)) + [30, 42, 64, 99, 100, 101, 110, 111, 200, 256, 999, 1000, 1001, 1010, 1099, 1100, 1234, 4096, 10000, 100000, 123456, 1000000, 2000001, 3001100, 4294967295]
(here / "words.txt").write_text("".join(f"{n} {num2words(n)}\n" for n in NUMBERS))
