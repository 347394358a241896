# Settings of a run, as a notebook has them.
from peft import LoraConfig
from transformers import (
    Trainer,
    TrainingArguments,
)

accumulation = 8

training_args = TrainingArguments(
    output_dir="./checkpoints",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=accumulation,
    learning_rate=2e-5,
    bf16=True,  # mixed precision
    gradient_checkpointing=True,
    logging_steps=10,
    save_steps=1_000,
)
peft_config = LoraConfig(
    r=16,
    lora_alpha=32,
    target_modules=["q_proj", "v_proj"],
    task_type="CAUSAL_LM",
)
