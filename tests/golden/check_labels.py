#!/usr/bin/env python3
"""Compares the labels of `plimsoll tokenize --chat` with transformers' return_assistant_tokens_mask, or the rule of prefixes.

    python3 tests/golden/check_labels.py [PLIMSOLL] TEMPLATE.jinja ...      from the repository's root

Each template meets tokenizers (byte-level, with and without trimmed offsets, and SentencePiece-like
with bytes for unknown characters) and conversations with answers of one word, several turns, blanks at the ends and
characters that become bytes, and thoughts. Answers are what stands in {% generation %}; in a template without it, what messages
up to an answer add to those before it with the generation prompt. A conversation is
    same       the ids are equal, and a token has a label where it overlaps an answer, the rule of transformers' processors
    blank      the same but for tokens that begin with the blanks which end an answer and go on behind it (" U" of "no USER:"):
               we train nothing beyond an answer
    own        the ids are equal, but the template writes messages otherwise once others follow: no rule to compare with
    refused    the template needs what the conversation has not, or drops thoughts of earlier answers
    wrong      anything else: printed, and the exit code is 1
How often the mask of transformers' tokenizers is equal is counted too: it takes one character at each end (char_to_token) and
so misses the bytes of a last character, and with trimmed offsets whatever stands at a blank. Needs transformers, tokenizers.
trl/chat_templates/*.jinja of the package trl are templates of 2026, and transformers' tests/models/llava has LLaVA 1.5's.
"""
import collections, datetime, json, pathlib, re, subprocess, sys, tempfile

import tokenizers, transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.utils import chat_template_utils

SPECIAL = ["<unk>", "<s>", "</s>", "<image>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<think>", "</think>"]
CORPUS = ["USER: What is shown? ASSISTANT: no USER: yes USER: a blue square three é 漢字 user assistant system model You are kind.\n"] * 9


def training_day():
    """Templates print the day that training data has."""
    class Day(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2024, 7, 26)
    chat_template_utils.datetime = Day


def published(t, left_out=()):
    """As published files have them: tokens of thoughts are no special tokens, and so are found in what the data says."""
    d = json.loads(t.to_str())
    d["added_tokens"] = [{**a, "special": "think>" not in a["content"]} for a in d["added_tokens"] if a["content"] not in left_out]
    return tokenizers.Tokenizer.from_str(json.dumps(d))


def make_tokenizers():
    for name, trim in (("bytes", False), ("trimmed", True)):
        t = tokenizers.Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.decoder = decoders.ByteLevel()
        t.post_processor = processors.ByteLevel(trim_offsets=trim)
        t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        yield name, published(t)
    t = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=SPECIAL + bytes_, show_progress=False)
    t.train_from_iterator([w for line in CORPUS for w in line.split()], trainer)
    yield "pieces", published(t, bytes_)


def conversations():
    def chat(*texts, system=None):
        roles = [{"role": "system", "content": system}] if system else []
        return roles + [{"role": ("user", "assistant")[i % 2], "content": x} for i, x in enumerate(texts)]
    yield chat("Is it blue?", "no")
    yield chat("How many?", "3", "Sure?", "yes")
    yield chat("What is shown?", "a blue square", "And?", "no", "Then?", "漢字")
    yield chat("Ends", "in a smile \U0001f642", "And", "é")
    yield chat("Blanks", "  no  ", "More", "a\n\nb\n", "Last", " no")
    yield chat("Lines", "no.\n", "Last", "yes.", system="You are kind.")
    yield chat("Dots...", "...", "one", "1. no\n2. yes")
    yield chat("Why?", "<think>\na blue square\n</think>\n\nno")
    yield chat("Why?", "<think>\n\n</think>\n\nno", "And?", "<think>\n\n</think>\n\nyes", system="You are kind. /no_think")


def write_folder(folder, tokenizer):
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
    config = json.loads(pathlib.Path("tests/golden/llava_text/llava/config.json").read_text())
    config["image_token_index"] = tokenizer.token_to_id("<image>")
    config["text_config"]["vocab_size"] = tokenizer.get_vocab_size()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(pathlib.Path("tests/golden/llava_text/llava/preprocessor_config.json").read_text())


def ours(binary, folder, template, messages):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(messages, f)
        f.flush()
        run = subprocess.run([binary, "tokenize", "--model", folder, "--template", template, "--chat", f.name, "--json"], capture_output=True, text=True)
    got = json.loads(run.stdout) if not run.returncode else None
    return (got, None) if got and got["labels"] is not None else (None, run.stderr.strip())


def parts(messages):
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]


def prefixes(text, messages):
    """The answers by the rule of prefixes, `text` renders messages; None: it does not hold."""
    spans, whole = [], text(messages)
    for i, m in enumerate(messages):
        if m["role"] == "assistant":
            before, after = text(messages[:i], add_generation_prompt=True), text(messages[:i + 1])
            if not (after.startswith(before) and whole.startswith(after)):
                return None
            spans.append((len(before), len(after)))
    return spans


def render(tokenizer, source, messages):
    """Text, ids, offsets, the answers and the tokenizer's mask of the conversation; None: the template refuses it."""
    try:
        texts, spans = chat_template_utils.render_jinja_template(conversations=[messages], chat_template=source, return_assistant_tokens_mask=True, **tokenizer.special_tokens_map)
        encoded = tokenizer(texts[0], add_special_tokens=False, return_offsets_mapping=True)
        if not re.search(r"\{%-?\s*generation", source):
            return texts[0], encoded["input_ids"], encoded["offset_mapping"], prefixes(lambda m, **o: tokenizer.apply_chat_template(m, chat_template=source, tokenize=False, **o), messages), None
        mask = tokenizer.apply_chat_template(messages, chat_template=source, return_assistant_tokens_mask=True, return_dict=True)["assistant_masks"]
    except Exception:
        return None
    return texts[0], encoded["input_ids"], encoded["offset_mapping"], spans[0], mask


def compare(got, want):
    text, ids, offsets, spans, mask = want
    if spans is None:
        return "own" if got["ids"] == ids else "wrong", None
    overlap = [any(b < end and e > begin for begin, end in spans) for b, e in offsets]
    labels = [x != -100 for x in got["labels"]]
    exact = mask and labels == [bool(m) for m in mask]
    if got["ids"] != ids:
        return "wrong", exact
    kind = "same"
    for k, (b, e) in enumerate(offsets):
        if labels[k] == overlap[k] or b == e:  # offsets of blanks may be trimmed to nothing
            continue
        if not (overlap[k] and any(b < end < e and text[b:end].isspace() for _, end in spans)):
            return "wrong", exact
        kind = "blank"
    return kind, exact


def main():
    binary, templates = "build/plimsoll", sys.argv[1:]
    if templates and not templates[0].endswith(".jinja"):
        binary, templates = templates[0], templates[1:]
    training_day()
    total, exact = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as top:
        for name, backend in make_tokenizers():
            folder = pathlib.Path(top) / name
            write_folder(folder, backend)
            tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
            for template in templates:
                source = pathlib.Path(template).read_text()
                for number, messages in enumerate(conversations()):
                    got, why = ours(binary, folder, template, messages)
                    both = [render(tokenizer, source, m) for m in (messages, parts(messages))]
                    same = [x for x in both if x and got and x[0] == got["text"]]
                    if same:
                        kind, equal = compare(got, same[0])
                        exact[name, equal] += equal is not None
                    else:
                        kind = "refused" if got is None else "wrong"
                    if kind == "wrong":
                        print(f"{name}, {template}, conversation {number}: {kind}: {why or got['text'][:200]!r}")
                        if same and same[0][3]:
                            print("  ours  ", [(tokenizer.convert_ids_to_tokens(i)) for i, l in zip(got["ids"], got["labels"]) if l != -100])
                            print("  theirs", [(tokenizer.convert_ids_to_tokens(i)) for i, (b, e) in zip(same[0][1], same[0][2]) if any(b < y and e > x for x, y in same[0][3])])
                    total[name, kind] += 1
    for (name, kind), n in sorted(total.items()):
        print(f"{name}: {n} {kind}")
    for name in dict.fromkeys(n for n, _ in exact):
        print(f"{name}: {exact[name, True]} of {exact[name, True] + exact[name, False]} equal to the tokenizer's mask")
    sys.exit(any(kind == "wrong" for _, kind in total))


if __name__ == "__main__":
    main()
