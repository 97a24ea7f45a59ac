"""megatron's DistributedOptimizer before its first step, and with torch's AdamW, which it uses where neither Transformer Engine nor Apex is
installed, GPU or not.

Faults of core/optimizer/distrib_optimizer.py: no state can be saved before it was used, as that of a policy that waits for its critic; and three
more with AdamW, which show as soon as a checkpoint is loaded (radixark/Megatron-LM#69 and NovaSky-AI/SkyRL#1403 fixed the step tensor likewise).
Can go when a checkpoint of an optimizer that took no step can be saved and loaded with either Adam.
"""

from typing import Any

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.host_adam import HostAdam
from rljob_trainer.patches import Patch


def _class() -> Any:
    from megatron.core.optimizer import distrib_optimizer

    return distrib_optimizer.DistributedOptimizer


def has_fused_adam() -> bool:
    """megatron uses FusedAdam of Transformer Engine or Apex where either is installed, else torch's AdamW."""
    from megatron.core.optimizer import distrib_optimizer

    return bool(distrib_optimizer.HAVE_APEX_OR_TE)


def lacks_fused_adam() -> bool:
    return not has_fused_adam()


def _patch_fused() -> None:
    cls = _class()
    state_dict = cls.state_dict

    def state_dict_from_the_start(self: Any) -> dict[str, Any]:
        """:1190 hands on what moments there are, and FusedAdam makes them at its first step."""
        allocate(self)
        return state_dict(self)

    cls.state_dict = state_dict_from_the_start


def _patch_torch() -> None:
    cls = _class()
    initialize, state_dict, load_state_dict, set_states = (
        cls.__init__,
        cls.state_dict,
        cls.load_state_dict,
        cls._set_main_param_and_optimizer_states,
    )

    def initialize_fused(self: Any, *args: Any, **kwargs: Any) -> None:
        """optimizer/__init__.py has no way to say `fused`, which halves the time of a step on a GPU."""
        initialize(self, *args, **kwargs)
        _fuse(self.optimizer)

    def state_dict_from_the_start(self: Any) -> dict[str, Any]:
        """:839 asserts that a step was taken; a resumed run loads before its first."""
        allocate(self)
        return state_dict(self)

    def load_with_own_steps(self: Any, state: dict[str, Any]) -> None:
        """:1018 hands one step tensor to all parameters, and each of them then counts it up: Adam's bias correction runs away.
        :1224 copies into leaves that require gradients, which fp32 parameters are."""
        with torch.no_grad():
            load_state_dict(self, state)
        for parameter_state in self.optimizer.state.values() if self.optimizer else ():
            parameter_state["step"] = parameter_state["step"].clone()
        _fuse(self.optimizer)

    def set_states_with_step(self: Any, parameter: torch.Tensor, tensors: dict[str, Any]) -> None:
        """:1223 looks for `step` among the tensors; the checkpoint keeps it in the parameter group."""
        group, index = self.model_param_group_index_map[parameter]
        main = self.optimizer.param_groups[group]["params"][index]
        with torch.no_grad():
            set_states(self, parameter, {**tensors, "step": self.optimizer.state[main]["step"]})

    cls.__init__ = initialize_fused
    cls.state_dict, cls.load_state_dict = state_dict_from_the_start, load_with_own_steps
    cls._set_main_param_and_optimizer_states = set_states_with_step


def _fuse(optimizer: torch.optim.Optimizer | None) -> None:
    """One kernel for all parameters, where they are on a GPU; it wants the counts of steps there too. HostAdam has its own way."""
    if optimizer is None or isinstance(optimizer, HostAdam):
        return
    for group in optimizer.param_groups:
        group["fused"] = all(p.is_cuda for p in group["params"])
        for p in group["params"] if group["fused"] else ():
            state = optimizer.state.get(p)
            if state:
                state["step"] = state["step"].to(p.device)


def allocate(optimizer: Any) -> None:
    """Give every parameter of a DistributedOptimizer the state that Adam makes at its first step."""
    if optimizer.optimizer is None:  # a rank may hold no part of the parameters
        return
    if isinstance(optimizer.optimizer, HostAdam):
        optimizer.optimizer.allocate()
    elif has_fused_adam():
        optimizer.init_state_fn(optimizer.optimizer, optimizer.config)
    else:
        _allocate(optimizer.optimizer)


def _allocate(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if not optimizer.state[p]:
                optimizer.state[p] = {
                    "step": torch.tensor(0.0, device=p.device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }


PATCHES = (
    Patch(
        "FusedAdam has its state from the start",
        "megatron-core",
        VERSIONS["megatron-core"],
        _patch_fused,
        needed=has_fused_adam,
        replaces={"megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.state_dict": "e297ea31cd439318"},
    ),
    Patch(
        "AdamW of torch",
        "megatron-core",
        VERSIONS["megatron-core"],
        _patch_torch,
        needed=lacks_fused_adam,
        replaces={
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.__init__": "24c39c1b40565618",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.state_dict": "e297ea31cd439318",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.load_state_dict": "20d8abc13513c146",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer._set_main_param_and_optimizer_states": "c8046d34876d239f",
        },
    ),
)
