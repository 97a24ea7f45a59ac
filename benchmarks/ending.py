"""How the driver takes the end of a process that computes on a GPU: which Xid events each way of ending it causes.

    python -m benchmarks.ending [--times 3] [--out FILE]

A process multiplies matrices without a pause, and is ended by SIGKILL, by SIGTERM as ranks are (stack traces, then the default action), or on its own
after it has waited for the device. Xid 45 (preemptive cleanup) looks to health tools like broken hardware. Events come from NVML.
"""

import argparse
import ctypes
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

LISTEN_SECONDS = 5.0
"""An event may come after the process is gone."""
XID_EVENTS = 0x8
"""nvmlEventTypeXidCriticalError (nvml.h)."""
CHILD = """
import faulthandler, signal, sys, torch
faulthandler.register(signal.SIGTERM, file=2, chain=True)
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("computing", flush=True)
stop = []
signal.signal(signal.SIGINT, lambda *_: stop.append(1))
while not stop:
    for _ in range(50):
        a @ a
    torch.cuda.current_stream().synchronize()
"""
WAYS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "own end": signal.SIGINT}


class Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Xids:
    """Listens to the Xid events of the first GPU."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, self._set = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(device))
        self._call("nvmlEventSetCreate", ctypes.byref(self._set))
        self._call("nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(XID_EVENTS), self._set)

    def within(self, seconds: float) -> list[int]:
        """Numbers of the events that come in the next `seconds`."""
        deadline, found = time.monotonic() + seconds, []
        while (left := deadline - time.monotonic()) > 0:
            event = Event()
            if self._nvml.nvmlEventSetWait_v2(self._set, ctypes.byref(event), ctypes.c_uint(int(1000 * left))) == 0:
                found.append(event.data)
        return found

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._nvml, name)(*arguments):
            raise RuntimeError(f"{name}: error {code}")


def measure(way: str, xids: Xids) -> dict[str, object]:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(1.0)  # it has a full queue of kernels then
        began = time.monotonic()
        process.send_signal(WAYS[way])
        code = process.wait()
        seconds = time.monotonic() - began
    return {"way": way, "exit": code, "seconds": round(seconds, 3), "xids": xids.within(LISTEN_SECONDS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    xids = Xids()
    for way in [way for way in WAYS for _ in range(given.times)]:
        line = json.dumps(measure(way, xids))
        print(line, flush=True)
        if given.out:
            with given.out.open("a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
