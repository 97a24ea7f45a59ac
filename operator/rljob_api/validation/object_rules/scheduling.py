"""Rules of where pods run and as whom: `spec.scheduling` and `spec.podSecurity`."""

from rljob_api.validation.expression import field, present, size
from rljob_api.validation.rule import Rule

QUEUED = ("kueue", "volcano")
BACKEND = field("scheduling.backend")

SCHEDULING_RULES = (
    Rule(
        "scheduling.queue",
        BACKEND.is_in(QUEUED).implies(present("scheduling.queue")),
        "{0} takes no job without a queue",
        "name one",
        (BACKEND,),
        lambda _: "unset",
    ),
    Rule(
        "scheduling.queue",
        present("scheduling.queue").implies(BACKEND.is_in(QUEUED)),
        "{0} has no queues",
        "remove it, or set spec.scheduling.backend to kueue or volcano",
        (BACKEND,),
        lambda _: "set",
    ),
    Rule(
        "scheduling.topologyLevels",
        BACKEND.is_in(("builtin", "kueue")) | size("scheduling.topologyLevels").equals(0),
        "{0} does not read labels of nodes",
        "remove them, or set spec.scheduling.backend to builtin or kueue",
        (BACKEND,),
        lambda _: "set",
    ),
    Rule(
        "scheduling.priority",
        BACKEND.equals("builtin") | field("scheduling.priority").equals(0),
        "{0} does not read it: it orders the jobs of the builtin backend",
        "remove it; spec.trainer.template.priorityClassName is for the others",
        (BACKEND,),
    ),
)

POD_RULES = (
    Rule(
        "podSecurity.runAsUser",
        present("podSecurity.runAsUser").implies(field("podSecurity.runAsUser") > 0),
        "is root, which the restricted Pod Security standard forbids",
        "set the id of a user who may write the job's volumes, or remove it for the administrator's default",
    ),
)
