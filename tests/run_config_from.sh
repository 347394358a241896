#!/bin/bash
# run_config_from.sh: --config-from: the configurations of other programs, in their formats
# (tests/golden/config_from).
#
#   bash tests/run_config_from.sh     from the repository's root, after make; see run_lib.sh
#   RENEW=1 ...                       writes the lists again that the files are compared with
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
export PLIMSOLL_PROGRESS=0
files=tests/golden/config_from

# from FILE...: prints the run file of these files. The questions that they raise have their answers
# in `answers`.
answers=()
from() {
    local args=()
    for f; do args+=(--config-from "$f"); done
    "$binary" init "${args[@]}" "${answers[@]}"
}
# write NAME: writes a file of the test from standard input, and prints its path.
write() { cat >"$tmp/$1" && echo "$tmp/$1"; }

# The list without columns.
listed() { sed -E -n 's/^# //p' "$1" | sed -E 's/  +/  /g'; }
same_list() { # FILE: its list is the stored one
    from "$files/$1" >"$tmp/run.yaml" || return 1
    listed "$tmp/run.yaml" >"$tmp/list"
    [ -z "${RENEW:-}" ] || cp "$tmp/list" "$files/$1.txt"
    diff "$files/$1.txt" "$tmp/list" || return 1
    echo "$(grep -c ' = ' "$tmp/list") keys set"
}
for f in trainer.yaml trainer.json recipe.yaml factory.yaml zero3.json alone.json accelerate.yaml script.yaml train.sh launch.sh flags dict instruct.sh vision.sh mixture.yaml axolotl.yaml swift.sh settings.py values.py; do
    case $f in
    factory.yaml) answers=(--set data.template=model) ;;
    vision.sh) answers=(--set model.path=models/llava) ;;
    axolotl.yaml) answers=(--set data.template=model) ;;
    values.py) answers=(--set model.preset=allocator-tiny) ;;
    *) answers=() ;;
    esac
    check "the list of $f" same_list $f
done
answers=()

# Each plans as it is, but for the model and files of data that are not here.
plans() {
    local f n=0
    for f in trainer.yaml recipe.yaml zero3.json accelerate.yaml launch.sh instruct.sh vision.sh mixture.yaml axolotl.yaml swift.sh settings.py; do
        local preset=llama-tiny sequence=64
        [ $f = vision.sh ] && preset=llava-tiny sequence=128
        "$binary" plan --config-from "$files/$f" --set model.preset=$preset --set data.sequence=$sequence --json >"$tmp/plan.json" 2>"$tmp/err" || { echo "$f:"; tail -n 2 "$tmp/err"; return 1; }
        "$tools/json_get" "$tmp/plan.json" arena_bytes >/dev/null || return 1
        n=$((n + 1))
    done
    echo "$n files plan"
}
check 'a preset in the place of the model: all plan' plans

# --- scripts that are known by name -------------------------------------------------------------

# set_to FILE LINE...: the list of the file has the lines.
set_to() {
    local f=$1 line
    shift
    "$binary" plan --config-from "$f" "${args[@]}" --json >"$tmp/plan.json" 2>"$tmp/err" || { tail -n 2 "$tmp/err"; return 1; }
    for line; do grep -q "^  $line" "$tmp/err" || { echo "not set: $line"; cat "$tmp/err"; return 1; }; done
}
args=(--preset prs-med-tiny)
write prs.sh >/dev/null <<'EOT'
torchrun --nproc_per_node=4 train_prs_med.py --data_root data --batch_size 2 --compile_model
EOT
check 'train_prs_med.py: AMP and rows of its length are defaults' set_to "$tmp/prs.sh" 'memory.precision = f16 .*default of use_amp' 'data.sequence = 1088 ' 'train.effective_batch = 8 ' 'adapter.r = 16 ' 'data.format = csv '
write part >/dev/null <<'EOT'
--batch_size 1 --gradient_accumulation_steps 8 --gradient_checkpointing --use_amp
EOT
check 'its options by themselves, with the preset' set_to "$tmp/part" 'memory.precision = f16 ' 'memory.recompute = all ' 'train.effective_batch = 8 ' 'adapter.r = 16 ' 'memory.micro_batch = 1 '
alone() { "$binary" init --config-from "$tmp/part" | grep -q 'read as a PyTorch training script'; }
check '... and without: any script' alone
write ddp.sh >/dev/null <<'EOT'
CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc_per_node=2 train_ddp.py \
  --model_path llava-med --data_path images --annotation_path tables --save_dir out \
  --batch_size 4 --epochs 50 --grad_accum_steps 8 --grad_clip_norm 0.5
EOT
args=(--preset prs-med-prompted)
check 'train_ddp.py of PRS-Med' set_to "$tmp/ddp.sh" 'data.train = \["tables/\*.csv"\]' 'data.images = images ' 'train.effective_batch = 64 ' 'memory.precision = bf16 ' 'train.clip_norm = 0.5 ' 'adapter.lora_dropout = 0.1 ' 'train.schedule = cosine '
args=(--set model.preset=llava-tiny --set data.sequence=512 --set data.tokens_per_frame=4)
write video.yaml >/dev/null <<'EOT'
data: {max_frames: 100}
model: {llm: {dtype: "bfloat16", use_gradient_checkpointing: true}}
training: {batch_size: 4, gradient_accumulation_steps: 8, use_mixed_precision: true}
EOT
check 'frames of videos' set_to "$tmp/video.yaml" 'data.max_frames = 100 ' 'memory.precision = bf16 ' 'train.effective_batch = 32 '
unlimited() {
    sed 's/100/None/' "$tmp/video.yaml" >"$tmp/all.yaml"
    "$binary" init --config-from "$tmp/all.yaml" | grep -q 'data.max_frames: all frames of any video cannot be planned; set data.max_frames'
}
check '... and all of them' unlimited
args=(--set model.preset=allocator-tiny)
write allocate.sh >/dev/null <<'EOT'
python Training/train.py --learning_rate 1e-4 --batch_size 8 --gradient_accumulation 2 --num_epochs 1 --max_train_samples 500 \
    --output_dir out --hub_repo_id me/model --wandb_project arr --wandb_run_name first
EOT
check 'names of accumulation, services and hubs' set_to "$tmp/allocate.sh" 'train.effective_batch = 16 ' 'train.epochs = 1 ' 'train.out = out ' 'hub_repo_id: Plimsoll uses files of this machine' 'wandb_project, wandb_run_name: '
no_room() { expect 2 'data.sequence is 256.* 576 tokens .*704' "$binary" plan --preset prs-med --memory 12GiB; }
check 'rows that the image by itself fills' no_room

# --- data of LLaMA-Factory ----------------------------------------------------------------------

answers=(--set data.template=model)
datasets() {
    from $files/factory.yaml >"$tmp/run.yaml" || return 1
    grep -q "^  train: \[$files/data/chats.json, $files/data/questions.jsonl\]" "$tmp/run.yaml" && grep -q '^  format: conversations' "$tmp/run.yaml" && grep -q '^  packing: false' "$tmp/run.yaml"
}
check 'the files of the datasets come from dataset_info.json' datasets
dataset() { # NAME PATTERN
    rm -rf "$tmp/factory" && mkdir "$tmp/factory" && cp -r $files/data "$tmp/factory" || return 1
    sed "s/^dataset: .*/dataset: $1/; /^deepspeed/d" $files/factory.yaml >"$tmp/factory/sft.yaml"
    expect 2 "sft.yaml:13: dataset: .*$2" from "$tmp/factory/sft.yaml"
}
check 'a dataset that is not listed' dataset chat 'dataset_info.json has no dataset chat'
check 'a dataset of ranked answers' dataset ranked 'holds ranked answers'
check 'a dataset with keys of its own' dataset renamed 'prompt is frage'
check 'a dataset on a hub' dataset hub 'is on a hub and has no file_name'
beside() { # dataset_info.json beside the file
    dataset chat 'no dataset chat' >/dev/null && mv "$tmp/factory/data"/* "$tmp/factory" && sed -i 's/^dataset: .*/dataset: chats/' "$tmp/factory/sft.yaml" && from "$tmp/factory/sft.yaml" >/dev/null
}
check 'dataset_info.json beside the file' beside
check 'a dataset without its file' dataset gone 'there is no file .*gone.json'

# val_size LINE...: the file of LLaMA-Factory with these lines more.
val_size() {
    rm -rf "$tmp/factory" && mkdir "$tmp/factory" && cp -r $files/data "$tmp/factory" || return 1
    { sed '/^deepspeed/d' $files/factory.yaml && printf '%s\n' "$@"; } >"$tmp/factory/sft.yaml"
}
held_out() {
    val_size 'val_size: 0.1' 'eval_strategy: steps' 'eval_steps: 50' && from "$tmp/factory/sft.yaml" >"$tmp/run.yaml" || return 1
    grep -q '^  holdout: 0.1' "$tmp/run.yaml" && grep -q '^  eval_every: 50' "$tmp/run.yaml" && ! grep '^  validation' "$tmp/run.yaml" || { cat "$tmp/run.yaml"; return 1; }
    val_size 'val_size: 0.0' && from "$tmp/factory/sft.yaml" >"$tmp/run.yaml" && ! grep '^  holdout: *0\.[0-9]*[1-9]' "$tmp/run.yaml" || return 1
    val_size 'val_size: 500' && expect 2 'val_size: it is a number of samples, and data.holdout is a fraction of them' from "$tmp/factory/sft.yaml" || return 1
    val_size 'val_size: 0.1' 'eval_dataset: questions' && expect 2 'val_size: it and eval_dataset are both given' from "$tmp/factory/sft.yaml"
}
check 'val_size becomes data.holdout' held_out
val_size_beside() { # validation data of an option take its place
    val_size 'val_size: 0.1' && expect 0 '' "$binary" init --config-from "$tmp/factory/sft.yaml" --set data.template=model --set "data.validation=$files/data/chats.json" && ! grep '^  holdout:' "$tmp/out" && grep -q 'evaluate on: validation data are given otherwise' "$tmp/out"
}
check 'val_size with validation data of an option' val_size_beside
percentage() {
    printf 'train_file: %s\nvalidation_split_percentage: 5\nlearning_rate: 1e-4\n' "$files/data/chats.json" >"$tmp/percent.yaml"
    from "$tmp/percent.yaml" >"$tmp/run.yaml" && grep '^  holdout: 0.05' "$tmp/run.yaml" || return 1
    sed -i 's/percentage: 5/percentage: 100/' "$tmp/percent.yaml" && expect 2 'validation_split_percentage: found 100, expected a percentage below 100' from "$tmp/percent.yaml"
}
check 'validation_split_percentage becomes data.holdout' percentage

# --- what is refused ----------------------------------------------------------------------------

refused() { # NAME PATTERN: a file from standard input
    local path
    path=$(write "$1")
    expect 2 "^plimsoll init: --config-from: $path$2" from "$path"
}
check 'an unknown key: the nearest one is named' refused a.yaml ':2: unknown key learning_rat of Hugging Face TrainingArguments; did you mean learning_rate\?' <<'EOT'
per_device_train_batch_size: 2
learning_rat: 1e-4
EOT
check 'an unknown key of LLaMA-Factory' refused b.yaml ':4: unknown key lora_rnak of LLaMA-Factory; did you mean lora_rank\?' <<'EOT'
stage: sft
template: llama3
cutoff_len: 64
lora_rnak: 4
EOT
check 'an unknown key in a section of DeepSpeed' refused c.json ':1: unknown key zero_optimization.stag of DeepSpeed; did you mean zero_optimization.stage\?' <<'EOT'
{"zero_optimization": {"stag": 2}, "fp16": {"enabled": true}}
EOT
check 'an unknown option of a command' refused d.sh ':1: unknown key batch_sise of a PyTorch training script; did you mean batch_size\?' <<'EOT'
python train.py --batch_sise 2 --use_amp --num_workers 2
EOT
check 'fp16 and bf16' refused e.yaml ':2: fp16: it asks for f16, but bf16 .*e.yaml:1. asks for bf16' <<'EOT'
bf16: true
fp16: true
output_dir: out
EOT
check 'fp16 and bf16 of DeepSpeed' refused f.json ':1: fp16.enabled:.*f16, but bf16.enabled' <<'EOT'
{"fp16": {"enabled": true}, "bf16": {"enabled": true}, "train_batch_size": 8}
EOT
check 'a batch that is not micro-batch x accumulation x ranks' refused g.json ':2: train_batch_size: it is 128, but train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 8 x 1 rank is 16; it is right for 8 ranks' <<'EOT'
{
  "train_batch_size": 128,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 8
}
EOT
ranks() {
    echo 'deepspeed --num_gpus 8 train.py' >"$tmp/launch.sh"
    from "$tmp/g.json" "$tmp/launch.sh" >"$tmp/run.yaml" && grep -q '^  effective_batch: 128' "$tmp/run.yaml"
}
check '... and with the ranks of a launcher it is' ranks
# The ranks of the run are those of the file, unless it says how many it is for.
own_ranks() {
    expect 0 '' "$binary" plan --preset llama-tiny --config-from "$tmp/g.json" --ranks 8 --json && [ "$(json "$tmp/out" settings.effective_batch)" = 128 ] && [ "$(json "$tmp/out" ranks.world)" = 8 ] || return 1
    printf 'distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n' >"$tmp/fsdp2.yaml"
    expect 0 '' "$binary" plan --preset llama-tiny --config-from "$tmp/fsdp2.yaml" --ranks 4 --json && json "$tmp/out" settings.shard && [ "$(json "$tmp/out" settings.shard)" = gradients ]
}
check '... and with the ranks of the run' own_ranks
check 'a batch that no number of ranks explains' refused h.json ':1: train_batch_size: it is 10, but train_micro_batch_size_per_gpu 4 x 1 rank is 4;' <<'EOT'
{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}
EOT
sharded() {
    printf 'distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: %s\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n' "$1" >"$tmp/fsdp.yaml"
    from "$tmp/fsdp.yaml" >"$tmp/run.yaml" && grep "^ *shard: $2" "$tmp/run.yaml"
}
check 'FULL_SHARD of FSDP' sharded FULL_SHARD weights
check 'SHARD_GRAD_OP of FSDP' sharded SHARD_GRAD_OP gradients
hybrid() { sharded "$1" "$2" && grep '^ *group: host' "$tmp/run.yaml"; }
check 'HYBRID_SHARD of FSDP' hybrid HYBRID_SHARD weights
check '_HYBRID_SHARD_ZERO2 of FSDP' hybrid 5 gradients
mics() {
    printf '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3, "mics_shard_size": %s}}' "$1" >"$tmp/mics.json"
    from "$tmp/mics.json" >"$tmp/run.yaml" && grep "^ *group: $2" "$tmp/run.yaml" && grep -q '^ *shard: weights' "$tmp/run.yaml"
}
check 'the groups of MiCS' mics 8 host
check 'offload_param below stage 3' refused i.json ':4: zero_optimization.offload_param.device: it needs ZeRO stage 3, and the stage is 2' <<'EOT'
{"zero_optimization": {
  "stage": 2,
  "offload_optimizer": {"device": "cpu"},
  "offload_param": {"device": "cpu"}
}}
EOT
check 'offload_optimizer without ZeRO' refused j.json ':1: zero_optimization.offload_optimizer.device: it needs ZeRO stage 1' <<'EOT'
{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
EOT
check 'offload to a disk' refused k.json ':1: zero_optimization.offload_optimizer.device: found nvme; memory.offload moves to host memory' <<'EOT'
{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}
EOT
disagree() {
    printf 'output_dir: out\nlearning_rate: 1e-4\ndeepspeed: ds.json\n' >"$tmp/args.yaml"
    echo '{"optimizer": {"type": "AdamW", "params": {"lr": 2e-4}}}' >"$tmp/ds.json"
    expect 2 'args.yaml:2: learning_rate: it is the number 1e-4, but in .*/ds.json:1 optimizer.params.lr is the number 2e-4' from "$tmp/args.yaml" || return 1
    echo '{"optimizer": {"type": "AdamW", "params": {"lr": 0.0001}}}' >"$tmp/ds.json"
    from "$tmp/args.yaml" >/dev/null
}
check 'DeepSpeed and TrainingArguments disagree' disagree
check 'what Plimsoll does not do' refused l.yaml ':2: label_smoothing_factor: found the number 0.1: label smoothing does not exist here' <<'EOT'
output_dir: out
label_smoothing_factor: 0.1
EOT
check 'another optimizer' refused m.yaml ':1: optim: found lion_8bit, and Plimsoll has only adamw_torch' <<'EOT'
optim: lion_8bit
EOT
check 'another schedule' refused n.yaml ':1: lr_scheduler_type: found polynomial' <<'EOT'
lr_scheduler_type: polynomial
EOT
check 'a value of another type' refused p.yaml ':1: learning_rate: train.learning_rate: found the string "fast", expected a number' <<'EOT'
learning_rate: fast
EOT
check 'a stage that Plimsoll does not train' refused q.yaml ':1: stage: found the string "dpo": Plimsoll trains only the stages sft and pt' <<'EOT'
stage: dpo
finetuning_type: lora
EOT
check 'another way of fine-tuning' refused r.yaml ':2: finetuning_type: found oft, and Plimsoll has only full and lora' <<'EOT'
stage: sft
finetuning_type: oft
EOT
check '8-bit weights' refused s.yaml ':2: quantization_bit: found 8 bits, and frozen weights have 4' <<'EOT'
stage: sft
quantization_bit: 8
EOT
check '4-bit weights without an adapter' refused t.yaml ':3: quantization_bit: 4-bit weights are frozen, so they need a LoRA adapter' <<'EOT'
stage: sft
finetuning_type: full
quantization_bit: 4
EOT
check 'the best model with two strategies' refused u.yaml ':1: load_best_model_at_end: it needs the same eval_strategy and save_strategy; they are steps and epoch' <<'EOT'
load_best_model_at_end: true
eval_strategy: steps
save_strategy: epoch
EOT
check 'a Python program' refused v.py ':2: a statement that is no assignment: "for i in range.3.: print.i."; only numbers, texts' <<'EOT'
args = TrainingArguments(output_dir="out", bf16=True)
for i in range(3): print(i)
EOT
check 'an expression in Python' refused w.py ':1: an expression: "// 4"; only numbers' <<'EOT'
warmup_steps = 1000 // 4
EOT
check 'a run file of ours' refused w.yaml ' is a run file of Plimsoll: give it without --config-from' <<'EOT'
model: {preset: llama-tiny}
EOT
check 'an empty file' refused x.yaml ' is empty, expected a map of keys' <<'EOT'
EOT
check 'a list' refused y.yaml ': found a list, expected a map of keys' <<'EOT'
- 1
EOT
check 'keys that no program has' refused z.yaml ': no key of it is known' <<'EOT'
alpha: 1
omega: {psi: 2}
EOT
check 'broken JSON' refused aa.json ': line 3' <<'EOT'
{"train_batch_size": 8,
 "fp16": {"enabled": true
EOT
check 'a key twice' refused ab.json ': line 2: the key "train_batch_size" occurs twice' <<'EOT'
{"train_batch_size": 8,
 "train_batch_size": 16}
EOT
nul() { printf 'bf16: true\0\n' | refused ac.yaml ': it has NUL characters'; }
check 'a file that is no text' nul
latin() { printf 'python train.py --batch_size 2 \\\n --output_dir caf\351\n' | refused ac.sh ':2: the bytes are not UTF-8'; }
check 'a file that is not UTF-8' latin
large() {
    head -c 17000000 /dev/zero | tr '\0' a >"$tmp/large.yaml"
    expect 2 'large.yaml' from "$tmp/large.yaml"
}
check '17 MB on one line' large
check 'two training commands' refused ad.sh ':2: a second command that trains .the first is on line 1.' <<'EOT'
python train.py --batch_size 2
python train.py --batch_size 4
EOT
# --- variables of the shell are asked for -------------------------------------------------------

# shellcheck disable=SC2016
check 'a variable without a value: the key that it would set is named' refused ae.sh ':2: learning_rate: \$1 has no value in this file: write the value in its place, or set train.learning_rate; and so has \$OUT .output_dir, line 3.$' <<'EOT'
python train.py --batch_size 2 \
    --learning_rate $1 \
    --output_dir=runs/$OUT --local_rank $RANK
EOT
answered() { # by our keys; what has no effect is not asked for
    expect 0 '' "$binary" init --config-from "$tmp/ae.sh" --set train.learning_rate=2e-4 --set train.out=there && grep -q '^  learning_rate: 0.0002' "$tmp/out" && grep -q '^#   local_rank: ' "$tmp/out" &&
        expect 2 'ae.sh:2: learning_rate: .1 has no value' "$binary" plan --config-from "$tmp/ae.sh" --preset llama-tiny
}
check '... until our keys are set' answered
# shellcheck disable=SC2016
check 'a default is not used' refused ak.sh ':1: nproc_per_node: \$\{GPUS_FOR_THE_TEST:-8\}.*train.effective_batch' <<'EOT'
torchrun --nproc_per_node ${GPUS_FOR_THE_TEST:-8} train.py --batch_size 2
EOT
# shellcheck disable=SC2016
check 'the variable that another one lacks' refused aj.sh ':4: nproc_per_node: \$GPUS_FOR_THE_TEST.*train.effective_batch$' <<'EOT'
GPUS_FOR_THE_TEST=$(nvidia-smi -L | wc -l)
ARGS="--nproc_per_node $GPUS_FOR_THE_TEST --master_port $PORT"
OTHER=$ARGS
torchrun $OTHER train.py --batch_size 2
EOT
environment() { # is not looked at; a value in the file is
    GPUS_FOR_THE_TEST=4 expect 2 'GPUS_FOR_THE_TEST has no value' from "$tmp/aj.sh" && GPUS_FOR_THE_TEST=4 expect 2 'GPUS_FOR_THE_TEST:-8. has no value' from "$tmp/ak.sh" || return 1
    sed 's/=$(.*/=4/' "$tmp/aj.sh" >"$tmp/al.sh" && from "$tmp/al.sh" >"$tmp/run.yaml" && grep -q '^  effective_batch: 8' "$tmp/run.yaml"
}
check '... which the file gives, and not the environment' environment
# shellcheck disable=SC2016
check 'what is added to a variable, and a list' refused am.sh ':4: \$ARGS' <<'EOT'
ARGS="--use_amp"
ARGS+=" --learning_rate 1e-4"
LIST=(--batch_size 2)
torchrun train.py $ARGS "${LIST[@]}"
EOT
check 'a file that is asked for' refused an.sh ':1: deepspeed: \$ZERO.*place$' <<'EOT'
deepspeed train.py --output_dir out --bf16 True --deepspeed $ZERO
EOT
check 'a quote that is not closed' refused af.sh ':1: a quote . is not closed' <<'EOT'
python train.py --output_dir 'out
EOT
check 'no training command' refused ag.sh ': it has no command that trains' <<'EOT'
#!/bin/sh
nvidia-smi
EOT
check 'an argument that is no option' refused ah.sh ':1: the argument run1 is neither an option nor a file of settings' <<'EOT'
python train.py run1 --batch_size 2
EOT
check 'a file that is not there' refused ai.yaml ':2: deepspeed: there is no file ds_z9.json' <<'EOT'
output_dir: out
deepspeed: ds_z9.json
EOT
circle() {
    printf 'output_dir: out\nconfig: circle.yaml\n' >"$tmp/circle.yaml"
    expect 2 'more than 4 files name each other' from "$tmp/circle.yaml"
}
check 'a file that names itself' circle
missing() { expect 2 'no-such.yaml' from "$tmp/no-such.yaml" && expect 2 '' "$binary" plan --config-from; }
check 'no such file, no file' missing

# --- what changes memory or results -------------------------------------------------------------

# gives NAME PATTERN...: a file from standard input gives the lines.
gives() {
    local path line
    path=$(write "$1")
    shift
    from "$path" >"$tmp/run.yaml" || return 1
    for line; do grep -qE "^# +$line" "$tmp/run.yaml" || { echo "missing: $line"; cat "$tmp/run.yaml"; return 1; }; done
}
answers=()
check 'Adam with weight decay is no AdamW' refused adam.yaml ':3: weight_decay: it is 0.01 with Adam, which adds it to the gradient' <<'EOT'
optimizer: adam
lr: 1e-4
weight_decay: 0.01
EOT
check '... without, and in bitsandbytes, it is' gives adam8.yaml 'train.weight_decay = 0 .*default of Adam8bit' 'memory.optimizer = adamw-8bit' <<'EOT'
optimizer: Adam8bit
lr: 1e-4
EOT
check 'activations of DeepSpeed in host memory' gives cpu.json 'memory.recompute = all ' 'memory.offload = activations .*cpu_checkpointing' <<'EOT'
{"activation_checkpointing": {"cpu_checkpointing": true, "partition_activations": false}, "train_micro_batch_size_per_gpu": 1}
EOT
check 'fsdp of TrainingArguments' gives fsdp.yaml 'parallel.shard = weights ' 'memory.offload = optimizer.masters.weights ' 'memory.recompute = all .*activation_checkpointing' <<'EOT'
output_dir: out
fsdp: full_shard auto_wrap offload
fsdp_config: {transformer_layer_cls_to_wrap: [LlamaDecoderLayer], fsdp_activation_checkpointing: true}
EOT
check 'weights of FSDP in host memory' gives offload.yaml 'parallel.shard = weights ' 'memory.offload = optimizer.masters.weights .*fsdp_offload_params' <<'EOT'
distributed_type: FSDP
fsdp_config: {fsdp_offload_params: true, fsdp_version: 2}
EOT
check 'layers divided among ranks, of DeepSpeed' refused tp.json ':1: tensor_parallel.autotp_size: found the number 4: ranks divide the batch' <<'EOT'
{"tensor_parallel": {"autotp_size": 4}, "train_micro_batch_size_per_gpu": 1}
EOT
check '... and of TrainingArguments' refused tp.yaml ':2: tp_size:.*2:' <<'EOT'
output_dir: out
tp_size: 2
EOT
check 'weights that are loaded in bf16 have no master weights' gives pure.yaml 'memory.precision = bf16-pure .*torch_dtype' <<'EOT'
output_dir: out
torch_dtype: bfloat16
bf16: true
EOT
check 'a template that is not the model'"'"'s is asked for' refused template.yaml ':2: template: found the string "qwen": it says how a conversation becomes text: set data.template to `model`' <<'EOT'
stage: sft
template: qwen
EOT
asked() { # plan needs no answer, and lists the question
    expect 0 'template, line 2: it says how' "$binary" plan --config-from "$tmp/template.yaml" --preset llama-tiny --set data.sequence=64 && grep -q '^to be answered before training:' "$tmp/err" &&
        expect 2 'template.yaml:2:.*"qwen"' "$binary" train --config-from "$tmp/template.yaml" --preset llama-tiny --set data.train=a.jsonl
}
check '... by train, and listed by plan' asked
check 'the samples of LLaMA-Factory' gives most.yaml 'data.max_samples = 18 .*max_samples, less what is held out' 'data.holdout = 0.1 ' <<EOT
stage: sft
dataset: chats
dataset_dir: $PWD/$files/data
max_samples: 20
val_size: 0.1
EOT
check 'half an epoch' gives half.yaml 'train.epochs = 0.5 ' <<'EOT'
num_train_epochs: 0.5
output_dir: out
EOT
check 'a local dataset of TRL' gives local.yaml 'data.train = \["?.*/chats.json"?\] .*dataset_name, line 1' 'data.format = conversations' <<EOT
dataset_name: $PWD/$files/data/chats.json
max_length: 64
packing: true
EOT
check 'a vision tower that LLaMA-Factory does not train' gives tower.yaml 'model.freeze = \[vision_tower, projector\] .*freeze_multi_modal_projector' <<'EOT'
stage: sft
finetuning_type: full
freeze_multi_modal_projector: true
EOT
check '... nor adapts' gives adapts.yaml 'adapter.exclude_modules = .*vision_tower' 'adapter.target_modules = all-linear' <<'EOT'
stage: sft
finetuning_type: lora
EOT
check 'the projector of LLaVA' gives projector.sh 'model.freeze = \[vision_tower\]' 'train.groups = .*match: .projector.' 'data.template = vicuna_v1' <<'EOT'
deepspeed llava/train/train_mem.py --version v1 --mm_projector_lr 2e-5 --bf16 True --output_dir out
EOT
trains_no_tower() {
    expect 0 '' "$binary" modules --config-from "$tmp/projector.sh" --set model.preset=llava-tiny && ! grep '^vision_tower.* yes$' "$tmp/out" && grep -q '^multi_modal_projector.* yes$' "$tmp/out"
}
check '... of which the tower is frozen' trains_no_tower

# --- files that do not train --------------------------------------------------------------------

check 'a file of LLaMA-Factory for inference' refused chat.yaml ':1: model_name_or_path: this file of LLaMA-Factory has neither stage nor dataset: it is for inference' <<'EOT'
model_name_or_path: m
template: qwen3
infer_backend: huggingface
EOT
check '... and for prediction' refused predict.yaml ':3: do_predict:.*LLaMA-Factory' <<'EOT'
stage: sft
finetuning_type: lora
do_predict: true
predict_with_generate: true
EOT
check 'version 1 of LLaMA-Factory' refused v1.yaml ' .*LLaMA-Factory v1:.*1' <<'EOT'
model: m
model_class: llm
peft_config: {name: lora, r: 16}
train_dataset: d.yaml
output_dir: out
micro_batch_size: 1
EOT
check 'a script that evaluates' refused mme.sh ': it has no command that trains: llava.eval.model_vqa_loader, line 1, evaluates, converts or prepares' <<'EOT'
python -m llava.eval.model_vqa_loader --model-path m --temperature 0
python convert_answer_to_mme.py --experiment m
python calculation.py --results_dir answers
EOT
check 'a script that builds' refused pypi.sh ': .*build, line 1' <<'EOT'
python -m build
python -m twine upload dist/*
EOT
check 'another command of ms-swift' refused rlhf.sh ': .*swift rlhf, line 1' <<'EOT'
swift rlhf --rlhf_type dpo --model m
EOT
prepared() { gives prepared.sh 'memory.micro_batch = 2 ' <<'EOT'
python scripts/prepare_data.py --out data
python train.py --batch_size 2 --use_amp
EOT
}
check 'a command before the one that trains' prepared

# --- ranks, eval, generate ----------------------------------------------------------------------

ranks_of_file() {
    printf 'model: {preset: llama-tiny}\nparallel: {ranks: 8}\n' >"$tmp/ranks.yaml"
    expect 0 '' "$binary" plan "$tmp/ranks.yaml" --config-from "$tmp/g.json" --json && [ "$(json "$tmp/out" settings.effective_batch)" = 128 ] || return 1
    expect 0 '' "$binary" init --config-from "$tmp/g.json" --ranks 8 && grep -q '^  effective_batch: 128' "$tmp/out" && grep -q '^  ranks: 8' "$tmp/out"
}
check 'the ranks of the run file, and of init' ranks_of_file
chat=tests/golden/chat
printf 'train_file: %s\nvalidation_file: %s\nmodel_max_length: 128\nper_device_train_batch_size: 2\nsystem_prompt: Be short.\npacking: false\nuse_peft: true\noutput_dir: out\nnum_train_epochs: 0.5\nbf16: false\nmax_train_samples: 9\n' \
    "$PWD/$chat/chats.jsonl" "$PWD/$chat/chats.jsonl" >"$tmp/chat.yaml"
inference() {
    expect 0 'read as TRL' "$binary" eval --config-from "$tmp/chat.yaml" --model $chat/model --loss --set "device.kind=$DEVICE" || return 1
    grep -q 'perplexity' "$tmp/out" || { cat "$tmp/err"; return 1; }
    echo '[{"role": "user", "content": "hello"}]' >"$tmp/hello.json"
    expect 0 'read as TRL' "$binary" generate --config-from "$tmp/chat.yaml" --model $chat/model --chat "$tmp/hello.json" --max-new 2 --set "device.kind=$DEVICE" && ! grep 'adapter.r =\|train\.' "$tmp/err"
}
check 'eval and generate take it' inference
some_samples() { # half of 9 samples, by 2: 3 steps
    expect 0 '' "$binary" train --config-from "$tmp/chat.yaml" --set model.path=$chat/model --set "train.out=$tmp/some" --set "device.kind=$DEVICE" --set train.eval_every=0 || return 1
    grep -E 'data.train: 9 conversations' "$tmp/err" && [ "$(grep -c '"step":' "$tmp/some/metrics.jsonl")" -ge 3 ] || { cat "$tmp/err"; return 1; }
}
check 'the first samples, and half an epoch of them' some_samples

# --- with a run file and options ----------------------------------------------------------------

order() {
    printf 'train: {learning_rate: 3e-4, warmup_steps: 5}\n' >"$tmp/mine.yaml"
    printf 'output_dir: out\nmodel_name_or_path: no/folder\nlearning_rate: 1e-4\nwarmup_ratio: 0.1\nseed: 1\nmax_steps: 10\neval_strategy: steps\n' >"$tmp/args.yaml"
    printf 'output_dir: other\nseed: 3\n' >"$tmp/later.yaml"
    expect 0 '' "$binary" plan "$tmp/mine.yaml" --config-from "$tmp/args.yaml" --config-from "$tmp/later.yaml" --set model.preset=llama-tiny --set train.seed=2 --json || return 1
    "$tools/json_get" "$tmp/out" arena_bytes >/dev/null || { echo 'standard output is no JSON'; return 1; }
    { grep -qE '^  train.out = other +\(output_dir, later.yaml:1\)$' "$tmp/err" && grep -q '^  set otherwise by the run file or an option: train.learning_rate, train.seed$' "$tmp/err" &&
        grep -q '^  evaluation every few steps: data.validation is not given' "$tmp/err" && ! grep -q 'model.path\|warmup_ratio =' "$tmp/err"; } || { cat "$tmp/err"; return 1; }
}
check 'a later file, the run file and --set override' order

same_plan() { # the run file that init prints gives the same plan
    local args=(--set model.preset=llama-tiny --set data.sequence=64 --json)
    [ "$1" = alone.json ] || args+=(--set data.template=model)
    "$binary" init --config-from "$files/$1" "${args[@]:0:4}" "${args[@]:5}" >"$tmp/run.yaml" || return 1
    "$binary" plan "$tmp/run.yaml" "${args[@]}" >"$tmp/a" 2>"$tmp/err" || { tail -n 1 "$tmp/err"; return 1; }
    "$binary" plan --config-from "$files/$1" "${args[@]}" >"$tmp/b" 2>/dev/null && cmp "$tmp/a" "$tmp/b"
}
for f in alone.json recipe.yaml axolotl.yaml factory.yaml; do check "init writes a run file with the plan of $f" same_plan $f; done

rates() { sed -n 's/.*"learning_rate": *\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
trains() {
    printf 'per_device_train_batch_size: 2\ngradient_accumulation_steps: 2\nlearning_rate: 1e-3\nwarmup_ratio: 0.35\nmax_steps: 8\nsave_strategy: "no"\n' >"$tmp/args.yaml"
    printf 'model: {preset: llama-tiny}\ndata: {format: bytes, train: "tests/golden/*.py", sequence: 64}\n' >"$tmp/mine.yaml"
    "$binary" train "$tmp/mine.yaml" --config-from "$tmp/args.yaml" --set "train.out=$tmp/ratio" 2>"$tmp/err" >/dev/null || { cat "$tmp/err"; return 1; }
    "$binary" train "$tmp/mine.yaml" --config-from "$tmp/args.yaml" --set train.warmup_steps=3 --set "train.out=$tmp/steps" 2>"$tmp/err" >/dev/null || return 1
    [ "$(rates "$tmp/ratio" | wc -l)" -ge 8 ] && [ "$(rates "$tmp/ratio")" = "$(rates "$tmp/steps")" ]
}
check 'a run: warmup_ratio 0.35 of 8 steps is a warmup of 3' trains
others() {
    local args=(--config-from "$files/flags" --set model.preset=llama-tiny --set memory.precision=f32)
    expect 0 'read as a PyTorch' "$binary" doctor "${args[@]}" --steps 0 || return 1
    [ "$(grep -c 'read as' "$tmp/err")" -eq 1 ] || { echo 'doctor lists it more than once'; return 1; }
    expect 0 'memory.micro_batch = 1' "$binary" bench "${args[@]}" --steps 1 && expect 0 'read as' "$binary" profile "${args[@]}" --steps 1 -o "$tmp/profile" && expect 0 'read as' "$binary" modules "${args[@]}" &&
        expect 2 'takes no --config-from' "$binary" bench --calibrate --config-from "$files/flags" &&
        expect 2 'with --config-from: unknown option --model' "$binary" init --config-from "$files/flags" --model llama-tiny && expect 2 'unknown option --set' "$binary" init --set a=b
}
check 'doctor, bench, profile, modules; misuse' others

summary
