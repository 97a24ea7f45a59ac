"""The `builtin` scheduler. One scheduling cycle places all jobs that ask for nodes, and takes the assignments of all others into account.

    request.scheduling_request  what a job lacks                                           pure
    cycle.schedule_pending      who gets what: urgency, then priority, then age            pure
    backfill.remaining          how long jobs still take, and who may go before a reservation       pure
    cache.SchedulerCache        capacity that is left, from nodes, pods and assignments    reads the cache
    scheduler.GangScheduler     one cycle at a time                                        holds the lock
    gate.has_gate, .operations  the gate of its pods, and the patch that removes it        pure

`policies/placement.py` writes assignments into status before any pod is ungated.
"""
