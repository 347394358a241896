#!/usr/bin/env python3
"""Golden files for the token allocator (arr_coc_allocator), made with PyTorch and transformers.

    python tests/golden/make_allocator.py [--out DIR] [--seed N] [--only CASE]...

Each case is one folder, as those of make_llava.py: config.json, model.safetensors, batch.safetensors and
expect.safetensors. Every sample has one image. The batch has in addition the textures of the images, made here of
random smooth images; the information of each cell; and the weights of the question's tokens. texture.safetensors is
for tests/test_allocator.c: an image, its texture and its information.

What holds: scorer, balancer and the choice of tokens are written down here in PyTorch; tower, projector and text
model are those of transformers' Llava with the folder's weights, in float32 with eager attention. The choice is not
differentiated; kept tokens are multiplied by their scores.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from safetensors.torch import load_file
from transformers import LlavaConfig, LlavaForConditionalGeneration

import common
import make_llava

F = torch.nn.functional
IGNORE = common.IGNORE
SIDE, CHANNELS = 32, 13
GAP = 0.008  # between the last kept score and the first that is not: no rounding changes a choice


def case(**changes):
    kept, selection = changes.pop("kept", 5), changes.pop("selection", "scored")
    return dict(make_llava.case(**changes), kept=kept, selection=selection)


VISION = dict(patch=4, image=16)
CASES = {
    "allocator_clip_llama": case(vision=VISION, images=(1, 1), T=15),
    "allocator_siglip_qwen2": case(vision=dict(kind="siglip", patch=4, image=23), strategy="full", text=dict(family="qwen2"), images=(1, 1, 1), T=19, kept=9,
                                   padded=True, layer=[-1, 0]),
    "allocator_random": case(vision=VISION, images=(1, 1), T=12, kept=3, selection="random"),
}


def texture(image):
    """[3,S,S] in 0 to 1: [cells,13]."""
    x = F.interpolate(image[None], size=(512, 512), mode="bilinear", align_corners=False)
    x = F.avg_pool2d(x, 512 // SIDE)[0]
    linear = torch.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    to_xyz = torch.tensor([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750]], dtype=x.dtype)
    xyz = torch.einsum("ij,jhw->ihw", to_xyz, linear) / torch.tensor([0.95047, 1.0], dtype=x.dtype)[:, None, None]
    curve = torch.where(xyz > 216 / 24389, xyz ** (1 / 3), (24389 / 27 * xyz + 16) / 116)
    light, red_green = (116 * curve[1] - 16) / 100, (500 * (curve[0] - curve[1]) + 128) / 255
    grey = F.pad((x * torch.tensor([0.299, 0.587, 0.114], dtype=x.dtype)[:, None, None]).sum(0)[None, None], (1, 1, 1, 1), mode="replicate")
    sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=x.dtype)
    edges = F.conv2d(grey, torch.stack([sobel, sobel.T])[:, None])[0]
    edges = torch.cat([edges, edges.pow(2).sum(0, keepdim=True).sqrt()])
    least, most = edges.amin((1, 2), keepdim=True), edges.amax((1, 2), keepdim=True)
    edges = (edges - least) / (most - least + 1e-8)
    line = torch.linspace(0, 1, SIDE, dtype=x.dtype)
    row, column = torch.meshgrid(line, line, indexing="ij")
    far = ((row - 0.5) ** 2 + (column - 0.5) ** 2).sqrt()
    out = [*x, light, red_green, *edges, row, column, far / far.max(), edges[2], light]
    return torch.stack(out, -1).reshape(SIDE * SIDE, CHANNELS)


def information(texture):
    p = texture.softmax(-1)
    entropy = -(p * p.log()).sum(-1)
    least, most = entropy.amin(-1, keepdim=True), entropy.amax(-1, keepdim=True)
    return (entropy - least) / (most - least + 1e-8)


def random_image(side, generator):
    coarse = torch.rand((1, 3, 5, 5), generator=generator)
    image = F.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=True)[0]
    return (image + 0.1 * torch.rand((3, side, side), generator=generator)).clamp(0, 1)


class Allocator(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        config = make_llava.config_json(c)
        config = LlavaConfig(text_config=config["text_config"], vision_config=config["vision_config"], image_token_index=config["image_token_index"],
                             vision_feature_layer=c["layer"], vision_feature_select_strategy=c["strategy"], multimodal_projector_bias=c["bias"],
                             projector_hidden_act=c["act"])
        self.llava = LlavaForConditionalGeneration(config)
        self.llava.set_attn_implementation("eager")
        D = config.text_config.hidden_size
        if c["selection"] == "scored":
            self.scorer = torch.nn.ModuleDict(dict(fc1=torch.nn.Linear(CHANNELS, 64), fc2=torch.nn.Linear(64, D)))
            self.balancer = torch.nn.ModuleDict(dict(fc1=torch.nn.Linear(9 + D, 128), fc2=torch.nn.Linear(128, 128), fc3=torch.nn.Linear(128, 3)))

    def scores(self, batch, embeddings, side):
        """[B,P]: of each patch."""
        texture, weights = batch["texture"], batch["query_weights"]
        query = torch.einsum("bt,btd->bd", weights, embeddings)
        seen = self.scorer["fc2"](self.scorer["fc1"](texture).relu())
        participatory = (F.cosine_similarity(seen, query[:, None], dim=-1) + 1) / 2
        maps = torch.stack([batch["information"], texture[..., 7], participatory], 1)
        statistics = torch.stack([maps.mean(-1), maps.amax(-1), maps.std(-1)], -1).flatten(1)
        x = torch.cat([statistics, query], -1)
        balance = self.balancer["fc3"](self.balancer["fc2"](self.balancer["fc1"](x).relu()).relu()).softmax(-1)
        score = (balance[..., None] * maps).sum(1).reshape(-1, 1, SIDE, SIDE)
        if side > SIDE:
            return F.interpolate(score, size=(side, side), mode="bilinear", align_corners=False).flatten(1)
        return F.adaptive_avg_pool2d(score, (side, side)).flatten(1)

    def forward(self, batch, dtype):
        batch = {n: t.to(dtype) if t.is_floating_point() else t for n, t in batch.items()}
        model, ids = self.llava.model, batch["input_ids"].long()
        embeddings = self.llava.get_input_embeddings()(ids)
        features = model.get_image_features(pixel_values=batch["pixel_values"], vision_feature_layer=self.c["layer"],
                                            vision_feature_select_strategy=self.c["strategy"])
        features = getattr(features, "pooler_output", features)
        tokens = torch.stack(list(features))
        kept = self.c["kept"]
        if self.c["selection"] == "random":
            index = batch["random_scores"].topk(kept).indices.sort().values
            tokens = tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))
        else:
            score = self.scores(batch, embeddings, int(tokens.shape[1] ** 0.5 + 0.5))
            order = score.detach().sort(descending=True).values
            self.gap = float((order[:, kept - 1] - order[:, kept]).min())
            index = score.half().sort(descending=True, stable=True).indices[:, :kept].sort().values
            tokens = (tokens * score[..., None]).gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))
        place = ids == text_token(self.c)
        x = embeddings.masked_scatter(place[..., None].expand_as(embeddings), tokens.reshape(-1, tokens.shape[-1]))
        extra = dict(attention_mask=batch["attention_mask"]) if "attention_mask" in batch else {}
        if extra:
            self.llava.set_attn_implementation("sdpa")  # as make_llama.padded_outputs
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            logits = self.llava.lm_head(model.language_model(inputs_embeds=x, use_cache=False, **extra).last_hidden_state)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"].long()[:, 1:].flatten(), ignore_index=IGNORE)
        if extra:
            logits = torch.where(batch["attention_mask"][..., None] == 1, logits, torch.nan)
        return {"logits": logits, "loss": loss}


def text_token(c):
    return make_llava.text_case(c)["vocab"] - 1


def config_json(c):
    config = dict(make_llava.config_json(c), architectures=["ArrCocAllocator"], model_type="arr_coc_allocator", num_visual_tokens=c["kept"])
    if c["selection"] != "scored":
        config["token_selection"] = c["selection"]
    return config


def folder_name(c, name):
    return make_llava.folder_name(c, name.removeprefix("llava."))


def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    weights = common.random_weights(Allocator(c).named_parameters(), c, generator, lambda name: folder_name(c, name))
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})


def load_model(folder, c, dtype):
    model = Allocator(c).to(dtype).eval()
    weights = load_file(os.path.join(folder, "model.safetensors"))
    return common.copy_weights(model, weights, folder, lambda name: folder_name(c, name))


def random_batch(c, generator):
    features = make_llava.features_of
    make_llava.features_of = lambda c: c["kept"]
    try:
        batch = make_llava.random_batch(c, generator)
    finally:
        make_llava.features_of = features
    ids, labels, v = batch["input_ids"].long(), batch["labels"], make_llava.vision_case(c)
    if c["selection"] == "random":
        batch["random_scores"] = torch.rand((len(ids), (v["image"] // v["patch"]) ** 2), generator=generator)
        return batch
    text = ids != text_token(c)
    question = text & (torch.cumsum(text, 1) <= 4)  # the first words
    if "attention_mask" in batch:
        question &= batch["attention_mask"] == 1
    labels[question] = IGNORE
    batch["query_weights"] = question.float() / question.sum(1, keepdim=True)
    batch["texture"] = torch.stack([texture(random_image(v["image"], generator)) for _ in ids])
    batch["information"] = information(batch["texture"])
    return batch


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    result = model(batch, dtype)
    reference.gap = getattr(model, "gap", 1)
    return common.backward(result, model.named_parameters(), lambda n: folder_name(c, n))


def make_case(folder, name, c, seed):
    """Writes one case and prints its row. The seed is the first whose choice no rounding changes."""
    for attempt in range(200):
        generator = common.generator_of(name, seed, attempt)
        write_model(folder, c, generator)
        batch = random_batch(c, generator)
        expect = reference(folder, c, batch)
        if reference.gap > GAP:
            break
    else:
        raise SystemExit(f"{name}: no seed with a gap of {GAP}")
    if c["selection"] == "scored" and not all(expect[n].abs().max() > 0 for n in expect if n.startswith(("grad.scorer", "grad.balancer"))):
        raise SystemExit(f"{name}: no gradient reaches scorer or balancer")
    common.write_tensors(os.path.join(folder, "batch.safetensors"), batch)
    common.write_tensors(os.path.join(folder, "expect.safetensors"), expect)
    exact = reference(folder, c, batch, torch.float64)
    return common.print_row(folder, name, expect, exact, f"  gap {reference.gap:.4f}, attempt {attempt}")


def make_texture(path, seed):
    generator = torch.Generator().manual_seed(seed)
    image = random_image(44, generator)
    exact = texture(image.double())
    common.write_tensors(path, {"image": image, "texture": exact.float(), "information": information(exact).float()})


if __name__ == "__main__":
    a = common.main(__doc__, CASES, None, None, None, make_case=make_case)
    if not a.only and not a.list:
        make_texture(os.path.join(a.out, "texture.safetensors"), a.seed)
