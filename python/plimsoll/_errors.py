"""Exceptions: what the library returns as codes, with the same text."""


class Error(Exception):
    """A call failed: a system error, values that are not finite, or a bug."""

    code = 1


class UsageError(Error, ValueError):
    """A wrong option, model, file, name, size, or order of calls."""

    code = 2


class DoesNotFit(Error):
    """No plan fits the budget.

    ``smallest_budget`` is the smallest one that does, in bytes; ``plan`` is its plan.
    """

    code = 3

    def __init__(self, message, smallest_budget=0, plan=None):
        super().__init__(message)
        self.smallest_budget = smallest_budget
        self.plan = plan


class Stopped(Error):
    """A call was cancelled (``pl_cancel``)."""

    code = 4


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a training run, which is saved. ``run`` is what there is of it.

    ``plimsoll.train(..., resume=True)`` continues it.
    """

    def __init__(self, message, run=None):
        super().__init__(message)
        self.run = run


def error_of(code, message):
    """Returns the exception for a code of the library."""
    for kind in (UsageError, DoesNotFit, Stopped):
        if code == kind.code:
            return kind(message)
    return Error(message)
