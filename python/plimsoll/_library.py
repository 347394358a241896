"""The C library by ctypes: where it is, its functions and structs (include/plimsoll.h)."""

import ctypes
import os
from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t,
    c_uint8, c_uint32, c_uint64, c_void_p,
)

from ._errors import Error

#: The version of the header that this package was written for.
VERSION = "0.1.0"

OK, FAIL, USAGE, NOFIT, STOPPED = range(5)
KINDS_MOST, TECHNIQUES, MAX_RANK = 32, 32, 6
LEVELS = ("note", "warning", "progress")

# enum pl_dtype, its size, and the names of NumPy and of the buffer protocol
DTYPES = {
    "float32": (1, 4, "f"), "int32": (2, 4, "i"), "float64": (3, 8, "d"), "uint8": (4, 1, "B"),
    "int64": (5, 8, "q"), "float16": (6, 2, "e"), "bfloat16": (7, 2, None),
}
DTYPE_NAMES = {number: name for name, (number, _, _) in DTYPES.items()}


class Sized(Structure):
    """A struct whose first member is its size."""

    def __init__(self, **members):
        super().__init__(size=ctypes.sizeof(type(self)), **members)


class Technique(Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class PlanInfo(Sized):
    _fields_ = [
        ("size", c_size_t), ("fits", c_int), ("arena_bytes", c_uint64), ("host_bytes", c_uint64),
        ("lower_bound_bytes", c_uint64), ("smallest_budget_bytes", c_uint64),
        ("bytes", c_uint64 * KINDS_MOST), ("parameters", c_uint64), ("trainable", c_uint64),
        ("effective_batch", c_int64), ("micro_batch", c_int64), ("accumulation", c_int64),
        ("predicted_seconds", c_double), ("techniques", c_int), ("technique", Technique * TECHNIQUES),
    ]


class Port(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("type", c_int), ("rank", c_int),
        ("dim", c_int64 * MAX_RANK), ("bytes", c_uint64), ("axis", c_int), ("used", c_int),
    ]


class Block(Structure):
    _fields_ = [
        ("name", c_char_p), ("offset", c_uint64), ("bytes", c_uint64), ("begin", c_uint32),
        ("end", c_uint32), ("kind", c_int32), ("persistent", c_int32),
    ]


class StepInfo(Sized):
    _fields_ = [
        ("size", c_size_t), ("step", c_int64), ("steps", c_int64), ("loss", c_double),
        ("learning_rate", c_double), ("gradient_norm", c_double), ("seconds", c_double),
        ("units", c_double), ("loss_scale", c_double), ("skipped", c_int),
    ]


class Parameter(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("rank", c_int), ("dim", c_int64 * MAX_RANK),
        ("elements", c_uint64), ("frozen", c_int), ("type", c_int),
    ]


class Generation(Sized):
    _fields_ = [
        ("size", c_size_t), ("max_new", c_int64), ("context", c_int64), ("chunk", c_int64),
        ("temperature", c_double), ("top_k", c_int64), ("top_p", c_double),
        ("repetition_penalty", c_double), ("seed", c_uint64), ("ends", POINTER(c_int32)),
        ("n_ends", c_size_t), ("stops", POINTER(c_char_p)), ("n_stops", c_size_t),
    ]


class AnswerInfo(Sized):
    _fields_ = [
        ("size", c_size_t), ("ids", POINTER(c_int32)), ("count", c_size_t), ("text", c_void_p),
        ("bytes", c_size_t), ("end", c_int), ("prompt_seconds", c_double), ("seconds", c_double),
        ("arena_bytes", c_uint64), ("kv_cache_bytes", c_uint64),
    ]


class Image(Sized):
    _fields_ = [
        ("size", c_size_t), ("path", c_char_p), ("rgb", c_void_p), ("width", c_int64),
        ("height", c_int64),
    ]


class Prompt(Sized):
    _fields_ = [
        ("size", c_size_t), ("points", POINTER(c_float)), ("labels", POINTER(c_int32)),
        ("n_points", c_size_t), ("box", POINTER(c_float)),
    ]


class MasksInfo(Sized):
    _fields_ = [
        ("size", c_size_t), ("width", c_int64), ("height", c_int64), ("prompts", c_int64),
        ("candidates", c_int64), ("scores", POINTER(c_float)), ("best", POINTER(c_int32)),
        ("arena_bytes", c_uint64),
    ]


class Scores(Sized):
    _fields_ = [
        ("size", c_size_t), ("loss", c_double), ("tokens", c_double), ("samples", c_uint64),
        ("masks", c_uint64), ("iou", c_double), ("dice", c_double), ("seconds", c_double),
        ("arena_bytes", c_uint64),
    ]


class Key(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("type", c_char_p), ("standard", c_char_p),
        ("allowed", c_char_p), ("needs", c_char_p), ("doc", c_char_p),
    ]


class Op(Sized):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("signature", c_char_p), ("attributes", c_char_p),
        ("doc", c_char_p), ("inputs_least", c_int), ("inputs_most", c_int), ("outputs", c_int),
        ("in_models", c_int),
    ]


STEP_CALLBACK = CFUNCTYPE(c_int, POINTER(StepInfo), c_void_p)
LOG_CALLBACK = CFUNCTYPE(None, c_int, c_char_p, c_void_p)
TOKEN_CALLBACK = CFUNCTYPE(c_int, c_int32, c_void_p)

_S = c_void_p  # struct pl_session *
_FUNCTIONS = {
    "pl_version": (c_char_p, []),
    "pl_open": (_S, []),
    "pl_close": (None, [_S]),
    "pl_code": (c_int, [_S]),
    "pl_message": (c_char_p, [_S]),
    "pl_on_log": (c_int, [_S, LOG_CALLBACK, c_void_p]),
    "pl_cancel": (None, [_S, c_int]),
    "pl_set": (c_int, [_S, c_char_p, c_char_p]),
    "pl_read_yaml": (c_int, [_S, c_char_p]),
    "pl_read_text": (c_int, [_S, c_char_p, c_char_p]),
    "pl_set_memory": (c_int, [_S, c_char_p]),
    "pl_kind_name": (c_char_p, [c_int]),
    "pl_plan": (c_int, [_S, POINTER(PlanInfo)]),
    "pl_plan_blocks": (c_int, [_S, POINTER(POINTER(Block)), POINTER(c_size_t), POINTER(c_uint32)]),
    "pl_plan_json": (c_char_p, [_S]),
    "pl_plan_table": (c_char_p, [_S]),
    "pl_frontier_json": (c_char_p, [_S]),
    "pl_devices_json": (c_char_p, [_S, c_char_p]),
    "pl_start": (c_int, [_S]),
    "pl_input_at": (c_int, [_S, c_int64, POINTER(Port)]),
    "pl_output_at": (c_int, [_S, c_int64, POINTER(Port)]),
    "pl_write_input_as": (c_int, [_S, c_char_p, c_int, c_void_p, c_uint64]),
    "pl_write_input_view": (c_int, [_S, c_char_p, c_void_p]),
    "pl_set_count": (c_int, [_S, c_double]),
    "pl_set_count_of": (c_int, [_S, c_char_p, c_double]),
    "pl_submit": (c_int, [_S]),
    "pl_retire": (c_int, [_S, POINTER(StepInfo)]),
    "pl_backward": (c_int, [_S, POINTER(c_double)]),
    "pl_evaluate": (c_int, [_S, POINTER(c_double)]),
    "pl_read_output": (c_int, [_S, c_char_p, c_void_p, c_uint64]),
    "pl_steps": (c_int64, [_S]),
    "pl_parameter_at": (c_int, [_S, c_int64, POINTER(Parameter)]),
    "pl_read_parameter_as": (c_int, [_S, c_char_p, c_int, c_void_p, c_uint64]),
    "pl_write_parameter_as": (c_int, [_S, c_char_p, c_int, c_void_p, c_uint64]),
    "pl_read_gradient": (c_int, [_S, c_char_p, c_void_p, c_uint64]),
    "pl_view_parameter": (c_int, [_S, c_char_p, POINTER(c_void_p)]),
    "pl_save": (c_int, [_S, c_char_p]),
    "pl_save_state": (c_int, [_S, c_char_p]),
    "pl_load_state": (c_int, [_S, c_char_p]),
    "pl_on_step": (c_int, [_S, STEP_CALLBACK, c_void_p]),
    "pl_train": (c_int, [_S]),
    "pl_resume": (c_int, [_S]),
    "pl_model_path": (c_char_p, [_S]),
    "pl_generation_defaults": (c_int, [_S, POINTER(Generation)]),
    "pl_generate": (c_int, [_S, POINTER(c_int32), c_size_t, POINTER(Generation), TOKEN_CALLBACK,
                            c_void_p, POINTER(AnswerInfo)]),
    "pl_generate_images": (c_int, [_S, c_char_p, POINTER(c_char_p), c_size_t, POINTER(Generation),
                                   TOKEN_CALLBACK, c_void_p, POINTER(AnswerInfo)]),
    "pl_chat": (c_int, [_S, c_char_p, POINTER(c_char_p), c_size_t, POINTER(Generation),
                        TOKEN_CALLBACK, c_void_p, POINTER(AnswerInfo)]),
    "pl_predict": (c_int, [_S, POINTER(Image), POINTER(Prompt), c_size_t, c_int, POINTER(MasksInfo)]),
    "pl_mask": (c_int, [_S, c_int64, c_int64, POINTER(c_uint8), c_uint64]),
    "pl_score": (c_int, [_S, POINTER(Scores)]),
    "pl_step_files": (c_int, [_S, c_char_p, c_char_p]),
    "pl_merge": (c_int, [_S, c_char_p, c_char_p, c_char_p]),
    "pl_key_at": (c_int, [c_int64, POINTER(Key)]),
    "pl_op_at": (c_int, [c_int64, POINTER(Op)]),
}


def _places():
    """Lists where the library may be: named, in the package, in the build folder of a checkout."""
    here = os.path.dirname(os.path.abspath(__file__))
    name = "libplimsoll.so.0"
    if os.environ.get("PLIMSOLL_LIBRARY"):
        return [os.environ["PLIMSOLL_LIBRARY"]]
    return [os.path.join(here, "lib", name), os.path.join(here, "..", "..", "build", name), name]


def load():
    """Loads the library and checks that it has this package's version."""
    tried = []
    for path in _places():
        if os.sep in path and not os.path.exists(path):
            tried.append(path + ": no such file")
            continue
        try:
            found = ctypes.CDLL(path)
        except OSError as e:
            tried.append(str(e))
            continue
        found.pl_version.restype = c_char_p
        version = found.pl_version().decode()
        if version != VERSION:
            raise ImportError(
                f"plimsoll {VERSION} (this Python package) found the library of version {version} in {path}: "
                "install both from one wheel, or set PLIMSOLL_LIBRARY")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
        return found
    raise ImportError("the Plimsoll library was not found: " + "; ".join(tried))


library = load()


def text(value):
    """Decodes what the library returns; None stays."""
    return None if value is None else value.decode("utf-8", "replace")


def encoded(value):
    """Encodes a path or a name for the library."""
    value = os.fspath(value)
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise Error("a text has a NUL in it")
    return data
