#!/usr/bin/env python3
"""Small tokenizers of each kind, with what the tokenizers library and SentencePiece make of some lines.

    python tests/golden/make_tokenizers.py [NAME]...        from the repository's root; names: only these are made anew

Writes tests/golden/tokenizers/NAME/tokenizer.json (or tokenizer.model) and cases.json, which tests/test_tokenizer.c
reads: for each line the ids, the ids without added tokens, the bytes of each of the latter (tokenizer.json alone), and
the decoded text with and without special tokens. The vocabularies are trained on the lines themselves. Needs
tokenizers and sentencepiece.
"""
import base64
import io
import json
import os
import shutil
import sys
import tempfile

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

OUT = "tests/golden/tokenizers"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LINES = [
    "", " ", "  ", "\n", "\t\t", "a", " a", "a ", "Hello world", "Hello  world", "Hello   world  ", "  leading and trailing  ",
    "The quick brown fox jumps over the lazy dog.", "the the the then them there", "don't you'll I'M we've it's THEY'RE",
    "def f(x):\n    return x + 1\n\n\n    # end", "if (a[i] >= 10) { b += 3.14159; }\r\n", "tab\tand\u00a0no-break\u3000wide\u2009thin",
    "1 22 333 4444 55555 1234567890", "½ ² Ⅷ ٣ ๓ 三", "naïve café Ångström", "nai\u0308ve cafe\u0301 A\u030angstro\u0308m", "\u1100\u1161\u11a8 각 \ud55c\uae00",
    "ﬁne ｆｕｌｌ ① ℌ", "İSTANBUL ΣΑΣ ǅ ẞ", "日本語のテキスト、漢字。", "中文文本，没有空格", "Привет, мир! Ещё раз", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
    "😀😀 👩\u200d👩\u200d👧 🇩🇪 ☺️ 1️⃣", "e\u0301\u0323\u0301 q\u0307\u0323", "U+FFFD \ufffd and \u2581 and ▁▁x", "a\u200bb\ufeffc\u00ad", "\U00010348\U0001f9ff\U0002070e",
    "<s>Hello</s>", "x<s> y </s>z", "<|im_start|>user\nhi<|im_end|>\n", "a <mask> b<mask>c <MASK>", "word [tok] wordtok tok.tok tok", "TOK Tok", "[INST] q [/INST] a",
    "<image>\nWhat is it?", "<0x41> <0xE2>", "<unk> unk", "-----", "the-final--countdown", "...!!!???", "under_score CamelCase kebab-case", "\u0300\u0301start",
    "mixed 中a文b1字 the2end", "https://example.org/a?b=c&d=%20#e", "\x7f\x01\x1b[0m", "ẗ ẘ ẙ ẛ̣", "क़ ख़ ড়", "Ω Å K",
]
# Special tokens of the families inside words and between blanks, runs of blanks, marks, scripts
# from right to left.
HARD = [
    "", " ", "   ", "\t", "\n\n\n", " \n \t\n  x", "    indented\n\t\ttabs \r\n  \r\n", "a  b   c    d          e", "trailing   ", "in<|end|>side", "in <|end|> side", "a  <|end|>  \n b",
    "<|user|>\nHi<|end|>\n<|assistant|>\n", "un<|im_start|>believ<|im_sep|>able<|im_end|>", "x <|im_start|> \n y", "<think>\n\n</think>\n\nSo", "no<think>pause</think>here", "<tool_call>{}</tool_call>",
    "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "the<start_of_turn>n", "<start_of_turn", "<|end|", "[INST]the[/INST]then", " [INST] the [/INST] ", "<|start_of_role|>user<|end_of_role|>hi<|end_of_text|>",
    "▁▁the ▁ ▁▁▁x", "<h1>the</h1>", "|||IP_ADDRESS|||:80", "don't DON'T I'LL we'VE 'tis ''s x's1", "HTTPServer iPhone camelCase SCREAMING_SNAKE XMLHttp2Request", "1234567 12 1,234.5 ٣٤٥ ½²", "path/to/file//x.py /* c */ a/\n/b",
    "e\u0301te\u0301 nai\u0308ve A\u030a q\u0307\u0323", "\u0301\u0301lone", "한글 \u1112\u1161\u11ab 漢字かな交じり。全角　空白", "שָׁלוֹם עולם 12 abc", "مرحباً بالعالم ١٢٣", "क्षत्रिय हिन्दी", "ไทยไม่มีช่องว่าง",
    "👩\u200d👩\u200d👧\u200d👦 👍🏽 🇩🇪🇫🇷 ❤\ufe0f 1\ufe0f\u20e3", "\u00a0\u2003\u200b\ufeff\u00ad|", "ǅ ẞ ŉ ﬁ Ⅷ ①", "\U0001f9ff\U00010348\U0002070e\U000e0041", "\ufffd\x01\x7f\x1b[0m", "!!!???...—–“quoted” «x» ¿qué?", "...\n\n---\n",
]
TRAIN = [line for line in LINES for _ in range(3)] + ["the then them there this that these those"] * 20


def widened(text, offsets):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [[at[a], at[b]] for a, b in offsets]


def put(name, file, data, cases):
    folder = os.path.join(OUT, name)
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(os.path.join(folder, file), "wb") as f:
        f.write(data)
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")


def put_json(name, d, offsets=True, lines=LINES):
    """offsets False: the library counts the lengths of tokens that are not in the order of the text. Where characters
    are composed, or several replaced, its offsets leave all but one out ("wide": ours reach further)."""
    d = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
         "post_processor": None, "decoder": None, **d}
    text = json.dumps(d, ensure_ascii=False)
    t, bare = Tokenizer.from_str(text), Tokenizer.from_str(json.dumps({**d, "post_processor": None}))
    cases = []
    for line in lines:
        ids, plain = t.encode(line).ids, bare.encode(line)
        cases.append({"text": line, "ids": ids, "plain": plain.ids, "bytes": widened(line, plain.offsets),
                      "decoded": t.decode(ids, skip_special_tokens=False), "skipped": t.decode(ids)})
        cases[-1]["wide"] = '"NF' in text or offsets == "wide"
        if not offsets:
            del cases[-1]["bytes"]
    put(name, "tokenizer.json", text.encode(), cases)


def added(*tokens):
    """id, content, then the flags that are set; the others are false."""
    names = ["single_word", "lstrip", "rstrip", "normalized", "special"]
    return [{"id": i, "content": c, **{n: n in flags for n in names}} for i, c, *flags in tokens]


def after(model, *tokens):
    """Ids of the vocabulary where it has the token, else behind it."""
    vocab, rows = model["vocab"], []
    for t in tokens:
        rows.append((vocab.get(t[0], len(vocab) + sum(r[0] >= len(vocab) for r in rows)), *t))
    return added(*rows)


# --- models -------------------------------------------------------------------------------------

def byte_level(pre, size=330, **fields):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.train_from_iterator(TRAIN, trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return {**json.loads(t.to_str())["model"], **fields}


def with_fallback(size, **fields):
    """Merges over ▁ and characters; rare characters have no token."""
    t = Tokenizer(models.BPE())
    text = [line.replace(" ", "▁") for line in TRAIN]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, limit_alphabet=70, show_progress=False))
    m = json.loads(t.to_str())["model"]
    head = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    vocab = {p: i for i, p in enumerate(head + [p for p in m["vocab"] if p not in head])}
    return {**m, "vocab": vocab, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **fields}


def characters(text, **fields):
    """A vocabulary of characters and a few merges: what the pre-tokenizer did shows."""
    pieces = ["<unk>"] + sorted(set(text)) + ["--", "th", "he", "the", "in", "fin"]
    merges = [["-", "-"], ["t", "h"], ["h", "e"], ["th", "e"], ["i", "n"], ["f", "in"]]
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": {p: i for i, p in enumerate(pieces)}, "merges": merges, **fields}


def unigram(**fields):
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(TRAIN, trainers.UnigramTrainer(vocab_size=260, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"]))
    m = json.loads(t.to_str())["model"]
    return {**m, "vocab": [[p, round(s, 6)] for p, s in m["vocab"]], **fields}


def wordpiece(normalizer, pre, **fields):
    t = Tokenizer.from_str(json.dumps({"version": "1.0", "normalizer": normalizer, "pre_tokenizer": pre, "added_tokens": [], "model": {
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {}}}))
    t.train_from_iterator(TRAIN, trainers.WordPieceTrainer(vocab_size=360, limit_alphabet=150, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    return {**json.loads(t.to_str())["model"], **fields}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = {**BYTE_LEVEL, "use_regex": False}
FALLBACK_DECODER = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                                     {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def regex(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def string(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"String": pattern}, "behavior": behavior, "invert": invert}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def template(before, after=()):
    one = lambda t: {"SpecialToken": {"id": t[0], "type_id": 0}}
    single = [*map(one, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(one, after)]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t[0]: {"id": t[0], "ids": [t[1]], "tokens": [t[0]]} for t in (*before, *after)}}


def make_json():
    gpt2 = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    n = len(gpt2["vocab"])
    put_json("gpt2", {"model": gpt2, "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL, "post_processor": BYTE_LEVEL, "added_tokens": after(gpt2, ("<|im_end|>", "special"))})
    put_json("prefix_space", {"model": gpt2, "pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}, "decoder": BYTE_LEVEL, "post_processor": BYTE_LEVEL})
    put_json("llama3", {"model": {**gpt2, "ignore_merges": True}, "pre_tokenizer": sequence("pretokenizers", regex(LLAMA3), BYTES), "decoder": BYTE_LEVEL,
                        "post_processor": sequence("processors", BYTE_LEVEL, template([("<s>", n)], [("</s>", n + 1)])),
                        "added_tokens": after(gpt2, ("<s>", "special"), ("</s>", "special"))})
    put_json("qwen", {"model": gpt2, "normalizer": {"type": "NFC"}, "pre_tokenizer": sequence("pretokenizers", regex(LLAMA3.replace("{1,3}", "")), BYTES), "decoder": BYTE_LEVEL,
                      "added_tokens": after(gpt2, ("<|im_start|>", "special"), ("<|im_end|>", "special"), ("<image>",))})
    put_json("digits", {"model": gpt2, "pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTE_LEVEL), "decoder": BYTE_LEVEL})
    put_json("digits_runs", {"model": gpt2, "pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, BYTES), "decoder": BYTE_LEVEL})
    put_json("deepseek", {"model": gpt2, "decoder": BYTE_LEVEL, "pre_tokenizer": sequence("pretokenizers", regex(r"\p{N}{1,3}"), regex("[一-龥぀-ゟ゠-ヿ]+"), regex(
        r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), BYTES)})
    put_json("nfkc_lower", {"model": gpt2, "normalizer": sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}), "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL,
                            "added_tokens": after(gpt2, ("Tok", "normalized"), ("<MASK>",))})
    put_json("nfd", {"model": gpt2, "normalizer": {"type": "NFD"}, "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL})
    put_json("nfkd", {"model": gpt2, "normalizer": {"type": "NFKD"}, "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL})
    put_json("flags", {"model": gpt2, "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL, "added_tokens": after(
        gpt2, ("<mask>", "lstrip", "special"), ("</s>", "rstrip"), ("<s>", "lstrip", "rstrip"), ("tok", "single_word"), ("the", "single_word", "normalized"), ("then", "normalized"))})
    put_json("bytes_not_last", {"model": characters("".join(LINES) + "ĠĊ"), "pre_tokenizer": sequence("pretokenizers", BYTES, regex("Ġ", "MergedWithNext")), "decoder": BYTE_LEVEL})
    old = with_fallback(500)
    three = added((0, "<unk>", "special"), (1, "<s>", "special"), (2, "</s>", "special"))
    put_json("llama2", {"model": old, "added_tokens": three, "decoder": FALLBACK_DECODER, "post_processor": template([("<s>", 1)]), "normalizer": sequence(
        "normalizers", {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"})})
    put_json("llama2_tokens", {"model": old, "added_tokens": three + after(old, ("<image>", "normalized"), ("[INST]",)), "decoder": FALLBACK_DECODER, "normalizer": sequence(
        "normalizers", {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"Regex": " "}, "content": "▁"})})
    for scheme, split in (("first", False), ("always", True), ("never", True)):
        meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
        put_json("metaspace_" + scheme, {"model": old, "added_tokens": three, "pre_tokenizer": meta, "decoder": FALLBACK_DECODER if scheme == "first" else meta})
    put_json("unk", {"model": {**old, "byte_fallback": False}, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}})
    put_json("unk_each", {"model": {**old, "byte_fallback": False, "fuse_unk": False}, "normalizer": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "▁"}}, offsets="wide")
    put_json("unk_none", {"model": {**old, "byte_fallback": False, "unk_token": None}, "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}, offsets=False)
    put_json("half_fallback", {"model": {**old, "vocab": {p: i for p, i in old["vocab"].items() if p != "<0xF0>"}}}, offsets=False)
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    put_json("unigram", {"model": unigram(), "pre_tokenizer": meta, "decoder": meta})
    vocab = unigram()["vocab"] + [[f"<0x{b:02X}>", -12.0] for b in range(256)]
    put_json("unigram_bytes", {"model": unigram(vocab=vocab, byte_fallback=True), "normalizer": {"type": "NFKC"}, "pre_tokenizer": meta, "decoder": FALLBACK_DECODER})
    words = {"type": "BPE", "unk_token": "<unk>", "continuing_subword_prefix": "##", "vocab": {p: i for i, p in enumerate(
        ["<unk>", "t", "T", "##h", "##e", "##he", "the", "##n", "a", "then"])}, "merges": [["##h", "##e"], ["t", "##he"], ["the", "##n"]]}
    put_json("prefix", {"model": words, "pre_tokenizer": regex(r"\s+", "Removed")})
    clip = {"type": "BPE", "unk_token": "<unk>", "end_of_word_suffix": "</w>", "vocab": {p: i for i, p in enumerate(
        ["<unk>", "t", "h", "e", "e</w>", "th", "the</w>", "n</w>", "the", "then</w>", "a</w>", "a"])},
        "merges": [["t", "h"], ["th", "e</w>"], ["th", "e"], ["the", "n</w>"]]}
    put_json("suffix", {"model": clip, "normalizer": {"type": "Lowercase"}, "pre_tokenizer": sequence("pretokenizers", regex(GPT2, "Removed", True), BYTES)})
    few = characters("the-final--countdown 123.x")
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            put_json(f"split_{behavior}{'_inverted' if invert else ''}", {"model": few, "pre_tokenizer": sequence(
                "pretokenizers", string("-", behavior, invert), regex(r"[aeiou]?|\s", behavior, invert))})


def make_words():
    """BERT's, GPT-1's and Falcon's kinds."""
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    words, decoder = {"type": "BertPreTokenizer"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}
    put_json("bert", {"model": wordpiece(bert, words), "normalizer": bert, "pre_tokenizer": words, "decoder": decoder, "added_tokens": added((0, "[UNK]", "special"), (1, "[CLS]", "special"), (2, "[SEP]", "special")),
                      "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}}, offsets="wide")
    cased = {**bert, "lowercase": False}
    put_json("bert_cased", {"model": wordpiece(cased, words, max_input_chars_per_word=8), "normalizer": cased, "pre_tokenizer": words, "decoder": {**decoder, "cleanup": False}}, offsets="wide")
    marks = sequence("normalizers", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Strip", "strip_left": True, "strip_right": True})
    for name, pre in (("whitespace", {"type": "Whitespace"}), ("whitespace_split", {"type": "WhitespaceSplit"}), ("delimiter", {"type": "CharDelimiterSplit", "delimiter": "e"})):
        put_json(name, {"model": wordpiece(marks, pre), "normalizer": marks, "pre_tokenizer": pre, "decoder": decoder}, offsets="wide")
    gpt2 = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    for behavior in ("Isolated", "Contiguous"):
        put_json("punctuation_" + behavior, {"model": gpt2, "pre_tokenizer": sequence("pretokenizers", {"type": "Punctuation", "behavior": behavior}, BYTE_LEVEL), "decoder": BYTE_LEVEL})
    put_json("falcon", {"model": gpt2, "pre_tokenizer": sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, BYTE_LEVEL, {"type": "Digits", "individual_digits": False}, regex("[0-9][0-9][0-9]")),
                        "decoder": BYTE_LEVEL})
    gpt = {"type": "BPE", "unk_token": "<unk>", "end_of_word_suffix": "</w>", "vocab": {p: i for i, p in enumerate(
        ["<unk>", "t", "h", "e", "e</w>", "th", "the</w>", "n</w>", "the", "then</w>", "a</w>", "a"])}, "merges": [["t", "h"], ["th", "e</w>"], ["th", "e"], ["the", "n</w>"]]}
    put_json("gpt1", {"model": gpt, "normalizer": bert, "pre_tokenizer": words, "decoder": {"type": "BPEDecoder", "suffix": "</w>"}}, offsets="wide")


def make_families():
    """The parts of today's published tokenizer.json files, over small vocabularies."""
    bpe, words = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), lambda *parts: sequence("pretokenizers", *parts, BYTES)
    special = lambda *names: [(n, "special") for n in names]
    family = lambda name, model, tokens, **parts: put_json(name, {"model": model, "added_tokens": after(model, *tokens), "decoder": BYTE_LEVEL, "post_processor": {**BYTE_LEVEL, "trim_offsets": False}, **parts}, lines=HARD)
    thoughts = [("<think>",), ("</think>",), ("<tool_call>",), ("</tool_call>",)]
    family("qwen3", bpe, special("<|endoftext|>", "<|im_start|>", "<|im_end|>") + thoughts, normalizer={"type": "NFC"}, pre_tokenizer=words(regex(LLAMA3.replace("{1,3}", ""))))
    family("olmo2", bpe, special("<|endoftext|>", "<|im_start|>", "<|im_end|>") + [("|||IP_ADDRESS|||", "normalized"), ("|||EMAIL_ADDRESS|||", "normalized")], pre_tokenizer=words(regex(LLAMA3)))
    family("smollm3", {**bpe, "ignore_merges": True}, special("<|im_start|>", "<|im_end|>") + thoughts, pre_tokenizer=words(regex(LLAMA3)))
    family("granite", bpe, special("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"), pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTE_LEVEL))
    family("phi4", bpe, [(n, "special", "lstrip", "rstrip") for n in ("<|im_start|>", "<|im_sep|>", "<|im_end|>")], pre_tokenizer=words(regex(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")))
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    cases = lambda end: rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{end}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{end}|"
    rest = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    family("phi4_mini", bpe, [(n, "special", "rstrip") for n in ("<|user|>", "<|assistant|>", "<|end|>")], pre_tokenizer=words(regex(cases("(?i:'s|'t|'re|'ve|'m|'ll|'d)?") + r"\p{N}{1,3}" + rest)))
    n = len(bpe["vocab"])
    family("ministral3", {**bpe, "ignore_merges": True}, special("<s>", "</s>", "[INST]", "[/INST]", "[THINK]"), pre_tokenizer=words(regex(cases("") + r"\p{N}" + rest)), post_processor=template([("<s>", n)]))
    pieces = with_fallback(500)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    head = special("<unk>", "<s>", "</s>")
    family("phi3", pieces, head[:2] + [("</s>", "rstrip")] + [(n, "special", "rstrip") for n in ("<|user|>", "<|assistant|>", "<|end|>")], decoder=FALLBACK_DECODER, post_processor=template([("<s>", 1)]),
           normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, space))
    family("gemma", pieces, head + special("<bos>", "<start_of_turn>", "<end_of_turn>") + [("▁▁",), ("▁▁▁",), ("\n\n",), ("\t\t",), ("<h1>",)], normalizer=space, pre_tokenizer=string(" ", "MergedWithPrevious"),
           decoder={"type": "Sequence", "decoders": FALLBACK_DECODER["decoders"][:3]}, post_processor=template([("<bos>", len(pieces["vocab"]))]))


# --- tokenizer.model ----------------------------------------------------------------------------

# A table of replacements: what is replaced, and by what.
RULES = {"ﬁ": "fi", "½": "1\u20442", "①": "1", "\u3000": " ", "\u00a0": " ", "\u2009": " ", "\t": " ", "e\u0301": "é", "i\u0308": "ï", "\u200b": "", "\ufeff": "", "\u0001": "", "\u212b": "\u00c5", "\u212a": "K", "ẞ": "ss",
         "q\u0307\u0323": "q\u0323\u0307", "\u1100\u1161\u11a8": "각", "x\u0301": "  x", "ｆ": "f", "ｕ": "u", "ｌ": "l"}


def rules_file():
    f = tempfile.NamedTemporaryFile("w", suffix=".tsv", delete=False)
    code = lambda s: " ".join(f"{ord(c):X}" for c in s)
    f.write("".join(f"{code(a)}\t{code(b)}\n" for a, b in RULES.items()))
    f.close()
    return f.name


def field(message, number):
    """The bytes of a field of a protocol buffer."""
    def varint(i):
        value = shift = 0
        while True:
            value |= (message[i] & 127) << shift
            shift += 7
            i += 1
            if message[i - 1] < 128:
                return value, i
    i = 0
    while i < len(message):
        key, i = varint(i)
        n, j = varint(i) if key & 7 in (0, 2) else (0, i)
        if key == number << 3 | 2:
            return message[j:j + n]
        i = j + {0: 0, 1: 8, 2: n, 5: 4}[key & 7]


def put_model(name, **options):
    model = io.BytesIO()
    sentences = [line for line in TRAIN if line.strip() and "\n" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, minloglevel=2, num_threads=1,
        **({} if "normalization_rule_tsv" in options else {"normalization_rule_name": "identity"}), **{"model_type": "bpe",
           "vocab_size": 480, "byte_fallback": True, "remove_extra_whitespaces": False, "character_coverage": .98, "hard_vocab_limit": False, **options})
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    cases = []
    for line in LINES:
        ids = sp.encode(line)
        cases.append({"text": line, "ids": ids, "plain": ids, "decoded": sp.decode(ids), "skipped": sp.decode(ids)})
    put(name, "tokenizer.model", model.getvalue(), cases)
    return field(field(model.getvalue(), 3), 2)


def make_models():
    put_model("sp_llama2", allow_whitespace_only_pieces=True)
    put_model("sp_defined", user_defined_symbols=["<image>", "[INST]", "tok", "the ", "▁▁"], split_digits=True)
    put_model("sp_unk", byte_fallback=False, vocab_size=300, remove_extra_whitespaces=True, user_defined_symbols=["  y"])
    put_model("sp_suffix", treat_whitespace_as_suffix=True)
    put_model("sp_plain", add_dummy_prefix=False, split_by_whitespace=False)
    rules = rules_file()
    table = put_model("sp_unigram", model_type="unigram", vocab_size=300, byte_fallback=False, remove_extra_whitespaces=True, normalization_rule_tsv=rules)
    put_model("sp_unigram_bytes", model_type="unigram", vocab_size=600)
    put_model("sp_unigram_defined", model_type="unigram", vocab_size=300, byte_fallback=False, remove_extra_whitespaces=True, user_defined_symbols=["<image>", "  ", "the", "½"], normalization_rule_tsv=rules)
    put_model("sp_unigram_suffix", model_type="unigram", vocab_size=300, byte_fallback=False, treat_whitespace_as_suffix=True)
    put_model("sp_rules", normalization_rule_tsv=rules)
    put_model("sp_char", model_type="char", byte_fallback=False, vocab_size=300, normalization_rule_tsv=rules)
    os.unlink(rules)
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    map_ = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    put_json("t5", {"model": unigram(), "normalizer": map_, "pre_tokenizer": sequence("pretokenizers", {"type": "WhitespaceSplit"}, meta), "decoder": meta}, offsets="wide")
    put_json("xlmr", {"model": unigram(), "normalizer": sequence("normalizers", map_, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}), "pre_tokenizer": meta, "decoder": meta}, offsets="wide")


if __name__ == "__main__":
    make_json()
    make_words()
    make_families()
    make_models()
