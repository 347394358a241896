"""A session of the library, its configuration, and calls on it."""

import ctypes
import json
import os
import warnings

from . import _library, _worker
from ._errors import DoesNotFit, Error, Stopped, UsageError, error_of
from ._library import LEVELS, LOG_CALLBACK, encoded, library, text


def value_text(value):
    """Writes a value as ``--set`` takes it: words and numbers as they are, lists and maps as JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        quoted = not value or value[0] in "[{\"'" or value != value.strip()
        return json.dumps(value) if quoted else value
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, os.PathLike):
        return value_text(os.fspath(value))
    return json.dumps(plain(value))


def plain(value):
    """Replaces paths and tuples, so that JSON can hold a configuration."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


class Session:
    """Owns a ``struct pl_session``. All calls on it go through :meth:`call`."""

    def __init__(self, on_log=None):
        self._s = library.pl_open()
        if not self._s:
            raise MemoryError("no session: host memory is exhausted")
        self._keep = []
        self._on_log = on_log
        self._log = LOG_CALLBACK(self._take_line)
        self.call("pl_on_log", self._log, None)

    def _take_line(self, level, line, _):
        try:
            if self._on_log is not None:
                self._on_log(LEVELS[level], text(line))
            elif level == 1:
                warnings.warn(text(line), RuntimeWarning, stacklevel=2)
        except Exception as e:  # a log line is no reason to end a call
            warnings.warn(f"on_log raised {e!r}", RuntimeWarning, stacklevel=2)

    # --- calls -------------------------------------------------------------------------------

    @property
    def handle(self):
        if not self._s:
            raise UsageError("it is closed")
        return self._s

    def message(self):
        return text(library.pl_message(self._s))

    def code_of(self, name, *arguments, listeners=(), cancels=True):
        """Calls a function on the library's thread; returns its code and what was raised meanwhile."""
        s = self.handle
        function = getattr(library, name)
        cancel = (lambda: library.pl_cancel(s, 1)) if cancels else None
        try:
            return _worker.run(lambda: function(s, *arguments), listeners, cancel)
        finally:
            if cancels and self._s:
                library.pl_cancel(s, 0)

    def call(self, name, *arguments, listeners=()):
        """Calls a function; raises the library's error, or what a callback or Ctrl-C raised."""
        code, raised = self.code_of(name, *arguments, listeners=listeners)
        if raised is not None:
            raise raised
        if code:
            self.fail(code)

    def fail(self, code):
        raise error_of(code, self.message())

    def text_of(self, name, *arguments):
        """Calls a function that returns a text."""
        result, raised = self.code_of(name, *arguments)
        if raised is not None:
            raise raised
        if result is None:
            self.fail(library.pl_code(self._s))
        return text(result)

    def close(self):
        """Frees the session's memory. Views of its tensors stay valid."""
        s, self._s = self._s, None
        if s:
            _worker.run(lambda: library.pl_close(s))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        # On the thread that collects: nothing is waited for at the end of the program.
        s, self._s = getattr(self, "_s", None), None
        if s and library is not None:
            library.pl_close(s)

    # --- the configuration --------------------------------------------------------------------

    def configure(self, run=None, memory=None, settings=None):
        """Reads a run's YAML file or a dict, then a budget and single keys."""
        if isinstance(run, dict):
            self.call("pl_read_text", json.dumps(plain(run)).encode(), b"the dict")
        elif run is not None:
            self.call("pl_read_yaml", encoded(run))
        if memory is not None:
            self.call("pl_set_memory", encoded(str(memory)))
        for key, value in (settings or {}).items():
            if isinstance(value, dict) and "." not in key:
                for part, v in value.items():
                    self.call("pl_set", encoded(f"{key}.{part}"), encoded(value_text(v)))
            else:
                self.call("pl_set", encoded(key), encoded(value_text(value)))
        return self

    # --- the plan -----------------------------------------------------------------------------

    def plan(self):
        """Plans; returns the plan, which says whether it fits."""
        from ._plan import Plan

        info = _library.PlanInfo()
        code, raised = self.code_of("pl_plan", ctypes.byref(info))
        if raised is not None:
            raise raised
        if code == _library.NOFIT:
            reason = self.message()
            plan = Plan(self, info)
            raise DoesNotFit(reason, info.smallest_budget_bytes, plan)
        if code:
            self.fail(code)
        return Plan(self, info)


__all__ = ["DoesNotFit", "Error", "Session", "Stopped", "plain", "value_text"]
