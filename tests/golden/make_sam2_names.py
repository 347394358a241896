#!/usr/bin/env python3
"""Writes tests/golden/convert/sam2*.names: the tensors of a checkpoint of SAM 2, for `plimsoll convert`.

    python tests/golden/make_sam2_names.py SAM2              writes the files
    python tests/golden/make_sam2_names.py SAM2 PLIMSOLL     checks the binary PLIMSOLL

    sam2.names      every tensor of a small SAM 2.1 with the blocks of Hiera-T: name and shape, a line each, in the
                    order of the original code
    sam2_hf.names   the same model in a folder of transformers

SAM2 is a folder with the published code (github.com/facebookresearch/sam2, commit 2b90b9f). Checking converts a
checkpoint with random values, loads the folder into transformers' Sam2Model and Sam2VideoModel with strict names,
converts it back, loads that into the original code with strict names, and compares values and masks: those of the
original predictor on an image of 1024 x 1024 pixels, which nothing resizes.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import types

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import numpy
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import Sam2Model, Sam2VideoModel

here = pathlib.Path(__file__).parent / "convert"
WIDTH, C = 16, 256


def stub(name, **values):
    """The published code imports modules that build its models from YAML; they are built below instead."""
    module = types.ModuleType(name)
    module.__dict__.update(values)
    sys.modules[name] = module


class Hydra:
    instance = staticmethod(lambda: types.SimpleNamespace(is_initialized=lambda: True))


def original(folder):
    sys.path.insert(0, str(folder))
    for name in ("iopath", "iopath.common", "hydra.core"):
        stub(name)
    stub("iopath.common.file_io", g_pathmgr=None)
    stub("hydra", initialize_config_module=lambda *a, **k: None, compose=None)
    stub("hydra.core.global_hydra", GlobalHydra=Hydra)
    from sam2.modeling.backbones.hieradet import Hiera
    from sam2.modeling.backbones.image_encoder import FpnNeck, ImageEncoder
    from sam2.modeling.memory_attention import MemoryAttention, MemoryAttentionLayer
    from sam2.modeling.memory_encoder import CXBlock, Fuser, MaskDownSampler, MemoryEncoder
    from sam2.modeling.position_encoding import PositionEmbeddingSine
    from sam2.modeling.sam.transformer import RoPEAttention
    from sam2.modeling.sam2_base import SAM2Base

    def positions(n):
        return PositionEmbeddingSine(num_pos_feats=n, normalize=True, scale=None, temperature=10000)

    def attention(**more):
        return RoPEAttention(rope_theta=10000.0, feat_sizes=[64, 64], embedding_dim=C, num_heads=1, downsample_rate=1, dropout=0.1,
                             **more)

    trunk = Hiera(embed_dim=WIDTH, num_heads=1, stages=(1, 2, 7, 2), global_att_blocks=(5, 7, 9), window_spec=(8, 4, 14, 7),
                  window_pos_embed_bkg_spatial_size=(7, 7))
    neck = FpnNeck(positions(C), d_model=C, backbone_channel_list=trunk.channel_list, fpn_top_down_levels=[2, 3],
                   fpn_interp_model="nearest")
    layer = MemoryAttentionLayer(
        activation="relu", dim_feedforward=2048, dropout=0.1, pos_enc_at_attn=False, self_attention=attention(), d_model=C,
        pos_enc_at_cross_attn_keys=True, pos_enc_at_cross_attn_queries=False,
        cross_attention=attention(rope_k_repeat=True, kv_in_dim=64))
    memory = MemoryEncoder(
        out_dim=64, position_encoding=positions(64), mask_downsampler=MaskDownSampler(kernel_size=3, stride=2, padding=1),
        fuser=Fuser(CXBlock(dim=C, kernel_size=7, padding=3, layer_scale_init_value=1e-6, use_dwconv=True), num_layers=2))
    model = SAM2Base(
        ImageEncoder(trunk, neck, scalp=1), MemoryAttention(d_model=C, pos_enc_at_input=True, layer=layer, num_layers=4), memory,
        num_maskmem=7, image_size=1024, sigmoid_scale_for_mem_enc=20.0, sigmoid_bias_for_mem_enc=-10.0,
        use_mask_input_as_output_without_sam=True, directly_add_no_mem_embed=True, no_obj_embed_spatial=True,
        use_high_res_features_in_sam=True, multimask_output_in_sam=True, iou_prediction_use_sigmoid=True,
        use_obj_ptrs_in_encoder=True, add_tpos_enc_to_obj_ptrs=True, proj_tpos_enc_in_obj_ptrs=True,
        use_signed_tpos_enc_to_obj_ptrs=True, only_obj_ptrs_in_the_past_for_eval=True, pred_obj_scores=True,
        pred_obj_scores_mlp=True, fixed_no_obj_ptr=True, multimask_output_for_tracking=True,
        use_multimask_token_for_obj_ptr=True, multimask_min_pt_num=0, multimask_max_pt_num=1, use_mlp_for_obj_ptr_proj=True,
        sam_mask_decoder_extra_args=dict(dynamic_multimask_via_stability=True, dynamic_multimask_stability_delta=0.05,
                                         dynamic_multimask_stability_thresh=0.98))
    generator = torch.Generator().manual_seed(2)
    for name, w in model.state_dict().items():
        w.copy_(torch.randn(w.shape, generator=generator) * 0.2 + (1 if "norm" in name and name.endswith("weight") else 0))
    return model.eval()


def write(name, tensors):
    lines = (f"{k} {','.join(map(str, v.shape)) or '-'}\n" for k, v in tensors.items())
    (here / name).write_text("".join(lines))


def convert(binary, source, out):
    subprocess.run([binary, "convert", source, "-o", out], check=True)


def predict(model, photo, **prompts):
    from sam2.sam2_image_predictor import SAM2ImagePredictor
    predictor = SAM2ImagePredictor(model)
    with torch.no_grad():
        predictor.set_image(photo)
        masks, scores, _ = predictor.predict(**prompts)
    return masks[scores.argmax()] > 0


def main():
    model = original(sys.argv[1])
    with tempfile.TemporaryDirectory() as tmp:
        at = pathlib.Path(tmp)
        torch.save({"model": model.state_dict()}, at / "small.pt")
        if len(sys.argv) < 3:
            # transformers names the tensors; no order of a folder is compared
            folder = Sam2VideoModel.config_class(vision_config=dict(model_type="sam2_vision_model", backbone_config=dict(
                model_type="sam2_hiera_det_model", hidden_size=WIDTH, embed_dim_per_stage=[WIDTH << i for i in range(4)]),
                backbone_channel_list=[WIDTH << i for i in range(3, -1, -1)]))
            with torch.device("meta"):
                write("sam2_hf.names", Sam2VideoModel(folder).state_dict())
            return write("sam2.names", model.state_dict())
        binary = sys.argv[2]
        convert(binary, at / "small.pt", at / "folder")
        convert(binary, at / "folder", at / "back.pt")
        for kind in (Sam2Model, Sam2VideoModel):
            _, info = kind.from_pretrained(at / "folder", output_loading_info=True)
            assert not any(info.values()), info
        back = torch.load(at / "back.pt", weights_only=True)["model"]
        assert list(back) == list(model.state_dict()) and all(torch.equal(w, back[k]) for k, w in model.state_dict().items())
        model.load_state_dict(back)
        print(f"{len(back)} tensors, {len(load_file(at / 'folder' / 'model.safetensors'))} in a folder")
        noise = numpy.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=numpy.uint8)
        photo = Image.fromarray(noise).resize((1024, 1024), Image.BICUBIC)
        photo.save(at / "image.png")
        for option, prompts in (("--point 600,500", dict(point_coords=[[600, 500]], point_labels=[1])),
                                ("--box 120,90,700.5,800", dict(box=[120, 90, 700.5, 800])),
                                ("--point 600,500 --point 200,300,0 --single",
                                 dict(point_coords=[[600, 500], [200, 300]], point_labels=[1, 0], multimask_output=False))):
            prompts = {k: numpy.array(v) if isinstance(v, list) else v for k, v in prompts.items()}
            subprocess.run([binary, "predict", "--model", at / "folder", at / "image.png", *option.split(), "-o", at / "mask.png",
                            "--set", "memory.precision=f32"], check=True, stdout=subprocess.DEVNULL)
            mine, theirs = numpy.array(Image.open(at / "mask.png").convert("L")) > 0, predict(model, numpy.array(photo), **prompts)
            print(f"{option}: {(mine != theirs).sum()} of {mine.size} pixels differ")


if __name__ == "__main__":
    main()
