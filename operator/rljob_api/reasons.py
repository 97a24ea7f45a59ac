"""Every reason of a condition or an event, with when it is used. Reasons of an attempt's end are listed by what they cost."""

# Admission
SPEC_ACCEPTED = "SpecAccepted"  # the spec breaks no rule
INVALID_SPEC = "InvalidSpec"  # the spec breaks a rule; the message has all of them
CHILD_CONFLICT = "ChildConflict"  # an object with a child's name exists and is not this job's; it is left alone

# What a job waits for
PODS_PENDING = "PodsPending"  # trainer pods do not exist, are not scheduled, or have not reported yet
BACKING_OFF = "BackingOff"  # the pause before a counted restart
STARTING = "Starting"  # an attempt is open and has not begun its first step
RUNNING = "Running"  # all members of the open attempt run

# Rollouts
ENOUGH_ROLLOUTS = "EnoughRollouts"  # at least minReplicas rollouts answer
TOO_FEW_ROLLOUTS = "TooFewRollouts"  # fewer than minReplicas rollouts answer

# Checkpoints
CHECKPOINT_SAVED = "CheckpointSaved"  # a complete checkpoint is known; also the event for each new one
NO_CHECKPOINT = "NoCheckpoint"  # no complete checkpoint yet

# Suspension and requests
SUSPENDED = "Suspended"  # the pods are released, or the attempt is told to drain for it
NOT_SUSPENDED = "NotSuspended"  # nobody asked for it
RESUMED = "Resumed"  # event: pods are wanted again
RESUME_REQUESTED = "ResumeRequested"  # the attempt is told to stop, because a request goes on from another checkpoint
REQUEST_REFUSED = "RequestRefused"  # event: a request asks for what cannot be done; it is consumed

# Attempts
ATTEMPT_OPENED = "AttemptOpened"  # event: a gang starts
ATTEMPT_FAILED = "AttemptFailed"  # event: a gang ended by a failure; the message has the root cause
ATTEMPT_DRAINED = "AttemptDrained"  # event: a gang saved and ended because it was told to
MEMBER_DELETED = "MemberDeleted"  # event: a pod that does not answer, or has an outdated template, is deleted
POD_DELETING = "PodDeleting"  # a member's pod is being deleted, so the gang is told to drain

# Ends of an attempt that count against maxRestarts
APPLICATION_FAILED = "ApplicationFailed"  # a process raised an exception
PROCESS_KILLED = "ProcessKilled"  # a process died of a signal that nobody accounts for
CONTAINER_RESTARTED = "ContainerRestarted"  # a member's launcher died in its pod, for example out of memory
COLLECTIVE_FAILED = "CollectiveFailed"  # ranks lost each other and no process names another cause
NO_PROGRESS = "NoProgress"  # the heartbeat did not advance for stallTimeoutSeconds
COUNTED = frozenset({APPLICATION_FAILED, PROCESS_KILLED, CONTAINER_RESTARTED, COLLECTIVE_FAILED, NO_PROGRESS})

# Ends that do not count
POD_DELETED = "PodDeleted"  # somebody deleted a member's pod
POD_DISRUPTED = "PodDisrupted"  # a member's pod was evicted, preempted or its kubelet gave it up
NODE_LOST = "NodeLost"  # a member's node is unreachable for nodeLossSeconds
NOT_COUNTED = frozenset({POD_DELETED, POD_DISRUPTED, NODE_LOST})

# Ends that no restart can mend
CONFIGURATION_ERROR = "ConfigurationError"  # a process found a mistake of the user's; the job fails at once

FAILURES = COUNTED | NOT_COUNTED | {CONFIGURATION_ERROR}

# Outcomes
SUCCEEDED = "Succeeded"  # every member finished the last step
REACHED_MAX_RESTARTS = "ReachedMaxRestarts"  # more counted failures in a row than maxRestarts
NOT_FINISHED = "NotFinished"  # no outcome yet
