#!/usr/bin/env python3
"""Makes tests/golden/labels: which tokens of a conversation transformers trains on where blanks stand on both sides of an answer.

    python3 tests/golden/make_labels.py          from the repository's root; needs transformers, tokenizers

    bytes/, pieces/    tokenizers, byte-level and SentencePiece-like (check_labels.py)
    expected.json      [{"tokenizer", "template", "messages", "ids", "labels", "beyond"}]: the labels of the tokens that overlap an
                       answer, as transformers' processors choose them; `beyond`: those among them that begin with the blanks
                       which end the answer and go on behind it, which Plimsoll does not train on
"""
import json, pathlib, shutil

import check_labels, transformers

here = pathlib.Path("tests/golden/labels")
shutil.rmtree(here, ignore_errors=True)
here.mkdir()
NAME = "{{ m['role'].upper() + ': ' }}"
TEMPLATES = [
    # LLaVA 1.5's: the blank before an answer stands outside, the blank behind it inside.
    "{% for m in messages %}" + NAME + "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + ' ' }}{% endgeneration %}{% else %}{{ m['content'] + ' ' }}{% endif %}{% endfor %}",
    "{% for m in messages %}" + NAME + "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}{% else %}{{ m['content'] + ' ' }}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}{{ '\\n' }}{% else %}{{ m['content'] + '\\n' }}{% endif %}{% endfor %}",
]

expected = []
for name, backend in check_labels.make_tokenizers():
    if name == "trimmed":
        continue
    folder = here / name
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}) + "\n")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    for source in TEMPLATES:
        for messages in check_labels.conversations():
            text, ids, offsets, spans, _ = check_labels.render(tokenizer, source, messages)
            labels = [i if any(b < end and e > begin for begin, end in spans) else -100 for i, (b, e) in zip(ids, offsets)]
            beyond = [k for k, (b, e) in enumerate(offsets) if any(b < end < e and text[b:end].isspace() for _, end in spans)]
            expected.append({"tokenizer": name, "template": source, "messages": messages, "ids": ids, "labels": labels, "beyond": beyond})
(here / "expected.json").write_text("[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in expected) + "\n]\n")
print(len(expected), "conversations,", sum(len(x["beyond"]) for x in expected), "tokens beyond")
