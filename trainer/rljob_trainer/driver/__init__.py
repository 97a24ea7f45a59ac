"""The driver: a process alongside rank 0 that reads the data, generates, scores and reports. asyncio, without torch. It answers; it does not steer.

    control.json --> follow_control --> RolloutPool <-- probe (GET /rljob/state)
                                           |  current replicas
    prompts --> RolloutBuffer (policy of step p): evaluate when due, then batches up to that of p + 1 + staleness
                                           |
    rank 0  <-- socket: next, part, trained, replicas, published, evaluate, saving, saved, end
                                           |
    metrics, progress.json  <--------------+

next() waits for a batch, newcomers that need weights, a drain, or the end of the work; replicas() until nothing is generated under the policy
before, which it does not wait for when fewer than minReplicas have that policy: nobody can be given it any more, and its batch is begun anew under
the next. Both answer within a second.
Generation begins with evaluate(p), waits for minReplicas current replicas, and continues while rank 0 trains, serves newcomers or saves.
"""
