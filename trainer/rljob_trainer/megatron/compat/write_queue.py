"""The queue between megatron's checkpoint writer and its reader, where both are threads of this process (writing.py). The default is served by a
process of its own, which takes 6 to 29 s to start. Can go when `FileSystemWriterAsync` takes a queue (NVIDIA/Megatron-LM#3633 moved its writers
into threads, and left the queue).
"""

import queue
from typing import Any

from megatron.core.dist_checkpointing.strategies import filesystem_async

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


def new_queue() -> queue.Queue[Any]:
    """What the next `dist_checkpointing.save` and its writers share."""
    filesystem_async._results_queue = queue.Queue()
    return filesystem_async._results_queue


PATCHES = (
    Patch(
        "writers in threads",
        "megatron-core",
        VERSIONS["megatron-core"],
        replaces={
            "megatron/core/dist_checkpointing/strategies/filesystem_async.py:get_write_results_queue": "24346eaf1a219b2c",
            "megatron/core/dist_checkpointing/strategies/filesystem_async.py:FileSystemWriterAsync.write_preloaded_data": "20df91aac0effec6",
        },
    ),
)
