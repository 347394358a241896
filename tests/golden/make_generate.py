#!/usr/bin/env python3
"""Golden files for `plimsoll generate`, made with transformers and PEFT.

    python tests/golden/make_generate.py [--out DIR] [--from N] [--tries K]

    generate.txt   one case a line: model folder, adapter folder or -, options of the command or -, prompt, answer.
                   The models are those of make_llama.py and make_peft.py; ids have commas between them.
    sampling.txt   what transformers' logits processors leave of a row of logits: four lines a case.

Answers are model.generate(do_sample=False) in float32 on the CPU. At every token the largest logit is ahead of
the second by at least MARGIN, so that the order of a sum does not decide. The prompts are the first random ones
for which this holds; most answers have 64 tokens, one ends with EOS.
"""
import argparse
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import (LogitsProcessorList, RepetitionPenaltyLogitsProcessor,
                                                    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
from transformers.utils import logging

logging.set_verbosity_error()
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MARGIN = 2e-3
NEW = 64
# model, adapter, prompt length, repetition penalty, whether it ends with EOS
CASES = [
    ("basic", None, 5, 1.0, False),        # llama, grouped heads
    ("basic", None, 40, 1.0, False),       # a prompt of several chunks
    ("basic", None, 7, 1.0, True),
    ("odd", None, 9, 1.3, False),          # one key head for five, an odd vocabulary
    ("tied", None, 6, 1.2, False),         # tied head
    ("bias", None, 8, 1.2, False),
    ("llama3_v5", None, 6, 1.2, False),    # scaled rotary positions
    ("mistral", None, 12, 1.1, False),     # sliding window of 5
    ("qwen2", None, 6, 1.2, False),
    ("qwen2_window", None, 11, 1.1, False),  # a window in two of three layers
    ("basic", "peft/all_linear", 6, 1.0, False),
    ("tied", "peft/tied", 6, 1.2, False),
    ("basic", "peft/dora", 6, 1.1, False),
    ("qwen3_window", None, 11, 1.1, False),
    ("smollm3", None, 9, 1.1, False),      # layers without rotary positions
    ("granite", None, 6, 1.05, False),
    ("olmo2", None, 6, 1.2, False),
    ("olmo3", None, 5, 1.0, False),
    ("phi3", None, 9, 1.2, False),         # a prompt beyond the training length: the long factors
    ("ministral3", None, 9, 1.2, False),   # queries that grow
    ("gemma", None, 6, 1.2, False),
    ("gemma2", None, 9, 1.2, False),       # soft caps
    ("gemma3", None, 9, 1.2, False),       # two tables of rotary positions
    ("qwen3", "peft/qwen3", 6, 1.2, False),
    ("phi3", "peft/phi3", 9, 1.2, False),
    ("gemma3", "peft/gemma3", 6, 1.2, False),
    ("gpt2", None, 3, 1.0, False),         # as many tokens as it has positions
    ("gpt2_padded", "peft/gpt2_dora", 4, 1.0, False),
    ("mixtral", None, 6, 1.2, False),
    ("qwen3_moe", None, 6, 1.2, False),
]


def margin(logits):
    top = torch.topk(logits, 2).values
    return (top[0] - top[1]).item()


def new_tokens(model, prompt):
    """Learned positions end an answer."""
    return min(NEW, model.config.n_positions - prompt) if model.config.model_type == "gpt2" else NEW


def answer(model, prompt, penalty):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens(model, len(prompt)), pad_token_id=0,
                         repetition_penalty=penalty, output_scores=True, return_dict_in_generate=True)
    return out.sequences[0, len(prompt):].tolist(), min(margin(s[0]) for s in out.scores)


def find(model, length, penalty, ends, seed, tries):
    draw = random.Random(seed)
    best = None
    for k in range(400):
        prompt = [draw.randrange(model.config.vocab_size) for _ in range(length)]
        ids, least = answer(model, prompt, penalty)
        good = least >= MARGIN and (8 <= len(ids) < NEW if ends else len(ids) == new_tokens(model, length))
        if good and (best is None or len(set(ids)) > len(set(best[1]))):
            best = prompt, ids
        if best and (len(set(best[1])) >= 16 or k >= tries):
            break
    assert best, "no prompt with a clear answer"
    return best


def write_answers(out, first, tries):
    """Keeps the first lines of the file as they are."""
    path = os.path.join(out, "generate.txt")
    lines = open(path).read().splitlines()[:first] if first else []
    for number, (name, adapter, length, penalty, ends) in list(enumerate(CASES))[first:]:
        model = AutoModelForCausalLM.from_pretrained(os.path.join(HERE, name), dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
        if adapter:
            from peft import PeftModel
            model = PeftModel.from_pretrained(model, os.path.join(HERE, adapter)).eval()
        with torch.no_grad():
            prompt, ids = find(model, length, penalty, ends, number, tries)
        new = new_tokens(model, length)
        options = f"--repetition-penalty={penalty}" if penalty != 1 else f"--max-new={new}" if new < NEW else "-"
        lines.append(" ".join([name, adapter or "-", options, ",".join(map(str, prompt)), ",".join(map(str, ids))]))
        print(f"{name:14} {adapter or '':18} {len(ids)} tokens, {len(set(ids))} distinct")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


def write_sampling(out):
    torch.manual_seed(7)
    lines = []
    for temperature, top_k, top_p, penalty in [(1.0, 0, 1.0, 1.0), (0.7, 0, 1.0, 1.0), (1.0, 3, 1.0, 1.0), (1.0, 0, 0.8, 1.0), (1.5, 5, 0.6, 1.0),
                                               (1.0, 0, 0.05, 1.0), (0.5, 4, 0.9, 1.7), (2.0, 50, 0.95, 0.8), (1.0, 2, 1.0, 1.0)]:
        logits = torch.round(torch.randn(1, 12) * 3 * 64) / 64  # written exactly
        if top_k == 2:
            logits[0, :4] = 5.0  # ties with the second largest
        seen = torch.tensor([[1, 4, 4, 7]])
        list_ = LogitsProcessorList()
        if penalty != 1:
            list_.append(RepetitionPenaltyLogitsProcessor(penalty))
        list_.append(TemperatureLogitsWarper(temperature))
        if top_k:
            list_.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            list_.append(TopPLogitsWarper(top_p))
        p = torch.softmax(list_(seen, logits.clone()).double(), -1)[0]
        lines += [f"{temperature} {top_k} {top_p} {penalty}", " ".join(repr(x) for x in logits[0].tolist()),
                  " ".join(map(str, seen[0].tolist())), " ".join(f"{x:.9g}" for x in p.tolist())]
    with open(os.path.join(out, "sampling.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=HERE)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="N", help="keep the first N answers")
    parser.add_argument("--tries", type=int, default=400, metavar="K", help="prompts to look at for one with many distinct tokens")
    args = parser.parse_args()
    os.chdir(ROOT)  # adapters name their base from here
    write_sampling(args.out)
    write_answers(args.out, args.first, args.tries)
