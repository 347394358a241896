#!/usr/bin/env python3
"""Do the tokenizer classes of transformers give the ids of tests/golden/tokenizers, for each family of language models?

    python tests/golden/check_tokenizer_classes.py          from the repository's root

AutoTokenizer opens each tokenizer.json beside a tokenizer_config.json and a config.json that name the family's class, as
published folders do: some classes of transformers 5 take only the vocabulary from the file and build the rest themselves.
llama2 is expected to differ: LlamaTokenizer puts no blank before text that begins with one, or that follows a special
token, where tokenizer.json, transformers 4 and Plimsoll do. Used by hand; the tests need no Python.
"""
import json
import shutil
import sys
import tempfile

from common import HERE  # also keeps the hub out

from transformers import AutoTokenizer
from transformers.utils import logging

# The class and model_type of published folders.
FOLDERS = {"gemma": ("GemmaTokenizer", "gemma2"), "qwen": ("Qwen2Tokenizer", "qwen2"), "qwen3": ("Qwen2Tokenizer", "qwen3"),
           "phi3": ("LlamaTokenizer", "phi3"), "phi4": ("GPT2Tokenizer", "phi3"), "phi4_mini": ("GPT2Tokenizer", "phi3"),
           "olmo2": ("GPT2Tokenizer", "olmo2"), "smollm3": ("PreTrainedTokenizerFast", "smollm3"), "granite": ("GPT2Tokenizer", "granite"),
           "gpt2": ("GPT2Tokenizer", "gpt2"), "ministral3": ("LlamaTokenizer", "ministral3"), "llama3": ("PreTrainedTokenizerFast", "llama"),
           "llama2": ("LlamaTokenizer", "llama")}


def main():
    logging.set_verbosity_error()
    wrong = 0
    for name, (wanted, model_type) in FOLDERS.items():
        with open(f"{HERE}/tokenizers/{name}/cases.json", encoding="utf8") as f:
            cases = json.load(f)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(f"{HERE}/tokenizers/{name}/tokenizer.json", folder)
            for file, value in ("tokenizer_config.json", {"tokenizer_class": wanted}), ("config.json", {"model_type": model_type}):
                with open(f"{folder}/{file}", "w") as f:
                    json.dump(value, f)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            different = [c["text"] for c in cases if tokenizer.encode(c["text"]) != c["ids"]]
        print(f"{name:12} {type(tokenizer).__name__:20} {len(cases)} lines, {len(different)} differ {different[:4] or ''}")
        wrong += bool(different) and name != "llama2"
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
