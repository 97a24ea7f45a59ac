"""The Triton kernels, interpreted on the CPU, against the torch version of the same arithmetic."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json, torch
from rljob_trainer.megatron import logprob, logprob_kernels as kernels
kernels.BLOCK = 16
g = torch.Generator().manual_seed(0)
worst = []
for real in (50, 37, 0):
    logits = torch.randn(5, 50, generator=g) * 6
    local = torch.tensor([0, 36, -1, 17, 5]) if real else torch.full((5,), -1)
    want, got = (f(logits, local, 1 / 0.7, real) for f in (logprob._partial_sums, kernels.partial_sums))
    worst.append((want - got).nan_to_num().abs().max().item())
    entropy, slopes = torch.randn(5, generator=g), torch.randn(3, 5, generator=g)
    normaliser = (logits / 0.7).logsumexp(-1)
    mine, theirs = logits.clone(), logits.clone()
    kernels.gradient_in_place(mine, local, normaliser, entropy, slopes, 1 / 0.7, real, 200)
    logprob._gradient_in_place(theirs, local[:, None], normaliser, entropy, slopes, 1 / 0.7, real, 200)
    worst.append((mine - theirs).abs().max().item())
print(json.dumps(worst))
"""


def test_the_kernels_compute_what_torch_computes() -> None:
    """Also where the share ends in padding, or is nothing else. In a process of its own: Triton reads the variable when it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert max(json.loads(done.stdout)) < 1e-4
