#!/usr/bin/env python3
"""Are ids and texts those of the tokenizers library, and of SentencePiece, for the kinds of T5, BERT, ALBERT, GPT-1 and Falcon?

    python tests/golden/check_tokenizer_kinds.py build/plimsoll WORK [FILE]...     from the repository's root

Trains a vocabulary of each kind on random lines, or takes the FILEs, tokenizer.json or SentencePiece models. The lines are
words of many scripts, every code point that Python's Unicode assigns in seven contexts, and random strings with marks, blanks and
joiners. Needs tokenizers and sentencepiece; takes 20 minutes. Exit status 1 if a line differs.
"""
import io
import json
import os
import random
import subprocess
import sys
import unicodedata

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from make_tokenizers import field

BINARY, WORK, FILES = sys.argv[1], sys.argv[2], sys.argv[3:]
WORDS = ("the cat sat on a mat naïve façade straße Ελληνικά русский 日本語 テキスト 한국어 عربى ไทย हिन्दी ﬁne ½ ① Ⅳ ㎏ ｆｕｌｌ ｶﾀｶﾅ e\u0301 don't "
         "I'm it's 3.14 1,000 foo_bar (x) [y] {z} -- ... !? “quotes” «»").split()
wrong = 0


def make_lines():
    random.seed(7)
    assigned = [c for c in range(1, 0x110000) if not 0xd800 <= c < 0xe000 and c != 10 and unicodedata.category(chr(c)) != "Cn"]
    words = [" ".join(random.choice(WORDS) for _ in range(random.randint(1, 12))) for _ in range(3000)]
    some = assigned[:3000] + random.sample(assigned, 3000) + list(range(0x300, 0x370)) * 10 + [0x20, 9, 13, 0xa0, 0x3000, 0x200b, 0x200d, 0xfeff, 0x1f468, 0x1f3fd] * 60
    mixed = ["".join(chr(random.choice(some)) for _ in range(random.randint(1, 24))) for _ in range(6000)]
    points = [f"a{c}b {c} {c}{c} x {c}1 .{c}, é{c}" for c in map(chr, assigned)]
    hard = ["", "  ", " a  b ", "\t x\ty ", "a" * 120, "##ing", "don't do not can 't", "Hello , world . how 's it ?"]
    return words + hard + points + mixed, words + mixed[:2000]


LINES, CORPUS = make_lines()


def run(path, *options):
    out = subprocess.run([BINARY, "tokenize", "--model", path, "--json", *options], capture_output=True, check=True).stdout
    return [json.loads(line) for line in out.decode().split("\n")[:-1]]


def compare(name, path, encode, decode):
    global wrong
    with open(os.path.join(WORK, "lines"), "w", newline="") as f:
        f.write("\n".join(LINES) + "\n")
    want = encode(LINES)
    with open(os.path.join(WORK, "ids"), "w") as f:
        f.write("".join(json.dumps(ids) + "\n" for ids in want))
    got, texts = [x["ids"] for x in run(path, os.path.join(WORK, "lines"))], run(path, "--decode", os.path.join(WORK, "ids"))
    bad = [i for i in range(len(LINES)) if got[i] != want[i]]
    differ = [i for i, t in enumerate(decode(want)) if t != texts[i]]
    print(f"{name}: {len(LINES)} lines: ids of {len(bad)} and texts of {len(differ)} differ", *(ascii(LINES[i]) for i in (bad + differ)[:3]), flush=True)
    wrong += len(bad) + len(differ)


def json_kind(name, t, path=None):
    t.no_truncation(), t.no_padding()
    if not path:
        path = os.path.join(WORK, name + ".json")
        t.save(path)
    compare(name, path, lambda lines: [e.ids for e in t.encode_batch(lines)], lambda ids: [t.decode(i, skip_special_tokens=False) for i in ids])


def model_kind(name, blob, path=None):
    sp = sentencepiece.SentencePieceProcessor(model_proto=blob)
    if not path:
        path = os.path.join(WORK, name + ".model")
        open(path, "wb").write(blob)
    compare(name, path, lambda lines: [sp.encode(x) for x in lines], lambda ids: [sp.decode(i) for i in ids])


def train_model(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, minloglevel=2, hard_vocab_limit=False, **{"vocab_size": 6000, "character_coverage": .98, **options})
    return model.getvalue()


def trained(model, trainer, normalizer=None, pre=None, decoder=None, post=None):
    t = tokenizers.Tokenizer(model)
    for part, value in (("normalizer", normalizer), ("pre_tokenizer", pre), ("decoder", decoder)):
        if value:
            setattr(t, part, value)
    t.train_from_iterator(CORPUS, trainer)
    if post:
        t.post_processor = post
    return t


def kinds():
    bert, words = normalizers.BertNormalizer, pre_tokenizers.BertPreTokenizer()
    wordpiece = lambda n, p: trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=3000, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False), n, p,
                                     decoders.WordPiece(), processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)))
    json_kind("bert", wordpiece(bert(), words))
    json_kind("bert_cased", wordpiece(bert(lowercase=False), words))
    json_kind("whitespace", wordpiece(bert(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False), pre_tokenizers.Whitespace()))
    json_kind("whitespace_split", wordpiece(normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip()]), pre_tokenizers.WhitespaceSplit()))
    for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"):
        json_kind("punctuation_" + behavior, wordpiece(None, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(behavior)])))
    json_kind("falcon", trained(models.BPE(), trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False), None, pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(), pre_tokenizers.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated")]), decoders.ByteLevel()))
    json_kind("gpt1", trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), trainers.BpeTrainer(vocab_size=3000, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False),
                              bert(), words, decoders.BPEDecoder(suffix="</w>")))
    for rule in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf"):
        table = field(field(train_model(model_type="unigram", normalization_rule_name=rule), 3), 2)
        json_kind("t5_" + rule, trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=9000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False), normalizers.Sequence(
            [normalizers.Precompiled(table), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]), decoders.Metaspace()))
    for kind in ("unigram", "bpe", "char"):
        for rule in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "identity"):
            model_kind(f"{kind}_{rule}", train_model(model_type=kind, normalization_rule_name=rule))
    model_kind("unigram_bytes", train_model(model_type="unigram", byte_fallback=True))
    model_kind("unigram_defined", train_model(model_type="unigram", user_defined_symbols=["cat", "  ", "é", "<sep>", "ﬁ"]))
    model_kind("unigram_suffix", train_model(model_type="unigram", treat_whitespace_as_suffix=True))
    model_kind("unigram_blanks", train_model(model_type="unigram", remove_extra_whitespaces=False, add_dummy_prefix=False))


os.makedirs(WORK, exist_ok=True)
for file in FILES:
    data = open(file, "rb").read()
    if data[:1] == b"{":
        json_kind(file, tokenizers.Tokenizer.from_file(file), file)
    else:
        model_kind(file, data, file)
if not FILES:
    kinds()
sys.exit(wrong > 0)
