"""How long a step takes by a model of its operations and bytes, which ranks layouts. It is no measurement: docs/sizing.md compares both.

Training: training.py.

Generation: per token of a response the bytes of weights and of keys and values over the rate of the GPU's memory, or the operations over its rate if
these take longer, and what scheduling costs; in as many rounds as the cache has room for less than all samples. In the mean of the time a sample has
half of its response. Pipeline stages take turns, with a share of the samples each, so together they read all weights at each step as one does; what
pods of a server send each other is added without overlap. Servers that share a GPU take turns on it: while one of them schedules, another computes.
So a decoding step of all takes as long as that of one server with its part of the samples, or as all of them compute, whichever is longer.

Every sample counts at its longest, as everywhere in `plan`.
"""

from dataclasses import dataclass

from rljob_api.sizing import network, training
from rljob_api.sizing.layout import Amounts, wanted_servers
from rljob_api.sizing.memory import PhaseName, cache_memory, in_flight, rollout_memory
from rljob_api.sizing.replica import with_one_server_per_gpu
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.training import READING, Machine
from rljob_api.spec import RLJobSpec

DECODING = 0.5
"""Share of a GPU's operations that decoding reaches."""
STEP, SCHEDULING, EXCHANGE = 1e-3, 7e-6, 15e-6
"""Seconds of a decoding step besides; for each response in it; and of each layer where tensor-parallel workers add up what they have, twice."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Modelled seconds of a step's parts."""

    generate: float
    """0: the job has no servers."""
    score: float
    """Of models on ranks of their own, which measure a batch before it is trained on; 0: there are none."""
    train: float
    sync: float
    """Of the servers, to the new policy."""
    tokens: float
    """Of prompts and responses in a step, at most."""
    overlapped: bool
    """Batches are generated, or measured, while the ones before are trained on."""

    @property
    def phases(self) -> dict[PhaseName, float]:
        """Those that the job has."""
        every: dict[PhaseName, float] = {"generate": self.generate, "score": self.score, "train": self.train}
        there = {name: seconds for name, seconds in every.items() if seconds}
        return there | {"sync": self.sync} if self.generate else there

    @property
    def seconds(self) -> float:
        parts = self.generate, self.score, self.train
        return (max(parts) if self.overlapped else sum(parts)) + self.sync

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def speed(spec: RLJobSpec, shape: Shape, machine: Machine) -> Speed:
    amounts = Amounts.of(spec)
    served = wanted_servers(spec) > 0
    apart = served and spec.rollout.placement != "colocated"
    return Speed(
        generate=_generate(spec, shape, machine) if served else 0.0,
        score=training.measure(spec, shape, machine),
        train=training.train(spec, shape, machine),
        sync=network.sync(spec, shape).seconds(machine.cards),
        tokens=float(amounts.samples_per_step * amounts.longest),
        overlapped=spec.supervised or (apart and spec.train.staleness > 0),
    )


def _generate(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Of all responses of a step on all servers. Those that share a GPU count as one, but for what each of them reads and schedules."""
    sharing, spec = spec.rollout.servers_per_gpu, with_one_server_per_gpu(spec)
    amounts, servers = Amounts.of(spec), spec.rollout
    t = servers.tensor_parallel
    samples = in_flight(spec) / servers.data_parallel  # of one copy, as what follows
    memory, cache = rollout_memory(spec, shape), cache_memory(spec, shape, machine.memory)
    share = (spec.data.max_prompt_tokens + spec.longest_response / 2) / amounts.longest
    fitting = max(1.0, samples * min(1.0, cache.there / cache.wanted / share))
    rounds = max(1.0, amounts.samples_per_step / max(1, wanted_servers(spec)) / servers.data_parallel / fitting)
    weights = sharing * _weights_read(spec, shape, fitting / sharing * servers.data_parallel)
    read = (weights + fitting * memory.kv_cache / samples * share) / (machine.rates.memory * READING)
    rate = t * servers.pipeline_parallel * training.rate(spec, machine) * DECODING
    computed = fitting * shape.work.token / rate
    exchanged = 2 * shape.layers * EXCHANGE if t > 1 else 0.0
    besides = STEP + SCHEDULING * fitting / sharing
    on_gpu = max(read, computed) + exchanged
    decoding = max(on_gpu / sharing + besides, on_gpu)
    between = network.generation(spec, shape).seconds(machine.cards)
    prompt = spec.data.max_prompt_tokens * fitting * shape.work.token / rate
    return rounds * (spec.longest_response * decoding + prompt) + between


def _weights_read(spec: RLJobSpec, shape: Shape, together: float) -> float:
    """Bytes that a GPU reads for one token of `together` responses: of experts, those that their tokens choose."""
    chosen = 1 - (1 - shape.experts_per_token / shape.experts) ** together if shape.experts else 0.0
    experts = shape.expert * shape.layers
    read = (shape.parameters - experts) + chosen * experts / spec.rollout.data_parallel
    return BYTES[spec.model.dtype] * read / spec.rollout.tensor_parallel
