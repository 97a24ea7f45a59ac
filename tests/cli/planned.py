"""A recipe, and its plan on a GPU."""

from pathlib import Path

from kubectl_rljob.__main__ import main

RECIPE = Path(__file__).parents[2] / "examples/qwen2.5-7b-gsm8k"

ON_80_GB = """\
GIB PER GPU   WEIGHTS   GRADIENTS   OPTIMIZER   ACTIVATIONS   LOGITS   OTHER MODELS   TOTAL
trainer       7.1       14.2        -           16.9          3.5      -              41.7
rollout       14.2      -           -           -             -        -              14.2

TRAINER, BY PHASE   MODELS   ESTIMATE   SERVER   OF 79.1
generate            -        6.0        31.6     37.6
score               7.1      10.1       -        17.2
train               31.9     15.8       -        47.7
sync                7.1      10.0       14.2     31.3
save                17.7     6.0        31.7     55.4
ESTIMATE: activations, logits and weights on their way; of it 6.0 outside of tensors, which no row above has

Fits, by the estimate

Host memory of a trainer pod: 297.9 GiB (141.8 for offload, 56.7 for the reference, 99.3 for a checkpoint), \
and what its processes need in any case; limits.memory: 768.0 GiB

KV cache of a server: at most 17.5 GiB per GPU, 326,845 tokens; 21.0 GiB per GPU would hold all samples in flight at their longest
"""


def plan(*arguments: str, model: str = str(RECIPE)) -> int:
    return main(["plan", "-f", str(RECIPE / "rljob.yaml"), "--model", model, "--offline", *arguments])
