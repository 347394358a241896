"""Tables: what there is, and what fits where. Lists of dicts: ``pandas.DataFrame(rows)`` works."""

import json
import os
import subprocess
import tempfile
from ctypes import byref

from . import _library
from ._errors import UsageError, error_of
from ._library import library, text
from ._session import plain, value_text


def program():
    """Returns the path of the program ``plimsoll`` that belongs to this package."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.path.join(here, "bin", "plimsoll"), os.path.join(here, "..", "..", "build", "plimsoll")):
        if os.access(path, os.X_OK):
            return path
    raise UsageError("this installation has no program plimsoll")


def _command(run, settings, *arguments):
    """Runs ``plimsoll plan RUN ... --json``; returns its object."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        if isinstance(run, dict):
            path = os.path.join(folder, "run.yaml")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(plain(run), f)
        else:
            path = os.fspath(run)
        sets = [a for key, value in (settings or {}).items() for a in ("--set", f"{key}={value_text(value)}")]
        done = subprocess.run([program(), "plan", path, *sets, *arguments, "--json"], capture_output=True, text=True,
                              check=False)
    if done.returncode not in (0, 3):
        lines = done.stderr.strip().splitlines()
        raise error_of(done.returncode, lines[-1] if lines else "the program failed")
    return json.loads(done.stdout)


def frontier(run, settings=None):
    """Returns the best plan for each of several budgets: rows with budget_bytes, arena_bytes,
    predicted_step_seconds, samples_per_second and the techniques."""
    return _command(run, settings, "--frontier")["frontier"]


def devices(run, gpus, settings=None):
    """Returns the best plan for each GPU, given by GiB of memory or by name: ``devices(run, [8, 24, "h200"])``."""
    found = _command(run, settings, "--devices", ",".join(str(g) for g in gpus))
    return found["devices"]


def keys():
    """Returns the keys of the configuration: rows with name, type, default, allowed, needs, doc."""
    k, rows = _library.Key(), []
    while not library.pl_key_at(len(rows), byref(k)):
        rows.append({"name": text(k.name), "type": text(k.type), "default": text(k.standard),
                     "allowed": text(k.allowed), "needs": text(k.needs), "doc": text(k.doc)})
    return rows


def ops():
    """Returns the ops: rows with name, signature, attributes, in_models, doc."""
    o, rows = _library.Op(), []
    while not library.pl_op_at(len(rows), byref(o)):
        rows.append({"name": text(o.name), "signature": text(o.signature), "attributes": text(o.attributes).split(),
                     "in_models": bool(o.in_models), "doc": text(o.doc)})
    return rows


__all__ = ["devices", "frontier", "keys", "ops", "program"]
