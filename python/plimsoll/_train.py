"""Training: the whole loop, and step by step on batches of your own."""

import json
import os
from ctypes import byref, c_double, c_void_p

from . import _arrays, _library, _worker
from ._errors import Interrupted, UsageError
from ._library import STEP_CALLBACK, encoded, library, text
from ._session import Session


def _metrics(info):
    m = {"step": info.step, "steps": info.steps, "loss": info.loss, "learning_rate": info.learning_rate,
         "gradient_norm": info.gradient_norm, "seconds": info.seconds}
    if info.units:
        m["units_per_second"] = info.units / info.seconds if info.seconds > 0 else 0.0
    if info.loss_scale:
        m["loss_scale"], m["skipped"] = info.loss_scale, bool(info.skipped)
    return m


class Run:
    """A training run: ``steps`` done, ``stopped`` before its end, ``model``: the folder of its model or
    last checkpoint (None: nothing is saved), ``out``: the run's folder."""

    def __init__(self, model):
        self.model = model
        self.out = _run_of(model) if model else None
        self.steps = 0
        self.stopped = False
        self.message = ""

    @property
    def metrics(self):
        """The lines of metrics.jsonl, as dicts: ``pandas.DataFrame(run.metrics)`` works."""
        if self.out is None:
            return []
        with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def __repr__(self):
        return f"<plimsoll.Run {self.steps} steps{', stopped' if self.stopped else ''}, model {self.model!r}>"


def train(run, memory=None, on_step=None, settings=None, resume=False, on_log=None):
    """Trains as ``plimsoll train`` does: metrics, checkpoints and the model go to ``train.out``.

    ``on_step(metrics)`` is called after each step with a dict: step, steps, loss, learning_rate,
    gradient_norm, seconds. A true result ends the run, which is saved; so does an exception, which is
    raised again. Ctrl-C saves and raises :class:`plimsoll.Interrupted`; ``resume=True`` continues, bit
    for bit. Returns a :class:`Run`.
    """
    with Session(on_log).configure(run, memory, settings) as s:
        listeners = []
        callback = STEP_CALLBACK()
        if on_step is not None:
            listener = _worker.Listener(lambda m: bool(on_step(m)))
            listeners.append(listener)
            callback = STEP_CALLBACK(lambda info, _: int(bool(listener(_metrics(info.contents)))))
            s.call("pl_on_step", callback, None)
        code, raised = s.code_of("pl_resume" if resume else "pl_train", listeners=listeners)
        message = s.message().replace("pl_resume", "plimsoll.train(..., resume=True)")
        found = Run(text(library.pl_model_path(s.handle)) or None)
        found.steps = library.pl_steps(s.handle)
        found.stopped = code == _library.STOPPED
        found.message = message
        if isinstance(raised, KeyboardInterrupt):
            raise Interrupted(message or "the run is complete", found) from None
        if raised is not None:
            raise raised
        if code and not found.stopped:
            if code == _library.NOFIT:
                s.plan()
            s.fail(code)
        return found


def _run_of(model):
    """Returns the run's folder: OUT/model, OUT/checkpoints/step-N."""
    folder = os.path.dirname(model)
    return os.path.dirname(folder) if os.path.basename(folder) == "checkpoints" else folder


class Port:
    """An input or output: name, dtype, shape over the whole effective batch."""

    def __init__(self, p):
        self.name = text(p.name)
        self.dtype = _library.DTYPE_NAMES.get(p.type, "packed")
        self.shape = tuple(p.dim[i] for i in range(p.rank))
        self.used = bool(p.used)

    def __repr__(self):
        return f"Port({self.name!r}, {self.dtype}, {self.shape})"


class Parameter:
    """A weight: name, shape, and whether it is trained."""

    def __init__(self, p):
        self.name = text(p.name)
        self.shape = tuple(p.dim[i] for i in range(p.rank))
        self.frozen = bool(p.frozen)

    def __repr__(self):
        return f"Parameter({self.name!r}, {self.shape}{', frozen' if self.frozen else ''})"


class Trainer:
    """A model that trains on batches of your own, step by step, in the planned memory.

        t = plimsoll.Trainer({"model": {"path": "DIR"}, "data": {"sequence": 128}, "train": {"effective_batch": 4}})
        for batch in batches:
            m = t.step(input_ids=batch.ids, labels=batch.labels)
        t.save("model")

    Arrays are NumPy's, tensors of any library with DLPack, buffers, or nested lists. They hold all
    samples of the effective batch.
    """

    def __init__(self, run, memory=None, settings=None, on_log=None):
        self._s = Session(on_log).configure(run, memory, settings)
        self.plan = self._s.plan()
        self._s.call("pl_start")
        self.inputs = {p.name: p for p in self._ports("pl_input_at")}
        self.outputs = {p.name: p for p in self._ports("pl_output_at")}
        self.parameters = {p.name: p for p in self._parameters()}

    def _ports(self, name):
        p, found = _library.Port(), []
        function = getattr(library, name)
        while not function(self._s.handle, len(found), byref(p)):
            found.append(Port(p))
        return found

    def _parameters(self):
        p, found = _library.Parameter(), []
        while not library.pl_parameter_at(self._s.handle, len(found), byref(p)):
            found.append(Parameter(p))
        return found

    # --- inputs and steps ----------------------------------------------------------------------

    def write(self, **inputs):
        """Writes inputs, which keep their values until they are written again."""
        for name, x in inputs.items():
            x = _arrays.given(x)
            self._s.call("pl_write_input_as", encoded(name), _library.DTYPES[x.dtype][0], x.address, x.nbytes)

    def submit(self, **inputs):
        """Writes inputs and submits a step; a GPU runs it while the next one is prepared. Two may be submitted."""
        self.write(**inputs)
        self._s.call("pl_submit")

    def retire(self):
        """Waits for the oldest submitted step; returns its metrics."""
        info = _library.StepInfo()
        self._s.call("pl_retire", byref(info))
        return _metrics(info)

    def step(self, **inputs):
        """Runs one step, forward, backward and update; returns its metrics. The loss is the one before the update."""
        self.submit(**inputs)
        return self.retire()

    def count(self, n, name=None):
        """Sets what the loss is divided by from the next step on: samples, tokens or labels that count."""
        if name is None:
            self._s.call("pl_set_count", float(n))
        else:
            self._s.call("pl_set_count_of", encoded(name), float(n))

    def set(self, key, value):
        """Changes train.learning_rate or train.clip_norm."""
        self._s.configure(settings={key: value})

    def evaluate(self, **inputs):
        """Returns the loss of the inputs with the weights as they are."""
        self.write(**inputs)
        loss = c_double()
        self._s.call("pl_evaluate", byref(loss))
        return loss.value

    def output(self, name):
        """Computes an output of the model over the inputs."""
        if name not in self.outputs:
            raise UsageError(f"the model has no output {name}; it has: {', '.join(self.outputs)}")
        p = self.outputs[name]
        out, address = _arrays.empty(p.shape, p.dtype)
        self._s.call("pl_read_output", encoded(name), address, out.nbytes)
        return out

    # --- gradients and weights ------------------------------------------------------------------

    def gradients(self, **inputs):
        """Returns (loss, gradients by name) of the inputs, and updates nothing.

        Needs ``memory.fused_step: off``.
        """
        self.write(**inputs)
        loss = c_double()
        self._s.call("pl_backward", byref(loss))
        return loss.value, {n: self.gradient(n) for n, p in self.parameters.items() if not p.frozen}

    def gradient(self, name):
        """Returns the gradient of a parameter in the last step, before clipping."""
        out, address = self._room(name)
        self._s.call("pl_read_gradient", encoded(name), address, out.nbytes)
        return out

    def parameter(self, name):
        """Returns a weight as float32."""
        out, address = self._room(name)
        self._s.call("pl_read_parameter_as", encoded(name), 1, address, out.nbytes)
        return out

    def set_parameter(self, name, x):
        """Writes a weight."""
        x = _arrays.given(x)
        self._s.call("pl_write_parameter_as", encoded(name), _library.DTYPES[x.dtype][0], x.address, x.nbytes)

    def view(self, name):
        """Returns the master weights of a parameter without a copy, for ``from_dlpack`` of any library."""
        managed = c_void_p()
        self._s.call("pl_view_parameter", encoded(name), byref(managed))
        return _arrays.View(managed.value)

    def _room(self, name):
        if name not in self.parameters:
            raise UsageError(f"the model has no parameter {name}; see .parameters")
        return _arrays.empty(self.parameters[name].shape, "float32")

    # --- saving ---------------------------------------------------------------------------------

    @property
    def steps(self):
        """The steps so far."""
        return library.pl_steps(self._s.handle)

    def save(self, folder):
        """Writes a model folder, new or empty, whole or not at all."""
        self._s.call("pl_save", encoded(folder))

    def save_state(self, folder):
        """Writes the model with its training state; :meth:`load_state` continues from it, bit for bit."""
        self._s.call("pl_save_state", encoded(folder))

    def load_state(self, folder):
        """Reads what :meth:`save_state` wrote, into a trainer of the same model."""
        self._s.call("pl_load_state", encoded(folder))

    def close(self):
        """Frees the memory. Views stay valid."""
        self._s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


__all__ = ["Parameter", "Port", "Run", "Trainer", "train"]
