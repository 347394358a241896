accelerate launch --config_file accelerate.yaml sft.py --learning_rate 1e-3 --load_in_4bit false --config recipe.yaml
