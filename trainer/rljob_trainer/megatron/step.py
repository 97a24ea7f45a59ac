"""A training step on one rank: its micro-batches with per-token columns, and what ranks tell each other of these."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from rljob_api.sizing.layout import Layout
from rljob_trainer.algorithm.losses import of_branches
from rljob_trainer.algorithm.objective import Objective
from rljob_trainer.megatron import parallel_state
from rljob_trainer.megatron.batching import PackingPlan, Planner
from rljob_trainer.megatron.packing import MicroBatch, micro_batch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.routing import returned_experts
from rljob_trainer.wire.batch import Array, Batch, Columns
from rljob_trainer.wire.trajectory import NO_POLICY, Ints, Trajectory

LOGGED = "logged_log_probs"
"""Column of TokenLoss.old_log_probs, from the first pass with a loss over each micro-batch."""


class ModelRanks:
    """The ranks that hold a model, in data-parallel copies that share the rows of a batch. Implements scatter.ScatterModel."""

    def __init__(self, layout: Layout, timeout_seconds: int, planner: Planner):
        """`planner`: which copy gets which rows. `timeout_seconds`: of collectives."""
        self._parallel = parallel_state.initialize(layout, parallel_state.current_device(), timeout_seconds)
        self._planner = planner

    @property
    def data_rank(self) -> int:
        """The data-parallel copy that this rank belongs to."""
        return self._parallel.data_rank

    def share(self, block: Array) -> None:
        """See scatter.ScatterModel."""
        self._parallel.share(block)

    def parts(self, columns: Columns) -> list[list[int]]:
        """[data-parallel rank] -> rows of the batch that it needs, ascending."""
        return self._planner.parts(columns)


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """This rank's part of one optimizer step."""

    micro_batches: list[MicroBatch]
    rows: list[int]
    """Rows of the whole mini-batch, over all ranks."""
    read_tokens: int
    """Input tokens of the whole mini-batch, over all ranks, without padding."""


@dataclass(slots=True)
class Step:
    """The result of `Engine.measure`; implements algorithm.objective.MeasuredStep. A rank has the trajectories of its data-parallel copy only."""

    batch: Batch
    batches: list[MiniBatch]
    parallel: ParallelState
    rows: list[int]
    """Rows of this rank's copy, ascending."""

    @staticmethod
    def of(batch: Batch, planner: Planner, parallel: ParallelState) -> "Step":
        """`batch`: the whole batch, or this rank's part of it. Raises ValueError when no trajectory has a response."""
        spec, plan = planner.spec, planner.plan(batch.columns)
        cuts = [_mini_batch(batch, cut, parallel, planner.with_last_token) for cut in plan.mini_batches]
        step = Step(batch, cuts, parallel, plan.rows(parallel.data_rank))
        own = {i: batch.trajectories[i] for i in step.rows}
        step.put("rollout_log_probs", {i: torch.from_numpy(t.response_log_probs.copy()) for i, t in own.items()})
        step.put("age", {i: torch.from_numpy(_age(t, batch.step)) for i, t in own.items()})
        if spec.rollout.agent:
            step.put("turn_rewards", {i: torch.from_numpy(t.response_turn_rewards) for i, t in own.items()})
        if spec.algorithm.rollout_correction.router_replay == "rollout":
            for micro in step.micro_batches():
                micro.routed_experts = returned_experts(micro.row, own, parallel)
        for name, values in batch.measured.items():
            step.put(name, {i: torch.from_numpy(v) for i, v in values.items()})
        return step

    @property
    def counts(self) -> list[int]:
        """Response tokens of each row, including those of an environment."""
        return self.batch.columns.response_length.tolist()

    @property
    def own_counts(self) -> list[int]:
        """Response tokens of each of this rank's rows."""
        return self.batch.columns.response_length[self.rows].tolist()

    def micro_batches(self) -> Iterable[MicroBatch]:
        """All micro-batches of this rank, in the order of the mini-batches."""
        return (micro for batch in self.batches for micro in batch.micro_batches)

    def add_rewards(self, rewards: np.ndarray) -> None:
        """Add rewards [n] to those in the columns."""
        self.batch = replace(self.batch, columns=self.batch.columns.scored(rewards))

    def put(self, name: str, values: Mapping[int, torch.Tensor] | Sequence[torch.Tensor]) -> None:
        """Add a column. `values`: [row] -> [count], per trajectory."""
        for micro in self.micro_batches():
            micro.put(name, values)

    def keep(self, name: str, parts: Sequence[torch.Tensor]) -> None:
        """Add a column from the results of a pass, [t] per micro-batch; on all but the last stage `parts` is empty."""
        for micro, part in zip(self.micro_batches(), parts, strict=False):
            micro.columns[name] = part

    def put_loss_weights(self, objective: Objective) -> None:
        """Add the column of the objective's loss weights. They are computed from the whole mini-batch; what is masked later does not change them."""
        columns = self.batch.columns
        for batch in self.batches:
            of_rows = of_branches(
                objective.loss_weights, columns.learnt_length[batch.rows], columns.trajectory[batch.rows]
            )
            weights = dict(zip(batch.rows, of_rows, strict=True))
            for micro in batch.micro_batches:
                of_row = zip(micro.row.rows, micro.row.counts, strict=True)
                micro.put(f"{objective.prefix}/loss_weights", {i: torch.full((n,), weights[i]) for i, n in of_row})

    def own(self, name: str) -> torch.Tensor:
        """See MeasuredStep.own. Moves 4 bytes per own token; each is contributed by one rank, and all others add zeros, so the sum is exact."""
        of_rows = self.by_row(torch.zeros(sum(self.own_counts)))
        for micro in self.micro_batches() if self.parallel.reports_metrics else ():
            for row, values in zip(micro.row.rows, micro.row.collect(micro.columns[name]), strict=True):
                of_rows[row] = values
        return self.parallel.over_copy(torch.cat([torch.zeros(0), *of_rows.values()]))

    def learnt(self) -> torch.Tensor:
        """See MeasuredStep.learnt."""
        masks = [torch.from_numpy(self.batch.trajectories[row].response_mask) for row in self.rows]
        return torch.cat([torch.zeros(0), *masks])

    def by_row(self, values: torch.Tensor) -> dict[int, torch.Tensor]:
        """See MeasuredStep.by_row."""
        return dict(zip(self.rows, values.split(self.own_counts), strict=True))

    def logged(self, rows: Sequence[int], most: int) -> torch.Tensor:
        """The column LOGGED after the update, of the first `most` tokens in the loss of each of these rows of the step, one row after another, on
        every rank. Collective over all ranks; each token is contributed by one of them."""
        counts = np.minimum(self.batch.columns.learnt_length[list(rows)], most).tolist()
        of_rows = dict(zip(rows, torch.zeros(sum(counts)).split(counts), strict=True))
        for micro in self.micro_batches() if self.parallel.reports_metrics else ():
            for row in of_rows.keys() & micro.row.rows:
                values = micro.row.collect(micro.columns[LOGGED])[micro.row.rows.index(row)]
                learnt = torch.from_numpy(self.batch.trajectories[row].response_mask)
                of_rows[row] = values[learnt][: len(of_rows[row])]
        return self.parallel.over_world(torch.cat([torch.zeros(0), *of_rows.values()]))

    def over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """See MeasuredStep.over_ranks. Each number is contributed by one rank of the copy that has the row."""
        return self.parallel.over_world(values if self.parallel.leads_copy else torch.zeros_like(values))


def _age(trajectory: Trajectory, step: int) -> Ints:
    """[count], trained steps between the policy that sampled a token and the policy that `step` trains; 0 for tokens that no policy sampled."""
    written = trajectory.policy_steps[trajectory.prompt_length :]
    return np.where(written == NO_POLICY, 0, step - 1 - written).astype(np.int32)


def _mini_batch(batch: Batch, plan: PackingPlan, parallel: ParallelState, with_last_token: bool) -> MiniBatch:
    rows = sorted(row for rank in plan for micro in rank for row in micro)
    read = int((batch.columns.length[rows] - (not with_last_token)).sum())
    own = [micro_batch(batch.trajectories, micro, parallel, with_last_token) for micro in plan[parallel.data_rank]]
    return MiniBatch(own, rows, read)


def gather(
    measured: Sequence[tuple[MicroBatch, torch.Tensor]],
    counts: Sequence[int],
    parallel: ParallelState,
    each: tuple[int, ...] = (),
) -> list[torch.Tensor]:
    """Per-token values [t, *each] of each rank's micro-batches -> per-trajectory values [count, *each] on every rank. Collective.

    Every token is contributed by exactly one rank (ParallelState.reports_metrics) and all others add zeros, so the sum is exact.
    """
    of_rows = [torch.zeros(n, *each) for n in counts]
    for micro, part in measured if parallel.reports_metrics else ():
        for i, values in zip(micro.row.rows, micro.row.collect(part), strict=True):
            of_rows[i] = values
    whole = torch.cat(of_rows).to(parallel.device)
    dist.all_reduce(whole)
    return list(whole.cpu().split(list(counts)))
