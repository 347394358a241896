#!/bin/bash
# two lines of settings, one command
export OMP_NUM_THREADS=4
LR="3e-4"
here=$(dirname "$0")   # not used by the command
pip install -q torch
CUDA_VISIBLE_DEVICES=0,1 torchrun --standalone --nproc_per_node=4 train.py \
    --data_root '/path/to/my data' \
    --batch_size 2 --gradient_accumulation_steps=4 \
    --learning_rate "$LR" --num_epochs 20 \
    --gradient_checkpointing --no-use_amp \
    --compile_model --num_workers 8 2>&1 | tee log.txt
