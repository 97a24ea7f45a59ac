"""On CPU guessed tokens are checked at the request's own temperature, top_p and top_k.

vLLM 0.32 spreads these over the guesses of a request with a kernel for which its CPU build has a function in C++, that reads and writes integers. It
is given copies of the floats as integers, and what it writes into them is lost, so that logits are divided by memory that nobody has set: guesses
were accepted by another distribution than the policy's, and log-probabilities were NaN (tests/trainer/server/test_speculation.py). The spreading is
one operation of torch. Can go when `_expand_kernel_impl` (vllm/utils/cpu_triton_utils.py) writes floats.
"""

import torch

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.forked_engine import on_cpu


def spread(
    values: torch.Tensor, ends: torch.Tensor, count: int, replace_from: float = 0, replace_to: float = 0
) -> torch.Tensor:
    """[count], of each guess the value of its request. `values` and `ends`: [requests]; the guesses of request i end before `ends[i]`. `replace_from`
    becomes `replace_to`."""
    kept = torch.where(values == replace_from, replace_to, values).to(values.dtype)
    return kept.repeat_interleave(torch.diff(ends, prepend=ends.new_zeros(1)), output_size=count)


def _spread_in_torch() -> None:
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = spread


PATCHES = (
    Patch(
        "temperatures of guesses on CPU",
        "vllm",
        VERSIONS,
        apply=_spread_in_torch,
        needed=on_cpu,
        replaces={
            "vllm/v1/sample/rejection_sampler.py:expand_batch_to_tokens": "f03164e2ce125ab1",
            "vllm/utils/cpu_triton_utils.py:_expand_kernel_impl": "47b39d9584bf7ec7",
        },
    ),
)
