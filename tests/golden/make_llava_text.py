#!/usr/bin/env python3
"""Makes tests/golden/llava_text: conversations with images as token ids and labels, as transformers' processors give them, and
as LLaVA's original code does.

    python3 tests/golden/make_llava_text.py [NAME]...    from the repository's root; needs transformers, tokenizers, pillow

    llava/      model_type llava: LlavaProcessor; a tokenizer like Llama's, with BOS; the template takes contents as parts
    strings/    the same with a template that takes contents as text
    smolvlm/    model_type smolvlm: Idefics3Processor, and SmolVLM's text of an image, which agree; a byte-level tokenizer
    internvl/   model_type internvl: InternVLProcessor; a byte-level tokenizer
    gemma3/     model_type gemma3: Gemma3Processor; the template writes <start_of_image>, and trims texts
    paligemma/  model_type paligemma: PaliGemmaProcessor on conversations of its own, paligemma.chats.jsonl, which are one question and an answer
    next/       model_type llava_next: LlavaNextProcessor; a tokenizer like Llama's
    original/   model_type llava_mistral: the text is cut at <image>, each piece is tokenized by itself, BOS once
    start_end/  the same with mm_use_im_start_end
    images/     images of several sizes
    chats.jsonl         the conversations, in LLaVA's form and as OpenAI messages
    prompt-N.json       the same without the last message
    NAME.expected.jsonl for each: {"ids", "labels", "prompt"}: labels are -100 where nothing is trained; prompt: the ids
                        of all messages but the last with the generation prompt; of llava, smolvlm, internvl, gemma3 and paligemma also "answer": up to NEW
                        tokens of model.generate(do_sample=False) in float32, pixel values by the processor. At every token the largest logit
                        is ahead of the second by at least MARGIN.

llava, smolvlm, internvl, gemma3 and paligemma have random weights, in bf16; the other folders have none.
"""
import json, os, pathlib, sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import safetensors.torch, tokenizers, torch, transformers
from PIL import Image
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.smolvlm import processing_smolvlm

here = pathlib.Path("tests/golden/llava_text")
SIDE, PATCH, TILE = 16, 4, 16
NEW, MARGIN = 8, 2e-3


def wanted(name):
    return len(sys.argv) < 2 or name in sys.argv[1:]


# --- images and conversations -------------------------------------------------------------------

(here / "images").mkdir(parents=True, exist_ok=True)
SIZES = {"small": (9, 7), "square": (16, 16), "wide": (61, 17), "tall": (20, 70), "large": (130, 120)}
for k, (name, (w, h)) in enumerate(SIZES.items()):
    drawn = Image.new("RGB", (w, h))
    drawn.putdata([((40 * k + 5 * x) % 256, (90 + 3 * y) % 256, (7 * (x // 4) + 50 * (y // 8 % 2)) % 256) for y in range(h) for x in range(w)])
    drawn.save(here / "images" / f"{name}.png")


def image(name):
    return {"type": "image", "path": f"images/{name}.png"}


def text(s):
    return {"type": "text", "text": s}


def turn(role, *parts):
    return {"role": role, "content": list(parts)}


USER, GPT = "user", "assistant"
# What the template gets; LLaVA's form has <image> in the text, on a line of its own.
CHATS = [
    [turn(USER, text("Who sat on the mat?")), turn(GPT, text("The cat."))],
    [turn(USER, image("small"), text("What is this?")), turn(GPT, text("A red bird."))],
    [turn("system", text("You are kind.")), turn(USER, image("square"), text("Describe the house.")), turn(GPT, text("It is old.")),
     turn(USER, text("And the birds?")), turn(GPT, text("Seven small ones."))],
    [turn(USER, image("wide"), image("tall"), text("Compare both.")), turn(GPT, text("One is wide.")), turn(USER, image("large"), text("And this?")),
     turn(GPT, text("It is the large one, near an old stone house."))],
    [turn(USER, text("Here is a house"), image("large"), text("and a bird"), image("small"), text("What else?")), turn(GPT, text("Nothing."))],
    [turn(USER, text("Look at this:"), image("tall")), turn(GPT, text("I see  two   trees\n\n- one\n- two"))],
]


def llava_form(chat):
    """{image, conversations}: each image is <image>, set apart by line breaks."""
    out = {"image": [p["path"] for m in chat for p in m["content"] if p["type"] == "image"], "conversations": []}
    for m in chat:
        value = ""
        after = False
        for p in m["content"]:
            is_image = p["type"] == "image"
            value += ("\n" if value and (is_image or after) else "") + ("<image>" if is_image else p["text"])
            after = is_image
        out["conversations"].append({"from": {"user": "human", "assistant": "gpt"}.get(m["role"], m["role"]), "value": value})
    if not out["image"]:
        del out["image"]
    elif len(out["image"]) == 1:
        out["image"] = out["image"][0]
    return out


def text_only(m):
    return {"role": m["role"], "content": m["content"][0]["text"]} if all(p["type"] == "text" for p in m["content"]) else m


lines = [llava_form(c) if i % 2 else {"messages": [text_only(m) for m in c]} for i, c in enumerate(CHATS)]
(here / "chats.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
for i, x in enumerate(lines):
    key = "messages" if "messages" in x else "conversations"
    (here / f"prompt-{i + 1}.json").write_text(json.dumps(dict(x, **{key: x[key][:-1]})) + "\n")

# --- tokenizers ---------------------------------------------------------------------------------

corpus = [p["text"] for c in CHATS for m in c for p in m["content"] if p["type"] == "text"] * 3 + ["USER: ASSISTANT: User: Assistant:\n[INST] [/INST]"] * 9


def like_llama(specials, prepend=True):
    t = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁")] * prepend + [normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=340, special_tokens=first, show_progress=False))
    state = json.loads(t.to_str())
    state["added_tokens"] = [x for x in state["added_tokens"] if x["content"] in ("<unk>", "<s>", "</s>")]
    t = tokenizers.Tokenizer.from_str(json.dumps(state))
    t.add_special_tokens([tokenizers.AddedToken(s, special=True, normalized=False) for s in specials])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def byte_level(first):
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus + ["\n\n"] * 9, trainers.BpeTrainer(vocab_size=360, special_tokens=first, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


SMOL_TOKENS = (["<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"] +
               [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)])
INTERN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"]

# --- templates ----------------------------------------------------------------------------------

# Images first, then texts.
PARTS = ("{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'].upper() + ': ' }}{% endif %}"
         "{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
         "{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{{ c['text'] + ' ' }}{% endfor %}"
         "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}")
STRINGS = ("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] + eos_token }}"
           "{% elif m['role'] == 'system' %}{{ m['content'] + '\n' }}{% else %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endif %}{% endfor %}")
ORIGINAL = STRINGS.replace("{{ bos_token }}", "")
SMOL = ("<|im_start|>{% for m in messages %}{{ m['role'] | capitalize }}{% if m['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
        "{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}{% elif c['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")
# A line break behind each image.
INTERN = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
          "{% if c['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}{% elif c['type'] == 'video' %}{{ '<video>\n' }}{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}"
          "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

GEMMA = ("{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}"
         "{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}{{ '<start_of_image>' }}"
         "{% elif c['type'] == 'text' %}{{ c['text'] | trim }}{% endif %}{% endfor %}{% endif %}{{ '<end_of_turn>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")

# --- folders ------------------------------------------------------------------------------------

VISION = dict(model_type="clip_vision_model", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=PATCH)
LM = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512)


def save(name, tokenizer, template, config, eos, bos, processor, **more):
    folder = here / name
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write = lambda file, x: (folder / file).write_text(json.dumps(x, indent=1) + "\n")
    write("tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=bos, eos_token=eos, pad_token=eos))
    (folder / "chat_template.jinja").write_text(template)
    write("config.json", config)
    if processor:
        write("preprocessor_config.json", processor)
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token=bos, eos_token=eos, pad_token=eos, **more)


CLIP = dict(image_processor_type="CLIPImageProcessor", size=dict(shortest_edge=SIDE), crop_size=dict(height=SIDE, width=SIDE))
IDEFICS = dict(image_processor_type="Idefics3ImageProcessor", size=dict(longest_edge=4 * TILE), max_image_size=dict(longest_edge=TILE), do_image_splitting=True)
CROPS = dict(image_processor_type="GotOcr2ImageProcessorFast", size=dict(height=SIDE, width=SIDE), crop_to_patches=False, min_patches=1, max_patches=5)


def llava_config(vocabulary, token):
    return dict(model_type="llava", image_token_index=token, image_seq_length=(SIDE // PATCH) ** 2, vision_feature_layer=-2, vision_feature_select_strategy="default",
                vision_config=VISION, text_config=dict(model_type="llama", vocab_size=vocabulary, **LM))


# --- what the references give -------------------------------------------------------------------


def images_of(messages):
    return [Image.open(here / p["path"]) for m in messages for p in m["content"] if p["type"] == "image"]


def as_strings(messages):
    return [{"role": m["role"], "content": llava_form([m])["conversations"][0]["value"]} for m in messages]


def spans_of(hf, template, messages, expand):
    """The answers in characters of the expanded text, which must begin with each prefix."""
    render = lambda n, prompt: expand(hf.apply_chat_template(messages[:n], chat_template=template, tokenize=False, add_generation_prompt=prompt))
    whole, spans = render(len(messages), False), []
    for i, m in enumerate(messages):
        if m["role"] == "assistant":
            before, after = render(i, True), render(i + 1, False)
            assert after.startswith(before) and whole.startswith(after)
            spans.append((len(before), len(after)))
    return whole, spans


def labelled(ids, offsets, spans):
    return [t if any(b < e and f > a for a, e in spans) and b < f else -100 for t, (b, f) in zip(ids, offsets)]


def with_breaks(chat, behind=True):
    """The parts that a template gets of the LLaVA form, whose line breaks it does not write itself; `behind`: nor those behind an image."""
    out = []
    for m, x in zip(chat, llava_form(chat)["conversations"]):
        images, pieces = [p for p in m["content"] if p["type"] == "image"], x["value"].split("<image>")
        parts = [text(pieces[0])] + [p for image, piece in zip(images, pieces[1:]) for p in (image, text(piece if behind else piece.removeprefix("\n")))]
        out.append(turn(m["role"], *[p for p in parts if p["type"] == "image" or p["text"]]))
    return out


def by_processor(hf, template, processor, how, strings=False, breaks=False, behind=True, place="<image>"):
    """Through a processor: how(image) is what it computes from an image. `breaks`: the template writes no line break beside an image."""
    out = []
    for i, chat in enumerate(CHATS):
        messages = as_strings(chat) if strings else with_breaks(chat, behind) if breaks and i % 2 else chat

        def expand(s):
            todo = list(images_of(chat))
            pieces = s.split(place)
            return pieces[0] + "".join(how(im) + p for im, p in zip(todo, pieces[1:]))

        def ids_of(messages, shown, prompt):
            rendered = hf.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=prompt)
            return processor(text=rendered, images=shown or None, add_special_tokens=not (hf.bos_token and rendered.startswith(hf.bos_token)))["input_ids"]

        flat = lambda x: list(x[0]) if isinstance(x[0], (list, tuple)) or hasattr(x[0], "tolist") and x[0].ndim else list(x)
        ids = [int(t) for t in flat(ids_of(messages, images_of(chat), False))]
        prompt = [int(t) for t in flat(ids_of(messages[:-1], images_of(chat[:-1]), True))]
        whole, spans = spans_of(hf, template, messages, expand)
        encoded = hf(whole, return_offsets_mapping=True, add_special_tokens=not (hf.bos_token and whole.startswith(hf.bos_token)))
        assert encoded["input_ids"] == ids, (encoded["input_ids"], ids)
        out.append(dict(ids=ids, labels=labelled(ids, encoded["offset_mapping"], spans), prompt=prompt))
    return out


def by_pieces(hf, template, features, start_end):
    """LLaVA's original rule: BOS of the first piece, and of each piece all but its BOS; -200 for each feature."""
    out = []

    def cut(s):
        if start_end:
            s = s.replace("<image>", "<im_start><image><im_end>")
        ids, offsets, at = [hf.bos_token_id], [(0, 0)], 0
        for k, piece in enumerate(s.split("<image>")):
            if k:
                ids += [-200] * features
                offsets += [(0, 0)] * features
                at += len("<image>")
            encoded = hf(piece, return_offsets_mapping=True)
            assert encoded["input_ids"][0] == hf.bos_token_id
            ids += encoded["input_ids"][1:]
            offsets += [(b + at, e + at) for b, e in encoded["offset_mapping"][1:]]
            at += len(piece)
        return ids, offsets

    for chat in CHATS:
        messages = as_strings(chat)
        expand = lambda s: s.replace("<image>", "<im_start><image><im_end>") if start_end else s
        rendered = hf.apply_chat_template(messages, chat_template=template, tokenize=False)
        ids, offsets = cut(rendered)
        _, spans = spans_of(hf, template, messages, expand)
        prompt, _ = cut(hf.apply_chat_template(messages[:-1], chat_template=template, tokenize=False, add_generation_prompt=True))
        out.append(dict(ids=ids, labels=labelled(ids, offsets, spans), prompt=prompt))
    return out


def add_answers(name, expected, pixels, more=lambda ids: {}, chats=CHATS):
    """Weights of the folder, the first for which all answers are clear, and the answers. more(ids): further inputs."""
    config = json.loads((here / name / "config.json").read_text())
    for seed in range(1000):
        torch.manual_seed(seed)
        model = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(**config)).eval()
        for n, p in model.named_parameters():
            p.data = (torch.randn(p.shape) * 0.3 + ("norm" in n and n.endswith("weight"))).bfloat16().float()
        ahead = 9
        for chat, x in zip(chats, expected):
            ids = torch.tensor([x["prompt"]])
            extra = dict(pixels(images_of(chat[:-1])) if images_of(chat[:-1]) else {}, **more(ids))
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0, output_scores=True,
                                 return_dict_in_generate=True, **extra)
            x["answer"] = out.sequences[0, ids.shape[1]:].tolist()
            for s in out.scores:
                top = torch.topk(s[0], 2).values
                ahead = min(ahead, (top[0] - top[1]).item())
        if ahead > MARGIN and len({tuple(x["answer"]) for x in expected}) == len(expected):
            break
    safetensors.torch.save_file({n: p.data.bfloat16().clone() for n, p in model.named_parameters()}, here / name / "model.safetensors", {"format": "pt"})


def write(name, expected):
    (here / f"{name}.expected.jsonl").write_text("".join(json.dumps(x) + "\n" for x in expected))


FEATURES = (SIDE // PATCH) ** 2
t = like_llama(["<image>"])
clip = transformers.CLIPImageProcessor(**{k: v for k, v in CLIP.items() if k != "image_processor_type"})
for name, template in ("llava", PARTS), ("strings", STRINGS):
    if not wanted(name):
        continue
    hf = save(name, t, template, llava_config(t.get_vocab_size(), t.token_to_id("<image>")), "</s>", "<s>", CLIP)
    processor = transformers.LlavaProcessor(clip, hf, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1)
    expected = by_processor(hf, template, processor, lambda im: "<image>" * FEATURES, strings=name == "strings")
    if name == "llava":
        add_answers(name, expected, lambda ims: dict(pixel_values=torch.tensor(clip(ims, return_tensors="np")["pixel_values"])))
    write(name, expected)

if wanted("smolvlm"):
    t = byte_level(SMOL_TOKENS)
    hf = save("smolvlm", t, SMOL, dict(model_type="smolvlm", image_token_id=t.token_to_id("<image>"), scale_factor=2,
                                       vision_config=dict(VISION, model_type="smolvlm_vision"), text_config=dict(model_type="llama", vocab_size=t.get_vocab_size(), **LM)),
              "<end_of_utterance>", "<|im_start|>", IDEFICS)
    idefics = transformers.Idefics3ImageProcessor(**{k: v for k, v in IDEFICS.items() if k != "image_processor_type"})
    seq = FEATURES // 4

    def tiles(im):
        out = idefics([[im]], return_row_col_info=True)
        return processing_smolvlm.get_image_prompt_string(out["rows"][0][0], out["cols"][0][0], seq, "<fake_token_around_image>", "<image>", "<global-img>")

    result = by_processor(hf, SMOL, transformers.Idefics3Processor(idefics, hf, image_seq_len=seq), tiles, breaks=True)

    def tiled(ims):
        values = torch.tensor(idefics([ims], return_tensors="np")["pixel_values"])
        return dict(pixel_values=values, pixel_attention_mask=torch.ones(*values.shape[:2], *values.shape[3:], dtype=torch.long))

    add_answers("smolvlm", result, tiled)
    write("smolvlm", result)

if wanted("internvl"):
    t = byte_level(INTERN_TOKENS)
    hf = save("internvl", t, INTERN, dict(model_type="internvl", image_token_id=t.token_to_id("<IMG_CONTEXT>"), downsample_ratio=0.5, tie_word_embeddings=False,
                                          vision_config=dict(VISION, model_type="internvl_vision", image_size=[SIDE, SIDE], patch_size=[PATCH, PATCH], hidden_act="gelu"),
                                          text_config=dict(model_type="qwen2", vocab_size=t.get_vocab_size(), **LM)),
              "<|im_end|>", None, CROPS,
              extra_special_tokens=dict(start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>", video_token="<video>"))
    crops = transformers.GotOcr2ImageProcessorPil(**{k: v for k, v in CROPS.items() if k != "image_processor_type"})
    processor = transformers.InternVLProcessor(crops, hf, transformers.InternVLVideoProcessor(size=CROPS["size"]), image_seq_length=FEATURES // 4)
    cropped = lambda ims: torch.tensor(crops(ims, crop_to_patches=True, return_tensors="np")["pixel_values"])
    expected = by_processor(hf, INTERN, processor, lambda im: "<img>" + "<IMG_CONTEXT>" * (FEATURES // 4 * len(cropped([im]))) + "</img>", breaks=True, behind=False,
                            place="<IMG_CONTEXT>")
    add_answers("internvl", expected, lambda ims: dict(pixel_values=cropped(ims)))
    write("internvl", expected)

if wanted("gemma3"):
    t = like_llama(["<start_of_image>", "<end_of_image>", "<image_soft_token>", "<start_of_turn>", "<end_of_turn>"])
    token, tokens = t.token_to_id("<image_soft_token>"), 4
    file = dict(image_processor_type="Gemma3ImageProcessor", size=dict(height=SIDE, width=SIDE), do_pan_and_scan=None)
    # Windows of 3 tokens are smaller than an image of 4.
    hf = save("gemma3", t, GEMMA, dict(model_type="gemma3", image_token_index=token, boi_token_index=t.token_to_id("<start_of_image>"),
                                       eoi_token_index=t.token_to_id("<end_of_image>"), mm_tokens_per_image=tokens,
                                       vision_config=dict(VISION, model_type="siglip_vision_model", vision_use_head=False),
                                       text_config=dict(model_type="gemma3_text", vocab_size=t.get_vocab_size(), head_dim=8, sliding_window=3, query_pre_attn_scalar=8,
                                                        layer_types=["sliding_attention", "full_attention"], pad_token_id=0, **LM)),
              "<end_of_turn>", "<s>", file, extra_special_tokens=dict(boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>"))
    siglip = transformers.Gemma3ImageProcessorPil(size=file["size"])
    processor = transformers.Gemma3Processor(siglip, hf, image_seq_length=tokens)
    text_of = "\n\n<start_of_image>" + "<image_soft_token>" * tokens + "<end_of_image>\n\n"
    expected = by_processor(hf, GEMMA, processor, lambda im: text_of, breaks=True, place="<start_of_image>")
    add_answers("gemma3", expected, lambda ims: dict(pixel_values=torch.tensor(siglip(ims, return_tensors="np")["pixel_values"])),
                lambda ids: dict(token_type_ids=(ids == token).long()))
    write("gemma3", expected)

if wanted("paligemma"):
    chats = [[turn(USER, image("small"), text("What is this?")), turn(GPT, text("A red bird."))],
             [turn(USER, image("wide"), image("tall"), text("Compare both.")), turn(GPT, text("One is wide."))],
             [turn(USER, image("large"), text("Describe the house.")), turn(GPT, text("It is old."))]]
    rows = [llava_form(c) if i % 2 else {"messages": c} for i, c in enumerate(chats)]
    (here / "paligemma.chats.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    t = like_llama(["<image>"], prepend=False)
    hf = save("paligemma", t, "", dict(model_type="paligemma", image_token_index=t.token_to_id("<image>"), projection_dim=LM["hidden_size"],
                                       vision_config=dict(VISION, model_type="siglip_vision_model", vision_use_head=False, projection_dim=LM["hidden_size"]),
                                       text_config=dict(model_type="gemma2", vocab_size=t.get_vocab_size(), head_dim=8, sliding_window=5, query_pre_attn_scalar=8,
                                                        layer_types=["sliding_attention", "full_attention"], pad_token_id=0, **LM)),
              "</s>", "<s>", dict(image_processor_type="SiglipImageProcessor", size=dict(height=SIDE, width=SIDE)))
    (here / "paligemma" / "chat_template.jinja").unlink()  # published folders have none
    hf.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])  # add_bos_token = False of Gemma's
    siglip = transformers.SiglipImageProcessorPil(size=dict(height=SIDE, width=SIDE))
    siglip.image_seq_length = FEATURES
    processor = transformers.PaliGemmaProcessor(siglip, hf)
    expected = []
    for chat in chats:
        words = dict(text=["<image>" * (len(chat[0]["content"]) - 1) + chat[0]["content"][-1]["text"]], images=[images_of(chat)])
        whole = processor(suffix=[chat[1]["content"][0]["text"]], **words)
        expected.append(dict(ids=[int(i) for i in whole["input_ids"][0]], labels=[int(i) for i in whole["labels"][0]], prompt=[int(i) for i in processor(**words)["input_ids"][0]]))
    add_answers("paligemma", expected, lambda ims: dict(pixel_values=torch.tensor(siglip(ims, return_tensors="np")["pixel_values"])),
                lambda ids: dict(token_type_ids=torch.zeros_like(ids)), chats)
    write("paligemma", expected)

if wanted("next"):
    t = like_llama(["<image>"])
    # Three of the images are wider or taller than any size.
    sizes = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE], [3 * SIDE, SIDE], [SIDE, 3 * SIDE]]
    file = dict(image_processor_type="LlavaNextImageProcessor", size=dict(shortest_edge=SIDE), crop_size=dict(height=SIDE, width=SIDE), image_grid_pinpoints=sizes)
    hf = save("next", t, PARTS, dict(llava_config(t.get_vocab_size(), t.token_to_id("<image>")), model_type="llava_next", image_grid_pinpoints=sizes), "</s>", "<s>", file)
    tiles_of = transformers.LlavaNextImageProcessorPil(**{k: v for k, v in file.items() if k != "image_processor_type"})
    processor = transformers.LlavaNextProcessor(tiles_of, hf, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1)

    def next_text(im):
        return "<image>" * (processor._get_number_of_features(im.height, im.width, SIDE, SIDE) - 1)

    def next_pixels(ims):
        out = tiles_of(ims, return_tensors="np")
        return dict(pixel_values=torch.tensor(out["pixel_values"]), image_sizes=torch.tensor(out["image_sizes"]))

    expected = by_processor(hf, PARTS, processor, next_text)
    add_answers("next", expected, next_pixels)
    write("next", expected)

for name, start_end in ("original", False), ("start_end", True):
    if not wanted(name):
        continue
    t = like_llama(["<im_start>", "<im_end>"] if start_end else [])
    config = dict(model_type="llava_mistral", vocab_size=t.get_vocab_size(), mm_vision_tower=str(here / "tower"), mm_hidden_size=16, mm_projector_type="mlp2x_gelu",
                  mm_vision_select_layer=-2, mm_vision_select_feature="patch", image_aspect_ratio="pad", mm_use_im_start_end=start_end, **LM)
    hf = save(name, t, ORIGINAL, config, "</s>", "<s>", None)
    write(name, by_pieces(hf, ORIGINAL, FEATURES, start_end))
(here / "tower").mkdir(exist_ok=True)
(here / "tower" / "config.json").write_text(json.dumps(VISION, indent=1) + "\n")
