"""Processor time of the operator for jobs that wait for nodes, while pods come and go on a full cluster. In one process, without a server.

    python -m benchmarks.waiting_jobs [--nodes 2000] [--small 24] [--jobs 1000] [--shapes 40] [--seconds 120] [--rate 50]

Seconds are simulated: in each, `rate` pods end, one in fifty of which had all GPUs of its node, and as many come back five seconds later. So there
are always some nodes that a waiting job could use, and never enough. Every event goes through the operator's own handlers, every key that becomes
due through its own passes, on an API server in memory, whose time counts as well. Goal: 10 % of a core. Parsing of JSON is left out: it does not
depend on the jobs that wait.
"""

import argparse
import asyncio
import json

from simulator.waiting import Waiting

LEAST = 16
"""Nodes that a job wants, at least: more than are free at any time."""
WHOLE = 0.02
"""Share of the pods that end which have all GPUs of their nodes."""


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.waiting_jobs")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--small", type=int, default=24, help="pods of each node without GPUs")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--shapes", type=int, default=40, help="different jobs")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--rate", type=int, default=50, help="pods that end in a second")
    print(json.dumps(asyncio.run(measured(parser.parse_args()))))


async def measured(options: argparse.Namespace) -> dict[str, float]:
    waiting = Waiting(options.nodes, options.small, options.jobs, options.shapes, trainers=LEAST)
    await waiting.settle()
    for _ in range(options.seconds):
        await waiting.second(options.rate, WHOLE)
    assert not waiting.placed(), "a job that does not wait any more costs less"
    events = 2 * options.rate * options.seconds
    return {
        "nodes": options.nodes,
        "pods": options.nodes * (options.small + 1),
        "jobs": options.jobs,
        "share_of_a_core": round(waiting.seconds / options.seconds, 4),
        "microseconds_per_event": round(1e6 * waiting.seconds / events),
        "passes_over_capacity": waiting.passes.pop(""),
        "passes_over_jobs": waiting.passes.total(),
    }


if __name__ == "__main__":
    main()
