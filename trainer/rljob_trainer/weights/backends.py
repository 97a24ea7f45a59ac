"""Which transport carries the weights. No torch here.

Its name is also the backend of vLLM's `--weight-transfer-config`. A transport has a trainer's end (session.ENDS) and an engine in the
vLLM worker (registered in engine.py).
"""

from rljob_api.spec.common import Device

GLOO = "gloo"
NCCL = "rljob-nccl"
"""vLLM has an engine of its own named nccl, which overwrites the model as the weights come."""
BACKENDS: dict[Device, str] = {"cpu": GLOO, "gpu": NCCL}
