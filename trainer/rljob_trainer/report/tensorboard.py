"""TensorBoard event files, written without torch or TensorFlow."""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

FLUSH_SECONDS = 10


class TensorBoard:
    """One event file per attempt."""

    def __init__(self, directory: Path, first_step: int):
        """Points of an earlier attempt at `first_step` and later are hidden by the session mark (TensorBoard's own rule for restarts)."""
        self._writer = EventFileWriter(str(directory), flush_secs=FLUSH_SECONDS)
        self._writer.add_event(
            Event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START))
        )

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()
