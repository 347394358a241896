"""Plimsoll trains models in the memory you have.

    import plimsoll
    plan = plimsoll.plan("run.yaml", memory="8GiB")        # or a dict
    plan.arena_bytes, plan.predicted_seconds, plan.breakdown, plan.techniques
    run = plimsoll.train("run.yaml", memory="8GiB", on_step=print)
    model = plimsoll.Model(run.model)
    model.generate("The sea is", max_new=20)

It is a layer over the C library (plimsoll.h). NumPy is optional: without it arrays are
:class:`plimsoll.Array`. Errors are exceptions with the library's text. Long calls release Python's lock.
"""

from ._arrays import Array, View
from ._errors import DoesNotFit, Error, Interrupted, Stopped, UsageError
from ._library import VERSION as __version__
from ._model import Answer, Masks, Model, merge
from ._plan import Block, Plan, plan
from ._tables import devices, frontier, keys, ops, program
from ._train import Parameter, Port, Run, Trainer, train

__all__ = [
    "Answer", "Array", "Block", "DoesNotFit", "Error", "Interrupted", "Masks", "Model", "Parameter", "Plan", "Port",
    "Run", "Stopped", "Trainer", "UsageError", "View", "__version__", "devices", "frontier", "keys", "merge", "ops",
    "plan", "program", "train",
]
