"""Arrays in and out: NumPy where it is installed, else :class:`Array`; any library by DLPack, the
array interface or the buffer protocol."""

import array
import ctypes
import math
import struct

from . import _library
from ._errors import UsageError

try:
    import numpy
except ImportError:
    numpy = None


class Array:
    """A dense array, where NumPy is not installed: ``shape``, ``dtype``, ``tolist()``, ``memoryview(a)``.

    ``numpy.asarray(a)``, ``torch.frombuffer`` and others read it by the array interface and the
    buffer protocol.
    """

    def __init__(self, shape, dtype):
        self.shape = tuple(int(n) for n in shape)
        self.dtype = dtype
        _, size, code = _library.DTYPES[dtype]
        self.nbytes = math.prod(self.shape) * size
        self._bytes = bytearray(self.nbytes)
        self._code = code or "H"

    @property
    def data(self):
        """The elements, as a memoryview of this shape; bfloat16 as 16-bit integers."""
        flat = memoryview(self._bytes)
        if not self.nbytes or not self.shape:
            return flat.cast(self._code)
        return flat.cast(self._code, self.shape)

    @property
    def __array_interface__(self):
        names = {"f": "<f4", "i": "<i4", "d": "<f8", "B": "|u1", "q": "<i8", "e": "<f2", "H": "<u2"}
        return {"shape": self.shape, "typestr": names[self._code], "data": memoryview(self._bytes),
                "version": 3}

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        view = self.data
        return view[index] if len(self.shape) == 1 or isinstance(index, tuple) else view.tolist()[index]

    def tolist(self):
        """Returns the elements as nested lists; a number for an array without dimensions."""
        view = self.data
        return view.tolist() if self.shape else view[0]

    def __repr__(self):
        return f"plimsoll.Array(shape={self.shape}, dtype={self.dtype})"


def empty(shape, dtype):
    """Returns an array and the address of its elements, which is valid as long as the array is."""
    if numpy is not None and dtype != "bfloat16":
        out = numpy.empty(tuple(int(n) for n in shape), dtype)
        return out, out.ctypes.data
    out = Array(shape, dtype)
    address = ctypes.addressof((ctypes.c_char * max(1, out.nbytes)).from_buffer(out._bytes)) if out.nbytes else 0
    return out, address


class Given:
    """Elements of an array of any library: address, dtype, shape; it keeps the array alive."""

    def __init__(self, address, dtype, shape, keep):
        self.address, self.dtype, self.shape, self.keep = address, dtype, tuple(shape), keep

    @property
    def nbytes(self):
        return math.prod(self.shape) * _library.DTYPES[self.dtype][1]

    def tobytes(self):
        return ctypes.string_at(self.address, self.nbytes)


_TYPESTR = {"f4": "float32", "f8": "float64", "f2": "float16", "i4": "int32", "i8": "int64", "u1": "uint8",
            "b1": "uint8"}
_FORMATS = {"f": "float32", "d": "float64", "e": "float16", "B": "uint8", "?": "uint8", "i": "int32", "q": "int64"}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManaged(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_DL_DTYPES = {(2, 32): "float32", (2, 64): "float64", (2, 16): "float16", (4, 16): "bfloat16", (0, 32): "int32",
              (0, 64): "int64", (1, 8): "uint8", (6, 8): "uint8"}

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _from_dlpack(x):
    device = x.__dlpack_device__()
    if device[0] != 1:
        raise UsageError("the array is not in host memory: copy it there, such as by tensor.cpu()")
    capsule = x.__dlpack__()
    managed = ctypes.cast(_api.PyCapsule_GetPointer(capsule, b"dltensor"), ctypes.POINTER(_DLManaged)).contents
    t = managed.tensor
    dtype = _DL_DTYPES.get((t.code, t.bits))
    if dtype is None or t.lanes != 1:
        raise UsageError(f"an array of DLPack's dtype {t.code} with {t.bits} bits is not taken")
    shape = [t.shape[i] for i in range(t.ndim)]
    expected = 1
    for n, i in zip(reversed(shape), reversed(range(t.ndim))):
        if t.strides and n != 1 and t.strides[i] != expected:
            raise UsageError("the array is not contiguous: copy it first, such as by x.contiguous()")
        expected *= n
    return Given(t.data + t.byte_offset, dtype, shape, (x, capsule))


def _from_interface(x, interface):
    kind = interface["typestr"]
    dtype = _TYPESTR.get(kind[1:])
    if dtype is None or kind[0] == ">":
        raise UsageError(f"an array of dtype {kind} is not taken; expected one of {', '.join(_library.DTYPES)}")
    if interface.get("strides") is not None:
        expected = _library.DTYPES[dtype][1]
        for n, stride in zip(reversed(interface["shape"]), reversed(interface["strides"])):
            if n != 1 and stride != expected:
                raise UsageError("the array is not contiguous: copy it first, such as by numpy.ascontiguousarray")
            expected *= n
    data = interface.get("data")
    if isinstance(data, tuple):
        return Given(data[0], dtype, interface["shape"], x)
    return _from_buffer(x if data is None else data, dtype, interface["shape"])


def _from_buffer(x, dtype=None, shape=None):
    view = memoryview(x)
    if dtype is None:
        dtype = _FORMATS.get(view.format)
        if view.format == "l":
            dtype = "int64" if view.itemsize == 8 else "int32"
        if dtype is None or not view.c_contiguous:
            raise UsageError(f"a buffer of format {view.format!r} is not taken, or is not contiguous")
        shape = view.shape
    if view.readonly:
        data = ctypes.create_string_buffer(view.tobytes(), max(1, view.nbytes))
    elif view.nbytes:
        data = (ctypes.c_char * view.nbytes).from_buffer(x if not isinstance(x, memoryview) else view)
    else:
        data = ctypes.create_string_buffer(1)
    return Given(ctypes.addressof(data), dtype, shape, (x, data))


def _from_list(x):
    shape, level = [], x
    while isinstance(level, (list, tuple)):
        shape.append(len(level))
        level = level[0] if level else None
    flat = []

    def walk(part, depth):
        if depth == len(shape):
            flat.append(part)
            return
        if not isinstance(part, (list, tuple)) or len(part) != shape[depth]:
            raise UsageError("a nested list whose rows have different lengths")
        for item in part:
            walk(item, depth + 1)

    walk(x, 0)
    whole = all(isinstance(v, int) for v in flat)
    data = array.array("q" if whole else "d", flat)
    return Given(data.buffer_info()[0], "int64" if whole else "float64", shape, data)


def given(x):
    """Returns the elements of an array, a tensor, a buffer, nested lists or a number."""
    if isinstance(x, Given):
        return x
    interface = getattr(x, "__array_interface__", None)
    if interface is not None:
        return _from_interface(x, interface)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _from_dlpack(x)
    if isinstance(x, (list, tuple, int, float)):
        return _from_list(x)
    try:
        return _from_buffer(x)
    except TypeError:
        raise UsageError(f"a {type(x).__name__} is no array: expected one with DLPack, the array interface or the "
                         "buffer protocol, or nested lists") from None


class View:
    """A tensor in the library's memory, without a copy: ``torch.from_dlpack(view)``, ``numpy.from_dlpack(view)``.

    It stays valid when the model is closed. Later steps change what it holds.
    """

    def __init__(self, managed):
        self._managed = managed

    def _contents(self):
        if not self._managed:
            raise UsageError("the view was given away: a DLPack tensor is taken once")
        return ctypes.cast(self._managed, ctypes.POINTER(_DLManaged)).contents

    @property
    def shape(self):
        t = self._contents().tensor
        return tuple(t.shape[i] for i in range(t.ndim))

    def __dlpack_device__(self):
        t = self._contents().tensor
        return t.device_type, t.device_id

    def __dlpack__(self, stream=None, **_):
        self._contents()
        capsule = _api.PyCapsule_New(self._managed, b"dltensor", None)
        self._managed = None
        return capsule

    def __del__(self):
        if getattr(self, "_managed", None):
            deleter = self._contents().deleter
            _DELETER(deleter)(self._managed)
            self._managed = None


# --- safetensors ---------------------------------------------------------------------------------

_SAFE = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "int64": "I64",
         "uint8": "U8"}


def write_safetensors(path, tensors, metadata=None):
    """Writes arrays by name; ``metadata``: texts by name."""
    import json

    header, offset, parts = {}, 0, []
    if metadata:
        header["__metadata__"] = {k: str(v) for k, v in metadata.items()}
    for name, x in tensors.items():
        x = given(x)
        header[name] = {"dtype": _SAFE[x.dtype], "shape": list(x.shape), "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
        parts.append(x)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in parts:
            f.write(x.tobytes())


def read_safetensors(path):
    """Reads all tensors of a file as arrays by name."""
    import json

    names = {v: k for k, v in _SAFE.items()}
    out = {}
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        start = f.tell()
        for name, facts in header.items():
            if name == "__metadata__":
                continue
            a, address = empty(facts["shape"], names[facts["dtype"]])
            begin, end = facts["data_offsets"]
            f.seek(start + begin)
            ctypes.memmove(address, f.read(end - begin), end - begin)
            out[name] = a
    return out
