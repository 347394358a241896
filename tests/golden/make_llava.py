#!/usr/bin/env python3
"""Golden files for `plimsoll step` on models of images and text, made with PyTorch and transformers.

    python tests/golden/make_llava.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_llava.py --random K --out DIR [--seed N]

Each case is one folder:

    config.json             llava, llava_next, smolvlm, idefics3, internvl, gemma3 or paligemma; or llava_llama and llava_mistral, the original layout
    model.safetensors       random weights under the names of one version or program (NAMES)
    batch.safetensors       input_ids with image tokens, labels, pixel_values of all images of the batch, perhaps
                            attention_mask or position_ids
    expect.safetensors      logits, loss, grad.<name> for every parameter, named as in the folder
    flags                   of the original layout, where the tower is in another folder

What holds: the weights are written first, and the reference reads them from the folder, in float32 with eager
attention. For the original layout, which transformers does not read, the reference is its Llava class with these
weights under its own names.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from safetensors.torch import load_file
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, image_size_to_num_patches, unpad_image
from transformers import AutoConfig, AutoModelForImageTextToText, LlavaConfig, LlavaForConditionalGeneration

import common
import make_llama
import make_towers

IGNORE = common.IGNORE
HERE = common.HERE
TOWER = "model.vision_tower.vision_tower."  # of the original layout

# How folders name a tensor, by its name in memory (transformers 5): beginnings that are replaced.
NAMES = {
    "next": {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
             "model.vision_tower.": "vision_tower.vision_model.", "model.multi_modal_projector.": "multi_modal_projector.", "model.image_newline": "image_newline"},
    "hub": {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
            "model.vision_tower.": "vision_tower.vision_model.", "model.multi_modal_projector.": "multi_modal_projector."},
    "saved": {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
              "model.vision_tower.": "vision_tower.", "model.multi_modal_projector.": "multi_modal_projector."},
    "memory": {},
    "internvl": {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
                 "model.vision_tower.": "vision_tower.", "model.multi_modal_projector.": "multi_modal_projector."},
    "memory4": {"model.vision_tower.": "model.vision_tower.vision_model."},
    "original": {"model.language_model.": "model.", "model.vision_tower.": TOWER + "vision_model.",
                 "model.multi_modal_projector.linear_1.": "model.mm_projector.0.",
                 "model.multi_modal_projector.linear_2.": "model.mm_projector.2."},
}


def case(**changes):
    base = dict(
        kind="llava", names="hub", dtype="float32",
        # the tower and the text model: changes to the cases of make_towers.py and make_llama.py
        vision={}, text={},
        # of InternVL's tower: other keys
        tower={},
        layer=-2, strategy="default", act="gelu", bias=True, tied=False, scale=2,
        # of the original layout: the folder of the tower, None: inside
        tower_folder=None,
        # LLaVA-NeXT's: the sizes of images, and of tiles
        sizes=(), pinpoints=None,
        # Gemma's: tokens of an image
        tokens=None,
        # the batch: images of each sample; rows with padding, or of several conversations
        images=(0, 1, 3, 2), T=26, padded=False, packed=False, five=False, ids="int64", std=0.2,
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


CASES = {
    "llava_clip_llama": case(),
    "llava_clip_mistral": case(names="saved", strategy="full", layer=[-2, 1], text=dict(family="mistral", extra=dict(sliding_window=7)),
                               images=(2, 0, 1), T=21, act="gelu_pytorch_tanh"),
    "llava_siglip_qwen2": case(names="memory", strategy="full", layer=-1, bias=False, tied=True, text=dict(family="qwen2"),
                               vision=dict(kind="siglip", patch=4, image=9), images=(1, 2), T=18, padded=True, dtype="bfloat16"),
    "llava_memory4": case(names="memory4", layer=[0, 3, -2], images=(1, 1), packed=True, T=20, vision=dict(kind="clip"), ids="int32"),
    "llava_no_images": case(names="saved", images=(0, 0), T=9),
    "llava_original": case(names="original", kind="llava_mistral", text=dict(family="mistral", extra=dict(sliding_window=None)), images=(1, 0, 2), T=17),
    "llava_med": case(names="original", kind="llava_mistral", text=dict(family="mistral", extra=dict(sliding_window=None)),
                      vision=dict(make_towers.CASES["clip_full"]), layer=-2, tower_folder="tests/golden/clip_full", images=(1, 0), T=22),
    "smolvlm": case(kind="smolvlm", names="memory", vision=dict(kind="siglip", patch=3, image=12), images=(2, 1, 0), T=15, five=True),
    "internvl": case(kind="internvl", names="internvl", vision=dict(patch=3, image=12), text=dict(family="qwen2"), layer=-1, images=(2, 1, 0), T=15),
    "internvl_norms": case(kind="internvl", names="memory", vision=dict(patch=2, image=16, hidden=8, heads=2, inner=13, act="gelu_pytorch_tanh"), text=dict(family="qwen3", head_dim=6), layer=-2, images=(1, 1), T=20,
                           tied=True, scale=4, padded=True, act="silu", dtype="bfloat16",
                           tower=dict(attention_bias=True, use_qk_norm=True, norm_type="rms_norm", use_mean_pooling=False, use_mask_token=True)),
    # The windows of 5 and 4 tokens are smaller than an image of 9.
    "gemma3_images": case(kind="gemma3", vision=dict(kind="siglip", patch=2, image=12), text=dict(family="gemma3_text", style=4, layers=3, head_dim=6, theta=80.0, rope=dict(rope_type="linear", factor=4.0), extra=dict(sliding_window=5, sliding_window_pattern=2, query_pre_attn_scalar=7)),
                          tokens=9, images=(2, 0, 1), T=27, tied=True),
    "gemma3_images_packed": case(kind="gemma3", names="memory", vision=dict(kind="siglip", patch=2, image=12), text=dict(family="gemma3_text", style=4, layers=2, head_dim=8, extra=dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"])),
                                 tokens=9, images=(1, 2), T=30, tied=False, packed=True, dtype="bfloat16"),
    "gemma3_images_padded": case(kind="gemma3", names="saved", vision=dict(kind="siglip", patch=3, image=12), text=dict(family="gemma3_text", style=4, layers=2, head_dim=8, extra=dict(sliding_window=3, sliding_window_pattern=2)),
                                 tokens=4, images=(1, 2), T=19, tied=True, padded=True, ids="int32"),
    # Images of several shapes: heights and widths in pixels; tiles of 8 pixels, 2 x 2 features.
    "llava_next": case(kind="llava_next", names="next", text=dict(family="mistral", extra=dict(sliding_window=None)), images=(1, 0, 2), T=60,
                       sizes=[(13, 29), (30, 11), (21, 20)], pinpoints=[[8, 16], [16, 8], [16, 16], [24, 8], [8, 24]]),
    "llava_next_packed": case(kind="llava_next", names="memory", images=(1, 2), T=100, packed=True, dtype="bfloat16", vision=dict(patch=3, image=9), layer=[-2, 1],
                              sizes=[(9, 40), (50, 50), (12, 17)], pinpoints=[[9, 18], [18, 9], [18, 18], [9, 27]]),
    # All of a prompt is seen in both directions, also within the window of 3 tokens.
    "paligemma": case(kind="paligemma", names="saved", vision=dict(kind="siglip", patch=4, image=12), text=dict(family="gemma", head_dim=6), images=(2, 0, 1), T=26, tied=True),
    "paligemma2": case(kind="paligemma", vision=dict(kind="siglip", patch=4, image=12), images=(1, 2), T=29, tied=True, packed=True, dtype="bfloat16",
                       text=dict(family="gemma2", head_dim=8, extra=dict(sliding_window=3, query_pre_attn_scalar=7, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                                                                         layer_types=["sliding_attention", "full_attention"]))),
    "paligemma_padded": case(kind="paligemma", names="memory", vision=dict(kind="siglip", patch=4, image=8), images=(1, 1, 2), T=20, tied=True, padded=True,
                             text=dict(family="gemma", head_dim=8)),
    "idefics3": case(kind="idefics3", names="memory", vision=dict(kind="siglip", patch=2, image=12), images=(1, 1), T=16, tied=True, scale=3),
}


def vision_case(c):
    base = dict(kind="clip", hidden=20, inner=31, heads=4, layers=3, patch=4, image=8, head=False)
    return make_towers.case(**{**base, **c["vision"]})


def text_case(c):
    base = dict(vocab=61, hidden=24, heads=4, kv_heads=2, layers=2, inter=37, positions=64 if c["T"] <= 64 else 128, tied=c["tied"] and c["kind"] in ("llava", "llava_onevision", "gemma3", "paligemma"), style=5)
    return make_llama.case(**{**base, **c["text"]})


def is_original(c):
    return c["names"] == "original"


def features_of(c):
    """Tokens of an image."""
    v = vision_case(c)
    patches = (v["image"] // v["patch"]) ** 2
    if c["tokens"]:
        return c["tokens"]
    if c["kind"] == "paligemma":
        return patches
    if c["kind"] in ("smolvlm", "idefics3", "internvl"):
        return patches // c["scale"] ** 2
    return patches + (v["kind"] == "clip") - (c["strategy"] == "default")


def internvl_tower(c):
    v = vision_case(c)
    return dict(model_type="internvl_vision", hidden_size=v["hidden"], intermediate_size=v["inner"], num_hidden_layers=v["layers"],
                num_attention_heads=v["heads"], image_size=[v["image"], v["image"]], patch_size=[v["patch"], v["patch"]], num_channels=v["channels"],
                hidden_act="gelu_pytorch_tanh" if v["act"] == "gelu_pytorch_tanh" else "gelu", layer_scale_init_value=0.1,
                **{**dict(attention_bias=False, use_qk_norm=False, norm_type="layer_norm", use_mean_pooling=True, use_mask_token=False), **c["tower"]})


def config_json(c):
    """config.json, independent of the installed version."""
    vision, text = make_towers.tower_config(vision_case(c)), make_llama.config_json(text_case(c))
    token = text["vocab_size"] - 1
    if is_original(c):
        return dict(text, model_type=c["kind"], architectures=["LlavaMistralForCausalLM"], mm_vision_tower="openai/clip-tiny-of-the-tests",
                    mm_hidden_size=vision["hidden_size"], mm_projector_type="mlp2x_gelu", mm_vision_select_layer=c["layer"],
                    mm_vision_select_feature="patch", image_aspect_ratio="pad", mm_use_im_start_end=False)
    if c["kind"] == "paligemma":
        return dict(architectures=["PaliGemmaForConditionalGeneration"], model_type="paligemma", dtype=c["dtype"], image_token_index=token, hidden_size=text["hidden_size"],
                    projection_dim=text["hidden_size"], text_config=text, tie_word_embeddings=c["tied"],
                    vision_config=dict(vision, projection_dim=text["hidden_size"], num_image_tokens=features_of(c)))
    if c["kind"] == "gemma3":
        return dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", dtype=c["dtype"], image_token_index=token, boi_token_index=token - 1,
                    eoi_token_index=token - 2, mm_tokens_per_image=c["tokens"], text_config=text, tie_word_embeddings=c["tied"], vision_config=vision)
    if c["kind"] == "internvl":
        return dict(architectures=["InternVLForConditionalGeneration"], model_type="internvl", dtype=c["dtype"], image_token_id=token,
                    image_seq_length=features_of(c), downsample_ratio=1 / c["scale"], projector_hidden_act=c["act"], text_config=text,
                    tie_word_embeddings=c["tied"], vision_config=internvl_tower(c), vision_feature_layer=c["layer"], vision_feature_select_strategy="default")
    if c["kind"] == "llava_next":
        return dict(architectures=["LlavaNextForConditionalGeneration"], model_type="llava_next", dtype=c["dtype"], image_token_index=token,
                    image_grid_pinpoints=c["pinpoints"], projector_hidden_act=c["act"], text_config=text, tie_word_embeddings=c["tied"], vision_config=vision,
                    vision_feature_layer=c["layer"], vision_feature_select_strategy=c["strategy"])
    if c["kind"] == "llava_onevision":
        return dict(architectures=["LlavaOnevisionForConditionalGeneration"], model_type="llava_onevision", dtype=c["dtype"], image_token_index=token, video_token_index=token - 1,
                    image_grid_pinpoints=c["pinpoints"], projector_hidden_act=c["act"], text_config=text, tie_word_embeddings=c["tied"], vision_config=vision,
                    multimodal_projector_bias=c["bias"], vision_aspect_ratio=f"anyres_max_{c['most']}", vision_feature_layer=c["layer"], vision_feature_select_strategy=c["strategy"])
    if c["kind"] == "llava":
        return dict(architectures=["LlavaForConditionalGeneration"], model_type="llava", dtype=c["dtype"], image_token_index=token,
                    image_seq_length=features_of(c), multimodal_projector_bias=c["bias"], projector_hidden_act=c["act"],
                    text_config=text, tie_word_embeddings=c["tied"], vision_config=vision, vision_feature_layer=c["layer"],
                    vision_feature_select_strategy=c["strategy"])
    vision["model_type"] = {"smolvlm": "smolvlm_vision", "idefics3": "idefics3_vision"}[c["kind"]]
    vision.pop("vision_use_head", None)
    name = {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[c["kind"]]
    return dict(architectures=[name + "ForConditionalGeneration"], model_type=c["kind"], dtype=c["dtype"], image_token_id=token,
                scale_factor=c["scale"], text_config=text, tie_word_embeddings=c["tied"], vision_config=vision)


def reference_config(c):
    """The config of the class that computes the case."""
    config = config_json(c)
    if not is_original(c):
        return AutoConfig.for_model(**config)
    text = dict(make_llama.config_json(text_case(c)))
    vision = make_towers.tower_config(vision_case(c))
    return LlavaConfig(text_config=text, vision_config=vision, image_token_index=text["vocab_size"] - 1, vision_feature_layer=c["layer"],
                       vision_feature_select_strategy="default")


def folder_name(c, name):
    for begin, other in NAMES[c["names"]].items():
        if name.startswith(begin):
            return other + name[len(begin):]
    return name


def random_weights(c, generator):
    model = AutoModelForImageTextToText.from_config(reference_config(c))
    out = common.random_weights(model.named_parameters(), c, generator, lambda name: folder_name(c, name), is_norm=lambda name: "norm" in name and (c["kind"] not in ("gemma3", "paligemma") or "vision_tower" in name))
    return out


def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith((".safetensors", ".json")) or name == "flags":
            os.remove(os.path.join(folder, name))
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    weights = random_weights(c, generator)
    if c["tower_folder"]:
        weights = {n: w for n, w in weights.items() if not n.startswith(TOWER)}
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
    if is_original(c):
        tower = c["tower_folder"]
        if not tower:  # the sizes of a tower that is inside; its weights there are not read
            tower = os.path.relpath(os.path.join(folder, "tower"), os.path.join(HERE, "..", ".."))
            os.makedirs(os.path.join(folder, "tower"), exist_ok=True)
            common.write_json(os.path.join(folder, "tower", "config.json"), make_towers.tower_config(vision_case(c)))
            config = dict(config_json(c), mm_vision_tower=tower)
            common.write_json(os.path.join(folder, "config.json"), config)
        else:
            with open(os.path.join(folder, "flags"), "w") as f:
                f.write(f"--set model.vision_tower={tower}\n")


def folder_weights(folder, c):
    weights = load_file(os.path.join(folder, "model.safetensors"))
    if c["tower_folder"]:
        tower = load_file(os.path.join(HERE, "..", "..", c["tower_folder"], "model.safetensors"))
        weights.update({TOWER + n: w for n, w in tower.items() if n.startswith("vision_model.") and "position_ids" not in n})
    return weights


def load_model(folder, c, dtype):
    """The reference, only from the folder. Refuses one that does not fill it."""
    if not is_original(c):
        model, info = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
        bad = {k: v for k, v in info.items() if v}
        if bad:
            raise SystemExit(f"{folder}: transformers did not load this cleanly: {bad}")
        return model.eval()
    config = reference_config(c)
    config._attn_implementation = "eager"
    model = LlavaForConditionalGeneration(config).to(dtype).eval()
    model.set_attn_implementation("eager")
    weights = folder_weights(folder, c)
    return common.copy_weights(model, weights, folder, lambda name: folder_name(c, name))


def next_tokens(c, size):
    """Tokens of an image of this size."""
    v = vision_case(c)
    side = v["image"] // v["patch"]
    rows, columns = get_anyres_image_grid_shape(size, c["pinpoints"], v["image"])
    _, h, w = unpad_image(torch.zeros(1, rows * side, columns * side), size).shape
    return side * side + h * (w + 1)


def next_rows(c, token, generator):
    rows, at = [], 0
    for k in c["images"]:
        blocks = [[token] * next_tokens(c, s) for s in c["sizes"][at:at + k]]
        words = torch.randint(0, text_case(c)["vocab"] - 1, (c["T"] - sum(map(len, blocks)),), generator=generator).tolist()
        places = sorted(torch.randperm(len(words) - 1, generator=generator)[:k].tolist())  # a token between images
        for p, block in reversed(list(zip(places, blocks))):
            words[p + 1:p + 1] = block
        rows.append(words)
        at += k
    return rows


def next_pixels(c, generator):
    v = vision_case(c)
    n = [image_size_to_num_patches(s, c["pinpoints"], v["image"]) for s in c["sizes"]]
    out = torch.zeros((len(n), max(n), v["channels"], v["image"], v["image"]))
    for i, k in enumerate(n):
        out[i, :k] = torch.randn(out[i, :k].shape, generator=generator)
    return out


def random_row(c, images, token, generator):
    """Text, with `images` blocks of image tokens in it."""
    t, n = text_case(c), features_of(c)
    words = torch.randint(0, t["vocab"] - 1, (c["T"] - images * n,), generator=generator).tolist()
    places = sorted(torch.randint(0, len(words) + 1, (images,), generator=generator).tolist(), reverse=True)
    for p in places:
        words[p:p] = [token] * n
    return words


def random_batch(c, generator):
    v, t = vision_case(c), text_case(c)
    token = t["vocab"] - 1
    ids = torch.tensor(next_rows(c, token, generator) if c["sizes"] else [random_row(c, k, token, generator) for k in c["images"]])
    labels = ids.clone()
    labels[ids == token] = IGNORE
    labels[:, :2] = IGNORE
    dtype = getattr(torch, c["ids"])
    batch = {}
    if c["padded"]:  # at the left end of one row and the right end of others, where no image is
        mask = torch.ones_like(ids)
        for b in range(len(ids)):
            text = (ids[b] != token).tolist()
            if b % 2:
                mask[b, :next((i for i, x in enumerate(text) if not x), 3)][:2] = 0
            else:
                after = next((i for i, x in enumerate(reversed(text)) if not x), 3)
                mask[b, ids.shape[1] - min(after, 3):] = 0
        labels[mask == 0] = IGNORE
        batch["attention_mask"] = mask
    if c["packed"]:  # a border in each row, where no image is cut
        positions = torch.arange(ids.shape[1])[None].repeat(len(ids), 1)
        for b in range(len(ids)):
            free = [i for i in range(2, ids.shape[1] - 1) if ids[b, i] != token]
            border = free[len(free) // 2]
            positions[b, border:] -= border
            labels[b, border] = IGNORE
        batch["position_ids"] = positions
    if c["kind"] == "paligemma":  # an answer ends each conversation
        rows = make_llama.conversations(batch["position_ids"]) if c["packed"] else [(b, 0, ids.shape[1]) for b in range(len(ids))]
        for row, begin, end in rows:
            labels[row, begin:end - 5] = IGNORE
    if is_original(c):
        ids = torch.where(ids == token, -200, ids)
    batch.update(input_ids=ids.to(dtype), labels=labels.to(dtype))
    n = sum(c["images"])
    if n:
        pixels = torch.randn((n, v["channels"], v["image"], v["image"]), generator=generator)
        if c["five"]:  # [B,M,...], padded with images of zeros
            padded = torch.zeros((len(c["images"]), max(c["images"]), *pixels.shape[1:]))
            at = 0
            for b, k in enumerate(c["images"]):
                padded[b, :k] = pixels[at:at + k]
                at += k
            batch["pixel_attention_mask"] = (padded != 0).any(dim=(2, 3, 4), keepdim=True)[:, :, 0].expand(*padded.shape[:2], *padded.shape[3:]).to(torch.uint8).contiguous()
            pixels = padded
        batch["pixel_values"] = pixels
        if c["sizes"]:
            batch["pixel_values"] = next_pixels(c, generator)
            batch["image_sizes"] = torch.tensor(c["sizes"])
    return batch


def inputs_of(c, batch, dtype):
    out = {"input_ids": batch["input_ids"].long(), "use_cache": False}
    token = text_case(c)["vocab"] - 1
    out["input_ids"] = torch.where(out["input_ids"] == -200, token, out["input_ids"])
    if "pixel_attention_mask" in batch:
        out["pixel_attention_mask"] = batch["pixel_attention_mask"]
    if c["kind"] == "paligemma":  # 1 from the first label on
        out["token_type_ids"] = ((batch["labels"] != IGNORE).cumsum(1) > 0).long()
    if c["kind"] == "gemma3":
        out["token_type_ids"] = (out["input_ids"] == token).long()
    if "pixel_values" in batch:
        pixels = batch["pixel_values"].to(dtype)
        if c["sizes"]:
            out["image_sizes"] = batch["image_sizes"]
        out["pixel_values"] = pixels if c["kind"] not in ("smolvlm", "idefics3") or pixels.dim() == 5 else pixels[:, None]
    return out


def packed_outputs(model, c, batch, dtype):
    """Each conversation by itself. The loss is the mean over all labels of the batch."""
    given, labels = inputs_of(c, batch, dtype), batch["labels"].long()
    token, n = text_case(c)["vocab"] - 1, features_of(c)
    logits, total, count, at = [], 0, 0, 0
    for row, begin, end in make_llama.conversations(batch["position_ids"]):
        ids = given["input_ids"][row:row + 1, begin:end]
        images = int((ids == token).sum()) // n
        if c["sizes"]:
            flags = (ids[0] == token).tolist()
            images = sum(x and not y for x, y in zip(flags, [False] + flags))
        extra = dict(pixel_values=given["pixel_values"][at:at + images]) if images else {}
        if images and c["sizes"]:
            extra["image_sizes"] = given["image_sizes"][at:at + images]
        if "token_type_ids" in given:
            extra["token_type_ids"] = given["token_type_ids"][row:row + 1, begin:end]
        if c["kind"] == "paligemma":
            extra["token_type_ids"] = ((labels[row:row + 1, begin:end] != IGNORE).cumsum(1) > 0).long()
        at += images
        logits.append(model(input_ids=ids, use_cache=False, **extra).logits[0])
        target = labels[row, begin + 1:end]
        total = total + torch.nn.functional.cross_entropy(logits[-1][:-1], target, ignore_index=IGNORE, reduction="sum")
        count += int((target != IGNORE).sum())
    return {"logits": torch.cat(logits).reshape(*labels.shape, -1), "loss": total / count}


def outputs(model, c, batch, dtype):
    if "position_ids" in batch:
        return packed_outputs(model, c, batch, dtype)
    given = inputs_of(c, batch, dtype)
    if "attention_mask" not in batch:
        out = model(labels=batch["labels"].long(), **given)
        return {"logits": out.logits, "loss": out.loss}
    model.set_attn_implementation("sdpa")  # as make_llama.padded_outputs
    mask = batch["attention_mask"]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = model(labels=batch["labels"].long(), attention_mask=mask, **given)
    return {"logits": torch.where(mask[..., None] == 1, out.logits, torch.nan), "loss": out.loss}



def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    return common.backward(outputs(model, c, batch, dtype), model.named_parameters(), lambda n: folder_name(c, n))


def random_case(r):
    kind = r.choice(["llava", "llava", "llava", "smolvlm", "idefics3"])
    heads = r.randint(1, 4)
    patch, side, scale = r.randint(2, 5), r.randint(2, 4), 2
    vision = dict(kind=r.choice(["clip", "siglip"]), heads=heads, hidden=heads * r.randint(2, 9), inner=r.randint(3, 40), layers=r.randint(1, 4),
                  patch=patch, image=patch * side + r.randint(0, patch - 1))
    if kind != "llava":
        scale = r.choice([2, 3])
        vision.update(kind="siglip", image=patch * scale * r.randint(1, 2))
    family = r.choice(["llama", "mistral", "qwen2"]) if kind == "llava" else "llama"
    extra = dict(sliding_window=r.choice([None, 5])) if family == "mistral" else None
    layers = vision["layers"]
    layer = r.choice([-1, -2, layers, 0, [-1, 0], list(range(layers + 1))])
    images = tuple(r.randint(0, 3) for _ in range(r.randint(1, 4)))
    c = case(kind=kind, names=r.choice(["hub", "saved", "memory", "memory4"]) if kind == "llava" else "memory", vision=vision,
             text=dict(family=family, extra=extra), layer=layer, strategy=r.choice(["default", "full"]),
             act=r.choice(["gelu", "gelu_pytorch_tanh", "relu", "silu"]), bias=r.random() < 0.5, tied=r.random() < 0.5, scale=scale,
             images=images, dtype=r.choice(["float32", "bfloat16"]), five=kind != "llava" and sum(images) > 0 and r.random() < 0.5,
             ids=r.choice(["int32", "int64"]), std=r.uniform(0.1, 0.25))
    c["T"] = max(images) * features_of(c) + r.randint(6, 20)
    return c


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case, "llava")
