#!/usr/bin/env python3
"""Golden files for `plimsoll step` on models that match masks with texts (arr_coc), made with PyTorch and transformers.

    python tests/golden/make_grounding.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_grounding.py --random K --out DIR [--seed N]

Each case is one folder:

    config.json             arr_coc: a tower of CLIP or SigLIP, a decoder
    model.safetensors       random weights
    batch.safetensors       pixel_values, masks as shares of patches, input_ids with the queries of each image in a row,
                            query_index, target_masks, position_ids where a row has several queries
    expect.safetensors      similarity, mask_embeds, text_embeds, loss, grad.<name> for every parameter

What holds: the reference reads the folder's weights, in float32 with eager attention. It embeds each query by itself
and each mask by its average, and its loss is written down query by query: cross-entropy over the masks of the
image; where another query of the image has another target, the mean of that and of the cross-entropy over the
queries of the image without those of the same target.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel

import common
import make_llama
import make_llava
import make_towers

F = torch.nn.functional


def case(**changes):
    base = dict(
        vision={}, text={}, dtype="float32", width=11, temperature=0.07, layer=-2,
        # of each image: its masks, and its queries as (tokens, target); -1: no query
        masks=(5, 3), queries=(((4, 1), (3, 0), (5, 4)), ((6, 2), (1, 2), (3, 0))), M=6, T=14,
        ids="int64", area="float32", std=0.2,
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


ONE = dict(queries=(((7, 3),), ((5, 0),), ((6, -1),)), masks=(4, 1, 2), M=4, T=7)
CASES = {
    "grounding_clip_llama": case(),
    "grounding_clip_mistral": case(text=dict(family="mistral", extra=dict(sliding_window=3)), layer=-1, temperature=0.2, **ONE),
    "grounding_siglip_qwen2": case(vision=dict(kind="siglip", patch=4, image=14, layers=2), text=dict(family="qwen2"), layer=1, ids="int32", dtype="bfloat16",
                                   masks=(16, 1, 2), M=16, T=12, queries=(((5, 15), (2, 0)), ((3, 0), (4, 0)), ((2, 1), (9, -1)))),
}


def vision_case(c):
    return make_llava.vision_case(dict(vision=c["vision"]))


def text_case(c):
    return make_llava.text_case(dict(text=c["text"], tied=False, kind="arr_coc", T=c["T"]))


def config_json(c):
    """config.json, independent of the installed version."""
    return dict(architectures=["ArrCocGrounding"], model_type="arr_coc", projection_dim=c["width"], temperature=c["temperature"],
                vision_feature_layer=c["layer"], vision_config=make_towers.tower_config(vision_case(c)), text_config=make_llama.config_json(text_case(c)),
                dtype=c["dtype"])


class Grounding(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        config = config_json(c)
        vision, text = AutoConfig.for_model(**config["vision_config"]), AutoConfig.for_model(**config["text_config"])
        vision._attn_implementation = text._attn_implementation = "eager"
        self.vision_tower = make_towers.tower_class(vision_case(c))(vision)
        self.language_model = AutoModel.from_config(text)
        self.mask_projection = torch.nn.Linear(vision.hidden_size, c["width"], bias=False)
        self.text_projection = torch.nn.Linear(text.hidden_size, c["width"], bias=False)

    def embed_masks(self, pixels, masks):
        """[B,3,S,S], [B,M,side,side]: [B,M,D]; zeros for masks that are none."""
        x = self.vision_tower(pixel_values=pixels, output_hidden_states=True).hidden_states[self.c["layer"]]
        x = x[:, x.shape[1] - masks[0, 0].numel():]
        area = masks.flatten(2)
        mean = torch.einsum("bmp,bpc->bmc", area, x) / area.sum(-1, keepdim=True).clamp_min(1e-9)
        return F.normalize(self.mask_projection(mean), dim=-1)

    def embed_queries(self, ids, index, positions):
        """Each query by itself: [B,Q,D]; zeros for queries that are none."""
        rows = []
        for b in range(len(ids)):
            for end in index[b].tolist():
                if end < 0:
                    rows.append(torch.zeros(self.c["width"], dtype=self.text_projection.weight.dtype))
                    continue
                begin = end - int(positions[b, end])
                state = self.language_model(input_ids=ids[b:b + 1, begin:end + 1], use_cache=False).last_hidden_state[0, -1]
                rows.append(F.normalize(self.text_projection(state), dim=-1))
        return torch.stack(rows).reshape(*index.shape, -1)

    def forward(self, batch, dtype):
        masks = self.embed_masks(batch["pixel_values"].to(dtype), batch["masks"].to(dtype))
        ids = batch["input_ids"].long()
        positions = batch.get("position_ids", torch.arange(ids.shape[1]).expand_as(ids))
        queries = self.embed_queries(ids, batch["query_index"].long(), positions)
        similarity = torch.einsum("bmd,bqd->bqm", masks, queries) / self.c["temperature"]
        return {"similarity": similarity, "mask_embeds": masks, "text_embeds": queries, "loss": loss(similarity, batch)}


def loss(similarity, batch):
    total, count = 0, 0
    for b, target in enumerate(batch["target_masks"].tolist()):
        real = batch["masks"][b].flatten(1).sum(1) > 0
        for q, m in enumerate(target):
            if m < 0:
                continue
            count += 1
            of_masks = torch.logsumexp(similarity[b, q, real], 0) - similarity[b, q, m]
            others = [i for i, t in enumerate(target) if t >= 0 and t != m]
            if not others:
                total = total + of_masks
                continue
            of_queries = torch.logsumexp(similarity[b, [q] + others, m], 0) - similarity[b, q, m]
            total = total + (of_masks + of_queries) / 2
    return total / count


def folder_name(name):
    for begin, other in (("vision_tower.", "vision_tower.vision_model."), ("language_model.", "language_model.model.")):
        if name.startswith(begin):
            return other + name[len(begin):].removeprefix("vision_model.")
    return name


def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    weights = common.random_weights(Grounding(c).named_parameters(), c, generator, folder_name)
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})


def load_model(folder, c, dtype):
    """The reference, only from the folder. Refuses one that does not fill it."""
    model = Grounding(c).to(dtype).eval()
    weights = load_file(os.path.join(folder, "model.safetensors"))
    return common.copy_weights(model, weights, folder, folder_name)


def random_masks(c, count, side, generator):
    """Shares of patches: some of them whole, most of them none."""
    out = torch.zeros(c["M"], side, side)
    for m in range(count):
        share = torch.rand((side, side), generator=generator)
        out[m] = torch.where(share < 0.5, 0, (share * 1.5).clamp_max(1))
        out[m, m % side, m // side % side] = 0.25
    return out


def random_batch(c, generator):
    v, t = vision_case(c), text_case(c)
    B, Q, side = len(c["masks"]), max(map(len, c["queries"])), v["image"] // v["patch"]
    ids = torch.randint(0, t["vocab"], (B, c["T"]), generator=generator)
    index, target, positions = torch.full((B, Q), -1), torch.full((B, Q), -1), torch.zeros(B, c["T"], dtype=torch.long)
    for b, queries in enumerate(c["queries"]):
        begin = 0
        for q, (tokens, mask) in enumerate(queries):
            positions[b, begin:begin + tokens] = torch.arange(tokens)
            begin += tokens
            index[b, q], target[b, q] = (begin - 1, mask) if mask >= 0 else (-1, -1)
        assert begin <= c["T"]
    masks = torch.stack([random_masks(c, n, side, generator) for n in c["masks"]])
    dtype = getattr(torch, c["ids"])
    batch = dict(pixel_values=torch.randn((B, v["channels"], v["image"], v["image"]), generator=generator), masks=masks.to(getattr(torch, c["area"])),
                 input_ids=ids.to(dtype), query_index=index.to(dtype), target_masks=target.to(dtype))
    if Q > 1:
        batch["position_ids"] = positions.to(dtype)
    return batch



def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    return common.backward(model(batch, dtype), model.named_parameters(), folder_name)


def random_case(r):
    heads, patch, layers = r.randint(1, 4), r.randint(2, 5), r.randint(1, 3)
    vision = dict(kind=r.choice(["clip", "siglip"]), heads=heads, hidden=heads * r.randint(2, 9), inner=r.randint(3, 40), layers=layers, patch=patch,
                  image=patch * r.randint(2, 4) + r.randint(0, patch - 1))
    family = r.choice(["llama", "mistral", "qwen2"])
    masks = tuple(r.randint(1, 16) for _ in range(r.randint(1, 3)))
    queries = tuple(tuple((r.randint(1, 6), r.randrange(-1, n)) for _ in range(r.randint(1, 4))) for n in masks)
    queries = (((3, 0),) + queries[0][1:],) + queries[1:]  # one at least
    return case(vision=vision, text=dict(family=family, extra=dict(sliding_window=r.choice([None, 3])) if family == "mistral" else None),
                layer=r.choice([-1, -2, 0, layers]), width=r.randint(2, 30), temperature=r.choice([0.07, 0.3, 1]), masks=masks, queries=queries,
                M=max(masks) + r.randint(0, 2), T=max(2, max(sum(n for n, _ in q) for q in queries) + r.randint(0, 3)), dtype=r.choice(["float32", "bfloat16"]),
                ids=r.choice(["int32", "int64"]), area=r.choice(["float32", "bfloat16"]), std=r.uniform(0.1, 0.25))


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case, "grounding")
