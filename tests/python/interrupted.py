"""A run that Ctrl-C ends, as tests/run_python.sh sends it.

    python3 interrupted.py TEXT OUT [resume]
"""

import signal
import sys

import plimsoll

# A shell starts background commands with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

text, out = sys.argv[1:3]
run = {"model": {"preset": "llama-tiny"}, "data": {"format": "bytes", "train": [text], "sequence": 16},
       "train": {"steps": 200, "effective_batch": 2, "out": out, "schedule": "cosine"}, "device": {"threads": 1}}


def show(m):
    print(m["step"], flush=True)


try:
    done = plimsoll.train(run, on_step=show, resume=sys.argv[-1] == "resume")
    print("done", done.steps)
except plimsoll.Interrupted as e:
    print("saved", e.run.steps, e, flush=True)
    sys.exit(130)
