"""The few functions of NCCL that a broadcast with a time limit needs, bound with ctypes to the library that torch has loaded.

torch's ProcessGroupNCCL ends the whole process when a peer is lost, and blocks for ever in a call when one is lost while a group is made.
Here a communicator is non-blocking (nccl.h of 2.28, `ncclConfig_t`): every call returns at once and is asked for its end.
"""

import ctypes
import time
from collections.abc import Callable
from functools import cache

from rljob_trainer.weights.polling import wait_until

UNIQUE_ID_BYTES = 128
_SUCCESS, _IN_PROGRESS, _UINT8 = 0, 7, 1
_CONFIG_VERSION = 21400
"""The first that knows `blocking`; NCCL takes its defaults for what later ones added."""


class NcclError(RuntimeError):
    """NCCL failed, or took too long."""


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * UNIQUE_ID_BYTES)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    ]


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libnccl.so.2")
    library.ncclGetErrorString.restype = ctypes.c_char_p
    return library


def unique_id() -> bytes:
    """Names a communicator; all its ranks need the same."""
    made = _UniqueId()
    _check(_library().ncclGetUniqueId(ctypes.byref(made)))
    return bytes(made.internal)


class Communicator:
    """One rank of a group, on the current device. Not thread-safe."""

    def __init__(self, unique: bytes, rank: int, size: int, deadline: float) -> None:
        """Joins the others. `deadline`: of time.monotonic(). Raises NcclError."""
        self._handle = ctypes.c_void_p()
        config = _Config(ctypes.sizeof(_Config), 0xCAFEBEEF, _CONFIG_VERSION, 0)
        name = _UniqueId.from_buffer_copy(unique)
        self._code = _library().ncclCommInitRankConfig(
            ctypes.byref(self._handle), ctypes.c_int(size), name, ctypes.c_int(rank), ctypes.byref(config)
        )
        self.wait_for_calls(deadline)

    def broadcast(self, address: int, size: int, root: int, stream: int) -> None:
        """Begin to put a broadcast of `size` bytes at a device address onto a CUDA stream; `wait_for_calls` says when it is there."""
        pointer = ctypes.c_void_p(address)
        self._code = _library().ncclBroadcast(
            pointer,
            pointer,
            ctypes.c_size_t(size),
            ctypes.c_int(_UINT8),
            ctypes.c_int(root),
            self._handle,
            ctypes.c_void_p(stream),
        )

    def wait_for_calls(self, deadline: float, given_up: Callable[[], bool] = lambda: False) -> None:
        """Until what was begun is done: the first broadcast connects, which takes the others. Raises NcclError, and is over then."""
        wait_until(self._called, lambda: time.monotonic() >= deadline or given_up())
        if self._code != _SUCCESS:
            self.abort()
        _check(self._code)

    def wait(self, done: Callable[[], bool], deadline: float) -> None:
        """Until `done`, which asks the stream. Raises NcclError when a peer is gone or the deadline has passed; then only `abort` is left."""

        def over() -> bool:
            if done():
                return True
            if (code := self._state()) not in (_SUCCESS, _IN_PROGRESS):
                raise NcclError(f"broadcast: {_text(code)}")
            if time.monotonic() > deadline:  # the state is success then: NCCL has started its kernel
                raise NcclError(f"broadcast: {_text(_IN_PROGRESS)}")
            return False

        wait_until(over)

    def abort(self) -> None:
        """End it with what is still running in it."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            _library().ncclCommAbort(handle)

    def _called(self) -> bool:
        if self._code == _IN_PROGRESS:
            self._code = self._state()
        return self._code != _IN_PROGRESS

    def _state(self) -> int:
        state = ctypes.c_int()
        _check(_library().ncclCommGetAsyncError(self._handle, ctypes.byref(state)))
        return state.value


def _check(code: int) -> None:
    if code != _SUCCESS:
        raise NcclError(_text(code))


def _text(code: int) -> str:
    return "a peer did not come in time" if code == _IN_PROGRESS else str(_library().ncclGetErrorString(code).decode())
