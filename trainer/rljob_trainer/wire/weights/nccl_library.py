"""A broadcast with a time limit over NCCL, bound with ctypes to the library that torch has loaded.

torch's ProcessGroupNCCL ends the whole process when a peer is lost, and blocks for ever when one is lost while a group is being made. The
communicator here is non-blocking (nccl.h of 2.29, `ncclConfig_t`): every call returns at once, and its completion is polled.
"""

import ctypes
import time
from collections.abc import Callable
from functools import cache

from rljob_api.callbacks import never
from rljob_trainer.wire.weights.polling import wait_until

UNIQUE_ID_BYTES = 128
_SUCCESS, _IN_PROGRESS, _UINT8 = 0, 7, 1
_CONFIG_VERSION = 21400
"""The first version of ncclConfig_t with `blocking`. NCCL uses defaults for fields that later versions added."""


class NcclError(RuntimeError):
    """NCCL failed, or exceeded a time limit."""


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
    """A new identifier of a communicator, which all of its ranks must use."""
    made = _UniqueId()
    _check(_library().ncclGetUniqueId(ctypes.byref(made)))
    return bytes(made.internal)


class Communicator:
    """One rank of a communicator, on the current device. Not thread-safe."""

    def __init__(
        self, unique: bytes, rank: int, size: int, deadline: float, given_up: Callable[[], bool] = never
    ) -> None:
        """Join the other ranks, until the `deadline` of time.monotonic(), or until `given_up`. Raises NcclError."""
        self._handle = ctypes.c_void_p()
        config = _Config(ctypes.sizeof(_Config), 0xCAFEBEEF, _CONFIG_VERSION, 0)
        name = _UniqueId.from_buffer_copy(unique)
        self._code = _library().ncclCommInitRankConfig(
            ctypes.byref(self._handle), ctypes.c_int(size), name, ctypes.c_int(rank), ctypes.byref(config)
        )
        self.wait_for_calls(deadline, given_up)

    def broadcast(self, address: int, size: int, root: int, stream: int) -> None:
        """Start to enqueue a broadcast of `size` bytes at a device address on a CUDA stream; `wait_for_calls` waits until it is enqueued."""
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

    def wait_for_calls(self, deadline: float, given_up: Callable[[], bool] = never) -> None:
        """Wait until the last call has completed, or `given_up`. The first broadcast connects the ranks, and so waits for the others. Raises
        NcclError; the communicator is unusable then."""
        wait_until(self._called, lambda: time.monotonic() >= deadline or given_up())
        if self._code != _SUCCESS:
            self.abort()
        _check(self._code)

    def wait(self, done: Callable[[], bool], deadline: float) -> None:
        """Wait until `done`, which queries the stream. Raises NcclError when a peer is gone or the deadline has passed; then call `abort`."""

        def over() -> bool:
            if done():
                return True
            code = self._state()
            if code not in (_SUCCESS, _IN_PROGRESS):
                raise NcclError(f"broadcast: {_text(code)}")
            if time.monotonic() > deadline:  # NCCL reports success as soon as its kernel is started
                raise NcclError(f"broadcast: {_text(_IN_PROGRESS)}")
            return False

        wait_until(over)

    def abort(self) -> None:
        """Destroy the communicator, aborting what is still running."""
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
