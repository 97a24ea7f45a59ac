"""What the driver of a service and the gateway say to each other, over HTTP. Bodies of work and results are those of service.py.

    POST NEXT    {"rollouts": [endpoints of the servers], "failed": number of the newest attempt that failed by what its own processes did}
                 200: a piece of work, with its ticket; 204: there is none now
    POST DONE    the result of the piece with the ticket   204

Every request has the job's token (Authorization), and names the job, the attempt and the driver. A driver asks for work only after the gateway has
taken the result of the last piece. One of a lower attempt is answered 409, and has to end.
"""

NEXT = "/work/next"
DONE = "/work/done"
DRAINING = "draining"
"""Parameter of NEXT: the job is to end, and only checkpoints are wanted. 204 means then that there are none."""
JOB = "X-RLJob-Job"
"""UID of the job."""
DRIVER = "X-RLJob-Driver"
"""Name of the driver's process: its ranks know what they were given since it began, and nothing else."""
TICKET = "X-RLJob-Ticket"
SUPERSEDED = 3
"""Exit code of a gateway that has found another one at its journals."""
NEXT_SECONDS = 0.5
"""Longest wait for work: meanwhile the ranks wait for the driver."""
