"""Training in the steps of a service's clients: passes that add to the gradient, each with its own loss, and one reduction over the ranks at the
optimizer's step, with the numbers of that call.

A pass must not reduce: the next one would add to gradients that are sums over ranks already, and the second reduction would count them again on every
rank. So the model's config has no function that ends a pass (`finalize_model_grads_func`), and `step` calls it once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from megatron.core.distributed import DistributedDataParallel

from rljob_trainer.algorithm.client_losses import ClientLoss, loss_of, total
from rljob_trainer.megatron.batching import Planner
from rljob_trainer.megatron.network import LoadedModel, Network
from rljob_trainer.megatron.optimizer import clip, zero_gradients
from rljob_trainer.megatron.packing import MicroBatch, micro_batch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.provider import reduce_gradients
from rljob_trainer.megatron.step import MiniBatch, gather
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.service import Datum, ForwardBackward, OptimStep, RefusedWork, WorkResult, require_numbers
from rljob_trainer.wire.trajectory import Floats, Trajectory, demonstration, prompt

TARGETS, PRESENT = "targets", "present"
"""Columns [t, K] of the ids of targets, and of 1 where a datum has a target."""


class Accumulation:
    """Every method is collective over all ranks."""

    def __init__(
        self,
        model: LoadedModel,
        chunks: Sequence[DistributedDataParallel],
        optimizer: Any,
        planner: Planner,
        parallel: ParallelState,
        heartbeat: Callable[[], None],
    ) -> None:
        """`chunks`: the model's, wrapped."""
        model.config.finalize_model_grads_func = None
        self._network = Network(model, parallel, heartbeat, chunks)
        self._chunks, self._optimizer = chunks, optimizer
        self._planner, self._parallel = planner, parallel
        assert model.vocabulary is not None, "clients train language models"
        self._vocabulary = model.vocabulary

    def run(self, work: ForwardBackward) -> WorkResult:
        """Measure the log-probabilities of the work's targets, and accumulate the gradient of its loss.

        Raises RefusedWork, with nothing accumulated.
        """
        chosen = loss_of(work, self._vocabulary)
        width = max(_width(datum) for datum in work.data)
        micro_batches = self._micro_batches(work.data, width)
        passes, tokens = self._network.passes, sum(len(datum.tokens) for datum in work.data)
        if work.forward_only:
            measured = passes.forward(micro_batches, lambda micro, raw: self._log_probs(micro, raw).detach())
        else:
            batch = MiniBatch(micro_batches, list(range(len(work.data))), tokens)
            measured = passes.backward(batch, lambda micro, raw: self._loss(micro, raw, chosen, work))
        counts = [len(datum.tokens) for datum in work.data]
        gathered = gather(list(zip(micro_batches, measured, strict=False)), counts, self._parallel, (width,))
        log_probs = tuple(_of_datum(*pair) for pair in zip(gathered, work.data, strict=True))
        return WorkResult(metrics={"loss:sum": total(chosen, work, log_probs)}, log_probs=log_probs)

    def step(self, work: OptimStep) -> WorkResult:
        """One step of AdamW with what was accumulated. Raises RefusedWork, with the parameters as they were."""
        require_numbers(work)
        reduce_gradients(list(self._chunks))
        for group in self._optimizer.param_groups:
            group.update(
                lr=work.learning_rate,
                betas=(work.beta1, work.beta2),
                eps=work.eps,
                weight_decay=work.weight_decay,
            )
        norm = float(clip(self._optimizer, work.grad_clip_norm))
        if math.isfinite(norm):
            self._optimizer.step_with_ready_grads()
        zero_gradients(self._chunks, self._optimizer)
        if not math.isfinite(norm):
            raise RefusedWork(f"no step was made: the norm of the gradient is {norm}. What was accumulated is dropped")
        return WorkResult(metrics={"grad_norm:mean": norm})

    def _micro_batches(self, data: Sequence[Datum], width: int) -> list[MicroBatch]:
        """This rank's part. Raises RefusedWork when a datum does not fit into a micro-batch."""
        try:
            plan = self._planner.plan_units([[i] for i in range(len(data))], [len(d.tokens) for d in data])
        except ValueError as error:
            raise RefusedWork(f"{error}: spec.train.tokensPerMicroBatch") from error
        rows = {row for micro in plan[self._parallel.data_rank] for row in micro}
        trajectories = {row: _trajectory(data[row]) for row in rows}
        micro_batches = [micro_batch(trajectories, micro, self._parallel) for micro in plan[self._parallel.data_rank]]
        for micro in micro_batches:
            self._put(micro, data, width)
        return micro_batches

    def _put(self, micro: MicroBatch, data: Sequence[Datum], width: int) -> None:
        """Replace the next tokens by the targets, and add the columns, [t, width] each."""
        own = {row: data[row] for row in micro.row.rows}
        arrays: dict[str, dict[int, Array]]
        arrays = {name: {row: datum.columns[name] for row, datum in own.items()} for name in data[0].columns}
        arrays[TARGETS] = {row: datum.targets for row, datum in own.items()}
        arrays[PRESENT] = {row: np.ones_like(datum.targets) for row, datum in own.items()}
        for name, of_rows in arrays.items():
            if own:
                micro.put(name, {row: _padded(values, width) for row, values in of_rows.items()})
            else:  # nothing but padding
                micro.columns[name] = torch.zeros(len(micro.targets), width, device=micro.targets.device)
        micro.targets = micro.columns[TARGETS][:, 0].long()

    def _log_probs(self, micro: MicroBatch, raw: torch.Tensor) -> torch.Tensor:
        """[t, K]"""
        further = micro.columns[TARGETS][:, 1:].long()
        predicted = self._network.output(micro, raw).predictions(1.0, further if further.shape[1] else None)
        return torch.cat((predicted.log_probs[:, None], predicted.candidates), 1)

    def _loss(
        self, micro: MicroBatch, raw: torch.Tensor, chosen: ClientLoss, work: ForwardBackward
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs = self._log_probs(micro, raw)
        loss = chosen.function(log_probs, micro.columns, work.config, micro.sequences)
        return loss.where(micro.columns[PRESENT] > 0, 0.0).sum(), log_probs.detach()


def _width(datum: Datum) -> int:
    return datum.targets.shape[1] if datum.targets.ndim == 2 else 1


def _trajectory(datum: Datum) -> Trajectory:
    """A prompt of one token, and one more token than the datum has, since a trajectory's last token is not read."""
    segments = prompt(datum.tokens[:1]), demonstration(np.append(datum.tokens[1:], 0))
    fields = {"prompt_index": 0, "group": 0, "sample": 0, "reward": 0.0, "data_source": ""}
    return Trajectory(segments, finish_reason="stop", **fields)  # type: ignore[arg-type]


def _padded(values: Array, width: int) -> torch.Tensor:
    """[N] or [N, K] -> [N, width] float32, 0 where the datum has fewer targets. Ids of tokens are exact in float32."""
    columns = values.reshape(len(values), -1).astype(np.float32)
    missing = width - columns.shape[1]
    return torch.from_numpy(np.pad(columns, ((0, 0), (0, missing))) if missing else columns)


def _of_datum(log_probs: torch.Tensor, datum: Datum) -> Floats:
    """[N, K] -> the shape of the datum's targets."""
    return np.ascontiguousarray(log_probs[:, : _width(datum)].numpy()).reshape(datum.targets.shape)
