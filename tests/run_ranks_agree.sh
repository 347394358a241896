#!/bin/bash
# shellcheck disable=SC2015,SC2016
# run_ranks_agree.sh: a rank that fails while others would go on to a program or an exchange with
# it: all of them end together, with its message and within seconds. None is left to wait for it
# until the deadline, whose message would name a rank and no cause.
#
#   bash tests/run_ranks_agree.sh    from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
preload fault
tool forge_conversations
# The deadline is longer than a test may take.
short=(--set memory.micro_batch=1 --set parallel.timeout=120)

# on_rank NUMBER COMMAND: a program that runs the command on that rank first; its name is in
# `other`.
on_rank() {
    other=$tmp/other.sh
    printf '#!/bin/bash\nif [ "$OMPI_COMM_WORLD_RANK" = %s ]; then\n%s\nfi\nexec "%s" "$@"\n' "$1" "$2" "$(realpath "$binary")" >"$other"
    chmod +x "$other"
}
# all_end STATUS PATTERN OUT ARGUMENT...: two ranks end with that message, long before the deadline.
all_end() {
    local status=$1 pattern=$2 out=$3 from=$SECONDS
    shift 3
    rm -rf "$out"
    expect "$status" "$pattern" timeout -k 5 60 mpirun -np 2 --bind-to none --oversubscribe "$other" train "$@" --set "train.out=$out" && left_behind "train.out=$out" || return 1
    grep -q 'waited' "$tmp/err" && { cat "$tmp/err"; return 1; }
    echo "after $((SECONDS - from)) s: $(grep -o -m 1 -E "$pattern.*" "$tmp/err")"
}

# --- rank 0 cannot write what it does between a step and an evaluation ---
head -c 1000 tests/golden/make_ddp.py >"$tmp/validation.txt"
metrics() {
    needs_preload || return
    on_rank 0 "export FAULT=nospace:2 FAULT_PATH=metrics.jsonl LD_PRELOAD=$tools/fault.so"
    all_end 1 'rank 0 on .*metrics.jsonl.*[Nn]o space' "$tmp/m" "$tmp/tiny.yaml" "${short[@]}" --set train.steps=4 --set train.eval_every=1 --set "data.validation=$tmp/validation.txt" --set "parallel.shard=$1"
}
check 'metrics of a step before an evaluation, nothing divided' metrics none
check 'metrics of a step before an evaluation, weights in shards' metrics weights

# --- answers to prompts, for which ranks with weights in shards run programs together ---
head -n 3 tests/golden/chat/chats.jsonl >"$tmp/prompts.jsonl"
cat >"$tmp/chat.yaml" <<EOF
model: {path: $PWD/tests/golden/chat/model}
data: {format: conversations, train: $PWD/tests/golden/chat/chats.jsonl, validation: "$tmp/prompts.jsonl", sequence: 128}
train: {steps: 2, effective_batch: 4, learning_rate: 0.01, eval_every: 2, eval_samples: 2, eval_max_new: 6}
memory: {precision: f32, head_chunks: 1}
device: cpu
EOF
# unwritten N: of rank 0's calls that write answers the N-th fails.
unwritten() {
    needs_preload || return
    on_rank 0 "export FAULT=nospace:$1 FAULT_PATH=answers LD_PRELOAD=$tools/fault.so"
    all_end 1 'rank 0 on .*[Nn]o space' "$tmp/a" "$tmp/chat.yaml" "${short[@]}" --set parallel.shard=weights
}
check 'the folder of answers cannot be made' unwritten 1
check 'the file of answers cannot be opened' unwritten 2
check 'an answer cannot be written' unwritten 3

# --- an image of a prompt ---
make_model llava_clip_llama "$tmp/llava" || exit 2
for i in here there; do
    mkdir "$tmp/$i" && "$tools/forge_conversations" "$tmp/$i/given" 12 1 1 1 && "$tools/forge_conversations" "$tmp/$i/held" 4 1 1 2 && sed -i 's|"\([0-9]*_[0-9]*.png\)"|"images/\1"|g' "$tmp/$i"/*/chats.json || exit 2
done
cat >"$tmp/images.yaml" <<EOF
model: {path: $tmp/llava}
data: {format: conversations, train: given/chats.json, validation: held/chats.json, sequence: 64, max_images: 1, max_bad: 1}
train: {steps: 100, effective_batch: 2, learning_rate: 0.0001, eval_every: 100, eval_samples: 2, eval_max_new: 3}
memory: {precision: f32, head_chunks: 1}
parallel: {shard: weights}
device: cpu
EOF
# loses FOLDER: a command that removes the image of the first prompt there when the first step is
# done.
loses() { echo "cd $tmp/$1; (until [ -s $tmp/i/metrics.jsonl ]; do sleep 0.02; done; rm -f $tmp/$1/held/images/0_0.png) &"; }
with_images() { (cd "$tmp/here" && "$@"); }
lost_to_one() { on_rank 1 "$(loses there)" && with_images all_end 2 'rank 1 on .*0_0.png' "$tmp/i" "$tmp/images.yaml" "${short[@]}"; }
check 'the image of a prompt is lost on one rank' lost_to_one
other_prompts() { on_rank 1 "cd $tmp/there" && with_images all_end 2 'the list of prompts of train.eval_samples.* on rank 1 differs from that on rank 0' "$tmp/i" "$tmp/images.yaml" "${short[@]}"; }
check 'it was not there when the run began' other_prompts
# Another image under its name: the tokens of rank 0 count, and every rank runs as many programs.
other_image() {
    on_rank 1 "cd $tmp/there"
    rm -rf "$tmp/i"
    for i in 0 1; do cp "$tmp/there/held/blank/${i}_0.png" "$tmp/there/held/images/${i}_0.png" || return 1; done
    with_images expect 0 '' mpirun -np 2 --bind-to none --oversubscribe "$other" train "$tmp/images.yaml" "${short[@]}" --set "train.out=$tmp/i" && grep -o '"eval_prompts":[0-9]*' "$tmp/i/metrics.jsonl"
}
check 'the image of a prompt is another one on one rank' other_image
lost_to_all() {
    on_rank 0 "$(loses here)"
    rm -rf "$tmp/i"
    with_images expect 0 'a prompt is left out: .*0_0.png' mpirun -np 2 --bind-to none --oversubscribe "$other" train "$tmp/images.yaml" "${short[@]}" --set "train.out=$tmp/i" && grep -o '"eval_prompts":[0-9]*' "$tmp/i/metrics.jsonl"
}
check 'the image of a prompt is lost on all ranks: it is left out' lost_to_all

# --- weights: the norms of rows that DoRA begins with are read from the shards of all ranks ---
norms() {
    mkdir -p "$tmp/w0" "$tmp/w1" && cp -r tests/golden/chat/model "$tmp/w0/model" && cp -r tests/golden/chat/model "$tmp/w1/model" || return 1
    local file=$tmp/w1/model/model.safetensors
    printf '\377\377\377\377' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 4)) conv=notrunc 2>/dev/null
    on_rank 1 "cd $tmp/w1"
    (cd "$tmp/w0" && all_end 2 'rank 1 on .*model.safetensors: tensor .* is -?nan' "$tmp/d" "$tmp/chat.yaml" "${short[@]}" --set model.path=model --set data.validation=null --set train.eval_samples=0 --set train.eval_every=0 \
        --set adapter.target_modules=all-linear --set adapter.use_dora=true --set parallel.shard=weights)
}
check 'weights that are damaged on one rank' norms
summary
