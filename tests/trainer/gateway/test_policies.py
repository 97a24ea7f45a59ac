"""Which policy servers have, where all parameters are trained, and whose turn it is to sample."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway import policies
from rljob_trainer.gateway.policies import ServedPolicies
from rljob_trainer.gateway.registry import SavedModel
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.service import ServePolicy

SERVERS = [RolloutEndpoint(pod=f"r-{i}", pod_uid=f"u{i}", url=f"http://r-{i}") for i in range(3)]


class Service:
    """Servers, ranks that update them, and samples that last as long as the test says."""

    def __init__(self, servers: Sequence[RolloutEndpoint] = SERVERS[:1]) -> None:
        self.policies = ServedPolicies("base", lambda: None)
        self.have = dict[str, str]()
        """By the UID of a pod: what it has in truth."""
        self.steps = dict[str, int]()
        """By the UID of a pod: what it calls that."""
        self.updates = list[str]()
        self.running, self.done = set[str](), list[str]()
        self.refused = dict[str, RequestRefusedError]()
        self._ends = dict[str, asyncio.Event]()
        self._tasks = dict[str, asyncio.Task[None]]()
        self.policies.follow(list(servers))

    async def ask(self, name: str, snapshot: str) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._sample(name, snapshot))
        await settle()

    async def _sample(self, name: str, snapshot: str) -> None:
        try:
            await self._sampled(name, snapshot)
        except RequestRefusedError as error:
            self.refused[name] = error

    async def _sampled(self, name: str, snapshot: str) -> None:
        async with self.policies.turn(snapshot):
            serving = [s for s in SERVERS if self.policies.serving(s)]
            assert serving and {self.have[s.pod_uid] for s in serving} == {snapshot or "base"}
            assert {self.steps[s.pod_uid] for s in serving} == {self.policies.step}
            self.running.add(name)
            try:
                await self._ends[name].wait()
            finally:
                self.running.discard(name)
        self.done.append(name)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await settle()

    async def result(self, name: str) -> None:
        await self._tasks[name]
        if name in self.refused:
            raise self.refused[name]

    async def update(self, failing: Sequence[str] = ()) -> bool:
        """What the ranks do next. False: nothing. `failing`: servers that cannot be reached."""
        work = self.begin_update()
        if work is None:
            return False
        await self.end_update(work, failing)
        return True

    def begin_update(self) -> ServePolicy | None:
        """The servers of an update have nothing while it lasts."""
        work = self.policies.next_update() if self.policies.due else None
        for server in work.servers if work else ():
            self.have[server["podUid"]] = ""
        return work

    async def refuse(self, why: str) -> None:
        """The next update, which no server takes."""
        work = self.begin_update()
        assert work
        self.updates.append(work.path)
        self.policies.served(work, [], {server["podUid"]: why for server in work.servers})
        await settle()

    async def end_update(self, work: ServePolicy, failing: Sequence[str] = (), refusing: Sequence[str] = ()) -> None:
        pods = [server["podUid"] for server in work.servers if server["podUid"] not in {*failing, *refusing}]
        self.have |= dict.fromkeys(pods, work.path)
        self.steps |= dict.fromkeys(pods, work.step)
        self.updates.append(work.path)
        self.policies.served(work, pods, dict.fromkeys(refusing, "no room"))
        await settle()


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_samples_of_one_policy_run_together_and_the_next_policy_waits_for_them_and_comes_once() -> None:
    service = Service()
    for name, snapshot in (("a", "one"), ("b", "one"), ("c", "two"), ("d", "one"), ("e", "two")):
        await service.ask(name, snapshot)
    assert not service.running and await service.update()
    assert service.running == {"a", "b"} and not await service.update()
    await service.end("a")
    assert not await service.update(), "b still samples"
    await service.end("b")
    assert await service.update() and service.running == {"c"}
    for name in "cde":
        await service.end(name)
        await service.update()
    assert service.done == list("abcde") and service.updates == ["one", "two", "one", "two"]


async def test_a_server_that_comes_later_gets_the_current_policy_while_others_sample() -> None:
    service = Service()
    await service.ask("a", "")
    await service.update()
    service.policies.follow(SERVERS[:2])
    assert await service.update() and service.running == {"a"}
    assert service.have == {"u0": "base", "u1": "base"} and service.policies.serving(SERVERS[1])


async def test_a_server_that_cannot_be_updated_is_tried_again_after_a_while_and_gets_no_samples_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(SERVERS[:2])
    await service.ask("a", "one")
    assert await service.update(failing=["u1"]) and service.running == {"a"}
    assert not service.policies.serving(SERVERS[1]) and not await service.update()
    monkeypatch.setattr(policies, "PAUSE_SECONDS", 0.0)
    await service.ask("b", "two")
    await service.end("a")
    assert await service.update(failing=["u0", "u1"]) and not service.running
    assert await service.update() and service.running == {"b"}


async def test_a_server_that_is_lost_is_updated_before_it_gets_samples_again() -> None:
    service = Service()
    await service.ask("a", "one")
    await service.update()
    service.policies.lost(SERVERS[0])
    await service.ask("b", "one")
    assert not service.policies.serving(SERVERS[0]) and "b" not in service.running
    assert await service.update() and service.running == {"a", "b"}, "a hangs with what was lost, and is not waited for"
    await service.ask("c", "two")
    await service.end("a")
    assert not await service.update()
    await service.end("b")
    assert await service.update() and service.running == {"c"}


async def test_samples_of_a_policy_that_servers_cannot_have_fail_alone() -> None:
    service = Service()
    for name, snapshot in (("a", "gone"), ("b", "one"), ("c", "gone")):
        await service.ask(name, snapshot)
    service.policies.refuse("gone", "it was deleted")
    for name in "ac":
        with pytest.raises(RequestRefusedError, match="it was deleted"):
            await service.result(name)
    await settle()
    assert await service.update() and service.running == {"b"}


async def test_samples_of_a_policy_that_no_server_takes_fail_with_the_reasons_of_all_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policies, "PAUSE_SECONDS", 0.0)
    service = Service(SERVERS[:2])
    for name, snapshot in (("a", "bad"), ("b", "good"), ("c", "bad")):
        await service.ask(name, snapshot)
    await service.refuse("out of memory")
    assert await service.update(failing=["u0", "u1"]), "who cannot be reached has not refused"
    await service.refuse("out of memory")
    assert not service.done and not service.running
    await service.refuse("t0 has shape [4]")
    for name in "ac":
        with pytest.raises(RequestRefusedError, match=r"r-0: t0 has shape \[4\]; r-1: t0 has shape \[4\]"):
            await service.result(name)
    assert await service.update() and service.running == {"b"}, "at once, since it was no fault of the servers"


async def test_a_policy_that_a_server_takes_in_the_end_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "PAUSE_SECONDS", 0.0)
    service = Service()
    for name, snapshot in (("a", "one"), ("b", "two"), ("c", "one")):
        await service.ask(name, snapshot)
        for _ in range(2):
            await service.refuse("busy")
        assert await service.update() and service.running == {name}
        await service.end(name)


@pytest.mark.parametrize("what", ["its files change", "another server comes", "other ranks send it"])
async def test_a_refused_snapshot_is_not_sent_again_before(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "PAUSE_SECONDS", 0.0)
    service, file = Service(), tmp_path / "model.safetensors"
    file.write_bytes(b"1")
    await service.ask("a", str(tmp_path))
    for _ in range(3):
        await service.refuse("it is too large")
    service.policies.follow(SERVERS[:1])
    await service.ask("b", str(tmp_path))
    for name in "ab":
        with pytest.raises(RequestRefusedError, match="it is too large"):
            await service.result(name)
    assert not await service.update()
    match what:
        case "its files change":
            file.write_bytes(b"12")
        case "another server comes":
            service.policies.follow(SERVERS[:2])
        case "other ranks send it":
            service.policies.begin()
    await service.ask("c", str(tmp_path))
    assert await service.update() and service.running == {"c"}


async def test_a_server_that_fails_again_and_again_gets_updates_at_growing_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("rljob_trainer.gateway.policies.time", SimpleNamespace(monotonic=lambda: now))
    service, times = Service(SERVERS[:2]), list[float]()
    await service.ask("a", "one")
    assert await service.update(failing=["u1"]) and service.running == {"a"}
    for _ in range(300):
        now += 1.0
        if await service.update(failing=["u1"]):
            times.append(now - 1000)
    assert times == [5, 15, 35, 75, 135, 195, 255]


async def test_a_policy_that_servers_still_have_needs_no_update_when_the_sample_that_was_to_follow_is_cancelled() -> (
    None
):
    service = Service()
    await service.ask("a", "one")
    await service.update()
    await service.end("a")
    await service.ask("b", "two")
    await service.ask("c", "one")
    await service.cancel("b")
    assert service.running == {"c"} and not await service.update()


@pytest.mark.parametrize("failing", [(), ("u0",)])
async def test_a_policy_that_ranks_replace_already_is_sent_again_when_that_sample_is_cancelled(
    failing: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "PAUSE_SECONDS", 0.0)
    service = Service()
    await service.ask("a", "one")
    await service.update()
    await service.end("a")
    await service.ask("b", "two")
    work = service.begin_update()
    assert work and work.path == "two"
    await service.ask("c", "one")
    await service.cancel("b")
    assert not service.running
    await service.end_update(work, failing)
    assert not service.running and await service.update() and service.running == {"c"}


@pytest.mark.parametrize("servers", [1, len(SERVERS)])
@pytest.mark.parametrize("seed", range(30))
async def test_every_sample_has_its_own_policy_and_none_waits_for_ever_whatever_happens(
    seed: int, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample asserts itself what servers have when its turn comes. At the end the servers stay as they are, unless there are none, and take all."""
    monkeypatch.setattr(policies, "PAUSE_SECONDS", 0.0)
    draw, service, asked, cancelled = random.Random(seed), Service(), list[str](), set[str]()
    work: ServePolicy | None = None
    listed = SERVERS[:1]
    for _ in range(200):
        match draw.randrange(8):
            case 0 | 1:
                asked.append(f"{len(asked)}")
                await service.ask(asked[-1], draw.choice(["", "one", "two"]))
            case 2 | 3:
                if work is None:
                    work = service.begin_update()
                else:
                    uids = [server["podUid"] for server in work.servers]
                    failing, refusing = (draw.sample(uids, draw.randrange(len(uids) + 1)) for _ in range(2))
                    await service.end_update(work, failing, refusing)
                    work = None
            case 4 if service.running:
                await service.end(draw.choice(sorted(service.running)))
            case 5 if left := set(asked).difference(cancelled, service.done, service.refused):
                name = draw.choice(sorted(left))
                cancelled.add(name)
                await service.cancel(name)
            case 6:
                listed = draw.sample(SERVERS[:servers], draw.randrange(servers + 1))
                service.policies.follow(listed)
            case 7 if draw.randrange(2):
                service.policies.begin()
                work = None
            case 7:
                service.policies.lost(draw.choice(SERVERS))
        await settle()
    if work:
        await service.end_update(work)
    if not listed:
        service.policies.follow(SERVERS[:servers])
    for _ in range(2 * len(asked)):
        for name in sorted(service.running):
            await service.end(name)
        await service.update()
    assert {*service.done, *service.refused} == set(asked) - cancelled


async def test_a_snapshot_that_ranks_send_to_servers_is_deleted_after_that(tmp_path: Path) -> None:
    gateway = GatewayService(ServiceSpec(max_rank=0, max_models=1), tmp_path)
    gateway.desk.policies = sent = ServedPolicies("/models/base", lambda: None)
    snapshot = tmp_path / "snapshots/m/1"
    snapshot.mkdir(parents=True)
    saved = SavedModel("m", "ann", "snapshots/m/1", 0.0, 0, True, True, None)
    await gateway.names.save("tinker://m/sampler_weights/x", saved)
    sent.follow(SERVERS)
    sample = asyncio.create_task(sent.turn(str(snapshot)).__aenter__())
    await settle()
    update = sent.next_update()
    assert update.path == str(snapshot)
    await gateway.delete("ann", "tinker://m/sampler_weights/x")
    await gateway.sweep()
    assert snapshot.is_dir()
    sent.served(update, ["u0"], {})
    await sample
    await gateway.sweep()
    assert not snapshot.exists()
