"""A recipe, and its plan on a GPU."""

from pathlib import Path

from kubectl_rljob.__main__ import main

RECIPE = Path(__file__).parents[2] / "examples/qwen2.5-7b-gsm8k"

ON_80_GB = """\
TRAINER, BY PHASE   WEIGHTS   GRADIENTS   OPTIMIZER   ACTIVATIONS   LOGITS   BUCKETS   OUTSIDE   SERVER   OF 79.1
generate            -         -           -           -             -        -         6.0       31.6     37.6
score               7.1       -           -           0.6           3.5      -         6.0       -        17.2
train               7.1       14.2        -           17.0          3.5      -         6.0       -        47.8
sync                7.1       -           -           -             -        4.1       6.0       14.2     31.4
save                7.1       -           10.6        -             -        -         6.0       31.6     55.3
GiB per GPU of all models on a rank, when most is held; BUCKETS: weights on their way to servers; \
OUTSIDE: what processes hold outside of tensors, such as CUDA's contexts

Fits, by the estimate

Host memory of a trainer pod: 349.8 GiB (141.8 for offload, 56.7 for the reference, 99.3 for a checkpoint, 52.0 for ranks and servers); \
limits.memory: 768.0 GiB

KV cache of a server: at most 17.5 GiB per GPU, 326,845 tokens; 21.0 GiB per GPU would hold all samples in flight at their longest
"""


def plan(*arguments: str, model: str = str(RECIPE)) -> int:
    return main(["plan", "-f", str(RECIPE / "rljob.yaml"), "--model", model, "--offline", *arguments])
