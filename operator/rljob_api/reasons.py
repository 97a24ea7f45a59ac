"""Every reason of a condition or an event, with when it is used. Reasons of an attempt's end are listed by what they cost."""

# Admission
SPEC_ACCEPTED = "SpecAccepted"  # the spec breaks no rule
INVALID_SPEC = "InvalidSpec"  # the spec breaks a rule; the message has all of them
SPEC_POSTPONED = "SpecPostponed"  # event: a spec that changed during an attempt takes effect with the next one
CHILD_CONFLICT = (
    "ChildConflict"  # an object with a child's name exists and is not this job's; it is left alone; also the event
)
CHILD_REFUSED = "ChildRefused"  # the API server refuses a child of the job, or what is done to a pod; the message has field and rule; also the event
UNWRITTEN = (CHILD_CONFLICT, CHILD_REFUSED)

STATUS_REFUSED = "StatusRefused"  # event: the API server refuses the job's status, so that the job stays as it is
FOREIGN_STATUS = "ForeignStatus"  # event: somebody else writes the status, for example a second installation that serves the same namespace

# What a job waits for
PODS_PENDING = "PodsPending"  # trainer pods do not exist, are not scheduled, or have not reported yet
BACKING_OFF = "BackingOff"  # the pause before a counted restart
STARTING = "Starting"  # an attempt is open and has not begun its first step
RUNNING = "Running"  # all members of the open attempt run

# Placement
PLACED = "Placed"  # every pod of the gang is on a node
PLACING = "Placing"  # pods have nodes assigned and are not running there yet, or wait for the cluster's scheduler
UNPLACEABLE = (
    "Unplaceable"  # there is no capacity for the whole gang; the message says what is missing where; also the event
)
NOT_BOUND = (
    "NotBound"  # nodes recently refused pods, and the gang is not on its nodes; the message says why; also the event
)
UNSCHEDULABLE = "Unschedulable"  # no node takes a pod, for example because its claim does not exist; also the event

STRANDED = (
    "Stranded"  # pods held nodes for strandedSeconds although others had none, so they are released; also the event
)

# Nodes
NODES_SOUND = "NodesSound"  # no pod is on a node that the job should leave
NODE_EXCLUDED = (
    "NodeExcluded"  # the job avoids a node that failures point at or that its owner wants to be left; also the event
)
NODE_NEEDED = "NodeNeeded"  # the job uses such a node, since no others have capacity for the whole gang; also the event
LEAVING_NODE = "LeavingNode"  # the attempt drains, because a node's owner wants it to be left and others have capacity

# Rollouts
ENOUGH_ROLLOUTS = "EnoughRollouts"  # at least minReplicas rollouts answer
TOO_FEW_ROLLOUTS = "TooFewRollouts"  # fewer than minReplicas rollouts answer
NOT_NEEDED = "NotNeeded"  # the task has no rollouts, so that nothing has to wait for them

ROLLOUT_FAILED = (
    "RolloutFailed"  # event: a rollout server failed and is started again in its pod; the message has the cause
)

SERVER_RESTARTED = "ServerRestarted"  # event: a pod of a server of several pods was lost or failed, and all of them start again together

# Workers
WORKERS_SCALED = "WorkersScaled"  # event: autoscaling has changed the number of worker pods; the message has the calls

# Checkpoints
TRAINER_WARNED = (
    "TrainerWarned"  # event: the trainer warns of something and continues, such as rewards from which nothing is learnt
)
CHECKPOINT_SAVED = "CheckpointSaved"  # a complete checkpoint is known; also the event for each new one
CHECKPOINT_MISSING = "CheckpointMissing"  # event: an attempt started from an earlier checkpoint, because the newest known checkpoint is gone
NO_CHECKPOINT = "NoCheckpoint"  # no complete checkpoint yet

# Preemption
PREEMPTED = "Preempted"  # the job leaves its nodes, or has left them, to one of higher priority; also the attempt's end and the event
NOT_PREEMPTED = "NotPreempted"  # no other job has taken its nodes

# Suspension and requests
SUSPENDED = "Suspended"  # the pods are deleted, or the attempt drains before that
NOT_SUSPENDED = "NotSuspended"  # nobody asked for it
RESUMED = "Resumed"  # event: pods are wanted again
IDLE = "Idle"  # event: nobody has asked a service for anything for idleSeconds, so that it is suspended
WOKEN = "Woken"  # event: somebody asks a service that was suspended for that reason
RESUME_REQUESTED = "ResumeRequested"  # the attempt stops, because a request resumes from another checkpoint
SPEC_CHANGED = "SpecChanged"  # the attempt stops, because its spec changed before its members received it
RESTART_REQUESTED = "RestartRequested"  # the attempt drains, because a request asks for a new one
TOKEN_REPLACED = "TokenReplaced"  # the attempt drains, because the Secret with the rollout servers' token was deleted or changed; also the event
ACCOUNT_REPLACED = "AccountReplaced"  # the attempt stops, because its pods' ServiceAccount was deleted, and with it their tokens; also the event
REQUEST_REFUSED = "RequestRefused"  # event: a request asks for what cannot be done; it is consumed

# Attempts
ATTEMPT_OPENED = "AttemptOpened"  # event: a gang starts
ATTEMPT_FAILED = "AttemptFailed"  # event: a gang ended by a failure; the message has the root cause
ATTEMPT_DRAINED = "AttemptDrained"  # event: a gang saved and ended on command
MEMBER_DELETED = "MemberDeleted"  # event: a pod that does not answer, or has an outdated template, is deleted
POD_DELETING = "PodDeleting"  # a member's pod is being deleted, so the gang drains

# Ends of an attempt: what they mean is in MEANING, what they cost in the sets below
APPLICATION_FAILED = "ApplicationFailed"
PROCESS_KILLED = "ProcessKilled"
CONTAINER_RESTARTED = "ContainerRestarted"
OUT_OF_MEMORY = "OutOfMemory"
COLLECTIVE_FAILED = "CollectiveFailed"
NO_PROGRESS = "NoProgress"
VOLUME_FULL = "VolumeFull"  # also the condition Stalled
POD_DELETED = "PodDeleted"
POD_FAILED = "PodFailed"
POD_DISRUPTED = "PodDisrupted"
POD_STUCK = "PodStuck"  # also the condition Stalled, and the event
NODE_LOST = "NodeLost"
CONFIGURATION_ERROR = "ConfigurationError"

MEANING = {
    APPLICATION_FAILED: "a process raised an exception",
    PROCESS_KILLED: "a process was killed by a signal, for an unknown cause",
    CONTAINER_RESTARTED: "a member's launcher died in its pod",
    OUT_OF_MEMORY: "the kernel killed processes of a member's container, since it ran out of host memory",
    COLLECTIVE_FAILED: "ranks lost each other and no process names another cause",
    NO_PROGRESS: "the heartbeat did not advance for stallTimeoutSeconds",
    POD_FAILED: "the kubelet failed a member's pod, for example because it used too much of its node's storage",
    VOLUME_FULL: "a volume had no space left",
    POD_DELETED: "somebody deleted a member's pod",
    POD_DISRUPTED: "a member's pod was evicted, preempted or given up by its kubelet",
    POD_STUCK: "a member's pod was deleted and still runs nodeLossSeconds after its grace period",
    NODE_LOST: "a member's node was unreachable for nodeLossSeconds",
    CONFIGURATION_ERROR: "a process found a mistake in the spec, the data or the files that it names",
}
COUNTED = frozenset(
    {APPLICATION_FAILED, PROCESS_KILLED, CONTAINER_RESTARTED, COLLECTIVE_FAILED, NO_PROGRESS, OUT_OF_MEMORY, POD_FAILED}
)
"""Count against maxRestarts."""
CONTAINER_ENDED = frozenset({CONTAINER_RESTARTED, OUT_OF_MEMORY})
"""The member's container ended, and its pod starts another one."""
NOT_COUNTED = frozenset({POD_DELETED, POD_DISRUPTED, POD_STUCK, NODE_LOST, VOLUME_FULL})
"""Cost a restart that does not count. A ConfigurationError, the rest of MEANING, cannot be fixed by a restart: the job fails at once."""
DELAYED = frozenset({VOLUME_FULL})
"""Those of NOT_COUNTED that cost a back-off even the first time, since they last until somebody does something."""
FAILURES = frozenset(MEANING)

# Outcomes
SUCCEEDED = "Succeeded"
REACHED_MAX_RESTARTS = "ReachedMaxRestarts"
PENDING_DEADLINE_EXCEEDED = "PendingDeadlineExceeded"
ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"
OUTCOMES = {
    SUCCEEDED: "every member finished the last step",
    REACHED_MAX_RESTARTS: "more counted failures in a row than maxRestarts",
    CONFIGURATION_ERROR: "a process found a mistake that a restart cannot fix",
    PENDING_DEADLINE_EXCEEDED: "the trainer pods did not all start within pendingDeadlineSeconds",
    ACTIVE_DEADLINE_EXCEEDED: "attempts ran for activeDeadlineSeconds; the last one is drained first",
}
NOT_FINISHED = "NotFinished"  # no outcome yet
