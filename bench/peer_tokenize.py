#!/usr/bin/env python3
"""The speed of encoding beside the tokenizers library and SentencePiece, on one thread.

    make build/bench/bench_tokenize
    python bench/peer_tokenize.py WORK [--only NAME]...      from the repository's root

WORK is the folder of tests/golden/check_tokenizers.py, which makes vocabularies and the text there. The text is encoded as
lines and as documents of 10 KB. Both sides make ids with offsets; the library's faster call without offsets
(encode_batch_fast) is given too. The best of three runs counts, after one that fills the caches; time is that of the
processor, so that other programs disturb less.
"""
import argparse
import os
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.dont_write_bytecode = True
sys.path.insert(0, "tests/golden")
import check_tokenizers


def texts(data, least):
    begin, out = 0, []
    while begin < len(data):
        end = data.find(b"\n", min(begin + least, len(data)))
        end = len(data) if end < 0 else end
        out.append(data[begin:end].decode())
        begin = end + 1
    return out


def best(call):
    call()
    times = []
    for _ in range(3):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work")
    parser.add_argument("--only", action="append", choices=check_tokenizers.NAMES)
    parser.add_argument("--megabytes", type=float, default=8)
    a = parser.parse_args()
    path, _ = check_tokenizers.corpus(a.work, "text", lambda: check_tokenizers.text_lines(a.work))
    whole = open(path, "rb").read()
    step = max(1, int(len(whole) / 1e6 / a.megabytes + .5))
    data = b"".join(whole[i:i + 100000] for i in range(0, len(whole), 100000 * step))
    data = data.decode(errors="ignore").encode()
    part = check_tokenizers.put(os.path.join(a.work, "bench.txt"), data)
    print(f"{len(data) / 1e6:.1f} MB of text; MB/s on one thread")
    for name in a.only or check_tokenizers.NAMES:
        folder = check_tokenizers.vocabulary(a.work, name)
        library = check_tokenizers.Library(folder)
        rows = subprocess.run(["build/bench/bench_tokenize", folder, part, "0", "10000"], stdout=subprocess.PIPE, check=True, text=True).stdout.split("\n")
        for row in rows[:-1]:
            least, first, ours, decode, _ = row.split()
            lines = texts(data, int(least))
            kind = "lines" if least == "0" else "documents"
            if library.is_json:
                slow = best(lambda: library.t.encode_batch(lines, add_special_tokens=False))
                fast = best(lambda: library.t.encode_batch_fast(lines, add_special_tokens=False))
                theirs = f"tokenizers {len(data) / 1e6 / slow:6.2f}, without offsets {len(data) / 1e6 / fast:6.2f}"
            else:
                fast = best(lambda: library.t.encode(lines, num_threads=1))
                theirs = f"SentencePiece {len(data) / 1e6 / fast:6.2f}"
            print(f"  {name:13s} {kind:10s} plimsoll {float(ours):6.2f} (first time {float(first):6.2f}), {theirs}", flush=True)


if __name__ == "__main__":
    main()
