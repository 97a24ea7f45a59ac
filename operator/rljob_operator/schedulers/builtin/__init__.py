"""The `builtin` scheduler. It plans all jobs that ask in one scheduling cycle, with the assignments of all others in view.

    request.scheduling_request  what a job lacks                                           pure
    cycle.schedule_pending      who gets what: urgency, then priority, then age            pure
    cache.SchedulerCache        capacity that is left, from nodes, pods and assignments    reads the cache
    scheduler.GangScheduler     one cycle at a time                                        holds the lock
    gate.Builtin, .operations   what its pods carry, and the patch that lets one go        pure

`policies/placement.py` writes assignments into status before any pod is ungated.
"""
