"""Models: answers, masks, and single steps on given tensors."""

import ctypes
import json
import os
import tempfile
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_uint8

from . import _arrays, _library, _worker
from ._errors import UsageError
from ._library import TOKEN_CALLBACK, encoded
from ._session import Session

_ENDS = ("eos", "stop", "length", "callback")


class Answer(str):
    """The text of an answer, with ``ids``, ``finish`` (eos, stop, length, callback), ``seconds`` and
    ``prompt_seconds``."""

    ids: list
    finish: str
    seconds: float
    prompt_seconds: float
    arena_bytes: int


class Masks:
    """Masks of the prompts of one image: ``masks[i]`` is [height, width] of 0 and 1, the best candidate;
    ``scores[i]`` its predicted IoU; ``candidates`` all of them, as (score, mask) lists."""

    def __init__(self, width, height):
        self.width, self.height = width, height
        self.masks, self.scores, self.candidates = [], [], []

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, i):
        return self.masks[i]

    def __repr__(self):
        return f"<plimsoll.Masks {len(self)} of {self.width} x {self.height}, scores {self.scores}>"


class Model:
    """A model folder, for inference and for single steps.

        model = plimsoll.Model("DIR", adapter="ADAPTER", memory="8GiB")
        model.generate("The sea is")
        model.chat([{"role": "user", "content": "What is a Plimsoll line?"}])
        model.predict("photo.jpg", box=(100, 80, 320, 240))
        model.step({"input_ids": ids, "labels": ids})["loss"]

    ``settings``: keys of the configuration, such as ``{"device": "cuda", "memory.precision": "bf16"}``.
    """

    def __init__(self, path=None, adapter=None, memory=None, preset=None, settings=None, on_log=None):
        keys = dict(settings or {})
        if (path is None) == (preset is None):
            raise UsageError("expected a folder or a preset, one of the two")
        if path is not None:
            keys["model.path"] = path
        else:
            keys["model.preset"] = preset
        if adapter is not None:
            keys["adapter.path"] = adapter
        self._s = Session(on_log).configure(None, memory, keys)

    # --- text -----------------------------------------------------------------------------------

    def _options(self, o, keep, stop, options):
        for name, value in options.items():
            if value is None:
                continue
            if not hasattr(o, name) or name in ("size", "ends", "n_ends", "stops", "n_stops"):
                known = "max_new, context, chunk, temperature, top_k, top_p, repetition_penalty, seed, stop, ends"
                raise UsageError(f"there is no option {name}; there are {known}")
            setattr(o, name, value)
        if stop:
            texts = [stop] if isinstance(stop, str) else list(stop)
            o.stops = keep.setdefault("stops", (c_char_p * len(texts))(*[encoded(t) for t in texts]))
            o.n_stops = len(texts)

    def _generate(self, function, arguments, on_token, stop, ends, options):
        o, a, keep, listeners = _library.Generation(), _library.AnswerInfo(), {}, []
        self._s.call("pl_generation_defaults", byref(o))
        self._options(o, keep, stop, options)
        if ends:
            o.ends = keep.setdefault("ends", (c_int32 * len(ends))(*ends))
            o.n_ends = len(ends)
        callback = TOKEN_CALLBACK()
        if on_token is not None:
            listener = _worker.Listener(lambda id: bool(on_token(id)))
            listeners.append(listener)
            callback = TOKEN_CALLBACK(lambda id, _: int(bool(listener(id))))
        self._s.call(function, *arguments, byref(o), callback, None, byref(a), listeners=listeners)
        out = Answer(ctypes.string_at(a.text, a.bytes).decode("utf-8", "replace") if a.bytes else "")
        out.ids = [a.ids[i] for i in range(a.count)]
        out.finish = _ENDS[a.end] if 0 <= a.end < len(_ENDS) else str(a.end)
        out.seconds, out.prompt_seconds, out.arena_bytes = a.seconds, a.prompt_seconds, a.arena_bytes
        return out

    def generate(self, prompt, images=(), on_token=None, stop=None, ends=None, **options):
        """Continues a text, or a list of token ids; ``images``: files that the model sees.

        ``on_token(id)`` is called with each token; a true result ends the answer. Options are those of
        ``plimsoll generate``: max_new, temperature, top_k, top_p, repetition_penalty, seed, context, chunk;
        without them those of the model's generation_config.json.
        """
        if isinstance(prompt, str):
            files = [encoded(i) for i in images]
            return self._generate("pl_generate_images", (encoded(prompt), (c_char_p * max(1, len(files)))(*files),
                                                         len(files)), on_token, stop, ends, options)
        if images:
            raise UsageError("images belong to a text, not to ids")
        ids = [int(i) for i in prompt]
        return self._generate("pl_generate", ((c_int32 * max(1, len(ids)))(*ids), len(ids)), on_token, stop, ends,
                              options)

    def chat(self, messages, images=(), on_token=None, stop=None, ends=None, **options):
        """Answers a chat: a list of {"role", "content"}, or a dict with "messages" and perhaps "tools". The
        model's chat template renders it."""
        files = [encoded(i) for i in images]
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self._generate("pl_chat", (json.dumps(messages).encode(), (c_char_p * max(1, len(files)))(*files),
                                          len(files)), on_token, stop, ends, options)

    # --- masks ----------------------------------------------------------------------------------

    def predict(self, image, points=None, labels=None, box=None, boxes=None, single=False):
        """Predicts masks of an image, a file or an array [height, width, 3] of bytes.

        ``points``: [(x, y), ...] of one object, with ``labels`` 1 (on it, the default) or 0 (beside it);
        ``box``: (x0, y0, x1, y1) of it; or ``boxes``: one for each of several objects. Coordinates are
        pixels of the image. Returns :class:`Masks`.
        """
        pixels, keep = _library.Image(), []
        if isinstance(image, (str, bytes, os.PathLike)):
            pixels.path = encoded(image)
        else:
            x = _arrays.given(image)
            keep.append(x)
            if x.dtype != "uint8" or len(x.shape) != 3 or x.shape[2] != 3:
                raise UsageError(f"an image of dtype {x.dtype} and shape {x.shape}, expected uint8 [height, width, 3]")
            pixels.rgb, pixels.height, pixels.width = x.address, x.shape[0], x.shape[1]
        if boxes is not None and (box is not None or points is not None):
            raise UsageError("boxes are objects by themselves: leave box and points out")
        all_boxes = [box] if boxes is None else list(boxes)
        if not all_boxes:
            raise UsageError("boxes is empty")
        prompts = (_library.Prompt * len(all_boxes))()
        for p, b in zip(prompts, all_boxes):
            p.size = ctypes.sizeof(_library.Prompt)
            if b is not None:
                keep.append((c_float * 4)(*b))
                p.box = keep[-1]
            if points is not None:
                flat = [float(c) for xy in points for c in xy]
                keep.append((c_float * len(flat))(*flat))
                p.points, p.n_points = keep[-1], len(flat) // 2
                keep.append((c_int32 * p.n_points)(*(labels if labels is not None else [1] * p.n_points)))
                p.labels = keep[-1]
        info = _library.MasksInfo()
        self._s.call("pl_predict", byref(pixels), prompts, len(all_boxes), int(bool(single)), byref(info))
        out = Masks(info.width, info.height)
        for i in range(info.prompts):
            scores = [info.scores[i * info.candidates + k] for k in range(info.candidates)]
            masks = [self._mask(i, k, info) for k in range(info.candidates)]
            out.candidates.append(list(zip(scores, masks)))
            out.scores.append(scores[info.best[i]])
            out.masks.append(masks[info.best[i]])
        return out

    def _mask(self, prompt, candidate, info):
        mask, address = _arrays.empty((info.height, info.width), "uint8")
        self._s.call("pl_mask", prompt, candidate, ctypes.cast(address, POINTER(c_uint8)), info.height * info.width)
        return mask

    # --- a step, scores -------------------------------------------------------------------------

    def step(self, batch, metadata=None):
        """Runs one forward and backward on given tensors, named as the Hugging Face forward's arguments; returns
        outputs, ``loss`` and ``grad.NAME`` of every parameter as arrays. Nothing is updated.

        ``metadata``: options such as {"multimask_output": "false"}. In float32 unless a precision is set.
        """
        with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
            given, out = os.path.join(folder, "batch.safetensors"), os.path.join(folder, "out.safetensors")
            _arrays.write_safetensors(given, batch, metadata)
            self._s.call("pl_step_files", encoded(given), encoded(out))
            return _arrays.read_safetensors(out)

    def gradients(self, batch, metadata=None):
        """Returns (loss, gradients by parameter) of :meth:`step`."""
        out = self.step(batch, metadata)
        loss = out["loss"]
        return (float(loss.tolist() if hasattr(loss, "tolist") else loss),
                {n[len("grad."):]: x for n, x in out.items() if n.startswith("grad.")})

    def score(self, run=None, settings=None):
        """Scores the model on held-out data: the loss; for masks also IoU and Dice. ``run``: a run file, dict or
        settings with data.validation. Returns a dict."""
        import math

        self._s.configure(run, None, settings)
        x = _library.Scores()
        self._s.call("pl_score", byref(x))
        out = {"loss": x.loss, "samples": x.samples, "seconds": x.seconds, "arena_bytes": x.arena_bytes}
        if x.tokens:
            out["tokens"] = x.tokens
            out["perplexity"] = math.exp(x.loss) if x.loss < 700 else math.inf
        if x.masks:
            out.update(masks=x.masks, iou=x.iou, dice=x.dice)
        return out

    def close(self):
        """Frees the memory."""
        self._s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def merge(base, adapter, out):
    """Merges a LoRA adapter into its base: two folders become a new one. Returns its path."""
    with Session() as s:
        s.call("pl_merge", encoded(base), encoded(adapter), encoded(out))
    return os.fspath(out)


__all__ = ["Answer", "Masks", "Model", "merge"]
