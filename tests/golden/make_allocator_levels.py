#!/usr/bin/env python3
"""Golden files for the token allocator with levels of detail (arr_coc_qwen2_vl and its kin), made with PyTorch and transformers.

    python tests/golden/make_allocator_levels.py [--out DIR] [--seed N] [--only CASE]...

Each case is one folder, as those of make_qwen_vl.py, with several images a row: config.json, model.safetensors,
batch.safetensors and expect.safetensors. The batch has in addition the textures of the images, the information of their
cells and the weights of each question's tokens (make_allocator.py).

What holds: scorer, balancer, texture adapter, the sharing of tokens and the positions are written down here in PyTorch; tower
and text model are those of transformers with the folder's weights, in float32 with eager attention. The sharing is a
walk over a sorted list, and is not differentiated; the tokens are multiplied by their scores.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText

import common
import make_allocator
import make_qwen_vl
from make_allocator import CHANNELS, SIDE

F = torch.nn.functional
IGNORE = common.IGNORE
GAP = 0.006  # scores that change by so much change no choice


def case(**changes):
    own = dict(tokens=8, most=5, adapter=7)
    own.update({k: changes.pop(k) for k in list(own) if k in changes})
    return dict(make_qwen_vl.case(**changes), **own)


CASES = {
    "allocator_qwen2_vl": case(rows=(((1, 4, 6), (1, 6, 8)), ((1, 8, 6),), ()), T=30),
    "allocator_qwen2_5_vl": case(kind="qwen2_5_vl", names="memory", style=5, tied=True, tower_inter=31, tokens=7, rows=(((1, 10, 6), (1, 4, 8)), ((1, 6, 6),)), T=24),
    "allocator_qwen3_vl": case(kind="qwen3_vl", names="memory", head_dim=12, sections=[2, 2, 2], heads=2, kv_heads=1, layers=3, tokens=9, most=4,
                               rows=(((1, 6, 6), (1, 4, 8)), ((1, 10, 4), (1, 6, 6)), ()), T=30),
    "allocator_coarse": case(tokens=4, most=9, rows=(((1, 6, 8),), ((1, 4, 6), (1, 4, 8))), T=17),
}


def share(scores, tokens, most, unit):
    """Of each token its feature, and its patch at the finer level or None. The kept features, in order."""
    n, step = len(scores), unit - 1
    cap = min(n, most)
    if tokens > cap:
        cap = max(k for k in range(cap - step + 1, cap + 1) if (tokens - k) % step == 0)
    steps = sorted([(-s, 0, i) for i, s in enumerate(scores)] + [(-s / unit, 1, i) for i, s in enumerate(scores)])
    kept, fine = set(), set()
    for _, finer, i in steps:
        used = len(kept) + step * len(fine)
        if not finer and len(kept) < cap and used + 1 <= tokens:
            kept.add(i)
        elif finer and i in kept and used + step <= tokens:
            fine.add(i)
    out = [(i, p) for i in sorted(kept) for p in (range(i * unit, i * unit + unit) if i in fine else [None])]
    assert len(out) == tokens, (len(out), tokens, n, most)
    return out


class Levels(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.gap = c, GAP
        self.base = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**make_qwen_vl.config_json(c)))
        self.base.set_attn_implementation("eager")
        D, W = c["hidden"], c["width"]
        L = torch.nn.Linear
        self.scorer = torch.nn.ModuleDict(dict(fc1=L(CHANNELS, 64), fc2=L(64, D)))
        self.balancer = torch.nn.ModuleDict(dict(fc1=L(9 + D, 128), fc2=L(128, 128), fc3=L(128, 3)))
        self.texture_adapter = torch.nn.ModuleDict(dict(down=L(W + CHANNELS, c["adapter"]), up=L(c["adapter"], D)))

    def tower(self, pixels, grids):
        """What the merger reads, normed, [patches,W]; features [F,C], and those of deepstack; all in the tower's order."""
        visual, seen = self.base.model.visual, {}
        handle = visual.merger.register_forward_hook(lambda m, given, out: seen.update(given=given[0], out=out))
        out = visual(pixels, grid_thw=grids)
        handle.remove()
        norm = visual.merger.norm if self.c["kind"] == "qwen3_vl" else visual.merger.ln_q
        return norm(seen["given"].reshape(-1, self.c["width"])), seen["out"], getattr(out, "deepstack_features", None) or []

    def order(self, grids):
        """The features in the order of the tower."""
        n = int(grids.prod(-1).sum()) // self.c["merge"] ** 2
        if self.c["kind"] != "qwen2_5_vl":
            return torch.arange(n)
        from transformers.vision_utils import get_vision_window_index
        return get_vision_window_index(grids, spatial_merge_size=self.c["merge"], window_size=self.c["window"], patch_size=self.c["patch"])[0]

    def scores(self, texture, information, query):
        """[cells] of one image."""
        seen = self.scorer["fc2"](self.scorer["fc1"](texture).relu())
        participatory = (F.cosine_similarity(seen, query[None], dim=-1) + 1) / 2
        maps = torch.stack([information, texture[..., 7], participatory])
        statistics = torch.stack([maps.mean(-1), maps.amax(-1), maps.std(-1)], -1).flatten()
        x = torch.cat([statistics, query])
        balance = self.balancer["fc3"](self.balancer["fc2"](self.balancer["fc1"](x).relu()).relu()).softmax(-1)
        return (balance[:, None] * maps).sum(0)

    def image(self, cells, h, w, patches, features, deep, places):
        """The tokens [tokens,D] of an image, those of deepstack, and their places [tokens,2]."""
        c, unit = self.c, self.c["merge"] ** 2
        at = sample(cells, h, w)[places[:, 0], places[:, 1]]  # [patches,14], in the tower's order
        mean = at.reshape(-1, unit, at.shape[-1]).mean(1)
        score = mean[:, 0]
        half = score.detach().half().float()
        chosen = share(half.tolist(), c["tokens"], c["most"], unit)
        noise = torch.Generator().manual_seed(0)
        for _ in range(100):
            other = score.detach().float() + self.gap * (2 * torch.rand(score.shape, generator=noise) - 1)
            self.stable &= share(other.half().tolist(), c["tokens"], c["most"], unit) == chosen
        feature = torch.tensor([f for f, _ in chosen])
        wide = patches.reshape(-1, unit, patches.shape[-1]).mean(1)
        own = torch.stack([torch.cat([patches[p], at[p, 1:]]) if p is not None else torch.cat([wide[f], mean[f, 1:]]) for f, p in chosen])
        more = self.texture_adapter["up"](F.gelu(self.texture_adapter["down"](own)))
        weight = score[feature, None]
        return (features[feature] + more) * weight, [d[feature] * weight for d in deep], places[feature * unit] // c["merge"]

    def forward(self, batch, dtype):
        batch = {n: t.to(dtype) if t.is_floating_point() else t for n, t in batch.items()}
        c, unit, merge = self.c, self.c["merge"] ** 2, self.c["merge"]
        ids, grids = batch["input_ids"].long(), batch["image_grid_thw"].long()
        embeddings = self.base.get_input_embeddings()(ids)
        patches, features, deep = self.tower(batch["pixel_values"], grids)
        raster = torch.cat([torch.tensor([(y * merge + i // merge, x * merge + i % merge) for y in range(h // merge) for x in range(w // merge) for i in range(unit)])
                            for _, h, w in grids.tolist()])
        order = self.order(grids)
        places = raster.reshape(-1, unit, 2)[order].reshape(-1, 2)
        deep = [torch.cat(list(d)) if isinstance(d, (list, tuple)) else d for d in deep]
        self.stable, images, begin = True, [], 0
        for k, (_, h, w) in enumerate(grids.tolist()):
            query = torch.einsum("bt,btd->d", batch["query_weights"][k], embeddings)
            cells = torch.cat([self.scores(batch["texture"][k], batch["information"][k], query)[:, None], batch["texture"][k]], -1)
            end = begin + h * w
            f = slice(begin // unit, end // unit)
            images.append(self.image(cells, h, w, patches[begin:end], features[f], [d[f] for d in deep], places[begin:end]))
            begin = end
        place = ids == make_qwen_vl.IMAGE
        tokens = torch.cat([x[0] for x in images])
        x = embeddings.masked_scatter(place[..., None].expand_as(embeddings), tokens.to(embeddings.dtype))
        extra = {}
        if deep:
            extra = dict(visual_pos_masks=place, deepstack_visual_embeds=[torch.cat([x[1][i] for x in images]) for i in range(len(deep))])
        positions = self.positions(ids, grids.tolist(), [x[2] for x in images])
        hidden = self.base.model.language_model(inputs_embeds=x, position_ids=positions, use_cache=False, **extra).last_hidden_state
        logits = self.base.lm_head(hidden)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"].long()[:, 1:].flatten(), ignore_index=IGNORE)
        return {"logits": logits, "loss": loss}

    def positions(self, ids, grids, places):
        """[3,B,T]: of a token of an image the image's corner, and row and column of its feature."""
        out, k = torch.zeros((3, *ids.shape), dtype=torch.long), 0
        for b, row in enumerate(ids.tolist()):
            t = at = 0
            while t < len(row):
                if row[t] != make_qwen_vl.IMAGE:
                    out[:, b, t] = at
                    t, at = t + 1, at + 1
                    continue
                n = self.c["tokens"]
                out[:, b, t:t + n] = at
                out[1:, b, t:t + n] += places[k].T
                t, at, k = t + n, at + max(grids[k][1:]) // self.c["merge"], k + 1
        return out


def sample(cells, h, w):
    """Cells [1024,n] at the centres of h x w patches, bilinear: [h,w,n]."""
    grid = cells.reshape(SIDE, SIDE, -1)
    def axis(size):
        x = ((torch.arange(size) + 0.5) * SIDE / size - 0.5).clamp_min(0)
        low = x.floor().long()
        return low, (low + 1).clamp_max(SIDE - 1), (x - low).to(cells.dtype)
    (a, b, v), (p, q, u) = axis(h), axis(w)
    v, u = v[:, None, None], u[None, :, None]
    return (grid[a][:, p] * (1 - v) + grid[b][:, p] * v) * (1 - u) + (grid[a][:, q] * (1 - v) + grid[b][:, q] * v) * u


def config_json(c):
    config = make_qwen_vl.config_json(c)
    return dict(config, architectures=["ArrCoc"], model_type="arr_coc_" + c["kind"], num_visual_tokens=c["tokens"], max_patches=c["most"], texture_adapter_width=c["adapter"])


def folder_name(c, name):
    if name.startswith("base."):
        return make_qwen_vl.folder_name(c, name.removeprefix("base."))
    return name


def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    weights = common.random_weights(Levels(c).named_parameters(), c, generator, lambda name: folder_name(c, name), is_norm=lambda name: "norm" in name or "ln_q" in name)
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})


def load_model(folder, c, dtype):
    model = Levels(c).to(dtype).eval()
    weights = load_file(os.path.join(folder, "model.safetensors"))
    return common.copy_weights(model, weights, folder, lambda name: folder_name(c, name))


def random_row(c, n, generator):
    """Text with n images in it."""
    words = torch.randint(0, 50, (c["T"] - n * (c["tokens"] + 2),), generator=generator).tolist()
    assert len(words) > 3, (c["T"], n)
    places = sorted(torch.randint(1, len(words), (n,), generator=generator).tolist(), reverse=True)
    for p in places:
        words[p:p] = [make_qwen_vl.START] + [make_qwen_vl.IMAGE] * c["tokens"] + [make_qwen_vl.END]
    return words


def random_batch(c, generator):
    grids = [g for row in c["rows"] for g in row]
    ids = torch.tensor([random_row(c, len(row), generator) for row in c["rows"]])
    labels, text = ids.clone(), ids < make_qwen_vl.START
    labels[~text] = IGNORE
    question = text & (torch.cumsum(text, 1) <= 3)
    labels[question] = IGNORE
    weights = torch.zeros((len(grids), *ids.shape))
    owner = [b for b, row in enumerate(c["rows"]) for _ in row]
    for k, b in enumerate(owner):
        weights[k, b] = question[b].float() / question[b].sum()
    images = [make_allocator.random_image(max(h, w) * c["patch"], generator)[:, :h * c["patch"], :w * c["patch"]] for _, h, w in grids]
    texture = torch.stack([make_allocator.texture(x) for x in images])
    patches = sum(h * w for _, h, w in grids)
    return dict(input_ids=ids, labels=labels, query_weights=weights, texture=texture, information=make_allocator.information(texture),
                image_grid_thw=torch.tensor(grids), pixel_values=torch.randn((patches, c["channels"] * 2 * c["patch"] ** 2), generator=generator))


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    result = model(batch, dtype)
    reference.stable = model.stable
    return common.backward(result, model.named_parameters(), lambda n: folder_name(c, n))


def make_case(folder, name, c, seed):
    """Writes one case and prints its row. The seed is the first whose choice no rounding changes."""
    for attempt in range(200):
        generator = common.generator_of(name, seed, attempt)
        write_model(folder, c, generator)
        batch = random_batch(c, generator)
        expect = reference(folder, c, batch)
        if reference.stable:
            break
    else:
        raise SystemExit(f"{name}: no seed of which no rounding changes a choice")
    own = ("grad.scorer", "grad.balancer", "grad.texture_adapter")
    if not all(expect[n].abs().max() > 0 for n in expect if n.startswith(own)):
        raise SystemExit(f"{name}: no gradient reaches scorer, balancer or adapter")
    common.write_tensors(os.path.join(folder, "batch.safetensors"), batch)
    common.write_tensors(os.path.join(folder, "expect.safetensors"), expect)
    exact = reference(folder, c, batch, torch.float64)
    return common.print_row(folder, name, expect, exact, f"  attempt {attempt}")


if __name__ == "__main__":
    common.main(__doc__, CASES, None, None, None, make_case=make_case)
