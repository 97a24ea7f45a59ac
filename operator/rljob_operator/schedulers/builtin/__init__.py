"""The `builtin` scheduler. One scheduling cycle places all jobs that ask for nodes, and takes the assignments of all others into account.

    request.scheduling_request  what a job lacks                                           pure
    cycle.schedule_pending      who gets what: urgency, then priority, then age            pure
    reservations.claim          who leaves for a job that waits, and who may have its nodes meanwhile    pure
    cache.SchedulerCache        capacity that is left, from nodes, pods and assignments    reads the cache
    scheduler.GangScheduler     one cycle at a time                                        holds the lock

`policies/placement.py` writes assignments into status before any pod is ungated.
"""
