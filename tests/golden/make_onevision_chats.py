#!/usr/bin/env python3
"""Golden files for LLaVA-OneVision on conversations with images and videos, made with transformers.

    python tests/golden/make_onevision_chats.py [--out DIR]

Run it from the repository's root: run.yaml holds paths as seen from there. The folder onevision_chats/qwen2:

    config.json, model.safetensors, tokenizer.json, chat_template.jinja, preprocessor_config.json, processor_config.json   the model
    images/*.png, clips/*/*.png      images of mixed sizes, and videos: folders of frames
    chats.jsonl                      conversations with none to three images, or videos
    prompts.jsonl                    the same without their answers
    expected.jsonl                   of each: the ids and labels of the conversation, the ids of the prompt, and its answer
    run.yaml, losses.json            a run, and per step: loss, learning rate, gradient norm

What holds: LlavaOnevisionProcessor with torchvision's image processor makes ids and pixels; answers are model.generate(do_sample=False) in float32, and at
every token the largest logit is ahead of the second by at least MARGIN; each conversation is a forward of its own in training, and the loss of a
step is the sum over the labels of all conversations, divided by their number.
"""
import argparse
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
import yaml
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlavaOnevisionProcessor, LlavaOnevisionVideoProcessor, PreTrainedTokenizerFast
from transformers.models.llava_onevision.image_processing_llava_onevision import LlavaOnevisionImageProcessor

import common
import make_generate
import make_llava
import make_onevision
import make_qwen_vl_train

STEPS, NEW, MARGIN, SIDE, MOST = 6, 8, 2e-3, 12, 2
PINPOINTS = [[SIDE * h, SIDE * w] for h in (1, 2, 3) for w in (1, 2, 3)]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# As the models are published with: images, then videos, then texts, each behind a line break.
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
            "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
            "{% for part in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>' }}{% endfor %}"
            "{% if message['role'] != 'assistant' %}{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\n' + part['text'] }}{% endfor %}"
            "{% else %}{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}{{ '\n' + part['text'] }}{% endgeneration %}{% endfor %}{% endif %}"
            "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SIZES = [(33, 20), (8, 8), (40, 64), (90, 12), (25, 70), (64, 64), (17, 41)]
CLIPS = {"a": (4, 24, 18), "b": (3, 30, 12)}  # frames, width, height
CHATS = [  # images and videos, question, answer
    ([0], "what is this", "a red boat"), ([1, 2], "which is larger", "the second one is larger"), ([], "say hello", "hello there"),
    ([3], "how wide is it", "very wide"), ([4, 0, 1], "count them", "there are three images"), ([5], "is it square", "yes"),
    ([6, "a"], "compare", "one is tall"), (["b"], "describe the video", "it shows a green field under grey clouds"),
]


def write_folder(folder, seed):
    os.makedirs(os.path.join(folder, "images"), exist_ok=True)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([q + " " + a for _, q, a in CHATS] * 4, trainers.BpeTrainer(vocab_size=298, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ("<video>", "<image>")])
    c = make_onevision.case([[[]]], MOST, PINPOINTS, text=dict(family="qwen2", vocab=t.get_vocab_size(), positions=512), std=0.15, names="memory", dtype="bfloat16")
    make_llava.write_model(folder, c, common.generator_of("onevision_chats", seed))
    t.save(os.path.join(folder, "tokenizer.json"))
    common.write_json(os.path.join(folder, "tokenizer_config.json"), dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|endoftext|>"))
    with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
        f.write(TEMPLATE)
    square, values = dict(height=SIDE, width=SIDE), dict(image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5])
    common.write_json(os.path.join(folder, "preprocessor_config.json"), dict(image_processor_type="LlavaOnevisionImageProcessor", size=square, image_grid_pinpoints=PINPOINTS, **values))
    common.write_json(os.path.join(folder, "video_preprocessor_config.json"), dict(video_processor_type="LlavaOnevisionVideoProcessor", size=square, **values))
    common.write_json(os.path.join(folder, "processor_config.json"), dict(processor_class="LlavaOnevisionProcessor", num_image_tokens=9, vision_feature_select_strategy="full", vision_aspect_ratio=f"anyres_max_{MOST}"))
    r = numpy.random.RandomState(7)

    def paint(path, w, h):
        Image.fromarray(r.randint(0, 256, (4, 4, 3), dtype=numpy.uint8)).resize((w, h), Image.BICUBIC).save(os.path.join(folder, path))
    for i, (w, h) in enumerate(SIZES):
        paint(f"images/{i}.png", w, h)
    for name, (frames, w, h) in CLIPS.items():
        os.makedirs(os.path.join(folder, "clips", name), exist_ok=True)
        for i in range(frames):
            paint(f"clips/{name}/{i}.png", w, h)
    for file, answers in ("chats.jsonl", True), ("prompts.jsonl", False):
        with open(os.path.join(folder, file), "w") as f:
            for media, q, a in CHATS:
                user = [dict(type="image", image=f"images/{i}.png") if isinstance(i, int) else dict(type="video", video=f"clips/{i}") for i in media] + [dict(type="text", text=q)]
                f.write(json.dumps({"messages": [{"role": "user", "content": user}] + [{"role": "assistant", "content": [dict(type="text", text=a)]}] * answers}) + "\n")
    return c


def open_processor(folder):
    hf = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    values = dict(image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5], size=dict(height=SIDE, width=SIDE))
    return LlavaOnevisionProcessor(image_processor=LlavaOnevisionImageProcessor(image_grid_pinpoints=PINPOINTS, **values), tokenizer=hf, video_processor=LlavaOnevisionVideoProcessor(**values),
                                   num_image_tokens=9, vision_feature_select_strategy="full", vision_aspect_ratio=f"anyres_max_{MOST}")


def read_clip(folder, name):
    images = [Image.open(os.path.join(folder, "clips", name, f"{i}.png")) for i in range(CLIPS[name][0])]
    return torch.stack([torch.from_numpy(numpy.array(i.convert("RGB"))).permute(2, 0, 1) for i in images])


def encode(folder, processor, media, q, a):
    """The processor's tensors of a conversation, its labels, and the processor's tensors of the prompt."""
    user = {"role": "user", "content": [dict(type="image" if isinstance(i, int) else "video") for i in media] + [dict(type="text", text=q)]}
    hf = processor.tokenizer
    render = lambda messages, prompt: hf.apply_chat_template(messages, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=prompt)
    whole, prompt = render([user, {"role": "assistant", "content": [dict(type="text", text=a)]}], False), render([user], True)
    images, videos = [Image.open(os.path.join(folder, "images", f"{i}.png")) for i in media if isinstance(i, int)], [read_clip(folder, i) for i in media if not isinstance(i, int)]
    given = dict(images=[images] if images else None, videos=videos or None, return_tensors="pt")
    out, first = processor(text=[whole], **given), processor(text=[prompt], **given)
    spoken = whole.rindex("\n" + a)
    plain = hf(whole, return_offsets_mapping=True, add_special_tokens=False)
    answer = [t for t, (b, e) in zip(plain["input_ids"], plain["offset_mapping"]) if e > spoken and b < spoken + 1 + len(a)]
    ids = out["input_ids"][0].tolist()
    at = len(ids) - len(answer) - 1  # <|im_end|> follows
    assert ids[at:-1] == answer
    return out, [common.IGNORE] * at + answer + [common.IGNORE], first


def inputs_of(x):
    return {k: v.float() if v.is_floating_point() else v for k, v in x.items() if k not in ("attention_mask",)}


def answer(model, prompt):
    out = model.generate(**inputs_of(prompt), attention_mask=torch.ones_like(prompt["input_ids"]), do_sample=False, max_new_tokens=NEW, pad_token_id=0, eos_token_id=[-1], output_scores=True, return_dict_in_generate=True)
    return out.sequences[0, prompt["input_ids"].shape[1]:].tolist(), min(make_generate.margin(s[0]) for s in out.scores)


def write_run(folder, path, longest):
    run = dict(model=dict(path=path), data=dict(format="conversations", train=path + "/chats.jsonl", sequence=longest, packing=False, shuffle=False, max_images=16, max_frames=4),
               train=dict(steps=STEPS, effective_batch=len(CHATS), learning_rate=0.01, schedule="linear", warmup_steps=2, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-4, clip_norm=2.0, seed=0, out="runs/onevision"),
               memory=dict(micro_batch=8, precision="f32"), device="cpu")
    with open(os.path.join(folder, "run.yaml"), "w") as f:
        f.write("# Steps compared with PyTorch (losses.json); made by make_onevision_chats.py.\n# Paths are seen from the repository's root.\n")
        yaml.safe_dump(run, f, sort_keys=False)
    return run["train"]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=os.path.join(common.HERE, "onevision_chats"))
    folder = os.path.join(p.parse_args().out, "qwen2")
    common.quiet()
    for seed in range(100):
        c = write_folder(folder, seed)
        processor = open_processor(folder)
        samples = [encode(folder, processor, *chat) for chat in CHATS]
        model = make_llava.load_model(folder, c, torch.float32)
        answers = [answer(model, prompt) for _, _, prompt in samples]
        image = c["text"]["vocab"] - 1
        if min(ahead for _, ahead in answers) >= MARGIN and all(len(set(ids)) > 2 and max(ids) < image - 1 and min(ids) > 2 for ids, _ in answers):
            break
    else:
        raise SystemExit("no weights give clear answers")
    with open(os.path.join(folder, "expected.jsonl"), "w") as f:
        for (x, labels, prompt), (ids, _) in zip(samples, answers):
            f.write(json.dumps(dict(ids=x["input_ids"][0].tolist(), labels=labels, prompt=prompt["input_ids"][0].tolist(), answer=ids)) + "\n")
    longest = max(x["input_ids"].shape[1] for x, _, _ in samples)
    t = write_run(folder, os.path.relpath(folder, os.path.join(common.HERE, "..", "..")), longest + 4)
    model = make_llava.load_model(folder, c, torch.float32).train()
    rows = make_qwen_vl_train.run_steps(folder, model, t, [torch.tensor(labels) for _, labels, _ in samples], lambda i: model(use_cache=False, **inputs_of(samples[i][0])).logits[0])
    print(f"seed {seed}, {[x['input_ids'].shape[1] for x, _, _ in samples]} tokens, loss {rows[0]['loss']:.5f} to {rows[-1]['loss']:.5f}, {common.folder_bytes(folder)} bytes")


if __name__ == "__main__":
    main()
