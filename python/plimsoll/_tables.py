"""Tables: what there is, and what fits where. Lists of dicts: ``pandas.DataFrame(rows)`` works."""

import json
import os
from ctypes import byref

from . import _library
from ._errors import UsageError
from ._library import encoded, library, text
from ._session import Session


def program():
    """Returns the path of the program ``plimsoll`` that belongs to this package."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.path.join(here, "bin", "plimsoll"), os.path.join(here, "..", "..", "build", "plimsoll")):
        if os.access(path, os.X_OK):
            return path
    raise UsageError("this installation has no program plimsoll")


def frontier(run, settings=None):
    """Returns the best plan for each of several budgets: rows with budget_bytes, arena_bytes,
    predicted_step_seconds, samples_per_second and the techniques."""
    with Session().configure(run, None, settings) as s:
        return json.loads(s.text_of("pl_frontier_json"))["frontier"]


def devices(run, gpus, settings=None):
    """Returns the best plan for each GPU, given by GiB of memory or by name: ``devices(run, [8, 24, "h200"])``."""
    with Session().configure(run, None, settings) as s:
        return json.loads(s.text_of("pl_devices_json", encoded(",".join(str(g) for g in gpus))))["devices"]


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
