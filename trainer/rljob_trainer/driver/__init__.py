"""The driver: a process next to the trainer's rank 0 that reads the data, generates, scores and reports. It runs asyncio, without torch, and answers
requests: the training loop decides what happens next.

    control.json --> follow_control --> RolloutPool <-- probe (GET /rljob/state)
                                           |  current replicas
    prompts --> RolloutBuffer (policy of step p): evaluate when due, then batches up to that of p + 1 + staleness
                                           |
    rank 0  <-- socket: next, part, trained, replicas, published, evaluate, saving, saved, end
                                           |
    metrics, progress.json  <--------------+

next() waits for a batch, for rollouts that are new and need the weights, for a drain, or for the end of the work. replicas() waits until nothing is
generated under the previous policy. It does not wait when fewer than minReplicas have that policy: no more can get it, and its batch is begun anew
under the next one. It does not wait either where responses continue under the next policy: they are interrupted first, or, with `keep`, run on while
servers receive it. Both calls answer within a second, if only with "not yet".

Generation begins with evaluate(p), waits until minReplicas have the policy, and continues while rank 0 trains, publishes to new rollouts or saves.
"""
