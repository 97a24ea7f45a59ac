"""The driver's process: read the data, serve rank 0 until it calls `end`."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from rljob_api import names
from rljob_api.callbacks import nothing
from rljob_api.protocol import Control
from rljob_api.sizing.layout import required_servers
from rljob_api.sizing.replica import sequences
from rljob_api.spec import RLJobSpec
from rljob_trainer import failure
from rljob_trainer.agents.agent import Agent, agent_of
from rljob_trainer.agents.claims import Sandboxes
from rljob_trainer.agents.generated_data import generate
from rljob_trainer.collection import exempt_from_collection
from rljob_trainer.data.encoding import EncodingWorkers
from rljob_trainer.data.loading import load_examples
from rljob_trainer.data.order import Dataset, steps_of, with_steps
from rljob_trainer.data.tokenizer import Tokenizer, ToolTokenizer, load_tokenizer, template_warnings
from rljob_trainer.driver.buffer.examples import Examples
from rljob_trainer.driver.buffer.generation import Generator
from rljob_trainer.driver.buffer.measured import Teacher, require_same_vocabulary
from rljob_trainer.driver.buffer.sources import BatchSource, GeneratedBatches, RecordedBatches
from rljob_trainer.driver.driver import Driver
from rljob_trainer.driver.gangs import Gangs
from rljob_trainer.driver.pod_listener import PodListener, PodsOfWorkers, listening
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.driver.preparing import moved, read_prompts, row_maker, without_answers
from rljob_trainer.driver.reporter import Alarms, Reporter
from rljob_trainer.driver.server import serve
from rljob_trainer.driver.service import ServiceDriver
from rljob_trainer.machine import raise_open_files
from rljob_trainer.reporting.timeline import Timeline
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.vllm_server import Pools
from rljob_trainer.wire.calls import DriverCalls, handlers
from rljob_trainer.wire.channel import listen
from rljob_trainer.wire.launcher_files import ProgressFile, follow_control, read_control
from rljob_trainer.wire.parity import PROBE_SEQUENCES
from rljob_trainer.wire.service import ServiceCalls

WORKERS = "waiting for a worker of spec.rollout.agent.workers"

log = logging.getLogger(__name__)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s driver %(message)s", force=True)
    directory = Path(os.environ[names.ENV_ATTEMPT_DIR])
    try:
        raise_open_files()
        listener = listen(directory / "driver.sock")
        token = os.environ.get(names.ENV_ROLLOUT_TOKEN, "")
        asyncio.run(drive(directory, listener, token, exempt_from_collection))
    except BaseException as error:
        _record(directory, error)
        raise


def _record(directory: Path, error: BaseException) -> None:
    """Write why the driver fails, once, and before anything is closed: closing may take a minute, and rank 0, which is then hung up on, knows no
    cause."""
    if not failure.error_file(directory, "driver").exists():
        failure.write(directory, "driver", _innermost(error))


async def drive(directory: Path, listener: socket.socket, token: str, loaded: Callable[[], None] = nothing) -> None:
    """Run one attempt until rank 0 calls `end`. `loaded`: called when all data is there. Raises the first error of any part."""
    control = read_control(directory)
    progress = ProgressFile(directory / "progress.json")
    progress.flush()
    if control.spec.task == "service":
        await _of_service(directory, control, token, progress, listener)
        return
    tokenizer = load_tokenizer(control.spec)
    _warn(progress, template_warnings(control.spec, tokenizer))
    work = _supervised if control.spec.supervised else _reinforcement
    try:
        async with (
            listening(control, token) as pods,
            work(directory, control, token, progress, tokenizer, pods) as (driver, rollouts, gangs),
        ):
            loaded()
            await _serve(listener, directory, driver, rollouts, progress, gangs)
    except Exception as error:
        _record(directory, error)
        raise
    finally:
        listener.close()


async def _of_service(
    directory: Path, control: Control, token: str, progress: ProgressFile, listener: socket.socket
) -> None:
    driver = ServiceDriver(control, token, progress)
    try:
        served = serve(listener, *handlers(ServiceCalls, driver))
        await _first_to_end(directory, served, _follow(directory, driver), progress.run())
    finally:
        await driver.close()
        listener.close()


@asynccontextmanager
async def _supervised(
    directory: Path, control: Control, token: str, progress: ProgressFile, tokenizer: Tokenizer, pods: PodListener
) -> AsyncIterator[tuple[Driver, RolloutPool, Gangs]]:
    """A supervised task: examples that worker processes tokenise while the ranks train; no rollouts and no rewards."""
    spec, workers, timeline = control.spec, EncodingWorkers(control.spec, forked=True), Timeline()
    gangs = Gangs(spec.gangs, pods, spec.lifecycle.stall_timeout_seconds, timeline)
    try:
        made = row_maker(directory, spec, progress)
        load = partial(load_examples, spec, tokenizer=tokenizer, workers=workers, made=made)
        train = await asyncio.to_thread(load, "train", scratch=directory / "examples")
        _warn(progress, train.notes)
        held_out = None
        if spec.evaluation.takes_place:
            held_out = await asyncio.to_thread(load, "validation", scratch=directory / "held-out")
        control = _counted(control, train)
        rollouts, pools = RolloutPool(token, control.attempt, 0, 1), Pools((), token)
        reporter = _reporter(control.spec, progress, rollouts, pools, gangs, timeline)
        source = Examples(train, held_out, gangs.measuring)
        yield Driver(control, source, train, (), rollouts, pools, reporter, gangs), rollouts, gangs
    finally:
        workers.close()


@asynccontextmanager
async def _reinforcement(
    directory: Path, control: Control, token: str, progress: ProgressFile, tokenizer: Tokenizer, pods: PodListener
) -> AsyncIterator[tuple[Driver, RolloutPool, Gangs]]:
    """Reinforcement learning: rollouts, rewards, and perhaps an agent and a teacher."""
    spec, pools, timeline = control.spec, Pools((pool.name for pool in control.spec.asked_pools), token), Timeline()
    gangs = Gangs(spec.gangs, pods, spec.lifecycle.stall_timeout_seconds, timeline)
    workers = PodsOfWorkers.of(spec, pods)
    rewards = RewardManager(spec.rewards, pools, pods=workers.of_rewards)
    sandboxes, agent = Sandboxes(spec.environments, token), None
    following = asyncio.create_task(_follow_sandboxes(directory, sandboxes))
    if spec.rollout.agent and not spec.train.batches.replay:
        address = os.environ[names.ENV_POD_IP] if workers.of_agent else ""
        agent = agent_of(spec.rollout.agent, workers.of_agent, address, sandboxes)
    distillation = None if spec.evaluation.only else spec.algorithm.distillation
    teacher = Teacher(distillation, pools) if distillation and distillation.pool else None
    parts: list[RewardManager | Agent | Teacher] = [rewards, *(part for part in (agent, teacher) if part)]
    try:
        if distillation:
            await asyncio.to_thread(require_same_vocabulary, spec, tokenizer)
        if teacher:
            await teacher.start()
        if agent:
            if workers.of_agent:
                moved(progress, WORKERS)
            await agent.start()
            tokenizer = ToolTokenizer(tokenizer, agent.tools) if agent.tools else tokenizer
        await asyncio.to_thread(generate, spec.data, partial(moved, progress))
        made = row_maker(directory, spec, progress)
        train, held_out = await asyncio.to_thread(read_prompts, directory, spec, tokenizer, made)
        await rewards.start()
        _warn(progress, without_answers(spec, train, rewards.needed_answers))
        control = _counted(control, train)
        room = PROBE_SEQUENCES if spec.keeps_requests else 0  # for a probe, which then meets a server that generates
        most = max(1, sequences(spec) - room)
        rollouts = RolloutPool(token, control.attempt, required_servers(spec), most, timeline=timeline)
        further: list[RewardManager | Agent] = [rewards, *([agent] if agent else [])]
        reporter = _reporter(control.spec, progress, rollouts, pools, gangs, timeline, further)
        generator = Generator(control.spec, tokenizer, rewards, rollouts, progress.heartbeat, agent, timeline)
        source: BatchSource = (
            RecordedBatches(control.spec)
            if spec.train.batches.replay
            else GeneratedBatches(
                control.spec, train, held_out, tokenizer, generator, rollouts, reporter.work, timeline
            )
        )
        measuring = [*gangs.measuring, *([teacher.measure] if teacher else [])]
        driver = Driver(control, source, train, measuring, rollouts, pools, reporter, gangs)
        sandboxes.changed = reporter.show_phase
        workers.follow(reporter.show_phase)
        progress.load = workers.load
        yield driver, rollouts, gangs
    finally:
        following.cancel()
        await asyncio.gather(*(part.stop() for part in parts))


def _warn(progress: ProgressFile, texts: Iterable[str]) -> None:
    """What does not stop the job, for its log and its status."""
    said = [*texts]
    for text in said:
        log.warning("%s", text)
    if said:
        progress.update(warnings=[*progress.progress.warnings, *said])


def _counted(control: Control, data: Dataset) -> Control:
    """The control message with a number of steps in place of epochs."""
    spec = with_steps(control.spec, steps_of(control.spec, len(data)))
    return control.model_copy(update={"spec": spec})


def _reporter(
    spec: RLJobSpec,
    progress: ProgressFile,
    rollouts: RolloutPool,
    pools: Pools,
    gangs: Gangs,
    timeline: Timeline,
    further: Sequence[RewardManager | Agent] = (),
) -> Reporter:
    """What the attempt reports of its parts."""

    def is_served() -> bool:
        return rollouts.is_enough and pools.ready and all(part.ready for part in further)

    return Reporter(
        progress,
        is_served=is_served,
        loading=gangs.loading,
        answers=lambda: rollouts.awaited,
        alarms=Alarms(spec),
        timeline=timeline,
    )


async def _serve(
    listener: socket.socket,
    directory: Path,
    driver: Driver,
    rollouts: RolloutPool,
    progress: ProgressFile,
    gangs: Gangs,
) -> None:
    """Serve rank 0 until it calls `end`. The first error of any part ends all of them."""
    calls, notices = handlers(DriverCalls, driver)
    served = serve(listener, calls, notices)
    try:
        asked = gangs.run(progress.heartbeat)
        await _first_to_end(directory, served, _follow(directory, driver), rollouts.run(), progress.run(), asked)
    finally:
        await rollouts.close()
        await driver.close()


async def _follow(directory: Path, driver: Driver | ServiceDriver) -> None:
    async for control in follow_control(directory):
        await driver.apply(control)


async def _follow_sandboxes(directory: Path, sandboxes: Sandboxes) -> None:
    async for control in follow_control(directory):
        sandboxes.follow(None if control.local else control.sandboxes)


async def _first_to_end(directory: Path, *parts: Awaitable[None]) -> None:
    """Run all concurrently until one ends or fails; the others are cancelled. An error is recorded."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except Exception as error:
        _record(directory, error)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _innermost(error: BaseException) -> BaseException:
    """The first exception inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
