#!/bin/bash
# shellcheck disable=SC2015
# run_convert.sh: `plimsoll convert`: PyTorch checkpoints to model folders and back.
#
#   bash tests/run_convert.sh      from the repository's root, after make; see run_lib.sh
#
# tests/golden/convert holds small checkpoints written by torch, and lists of the real models' names
# and shapes (make_sam_names.py, which also checks folders against transformers). The tests forge
# the real models from those lists, with zeros as weights.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool forge_pth
from=tests/golden/convert

# tensors FILE: name, dtype, shape and a hash of the values of each tensor, sorted.
tensors() { "$tools/forge_pth" list "$1" | sort; }
# names FILE: names and shapes in the order of the file.
names() { "$tools/forge_pth" list "$1" | awk '{print $1, $3}'; }
convert() { expect 0 '' "$binary" convert "$@"; }
# is FILE PATH VALUE: whether a JSON file has this value at PATH.
is() {
    local found
    found=$(json "$1" "$2") && [ "$found" = "$3" ] || { echo "$2 is $found, expected $3"; return 1; }
}
no_leftovers() {
    local found
    found=$(find "$tmp" -name '*.tmp*')
    [ -z "$found" ] || { echo "left behind: $found"; return 1; }
}

# --- small models with values ---------------------------------------------------------------

# round_trip KIND: checkpoint to folder to checkpoint: the published names and the same bytes.
round_trip() {
    local kind=$1
    convert "$from/$kind.pth" -o "$tmp/$kind" && convert "$tmp/$kind" -o "$tmp/$kind.pth" || return 1
    tensors "$from/$kind.safetensors" >"$tmp/want" && tensors "$tmp/$kind.pth" >"$tmp/got" && same "$tmp/want" "$tmp/got" && no_leftovers &&
        wc -l <"$tmp/got"
}
check 'SAM: nested, wrapped, mixed dtypes; round trip' round_trip sam
check 'TinySAM: legacy format; round trip' round_trip tiny
second_folder() {
    convert "$tmp/$1.pth" -o "$tmp/$1-again" && for f in model.safetensors config.json preprocessor_config.json; do
        same "$tmp/$1/$f" "$tmp/$1-again/$f" || return 1
    done
}
check 'a round trip gives the same folder: SAM' second_folder sam
check 'a round trip gives the same folder: TinySAM' second_folder tiny

sam_config() {
    local c=$tmp/sam/config.json
    is "$c" vision_config.hidden_size 16 && is "$c" vision_config.num_attention_heads 2 && is "$c" vision_config.num_hidden_layers 3 &&
        is "$c" vision_config.window_size 4 && is "$c" vision_config.image_size 48 && is "$c" vision_config.patch_size 8 &&
        is "$c" vision_config.mlp_dim 40 && is "$c" vision_config.output_channels 16 && is "$c" vision_config.num_pos_feats 8 &&
        is "$c" prompt_encoder_config.mask_input_channels 8 && is "$c" prompt_encoder_config.image_embedding_size 6 &&
        is "$c" mask_decoder_config.mlp_dim 24 && is "$c" mask_decoder_config.iou_head_hidden_dim 12 &&
        tr -d ' \n' <"$c" | grep -o '"global_attn_indexes":\[1\]'
}
check 'config.json of SAM' sam_config
tiny_config() {
    tr -d ' \n' <"$tmp/tiny/config.json" >"$tmp/flat" && grep -q '"model_type":"tinysam"' "$tmp/flat" && grep -q '"embed_dims":\[4,8,12,16\]' "$tmp/flat" &&
        grep -q '"depths":\[1,1,2,1\]' "$tmp/flat" && grep -q '"num_heads":\[1,2,3,4\]' "$tmp/flat" && grep -q '"window_sizes":\[2,2,4,2\]' "$tmp/flat" &&
        grep -q '"mlp_ratio":4.0,' "$tmp/flat" && grep -o '"image_size":1024' "$tmp/flat" | head -n 1 || { cat "$tmp/flat"; return 1; }
}
check 'config.json of TinySAM' tiny_config
twice() {
    tensors "$tmp/sam/model.safetensors" | awk '$1 ~ /positional_embedding$/ {print $2, $3, $4}' | uniq -c | grep '^ *2 '
}
check 'the folder holds the positional frequencies twice' twice
summary_json() {
    "$binary" convert "$from/sam.pth" -o "$tmp/summary" --json >"$tmp/summary.json" && is "$tmp/summary.json" tensors 189
}
check '--json' summary_json

# --- settings that a checkpoint cannot hold -----------------------------------------------------

# config KIND EDIT PATTERN: sed edits the config.json of a folder; convert refuses the folder and
# names the key and both values.
config() {
    rm -rf "$tmp/edited-$1" && cp -r "$tmp/$1" "$tmp/edited-$1" && sed -i "$2" "$tmp/edited-$1/config.json" && ! cmp -s "$tmp/$1/config.json" "$tmp/edited-$1/config.json" || return 1
    expect 2 "edited-$1/config.json: $3" "$binary" convert "$tmp/edited-$1" -o "$tmp/never.pth" && [ ! -e "$tmp/never.pth" ] && no_leftovers
}
decoder='/"mask_decoder_config"/,$'
# epsilon NAME EDIT: transformers' own folders have such an epsilon; convert accepts them with a
# warning.
epsilon() {
    cp -r "$tmp/sam" "$tmp/$1" && sed -i "$2" "$tmp/$1/config.json" && ! cmp -s "$tmp/sam/config.json" "$tmp/$1/config.json" || return 1
    expect 0 'mask_decoder_config.layer_norm_eps is 1e-06; programs that read the exported file assume 1e-05' "$binary" convert "$tmp/$1" -o "$tmp/$1.pth" && same "$tmp/sam.pth" "$tmp/$1.pth"
}
check 'another epsilon is reported' epsilon other-eps "$decoder s/\"layer_norm_eps\": [0-9.e-]*/\"layer_norm_eps\": 1e-6/"
check 'an epsilon that is left to its default' epsilon no-eps "$decoder s/\"layer_norm_eps\"/\"note\"/"
check 'other heads' config sam "$decoder s/\"num_attention_heads\": [0-9]*/\"num_attention_heads\": 1/" 'mask_decoder_config.num_attention_heads is 1; .*as [248],'
check 'another activation' config sam "s/\"gelu\"/\"relu\"/" 'vision_config.hidden_act is relu; .*as gelu'
check 'another size of a TinyViT' config tiny 's/"image_size": 1024/"image_size": 512/; s/"image_embedding_size": 64/"image_embedding_size": 32/' 'vision_config.image_size is 512; .*as 1024'
toned() {
    cp -r "$tmp/sam" "$tmp/toned" && sed -i 's/0.485/0.5/' "$tmp/toned/preprocessor_config.json" || return 1
    expect 0 'keep preprocessor_config.json' "$binary" convert "$tmp/toned" -o "$tmp/toned.pth" && same "$tmp/sam.pth" "$tmp/toned.pth" || return 1
    rm "$tmp/toned/config.json" "$tmp/toned.pth" && convert "$tmp/toned" -o "$tmp/toned.pth" && same "$tmp/sam.pth" "$tmp/toned.pth"
}
check 'another normalisation is reported; weights by themselves suffice' toned

# --- the real models' names and shapes ----------------------------------------------------------

# real NAME: a checkpoint of exactly these tensors converts to a folder, and the folder converts to
# a checkpoint with the same names in the same order.
real() {
    local name=$1
    rm -rf "$tmp/real"*
    "$tools/forge_pth" make "$from/$name.names" "$tmp/real.pth" && convert "$tmp/real.pth" -o "$tmp/real" && convert "$tmp/real" -o "$tmp/real-back.pth" &&
        names "$tmp/real-back.pth" >"$tmp/got" && same "$from/$name.names" "$tmp/got" && wc -l <"$tmp/got" || return 1
}
check 'TinySAM: all names and shapes' real tinysam
tiny_real() {
    tr -d ' \n' <"$tmp/real/config.json" >"$tmp/flat" && grep -q '"embed_dims":\[64,128,160,320\],"depths":\[2,2,6,2\],"num_heads":\[2,4,5,10\],"window_sizes":\[7,7,14,7\]' "$tmp/flat"
}
check 'TinySAM: its sizes' tiny_real
# A checkpoint is memory-mapped and copied in chunks: the memory of the process stays far below the
# 375 MB of weights.
limited() (
    sanitized || ulimit -d 65536
    real vit_b
)
check 'ViT-B: all names and shapes, in 64 MiB' limited
vit_b_real() {
    names "$tmp/real/model.safetensors" | sort >"$tmp/got" && sort "$from/vit_b_hf.names" >"$tmp/want" && same "$tmp/want" "$tmp/got" &&
        tr -d ' \n' <"$tmp/real/config.json" | grep -o '"global_attn_indexes":\[2,5,8,11\]'
}
check 'ViT-B: the names of transformers, exactly' vit_b_real

check 'SAM 2: all names and shapes' real sam2
sam2_real() {
    names "$tmp/real/model.safetensors" | sort >"$tmp/got" && sort "$from/sam2_hf.names" >"$tmp/want" && same "$tmp/want" "$tmp/got" &&
        is "$tmp/real/config.json" model_type sam2_video && tr -d ' \n' <"$tmp/real/config.json" | grep -o '"global_attention_blocks":\[5,7,9\]'
}
check 'SAM 2: the names of transformers, exactly' sam2_real
sam2_inside() { head -c 400000 "$tmp/real-back.pth" | tail -c 1 >/dev/null; tail -c 200000 "$tmp/real-back.pth" | grep -a -q 'model}('; }
check 'SAM 2: a checkpoint has its tensors under the key of the original' sam2_inside
sam2_config() {
    cp -r "$tmp/real" "$tmp/other" && sed -i 's/"layer_norm_eps": [0-9.e-]*//; s/"fpn_hidden_size"/"fpn_top_down_levels": [3], "fpn_hidden_size"/' "$tmp/other/config.json" &&
        expect 2 'other/config.json differs from what the exported file would be read as' "$binary" convert "$tmp/other" -o "$tmp/never.pt" && [ ! -e "$tmp/never.pt" ]
}
check 'SAM 2: a setting that a checkpoint cannot hold' sam2_config

# --- refused ------------------------------------------------------------------------------------

# refused PATTERN INPUT: status 2, and no output remains.
refused() {
    expect 2 "$1" "$binary" convert "$2" -o "$tmp/never" && [ ! -e "$tmp/never" ] && no_leftovers && tail -n 1 "$tmp/err"
}
# forged EDIT: a checkpoint of TinySAM's list, edited by sed.
forged() {
    sed "$1" "$from/tinysam.names" >"$tmp/edited" && "$tools/forge_pth" make "$tmp/edited" "$tmp/forged.pth"
}
# second EDIT PATTERN: a checkpoint of SAM 2's list, edited by sed, is refused.
second() {
    sed "$1" "$from/sam2.names" >"$tmp/edited" && "$tools/forge_pth" make "$tmp/edited" "$tmp/second.pth" && expect 2 "$2" "$binary" convert "$tmp/second.pth" -o "$tmp/never" && [ ! -e "$tmp/never" ] && no_leftovers
}
check 'SAM 2: a missing tensor' second '/blocks.3.norm1.bias/d' 'image_encoder.trunk.blocks.3.norm1.bias is missing'
check 'SAM 2: a size of its own' second '/blocks.11\./d' 'stages of 1, 2, 7 and 1 blocks are those of no published size'
check 'SAM 2: another shape' second 's/^sam_mask_decoder.conv_s1.bias 64/sam_mask_decoder.conv_s1.bias 63/' 'conv_s1.bias is \[63\]; the other tensors imply \[64\]'
check 'SAM 2: an unknown tensor' second '$ s/^[^ ]*/strange.weight/' 'strange.weight does not belong'
check 'SAM 2: a kind of point is missing' second '/point_embeddings.2/d' 'sam_prompt_encoder.point_embeddings.2.weight is missing'
unknown() { forged '3s/^[^ ]*/encoder.strange.weight/' && refused 'encoder.strange.weight.*expected image_encoder.blocks.0' "$tmp/forged.pth"; }
check 'an unknown name, with what was expected' unknown
missing() { forged '/layers.2.blocks.3.mlp.fc1.bias/d' && refused 'layers.2.blocks.3.mlp.fc1.bias is missing' "$tmp/forged.pth"; }
check 'a missing tensor' missing
shape() { forged 's/^\(mask_decoder.iou_token.weight\) .*/\1 1,255/' && refused 'iou_token.weight is \[1,255\].*\[1,256\]' "$tmp/forged.pth"; }
check 'a wrong shape' shape
empty_dim() { forged 's/^\(mask_decoder.iou_token.weight\) .*/\1 1,0/' && refused 'iou_token.weight is \[1,0\]' "$tmp/forged.pth"; }
check 'an empty tensor' empty_dim
surplus() { printf 'mask_decoder.output_hypernetworks_mlps.9.layers.0.bias 256\n' >"$tmp/more" && cat "$from/tinysam.names" "$tmp/more" >"$tmp/edited" &&
    "$tools/forge_pth" make "$tmp/edited" "$tmp/forged.pth" && refused 'mlps.9.layers.0.bias does not belong to a model' "$tmp/forged.pth"; }
check 'one tensor too many' surplus
check 'another model' refused 'names that are not SAM.*expected image_encoder' tests/golden/pth/zip.pth
# A folder of another model: what convert is for, and what there is instead.
check 'a folder of another model' refused 'a folder of SAM, SAM 2, MedSAM, MobileSAM or TinySAM, .*tests/golden/basic is a llama' tests/golden/basic
mkdir -p "$tmp/folder" && echo '{"model_type": "qwen3_5"}' >"$tmp/folder/config.json"
check 'a folder of a model that is not supported' refused 'a folder of SAM, SAM 2, MedSAM, MobileSAM or TinySAM, .*Qwen3.5 .*is not supported; Qwen2, Qwen2.5 and Qwen3 are' "$tmp/folder"
check 'a whole Python object' refused 'whole Python object.*state_dict' tests/golden/pth/whole_module.pth
check 'a file that would call os.system' refused 'posix system.*nothing in it was executed' tests/golden/pth/evil.pth
check 'no checkpoint' refused 'neither a zip archive nor a legacy checkpoint' tests/golden/make_pth.py
check 'no such file' refused 'No such file' "$tmp/nowhere.pth"
cut_short() { head -c 100000 "$from/sam.pth" >"$tmp/short.pth" && refused 'truncated' "$tmp/short.pth"; }
check 'a file that was cut off' cut_short
check 'a folder without weights' refused 'no \*.safetensors' tests/fuzz
check 'a folder that is not empty' expect 2 'not empty' "$binary" convert "$from/sam.pth" -o "$tmp/tiny"
file_in_the_way() {
    cp "$tmp/sam.pth" "$tmp/kept.pth" && expect 2 'kept.pth exists already' "$binary" convert "$tmp/tiny" -o "$tmp/kept.pth" && same "$tmp/sam.pth" "$tmp/kept.pth"
}
check 'a file that is there already' file_in_the_way
check 'no output' expect 2 'convert IN.pth -o DIR' "$binary" convert "$from/sam.pth"
check 'an unknown option' expect 2 '--outt' "$binary" convert "$from/sam.pth" --outt x
helped() { "$binary" convert --help | grep 'MobileSAM'; }
check '--help' helped
not_run() { [ ! -e plimsoll-was-here ]; }
check 'nothing was run' not_run

summary
