"""Which transport carries the weights. No torch here.

Its name is also the backend of vLLM's `--weight-transfer-config`. A transport has a trainer's end (session.ENDS) and an engine in the
vLLM worker (registered in engine.py).
"""

from rljob_api.spec import RLJobSpec

GLOO = "gloo"
NCCL = "rljob-nccl"
"""vLLM has an engine of its own named nccl, which overwrites the model as the weights come."""
IPC = "rljob-ipc"
"""Between processes of one host whose GPUs are the same, which NCCL cannot connect."""


def backend(spec: RLJobSpec) -> str:
    """The transport of a job."""
    if spec.trainer.device == "cpu":
        return GLOO
    return IPC if spec.rollout.placement == "colocated" else NCCL
