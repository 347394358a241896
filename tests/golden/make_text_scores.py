#!/usr/bin/env python3
"""Golden file of tests/test_text_scores.c: scores of texts by sacrebleu, rouge-score and SQuAD's evaluation.

    python tests/golden/make_text_scores.py [--out FILE]

needs: pip install sacrebleu rouge-score
"""
import argparse
import collections
import json
import os
import re
import string

import sacrebleu
from rouge_score import rouge_scorer

PAIRS = [
    ("The cat sat on the mat.", "The cat sat on the mat."),
    ("The cat sat on the mat", "A dog lay on the rug, and slept."),
    ("", "something"), ("something", ""), ("", ""),
    ("the the the the", "the cat is on the mat"),
    ("It costs $1,234.50 -- or 3-4 euros (about 5%).", "It costs $1,234.50, or 3-4 euros (about 5 %)."),
    ("Smith&amp;Jones said &quot;no&quot; &lt;b&gt;", "Smith & Jones said \"no\" <b>"),
    ("a,b.c,d e.g. 1.5,6 7,x 8.y .9", "a , b . c , d e.g. 1.5 , 6 7 , x 8 . y .9"),
    ("line one\nline two-\njoined", "line one line twojoined"),
    ("Größe ÄÖÜ ß Ÿ ŒUVRE Ž", "größe äöü ß ÿ œuvre ž"),
    ("Привет, МИР! Ёж", "привет мир ёж"), ("ΑΒΓ ΣΟΦΟΣ", "αβγ σοφοσ"),
    ("日本語 の テスト。", "日本語 の 試験。"), ("tabs\tand\u00a0blanks\u3000here", "tabs and blanks here"),
    ("An answer: a, b and the c", "answer b and c"), ("  padded ", "padded"), ("don't stop-it now's", "dont stopit nows"),
    ("abcdefghij klm", "abcdefghij klm nop qrs"), ("5\u212a is cold", "5k is cold"), ("x_y [z] {w}|v~u^t`s\\r/q@p", "x_y z w v u t s r q p"),
    ("one two three four five six seven eight nine ten", "ten nine eight seven six five four three two one"),
    ("one two three four five six seven eight", "one two three four nine five six seven eight"),
    ("...", "!?"), ("1-2-3 a-b", "1 - 2 - 3 a-b"), ("caf\u00e0.", "caf\u00e0 ."),
]


def normalize(s):
    s = "".join(c for c in s.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())


def f1(answer, reference):  # compute_f1 of the SQuAD 2.0 script
    a, b = normalize(answer).split(), normalize(reference).split()
    same = sum((collections.Counter(a) & collections.Counter(b)).values())
    if not a or not b:
        return float(a == b)
    if not same:
        return 0.0
    precision, recall = same / len(a), same / len(b)
    return 2 * precision * recall / (precision + recall)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "text_scores.json"))
    rouge = rouge_scorer.RougeScorer(["rougeL"])
    rows = []
    for answer, reference in PAIRS:
        rows.append({"answer": answer, "reference": reference, "exact": 100.0 * (answer.strip() == reference.strip()), "f1": 100 * f1(answer, reference),
                     "rouge_l": 100 * rouge.score(reference, answer)["rougeL"].fmeasure,
                     "bleu": sacrebleu.corpus_bleu([answer], [[reference]]).score})
    mean = {key: sum(r[key] for r in rows) / len(rows) for key in ("exact", "f1", "rouge_l")}
    mean["bleu"] = sacrebleu.corpus_bleu([a for a, _ in PAIRS], [[b for _, b in PAIRS]]).score
    with open(parser.parse_args().out, "w") as f:
        json.dump({"pairs": rows, "all": mean}, f, indent=1, ensure_ascii=True)
        f.write("\n")


main()
