"""The life of a driver: one process of a nursery's."""

import os

from rljob_trainer.launcher import program
from rljob_trainer.launcher.order import Order


def run(order: Order) -> int:
    """Does not return. Called in a process of its own that leads a session, so that the launcher can kill all of it."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order.environment)
    program.live(order.module, order.logs[0], f"python -m {order.module}")
