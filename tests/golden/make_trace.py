#!/usr/bin/env python3
"""Reduces a trace of `plimsoll profile` to the oracle that tests/test_predict.c compares predictions with.

    plimsoll profile RUN.yaml --steps 5 -o DIR        # on the GPU whose profile is stored
    tests/golden/make_trace.py DIR/trace.json STEPS KEY=VALUE... >tests/golden/h200_trace/NAME.txt

KEY=VALUE are the settings of the run. A row stands for launches that are alike: program, op, type and
shape of the first result, flops, launches in one step, median microseconds of one launch.
"""
import collections
import json
import statistics
import sys


def main():
    trace, steps, settings = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with open(trace) as f:
        events = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
    times = collections.defaultdict(list)
    for e in events:
        a = e["args"]
        result = a["result"].rsplit(" ", 1)[-1] if "result" in a else "-"
        times[a["program"], e["name"], result, round(a["flops"])].append(e["dur"])
    for s in settings:
        print("set", s)
    for key, t in sorted(times.items(), key=lambda x: (-sum(x[1]), x[0])):
        if len(t) % steps:
            sys.exit(f"{key}: {len(t)} launches in {steps} steps")
        print(*key, len(t) // steps, f"{statistics.median(t):.3f}")


main()
