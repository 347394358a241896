#!/bin/bash
# shellcheck disable=SC2015
# run_volumes_vlm.sh: volumes among the tokens of conversations: from NIfTI files to a LLaVA that
# has learned from them, and answers about them.
#
#   bash tests/run_volumes_vlm.sh       from the repository's root, after make; see run_lib.sh
#
# The model is that of tests/golden/llava_clip_llama with two new modalities: the tokens of a T1
# enter the vision tower, those of a series go to the projector. The volumes have bright cells, and
# the answer is their number (forge_volumes.c).
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
tool compare forge_volumes forge_conversations
export XDG_CACHE_HOME=$tmp/cache

model=$tmp/model data=$tmp/data images=$tmp/images
make_model llava_clip_llama "$model" && "$tools/forge_volumes" "$data" 40 1 && "$tools/forge_conversations" "$images" 8 1 1 2 || exit 2
cat >"$tmp/run.yaml" <<END
model:
  path: $model
  modalities:
    T1: {size: [8, 8, 8], patch: [4, 4, 4]}
    rsfMRI: {size: [2, 8, 8, 9], patch: [2, 4, 4, 4], to: projector}
data: {format: conversations, train: $data/chats.json, sequence: 64, max_images: 0}
train: {steps: 4, effective_batch: 4, learning_rate: 0.005, schedule: constant, warmup_steps: 0, out: $tmp/unused}
memory: {micro_batch: 4, precision: f32}
device: $DEVICE
END
# tensor OUT NAME: a checksum of a tensor of the model in $tmp/OUT.
tensor() {
    local file n place
    file=$(weights "$1") n=$(od -An -tu8 -N8 "$file" | tr -d ' ')
    place=$(tail -c +9 "$file" | head -c "$n" | grep -o "\"$2\": *{[^}]*}" | sed 's/.*\[\([0-9]*\), *\([0-9]*\)\]}/\1 \2/') && [ -n "$place" ] || return 1
    # shellcheck disable=SC2086
    set -- $place
    tail -c +$((9 + n + $1)) "$file" | head -c $(($2 - $1)) | md5sum
}

# --- rows ---
rows() {
    expect 0 'data.train: 40 volumes, 2.00 a row of at most 1 of each modality \(data.max_volumes\)' run plain || return 1
    grep 'conversations in' "$tmp/err"
}
check 'a T1, a series, both, or none: packed' rows
check 'other threads and slots: same bytes' same_as other --set data.threads=4 --set data.prefetch=1
check 'recompute: same bytes' same_as other --set memory.recompute=all
poisoned() { needs_cpu PLIMSOLL_POISON && PLIMSOLL_POISON=1 same_as other; }
check 'NaN in dead memory: same bytes' poisoned
compressed() {
    cp -r "$data" "$tmp/gz" && gzip -n "$tmp"/gz/volumes/*_rsfMRI.nii && sed -i 's/rsfMRI.nii"/rsfMRI.nii.gz"/g' "$tmp/gz/chats.json" && same_as other --set "data.train=$tmp/gz/chats.json" &&
        same_as other --set "data.train=$tmp/gz/chats.json" --set "data.volume_cache=$tmp/kept" && ls "$tmp/kept" | head -n 1
}
check 'compressed files: same bytes' compressed
sgd=(--set memory.optimizer=sgd --set train.momentum=0 --set train.learning_rate=1 --set train.weight_decay=0 --set train.clip_norm=0 --set train.steps=1 --set data.shuffle=false)
gradients() {
    expect 0 ' in 20 rows' run plain "${sgd[@]}" --set train.effective_batch=20 && expect 0 ' in 40 rows' run other "${sgd[@]}" --set train.effective_batch=40 --set data.packing=false || return 1
    "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6 || return 1
    expect 0 '' run other "${sgd[@]}" --set train.effective_batch=20 --set memory.micro_batch=5 && "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6 || return 1
    expect 0 'at most 2 of each' run other "${sgd[@]}" --set train.effective_batch=20 --set data.max_volumes=2
}
check 'packed rows: the gradients of the samples by themselves, within 1e-6' gradients
# A modality without a sample in the batch has a gradient of zeros; AdamW decays its weights.
absent() {
    local with=(--set "data.train=$data/t1.json" --set train.steps=2) kernel=modalities.rsfMRI.proj.weight
    { echo '['; grep T1 "$data/chats.json" | grep -v rsfMRI | sed 's/^\[//; s/]$//; s/,*$/,/' | sed '$ s/,$//'; echo ']'; } >"$data/t1.json"
    expect 0 '' run start "${with[@]}" --set train.learning_rate=0 && expect 0 '' run still "${with[@]}" "${sgd[@]}" --set train.steps=2 && expect 0 '' run plain "${with[@]}" --set train.weight_decay=0 &&
        expect 0 '' run decayed "${with[@]}" --set train.weight_decay=0.5 && expect 0 '' run kept "${with[@]}" --set train.weight_decay=0.5 --set 'train.no_decay=["modalities.*"]' || return 1
    local first; first=$(tensor start $kernel) || return 1
    local out; for out in still plain kept; do [ "$(tensor $out $kernel)" = "$first" ] || { echo "$out: it moved"; return 1; }; done
    [ "$(tensor decayed $kernel)" != "$first" ] || { echo "decay does nothing"; return 1; }
    [ "$(tensor start modalities.T1.proj.weight)" != "$(tensor still modalities.T1.proj.weight)" ]
}
check 'a modality that no sample has: its gradient is zero' absent
resumes() {
    local held_out=(--set data.holdout=0.2 --set train.eval_every=2 --set train.eval_samples=3 --set train.save_every=2 --set train.effective_batch=3 --set memory.micro_batch=2)
    expect 0 '' run plain "${held_out[@]}" --set train.steps=6 && expect 0 '' run other "${held_out[@]}" --set train.steps=2 || return 1
    expect 0 'resuming after step 2' resumed other "${held_out[@]}" --set train.steps=6 || return 1
    same "$(weights plain)" "$(weights other)" && [ "$(grep -c eval_loss "$tmp/other/metrics.jsonl")" -eq 3 ] || return 1
    grep -q "<img alt='' src='data:image/png" "$tmp/plain/report.html" || { echo 'the report shows no volume'; return 1; }
}
check 'holdout, evaluation, answers, resume: same bytes' resumes

# --- what is trained ---
# The rest frozen, as where only the embeddings are new; and an adapter beside them.
frozen() {
    local with=(--set 'model.freeze=[vision_tower, projector, language_model]' --set train.save_every=2) name
    expect 0 '' run start --set train.learning_rate=0 --set train.steps=1 && expect 0 '' run plain "${with[@]}" && expect 0 '' run other "${with[@]}" --set train.steps=2 || return 1
    expect 0 '' resumed other "${with[@]}" && same "$(weights plain)" "$(weights other)" || return 1
    for name in vision_tower.vision_model.embeddings.patch_embedding.weight multi_modal_projector.linear_1.weight; do
        [ "$(tensor start $name)" = "$(tensor plain $name)" ] || { echo "$name moved"; return 1; }
    done
    for name in T1.proj.bias rsfMRI.proj.bias T1.position_embedding.weight; do
        [ "$(tensor start modalities.$name)" != "$(tensor plain modalities.$name)" ] || { echo "$name did not move"; return 1; }
    done
}
check 'only the embeddings are trained' frozen
adapted() {
    local with=(--set 'adapter.target_modules=[q_proj, v_proj]' --set adapter.r=2 --set 'adapter.modules_to_save=[modalities.T1, modalities.rsfMRI]' --set train.save_every=2)
    expect 0 '' run plain "${with[@]}" && expect 0 '' run other "${with[@]}" --set train.steps=2 && expect 0 '' resumed other "${with[@]}" || return 1
    same "$tmp/plain/model/adapter_model.safetensors" "$tmp/other/model/adapter_model.safetensors" && strings "$tmp/plain/model/adapter_model.safetensors" | grep -q 'modalities.T1.proj.weight' || return 1
    expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$model" --adapter "$tmp/plain/model" --set "data.validation=$data/chats.json" --max-new 2 || return 1
    expect 2 'modalities.T1 is new, and an adapter would leave it as it is' run other --set 'adapter.target_modules=[q_proj]' --set adapter.r=2
}
check 'LoRA beside the embeddings, which are saved with it' adapted
rates() {
    expect 0 '' run start --set train.learning_rate=0 --set train.steps=1 && expect 0 '' run plain --set train.weight_decay=0 --set 'train.groups=[{match: ["modalities.T1.*"], learning_rate: 0}]' || return 1
    [ "$(tensor start modalities.T1.proj.weight)" = "$(tensor plain modalities.T1.proj.weight)" ] && [ "$(tensor start modalities.rsfMRI.proj.weight)" != "$(tensor plain modalities.rsfMRI.proj.weight)" ]
}
check 'a learning rate by modality' rates

# --- the folder that was saved ---
learned() {
    expect 0 '' run learned --set train.steps=60 --set train.effective_batch=8 --set memory.micro_batch=8 && grep -q '"rsfMRI"' "$tmp/learned/model/config.json" || return 1
    expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$tmp/learned/model" --set model.modalities=null --set "data.validation=$data/chats.json" --loss --max-new 2 --json || return 1
    local loss; loss=$(json "$tmp/out" loss) || loss=$(json "$tmp/out" eval_loss) || { cat "$tmp/out"; return 1; }
    awk -v x="$loss" 'BEGIN { exit !(x < 2) }' || { echo "loss $loss"; return 1; }
    echo "loss $loss"
}
check 'it learns; eval of the saved folder' learned
answers() {
    local chat='[{"role": "user", "content": [{"type": "image", "modality": "T1", "path": "'$data'/volumes/0_T1.nii"}, {"type": "image", "modality": "rsfMRI", "path": "'$data'/volumes/1_rsfMRI.nii"}, {"type": "text", "text": "how many?"}]}]'
    echo "$chat" >"$tmp/chat.json" && expect 0 '' "$binary" generate --model "$tmp/learned/model" --chat "$tmp/chat.json" --max-new 3 --json || return 1
    [ "$(json "$tmp/out" prompt_tokens)" -eq 32 ] || { cat "$tmp/out"; return 1; }
    sed '1s/^\[//; s/,$//; s/]$//' "$data/chats.json" | grep modality_paths | sed 's/, {"from": "gpt"[^}]*}//' | head -n 3 >"$data/prompts.jsonl"
    expect 0 '' "$binary" generate --model "$tmp/learned/model" --prompts "$data/prompts.jsonl" --max-new 3 && [ "$(wc -l <"$tmp/out")" -eq 3 ] || { cat "$tmp/out" "$tmp/err"; return 1; }
    sed 's/rsfMRI/PET/' "$tmp/chat.json" >"$tmp/pet.json"
    expect 2 'its modality is PET, and the model takes T1, rsfMRI' "$binary" generate --model "$tmp/learned/model" --chat "$tmp/pet.json" || return 1
    expect 2 'a volume is given without its modality, which is one of T1, rsfMRI' "$binary" generate --model "$tmp/learned/model" --prompt 'how many?' --image "$data/volumes/0_T1.nii"
}
check 'generate: volumes of a chat, of a file of prompts' answers
again() { # the folder has the modalities: a further run says nothing of them, and may not change them
    expect 0 '' run other --set "model.path=$tmp/learned/model" --set model.modalities=null || return 1
    expect 2 'model.modalities.T1 is another one than that of config.json' run other --set "model.path=$tmp/learned/model" --set 'model.modalities={T1: {size: [8, 8, 8], patch: [2, 4, 4]}}' || return 1
    expect 0 '' run other --set "model.path=$tmp/learned/model" --set 'model.modalities={CT: {size: [4, 4, 4], patch: [2, 2, 2]}, T1: {size: [8, 8, 8], patch: [4, 4, 4]}}' --set "data.train=$data/t1.json" && grep -q '"CT"' "$tmp/other/model/config.json"
}
check 'a run from the saved folder; a modality more' again

# --- plans and commands ---
arena() { "$binary" plan "$tmp/run.yaml" --set data.train=/nowhere.json "$@" --json >"$tmp/out" && "$tools/json_get" "$tmp/out" arena_bytes; }
planned() {
    local n last=0 bytes
    for n in 0 1 2; do
        bytes=$(arena --set "data.max_volumes=$n") || return 1
        [ "$bytes" -gt "$last" ] || { echo "$n volumes: $bytes bytes, fewer: $last"; return 1; }
        last=$bytes
    done
    expect 0 '' run plain --json && [ "$(json "$tmp/out" arena_bytes)" = "$(arena)" ]
}
check 'the plan has the rows of data.max_volumes, without data; the run has its bytes' planned
commands() {
    expect 0 '' "$binary" tokenize --model "$tmp/learned/model" --chat "$tmp/chat.json" --json && [ "$(tr ',' '\n' <"$tmp/out" | grep -c ' *60')" -ge 16 ] || { cat "$tmp/out"; return 1; }
    "$binary" data inspect "$data/chats.json" --model "$tmp/learned/model" --set data.sequence=64 >"$tmp/out" || return 1
    grep 'volumes  *40' "$tmp/out" || { cat "$tmp/out"; return 1; }
    "$binary" init --model "$tmp/learned/model" --data "$data/chats.json" --out "$tmp/made" >"$tmp/made.yaml" && grep '^  max_volumes: 1' "$tmp/made.yaml" && grep -q '^  max_images: 0' "$tmp/made.yaml" || { cat "$tmp/made.yaml"; return 1; }
    rm -rf "$tmp/made" && expect 0 '' "$binary" train "$tmp/made.yaml" --set train.epochs=1 --set train.eval_max_new=2 --set "device.kind=$DEVICE"
}
check 'tokenize, data inspect, init' commands
mixed() {
    sed "s|\"\([0-9]*_0.png\)\"|\"$images/images/\1\"|g" "$images/chats.json" >"$images/absolute.json"
    expect 0 '8 images, .*max_images' run plain --set "data.train=[$data/chats.json, $images/absolute.json]" --set data.outside_images=true --set data.max_images=2 --set train.save_every=2 || return 1
    local with=(--set "data.train=[$data/chats.json, $images/absolute.json]" --set data.outside_images=true --set data.max_images=2 --set 'model.freeze=["vision_tower.*"]')
    expect 0 '' run plain "${with[@]}" --set memory.encode=inline && expect 0 '' run other "${with[@]}" --set memory.encode=2 && same "$(weights plain)" "$(weights other)"
}
check 'images and volumes; a frozen tower apart: same bytes' mixed

# --- what cannot be used ---
# bad TEXT SED: the first sample is changed, and the run says so, and trains on the others.
bad() {
    local text=$1
    shift
    sed "1$1" "$data/chats.json" >"$data/bad.json"
    expect 0 "$text" run other --set "data.train=$data/bad.json" --set data.max_bad=0.1 --set train.effective_batch=20 && grep -E -- "$text" "$tmp/err" | head -n 1
}
missing() { bad 'chats|bad.json.*0_T1x.nii: there is no such file' 's/0_T1/0_T1x/'; }
check 'a file that is missing' missing
cut() { gzip -nc "$data/volumes/0_T1.nii" | head -c 200 >"$data/cut.nii.gz" && bad 'cut.nii.gz: ' 's|volumes/0_T1.nii|cut.nii.gz|'; }
check 'a compressed file that is cut' cut
flat() { bad 'flat.nii: it has 8 x 8 x 1 voxels; expected a volume, and not a slice' 's|volumes/0_T1.nii|flat.nii|'; }
check 'a file of two dimensions' flat
four() { bad '1_rsfMRI.nii: it is a series of 4 volumes \(a fourth dimension\), and T1 takes one volume' 's|volumes/0_T1.nii|volumes/1_rsfMRI.nii|'; }
check 'a series for a volume' four
holes() { bad 'holes.nii: 1 of its values are not finite' 's|volumes/0_T1.nii|holes.nii|'; }
check 'values that are no numbers' holes
unknown() { bad 'its modality is PET, and the model takes T1, rsfMRI' 's|"T1"|"PET"|'; }
check 'a modality that the model does not take' unknown
count() { bad 'its text has 0 <image> for 1 image; expected one where each image stands' 's|<image>.n||'; }
check 'a volume without its place' count
wrong() { bad 'modality_paths is .*, expected a map from modalities to paths' 's|{"T1": "volumes/0_T1.nii"}|3|'; }
check 'modality_paths that is no map' wrong
outside() { bad=$data/../away.nii; cp "$data/volumes/0_T1.nii" "$tmp/away.nii"; sed '1s|volumes/0_T1.nii|../away.nii|' "$data/chats.json" >"$data/bad.json"; expect 2 'away.nii: it is outside of' run other --set "data.train=$data/bad.json"; }
check 'a path that leads out of the folder' outside
none() { expect 2 'the model takes none: model.modalities' run other --set model.modalities=null --set data.max_bad=0.1; }
check 'a model without modalities' none
keys() {
    expect 2 'model.modalities.T1: size has 2 numbers|modalities.T1: size has 2 numbers' run other --set 'model.modalities={T1: {size: [8, 8], patch: [4, 4]}}' || return 1
    expect 2 'model.modalities is for a llava' run other --set "model.path=tests/golden/smolvlm" --set 'model.modalities={T1: {size: [8, 8, 8], patch: [4, 4, 4]}}' || return 1
    expect 2 'data.max_volumes is given, but' run other --set model.modalities=null --set data.max_volumes=2
}
check 'keys' keys

summary
