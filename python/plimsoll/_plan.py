"""Plans: what a training step needs, and figures of it."""

import ctypes
import html
import json
import struct
import zlib
from ctypes import POINTER, c_size_t, c_uint32

from . import _library
from ._library import library, text

#: Colours of the kinds of memory, as in the program's own pages.
_COLOURS = {
    "parameters": "#2a78bd", "masters": "#8b5fbf", "gradients": "#e09f3e", "optimizer": "#4c9f70",
    "inputs": "#b0579b", "constants": "#6d7b8a", "step": "#b56b45", "outputs": "#3fa7a7",
    "staging": "#a3a23c", "activations": "#6bb5e3", "workspace": "#d2584f", "communication": "#7a8f2e",
}
_OTHER = "#bab0ac"
_WIDTH, _HEIGHT = 800, 260


def size_text(n):
    """Writes bytes for people: 1.50 GiB."""
    n = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.2f} {unit}"
        n /= 1024
    return ""


def time_text(seconds):
    """Writes a time for people: 12.3 ms."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 60:.1f} min"


class Block:
    """A tensor of the memory map: where it is, and during which ops of the step it lives."""

    __slots__ = ("name", "offset", "bytes", "begin", "end", "kind", "persistent")

    def __init__(self, b):
        self.name, self.offset, self.bytes = text(b.name), b.offset, b.bytes
        self.begin, self.end = b.begin, b.end
        self.kind = text(library.pl_kind_name(b.kind))
        self.persistent = bool(b.persistent)

    def __repr__(self):
        return f"Block({self.name!r}, {self.bytes} bytes at {self.offset}, ops {self.begin} to {self.end})"


class Plan:
    """The plan of a training step.

    ``arena_bytes``: the memory that a run allocates; ``host_bytes``: host memory for offload;
    ``lower_bound_bytes``: what is live at the peak; ``smallest_budget``: the smallest budget with a plan;
    ``breakdown``: bytes at the peak by kind; ``techniques``: each memory technique with its value;
    ``predicted_seconds``: the estimated time of a step; ``json``: all of it, as ``plimsoll plan --json``.
    """

    def __init__(self, session, info):
        self._session = session
        self.fits = bool(info.fits)
        self.arena_bytes = info.arena_bytes
        self.host_bytes = info.host_bytes
        self.lower_bound_bytes = info.lower_bound_bytes
        self.smallest_budget = info.smallest_budget_bytes
        self.parameters = info.parameters
        self.trainable = info.trainable
        self.effective_batch = info.effective_batch
        self.micro_batch = info.micro_batch
        self.accumulation = info.accumulation
        self.predicted_seconds = info.predicted_seconds
        kinds = [text(library.pl_kind_name(k)) for k in range(_library.KINDS_MOST)]
        self.breakdown = {k: info.bytes[i] for i, k in enumerate(kinds) if k != "none" and info.bytes[i]}
        self.techniques = {text(t.name): text(t.value) for t in info.technique[:info.techniques]}
        self._json = session.text_of("pl_plan_json")
        self._table = session.text_of("pl_plan_table")
        self._blocks, self._ops = self._read_blocks()

    def _read_blocks(self):
        blocks, n, ops = POINTER(_library.Block)(), c_size_t(), c_uint32()
        self._session.call("pl_plan_blocks", ctypes.byref(blocks), ctypes.byref(n), ctypes.byref(ops))
        return [Block(blocks[i]) for i in range(n.value)], ops.value

    @property
    def json(self):
        """The plan as a dict, with the members that ``plimsoll plan --json`` prints."""
        return json.loads(self._json)

    @property
    def blocks(self):
        """The memory map: a list of :class:`Block`."""
        return list(self._blocks)

    def save(self, path):
        """Writes a plan file, for ``plimsoll train --plan``."""
        with open(path, "w", encoding="utf-8") as f:
            f.write(self._json)

    def __str__(self):
        return self._table

    def __repr__(self):
        return (f"<plimsoll.Plan {size_text(self.arena_bytes)}"
                f"{'' if self.fits else ' (does not fit)'}, {time_text(self.predicted_seconds)} a step>")

    # --- figures ------------------------------------------------------------------------------

    def _repr_png_(self):
        """The memory map: x are the ops of a step in their order, y addresses, colours kinds."""
        w, h = _WIDTH, _HEIGHT
        rows = [bytearray(b"\xf4\xf4\xf6" * w) for _ in range(h)]
        height = max(1, self.arena_bytes)
        for b in sorted(self._blocks, key=lambda b: not b.persistent):
            colour = _COLOURS.get(b.kind, _OTHER)
            rgb = bytes(int(colour[i:i + 2], 16) for i in (1, 3, 5))
            x0 = b.begin * w // max(1, self._ops)
            x1 = max(x0 + 1, b.end * w // max(1, self._ops))
            y0 = h - min(h, -(-(b.offset + b.bytes) * h // height))
            y1 = max(y0 + 1, h - b.offset * h // height)
            x1, y1 = min(x1, w), min(y1, h)
            for y in range(y0, y1):
                rows[y][3 * x0:3 * x1] = rgb * (x1 - x0)
        raw = b"".join(b"\0" + bytes(row) for row in rows)

        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) +
                chunk(b"IDAT", zlib.compress(raw, 6)) + chunk(b"IEND", b""))

    def _repr_html_(self):
        """The figures, the memory map, and the techniques."""
        import base64

        def cell(label, value):
            return (f"<td style='text-align:left;padding:2px 18px 2px 0'><small style='opacity:.7'>{label}</small>"
                    f"<br><b>{html.escape(str(value))}</b></td>")

        facts = [("arena", size_text(self.arena_bytes)), ("host memory", size_text(self.host_bytes)),
                 ("a step", time_text(self.predicted_seconds)),
                 ("batch", f"{self.micro_batch} &times; {self.accumulation}"),
                 ("smallest budget", size_text(self.smallest_budget))]
        head = "".join(cell(k, v).replace("&amp;times;", "&times;") for k, v in facts)
        total = max(1, self.arena_bytes)
        legend = "".join(
            f"<span style='margin-right:14px;white-space:nowrap'><span style='display:inline-block;width:.8em;"
            f"height:.8em;background:{_COLOURS.get(k, _OTHER)}'></span> {html.escape(k)} {size_text(n)} "
            f"({100 * n / total:.0f} %)</span> " for k, n in sorted(self.breakdown.items(), key=lambda x: -x[1]))
        chosen = ", ".join(f"{html.escape(k)} <b>{html.escape(v)}</b>" for k, v in self.techniques.items())
        png = base64.b64encode(self._repr_png_()).decode()
        fits = "" if self.fits else "<p><b>It does not fit the budget.</b></p>"
        return (f"<div class='plimsoll-plan'>{fits}<table style='border:0'><tr>{head}</tr></table>"
                f"<img alt='memory map of a step' style='width:100%;max-width:{_WIDTH}px;height:{_HEIGHT}px;"
                f"image-rendering:pixelated' src='data:image/png;base64,{png}'>"
                f"<p>{legend}</p><p><small>{chosen}</small></p></div>")


def plan(run, memory=None, settings=None, on_log=None):
    """Finds the plan of a run with the shortest predicted step that fits the budget. Nothing runs yet.

    ``run``: a run's YAML file, or a dict with its sections; ``memory``: the budget, such as ``"8GiB"``;
    ``settings``: single keys, such as ``{"train.effective_batch": 8}``.
    Raises :class:`plimsoll.DoesNotFit` with ``smallest_budget`` if nothing fits.
    """
    from ._session import Session

    return Session(on_log).configure(run, memory, settings).plan()
