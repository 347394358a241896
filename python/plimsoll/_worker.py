"""The thread that calls the library.

All long calls run on one thread, which the library's own threads belong to. The thread that asks
for a call waits for it, and meanwhile runs its callbacks. So Ctrl-C reaches Python at once, callbacks
may raise, and notebooks show what they print.
"""

import queue
import threading

_calls = queue.SimpleQueue()
_lock = threading.Lock()
_thread = None


class _Exchange:
    """A call, as the two threads see it. ``wake`` only says that something has changed: an
    interrupt may lose what a queue gives, but no attribute."""

    def __init__(self, function):
        self.function = function
        self.wake = queue.SimpleQueue()
        self.pending = None  # (callback, arguments, queue of its result)
        self.done = False
        self.result = None
        self.error = None


def _work():
    while True:
        call = _calls.get()
        try:
            call.result = call.function()
        except BaseException as e:  # passed to the thread that waits
            call.error = e
        call.done = True
        call.wake.put(None)
        del call


def _start():
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_work, name="plimsoll", daemon=True)
            _thread.start()


class Listener:
    """A Python callback of a call: it runs on the thread that waits for the call."""

    def __init__(self, function):
        self.function = function
        self.call = None

    def __call__(self, *arguments):
        """Called on the library's threads; returns what the callback does, None if it raised."""
        back = queue.SimpleQueue()
        call = self.call
        if call is None or call.done:
            return None
        call.pending = (self.function, arguments, back)
        call.wake.put(None)
        return back.get()


def _answer(call, raised):
    function, arguments, back = call.pending
    result = None
    try:
        if raised is None:
            result = function(*arguments)
    finally:
        call.pending = None
        back.put(result)


def run(function, listeners=(), cancel=None):
    """Runs ``function()`` on the library's thread; returns its result and what was raised meanwhile.

    That is Ctrl-C, or an exception of a callback: ``cancel`` is called, and the call ends before
    this returns. A second Ctrl-C is raised at once, and the call goes on by itself.
    """
    if threading.current_thread() is _thread:
        raise RuntimeError("a callback of the library cannot call it")
    _start()
    call = _Exchange(function)
    for listener in listeners:
        listener.call = call
    _calls.put(call)
    raised = None
    while True:
        try:
            if call.pending is not None:
                _answer(call, raised)
            elif call.done:
                break
            else:
                call.wake.get()
        except BaseException as e:
            if raised is not None:
                raise
            raised = e
            if cancel is not None:
                cancel()
    if call.error is not None:
        raise call.error
    return call.result, raised
