#!/usr/bin/env python3
"""Trains tests/golden/chat/model on its conversations with Plimsoll, in packed rows, and with PyTorch, one
conversation a row, and compares the loss of each step.

    python3 tests/golden/check_chat.py [STEPS] [PLIMSOLL]     from the repository's root; needs torch, transformers

Every step has all conversations, so both take the same gradient: the mean over all labelled tokens. PyTorch
gets the ids and labels of expected.jsonl, which transformers made. f32, AdamW, 50 steps; the relative
difference of each loss is at most 1e-4. tests/golden/chat/torch_losses.txt has PyTorch's first 8 losses, for
tests/run_conversations.sh.
"""
import json, pathlib, subprocess, sys, tempfile

import torch, transformers

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50
binary = sys.argv[2] if len(sys.argv) > 2 else "build/plimsoll"
here = pathlib.Path("tests/golden/chat")
chats = (here / "chats.jsonl").read_text().splitlines()
expected = [json.loads(line) for line in (here / "expected.jsonl").read_text().splitlines()]

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "chats.jsonl").write_text("".join(c + "\n" for c, x in zip(chats, expected) if x))
    (folder / "run.yaml").write_text(f"""
model: {{path: {here}/model}}
data: {{format: conversations, train: {folder}/chats.jsonl, sequence: 128, shuffle: false}}
train: {{steps: {steps}, effective_batch: 8, learning_rate: 0.003, out: {folder}/run}}
memory: {{precision: f32}}
device: cpu
""")
    rows = json.loads(subprocess.run([binary, "data", "tokenize", folder / "run.yaml", "--json"], check=True, capture_output=True).stdout)["rows"]
    subprocess.run([binary, "train", folder / "run.yaml", "--set", f"train.effective_batch={rows}"], check=True, capture_output=True)
    ours = [json.loads(line)["loss"] for line in (folder / "run/metrics.jsonl").read_text().splitlines() if '"loss"' in line]

model = transformers.AutoModelForCausalLM.from_pretrained(here / "model", dtype=torch.float32, attn_implementation="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01)
samples = [x for x in expected if x]
count = sum(label >= 0 for x in samples for label in x["labels"][1:])
worst, theirs = 0, []
for step, loss in enumerate(ours):
    optimizer.zero_grad()
    total = 0
    for x in samples:
        logits = model(torch.tensor([x["ids"]])).logits[0, :-1]
        part = torch.nn.functional.cross_entropy(logits, torch.tensor(x["labels"][1:]), reduction="sum") / count
        part.backward()
        total += part.item()
    optimizer.step()
    theirs.append(total)
    worst = max(worst, abs(loss - total) / total)
    if step % 10 == 0 or step + 1 == len(ours):
        print(f"step {step + 1}: {loss:.6f} {total:.6f}")
print(f"{len(samples)} conversations in {rows} rows, {count} labels, {len(ours)} steps: largest relative difference {worst:.2e}")
(here / "torch_losses.txt").write_text("".join(f"{x:.7f}\n" for x in theirs[:8]))
sys.exit(worst > 1e-4 or len(ours) != steps)
