"""`python waiting_policy.py DIRECTORY`: saves a policy that waits for its critic, and goes on from there. Its Adam keeps its state
as Transformer Engine's does: none before the first step, and one count for a whole group."""

import sys
from pathlib import Path
from typing import Any

import torch

from rljob_trainer import patches
from rljob_trainer.megatron import compat


class FusedAdam(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float, **_: Any) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                self._update(p, group, *group["betas"])

    def _update(self, p: torch.Tensor, group: dict[str, Any], first: float, second: float) -> None:
        state, step = self.state[p], group["step"]
        if not state:
            state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        state["exp_avg"].lerp_(p.grad, 1 - first)
        state["exp_avg_sq"].lerp_(p.grad**2, 1 - second)
        scale = (state["exp_avg_sq"] / (1 - second**step)).sqrt() + group["eps"]
        p.addcdiv_(state["exp_avg"] / (1 - first**step), scale, value=-group["lr"])


def install() -> None:
    """As if Transformer Engine were there, for optimizers alone."""
    compat.MODULES = tuple(name for name in compat.MODULES if name != "adam")
    compat.install()
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer

    from rljob_trainer.megatron.compat import adam

    optimizer.Adam = distrib_optimizer.Adam = FusedAdam
    optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_TE_OPTIMIZER = True
    patches.install(adam.PATCHES)


def main(root: Path) -> None:
    from trainer.megatron.gang import changed, equal, run_engines, weights
    from trainer.megatron.models import job, make_batch, make_model, train_step
    from trainer.megatron.test_checkpoint import write

    model = make_model(root / "model")
    first, second = (make_batch(model, step) for step in (1, 2))
    replayed = job(model, batches={"replay": "/r"}, algorithm={"advantage": "gae"}, dtype="bfloat16")
    spec = changed(replayed, critic={"warmupSteps": 1})

    def interrupted(engine: Any) -> Any:
        train_step(engine, first)
        write(engine, root / "saved")
        return train_step(engine, second), weights(engine)

    def resumed(engine: Any) -> Any:
        engine.load(root / "saved")
        return train_step(engine, second), weights(engine)

    expected = run_engines(1, {"": (spec, interrupted)})[""]
    assert equal(expected, run_engines(1, {"": (spec, resumed)})[""])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    install()
    main(Path(sys.argv[1]))
