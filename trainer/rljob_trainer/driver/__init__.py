"""The driver: the process beside rank 0 that generates, scores and assembles, while ranks train. asyncio; torch-free.

    control.json --> Follower --> Rollouts <-- probe (GET /health)
                                     |  current replicas
    prompts --> Work(policy step k): evaluate? -> generate -> score -> assemble batch k+1
                                     |
    rank 0  <-- Channel: next() -> publish | train | wait | drain | finish;  trained(), published(), saved(), end()
                                     |
    sinks, progress.json  <----------+

next() waits for: a command, a replica that needs weights, the end of the work; it is unblocked after a second in any case.
Work waits for: minReplicas current replicas; it is unblocked by published(). It runs while rank 0 publishes to newcomers or saves.
trained() makes every replica stale and starts the next work.
"""
