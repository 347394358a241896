#!/usr/bin/env python3
"""Golden files for `plimsoll step` on clips of SAM 2 for videos, made with PyTorch and transformers.

    python tests/golden/make_sam2_video.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_sam2_video.py --random K --out DIR [--seed N]

Each case is one folder like those of make_sam2.py, with these differences:

    config.json             sam2_video
    batch.safetensors       pixel_values_videos [B,L,channels,S,S], the frames with prompts first; frame_times [B,L];
                            prompts of each object on each of the first prompted_frames frames (metadata);
                            gt_masks of each object on each frame
    expect.safetensors      pred_masks [B,L,M,h,h], iou_scores [B,L,M], object_score_logits [B,L,M,1],
                            object_pointers [B,L,M,C], loss, grad.<name>

The reference is Sam2VideoModel.from_pretrained(folder): a session has the frames in the order of their times and
runs those with prompts first, then the others. Three things are as in training, which the class as it is
does not run: memories take the probabilities of masks, pointers of later frames are seen, and memories are
not rounded to bfloat16. With `training` false in the metadata only the last holds. With gt_masks the loss is the sum over the frames of the losses of make_sam2.py; frames whose
masks are the prompts have none.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
import torch.nn.functional as F
from transformers import Sam2VideoModel
from transformers.models.sam2_video import modeling_sam2_video as modeling

import common
import make_sam2
from make_sam import mask_loss, metadata as sam_metadata


def narrow_memories():
    """Lets keys and values have the width of a case's memories: the class has 64, whatever its configuration says."""
    begin = modeling.Sam2VideoRoPEAttention.__init__

    def __init__(self, config, kv_in_dim=None, rope_k_repeat=False):
        begin(self, config, kv_in_dim and config.memory_encoder_output_channels, rope_k_repeat)

    modeling.Sam2VideoRoPEAttention.__init__ = __init__


narrow_memories()


def case(**changes):
    """A case of make_sam2.py with the sizes of the memories and of the clip."""
    base = dict(
        image=32, windows=(2, 2, 2, 2), blocks=(1, 1, 1, 1), globals=(), C=16, decoder_inner=20, iou_hidden=9, video=True,
        std=0.23, points=1, labels=None,
    )
    video = dict(
        channels_of_memory=8, memories=3, pointers=4, layers=2, memory_heads=1, narrower=1, inner=24, mask_stride=4, mask_kernel=3, mask_pad=1,
        fuser_layers=1, fuser_inner=20, fuser_kernel=3, temporal=True, occlusion=True, several_tracked=None, most_points=None,
        L=4, K=1, times=None, mask_prompts=False, evaluation=False,
    )
    own = {k: changes.pop(k) for k in list(changes) if k in video}
    return {**make_sam2.case(**{**base, **changes}), **video, **own}


# Standard deviations with which the logits of objects are far from 0 and the best candidates apart:
# no rounding in float32 changes a choice.
CASES = {
    # 6 frames, of which only two are remembered, and three pointers
    "sam2_clip": case(std=0.25, L=6, M=2, B=1, targets=True, loss="sam2"),
    # two clips with prompts on two frames, of which one comes later, in splits of pointers
    "sam2_clip_later": case(K=2, times=((0, 3, 1, 2, 4), (2, 4, 0, 1, 3)), L=5, B=2, M=1, boxes=True, points=0, memories=4,
                            blocks=(1, 1, 1, 1), decoder_heads=4, memory_heads=2, narrower=2, loss_output="object_pointers"),
    "sam2_clip_masks": case(std=0.26, mask_prompts=True, points=0, M=2, targets=True, loss="sam2", occlusion=False, L=3),
    # without temporal positions of pointers; one candidate for two points and for tracked frames
    "sam2_clip_inference": case(evaluation=True, std=0.34, L=5, K=2, M=2, times=((0, 3, 1, 2, 4),), points=0, boxes=True),
    "sam2_clip_single": case(points=2, labels=(1, 0), temporal=False, several_tracked=False, targets=True, L=3, M=1,
                             dtype="bfloat16", mask_stride=2),
}


def config_json(c):
    out = make_sam2.config_json(c)
    more = dict(
        image_size=c["image"], num_maskmem=c["memories"], max_object_pointers_in_encoder=c["pointers"],
        memory_attention_hidden_size=c["C"], memory_attention_num_layers=c["layers"],
        memory_attention_num_attention_heads=c["memory_heads"], memory_attention_downsample_rate=c["narrower"],
        memory_attention_feed_forward_hidden_size=c["inner"], memory_attention_rope_feat_sizes=[c["image"] // 16] * 2,
        memory_encoder_hidden_size=c["C"], memory_encoder_output_channels=c["channels_of_memory"], mask_downsampler_embed_dim=c["C"],
        mask_downsampler_stride=c["mask_stride"], mask_downsampler_kernel_size=c["mask_kernel"],
        mask_downsampler_padding=c["mask_pad"], memory_fuser_embed_dim=c["C"], memory_fuser_num_layers=c["fuser_layers"],
        memory_fuser_intermediate_dim=c["fuser_inner"], memory_fuser_kernel_size=c["fuser_kernel"],
        memory_fuser_padding=c["fuser_kernel"] // 2, enable_temporal_pos_encoding_for_object_pointers=c["temporal"],
        enable_occlusion_spatial_embedding=c["occlusion"], multimask_output_for_tracking=c["several_tracked"],
        rope_parameters={"rope_type": "axial", "rope_theta": 10000.0}, multimask_max_pt_num=c["most_points"])
    out.update({k: v for k, v in more.items() if v is not None})
    return out


def write_model(folder, c, generator):
    make_sam2.write_config(folder, c, config_json(c))
    config = Sam2VideoModel.config_class.from_pretrained(folder)
    weights = common.random_weights(Sam2VideoModel(config).state_dict().items(), c, generator)
    weights[make_sam2.FREQUENCIES] = torch.randn(weights[make_sam2.FREQUENCIES].shape, generator=generator).to(
        getattr(torch, c["dtype"]))
    weights.update({n: weights[make_sam2.FREQUENCIES].clone() for n in weights if n == make_sam2.SECOND_FREQUENCIES})
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})


def metadata(c):
    return {**(sam_metadata(c) or {}), "prompted_frames": str(c["K"]), **({"training": "false"} if c["evaluation"] else {})}


def random_batch(c, generator):
    """Prompts are drawn for K * M masks of an image, and targets for L * M."""
    L, K, B, M, S = c["L"], c["K"], c["B"], c["M"], c["image"]
    prompts = make_sam2.random_batch({**c, "M": K * M, "targets": False}, generator)
    del prompts["pixel_values"]
    batch = {"pixel_values_videos": torch.randn((B, L, c["channels"], S, S), generator=generator), **prompts}
    batch["frame_times"] = torch.tensor(c["times"] or [list(range(L))] * B)
    if c["mask_prompts"]:
        batch["prompt_masks"] = make_sam2.random_masks((B, K * M), S // 16, S, generator).float()
    if c["targets"]:
        batch["gt_masks"] = make_sam2.random_masks((B, L * M), S // 16, S // 4, generator)
        batch["gt_masks"][0, -1] = 0  # an object that has left
    return batch


class Exact:
    """torch for the module of the reference, without its rounding of memories."""
    def __init__(self, dtype):
        self.bfloat16 = dtype

    def __getattr__(self, name):
        return getattr(torch, name)


def load_model(folder, c, dtype):
    model = make_sam2.load_checked(Sam2VideoModel, folder, dtype)
    model.eval()
    if c["evaluation"]:
        return model
    model.mask_decoder.training = True  # no other candidate where one is unstable

    def as_training(function):
        def call(*args, **named):
            model.training = True
            try:
                return function(*args, **named)
            finally:
                model.training = False
        return call

    model._get_object_pointers = as_training(model._get_object_pointers)
    model._encode_new_memory = as_training(model._encode_new_memory)
    return model


def track(model, c, batch, r, dtype):
    """The candidates, scores and objects of each frame of clip r, by object; and the session."""
    L, K, M = c["L"], c["K"], c["M"]
    times = batch["frame_times"][r].tolist()
    frames = batch["pixel_values_videos"][r].to(dtype)
    session = modeling.Sam2VideoInferenceSession(video=frames, dtype=dtype, max_vision_features_cache_size=L)
    session.processed_frames = dict(zip(times, frames))
    for m in range(M):
        index = session.obj_id_to_idx(m)
        for k in range(K):
            row = k * M + m
            points, labels = [], []
            if "input_points" in batch:
                points.append(batch["input_points"][r, row])
                labels.append(batch["input_labels"][r, row] if "input_labels" in batch else torch.ones(len(points[0]), dtype=torch.long))
            if "input_boxes" in batch:
                points.append(batch["input_boxes"][r, row].reshape(2, 2))
                labels.append(torch.tensor([2, 3]))
            if points:
                session.add_point_inputs(index, times[k], {"point_coords": torch.cat(points)[None, None].to(dtype),
                                                           "point_labels": torch.cat(labels)[None, None]})
            if "prompt_masks" in batch:
                session.add_mask_inputs(index, times[k], batch["prompt_masks"][r, row][None, None])
    seen = []
    hook = model.mask_decoder.register_forward_hook(lambda module, args, out: seen.append(out))
    for i, time in enumerate(times):
        session.obj_with_new_inputs = list(range(M)) if i < K else []
        Sam2VideoModel.forward.__wrapped__(model, session, frame_idx=time)  # with gradients
    hook.remove()
    return session, [seen[i * M:(i + 1) * M] for i in range(L)]


def member(session, c, times, name):
    """A member of the outputs of all frames, [L,M,...]."""
    rows = []
    for i, time in enumerate(times):
        kind = "cond_frame_outputs" if i < c["K"] else "non_cond_frame_outputs"
        rows.append(torch.stack([session.output_dict_per_obj[m][kind][time][name].reshape(
            session.output_dict_per_obj[m][kind][time][name].shape[-2:] if name == "pred_masks" else (-1,)) for m in range(c["M"])]))
    return torch.stack(rows)


def frame_loss(c, found, target):
    """The loss of one frame: of the candidates [1,1,K,h,w] of each object, and targets [M,h,w]."""
    shown = [object_logit > 0 for _, _, _, object_logit in found]
    result = {"pred_masks": torch.cat([torch.where(s[..., None, None], masks, modeling.NO_OBJ_SCORE)
                                       for s, (masks, _, _, _) in zip(shown, found)], 1),
              "iou_scores": torch.cat([iou for _, iou, _, _ in found], 1),
              "object_score_logits": torch.cat([o for _, _, _, o in found], 1)}
    if c["loss"] == "sam2":
        return make_sam2.sam2_loss(result, target[None])
    return mask_loss(result["pred_masks"], result["iou_scores"], target[None])


def scores(found, prompted):
    """The predicted IoU of each object's best candidate; of a mask that was given, 1."""
    return torch.stack([iou.amax(-1).reshape(()) * (0 if prompted else 1) + (1 if prompted else 0) for _, iou, _, _ in found])


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    modeling.torch = Exact(dtype)
    result, losses = {}, []
    for r in range(c["B"]):
        times = batch["frame_times"][r].tolist()
        session, found = track(model, c, batch, r, dtype)
        parts = {"pred_masks": member(session, c, times, "pred_masks"),
                 "object_pointers": member(session, c, times, "object_pointer"),
                 "object_score_logits": member(session, c, times, "object_score_logits"),
                 "iou_scores": torch.stack([scores(f, c["mask_prompts"] and i < c["K"]) for i, f in enumerate(found)])}
        for name, value in parts.items():
            result.setdefault(name, []).append(value)
        if c["targets"]:
            target = batch["gt_masks"][r].reshape(c["L"], c["M"], *batch["gt_masks"].shape[-2:])
            losses.append(sum(frame_loss(c, f, target[i]) for i, f in enumerate(found)
                              if not (c["mask_prompts"] and i < c["K"])))
    modeling.torch = torch
    result = {n: torch.stack(v) for n, v in result.items()}
    result["loss"] = sum(losses) / len(losses) if losses else result[c["loss_output"] or "pred_masks"].pow(2).mean()
    unused = {"no_memory_positional_encoding"} | (set() if c["mask_prompts"] else {"mask_downsample.weight", "mask_downsample.bias"})
    unused |= {"no_memory_embedding"} if c["mask_prompts"] else set()
    return common.backward(result, [(n, p) for n, p in model.named_parameters() if n not in unused])


def random_case(r):
    """A random odd model on random clips."""
    L, kind = r.randint(1, 6), r.choice(["points", "boxes", "both", "masks"])
    K, heads, B = r.randint(1, min(L, 3)), r.choice([1, 2]), r.randint(1, 2)
    L += K == L  # some frames are tracked
    targets, C = r.random() < 0.6, 8 * r.choice([4, 6])
    times = [r.sample(range(L), K) for _ in range(B)]
    return case(
        C=C, channels_of_memory=C // r.choice([2, 4]), L=L, K=K, B=B, M=r.randint(1, 3), times=tuple(tuple(t + sorted(set(range(L)) - set(t))) for t in times),
        image=16 * r.choice([2, 4]), memories=r.randint(2, 5), pointers=r.randint(2, 6), layers=r.randint(1, 3), memory_heads=heads,
        narrower=r.choice([1, 2]), inner=r.randint(3, 40), mask_stride=r.choice([2, 4]), fuser_layers=r.randint(1, 3),
        fuser_inner=r.randint(3, 30), fuser_kernel=r.choice([1, 3, 5]), temporal=r.random() < 0.7, occlusion=r.random() < 0.7,
        several_tracked=r.choice([None, False]), evaluation=r.random() < 0.3, most_points=r.choice([None, 3]), mask_prompts=kind == "masks",
        points=r.randint(1, 3) if kind in ("points", "both") else 0, boxes=kind in ("boxes", "both"), labels=r.choice([None, (1, 0)]),
        dtype=r.choice(["float32", "bfloat16"]), targets=targets, loss=r.choice(["sam", "sam2"]) if targets else "sam",
        loss_output=None if targets else r.choice([None, "iou_scores", "object_score_logits", "object_pointers"]))


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case, "sam2_clip", metadata)
