#!/bin/bash
# One machine with GPUS_PER_NODE GPUs; -m and -d name another model and other data.
export OMP_NUM_THREADS=2
HERE=`pwd`
GPUS_PER_NODE=8

MODEL="models/small"   # a folder
DATA="chats/train.json"

usage() {
    echo '
instruct.sh [-m MODEL] [-d DATA]
'
}

while [[ "$1" != "" ]]; do
    case $1 in
        -m | --model )
            shift
            MODEL=$1
            ;;
        -d | --data )
            shift
            DATA=$1
            ;;
        * )
            usage
            exit 1
            ;;
    esac
    shift
done

LAUNCH_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes 1 \
    --node_rank 0 \
    --master_addr localhost \
    --master_port 6001
"
OUTPUT="--save_total_limit 2
    --report_to none"   # of this run

torchrun $LAUNCH_ARGS finetune.py \
    --model_name_or_path $MODEL \
    --data_path $DATA \
    --bf16 True \
    --num_train_epochs 2 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --evaluation_strategy "no" \
    --learning_rate 3e-4 \
    --weight_decay 0.1 \
    --adam_beta2 0.95 \
    --warmup_ratio 0.01 \
    --lr_scheduler_type "cosine" \
    --model_max_length 512 \
    --lazy_preprocess True \
    --use_lora \
    --q_lora \
    --lora_weight_path lora \
    --gradient_checkpointing \
    --output_dir "runs/with blanks" \
    $OUTPUT \
    --deepspeed auto.json
