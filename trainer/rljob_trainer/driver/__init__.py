"""The driver: the process beside rank 0 that generates, scores and assembles, while ranks train. asyncio; torch-free.

    control.json --> Follower --> Rollouts <-- probe (GET /health)
                                     |  current replicas
    prompts --> Supply(policy of step p): evaluate? -> batches up to p + 1 + staleness: generate -> score -> assemble
                                     |
    rank 0  <-- Channel: next() -> publish | train | wait | drain | finish;  trained(), published(), saved(), end()
                                     |
    sinks, progress.json  <----------+

next() waits for: a command, a batch, a replica that needs weights, the end of the work; it is unblocked after a second in any case.
generate: groups.py begins as many groups as spec.train.overSampling says; those that a batch leaves over are dropped, or interrupted and continued
by the next one (`partialRollouts`). Nothing generates between the end of a batch and the beginning of the next.
Supply waits for: minReplicas current replicas; it is unblocked by published(). It runs while rank 0 trains, publishes to newcomers or saves.
After trained(p + 1), next() waits for the end of what is drawn under p, then makes every replica stale, publishes p + 1 and lets Supply go on.
It does not wait when fewer than minReplicas have p: nobody can be given p any more, and its batch is begun anew under p + 1.
"""
