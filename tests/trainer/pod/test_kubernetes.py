"""The channel against an HTTP server that behaves badly. The real API server is in the end-to-end tests."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.specs import make_spec
from certificates import certified
from rljob_api.protocol import Control, Report, Resume
from rljob_trainer.pod.channel import ProtocolMismatch
from rljob_trainer.pod.kubernetes import KubernetesChannel
from trainer.pod.fake_api import FakeApi
from trainer.pod.pods import SECONDS, until


def control(attempt: int, name: str = "job") -> str:
    return Control(
        name=name, namespace="ns", job_uid="uid", attempt=attempt, resume=Resume(policy="auto"), spec=make_spec()
    ).dump_json()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    server = FakeApi(control(1), tmp_path)
    yield server
    await server.stop()


async def connect(api: FakeApi) -> KubernetesChannel:
    return KubernetesChannel(await api.start(), "ns", "job-control", "job-trainer-0-report")


async def next_attempt(controls: AsyncIterator[Control | None]) -> int | None:
    """None: the control message is gone."""
    found = await asyncio.wait_for(anext(controls), SECONDS)
    return found and found.attempt


async def test_the_control_comes_as_it_is_and_then_each_change(api: FakeApi) -> None:
    controls = (await connect(api)).controls()
    assert await next_attempt(controls) == 1
    api.publish(control(2))
    assert await next_attempt(controls) == 2
    assert api.tokens == {"Bearer of the pod"}


async def test_what_changed_while_the_connection_was_broken_is_heard_and_nothing_twice(api: FakeApi) -> None:
    controls = (await connect(api)).controls()
    assert await next_attempt(controls) == 1
    api.break_connections()
    following = asyncio.create_task(next_attempt(controls))
    await until(lambda: api.watches > 1)
    assert not following.done()
    api.publish(control(2))
    assert await following == 2


async def test_an_api_server_that_was_away_is_found_again(api: FakeApi) -> None:
    channel = await connect(api)
    controls = channel.controls()
    assert await next_attempt(controls) == 1
    api.down = True
    api.break_connections()
    following = asyncio.create_task(next_attempt(controls))
    reporting = asyncio.create_task(channel.report(Report(pod="p", pod_uid="u", boot_id="b")))
    await until(lambda: api.watches > 2 and api.refused_patches > 1)  # the first of each has been answered
    assert not following.done() and not reporting.done()
    api.control, api.down = control(2), False
    assert await following == 2
    await asyncio.wait_for(reporting, SECONDS)
    assert len(api.patches) == 1


async def test_a_deleted_control_is_told_and_a_new_one_followed(api: FakeApi) -> None:
    controls = (await connect(api)).controls()
    assert await next_attempt(controls) == 1
    api.publish("")
    assert await next_attempt(controls) is None
    api.publish(control(1))
    assert await next_attempt(controls) == 1


@pytest.mark.parametrize(("status", "meaning"), [(401, "ServiceAccount was deleted"), (403, "Role was deleted")])
async def test_a_control_that_may_not_be_read_any_more_is_told_once_and_logged_as_what_it_is(
    api: FakeApi, caplog: pytest.LogCaptureFixture, status: int, meaning: str
) -> None:
    controls = (await connect(api)).controls()
    assert await next_attempt(controls) == 1
    api.forbidden = status
    api.break_connections()
    assert await next_attempt(controls) is None
    following = asyncio.create_task(next_attempt(controls))
    await until(lambda: api.watches > 3)  # the one before was answered, and refused as well
    assert not following.done()
    (line,) = [r.message for r in caplog.records if str(status) in r.message]
    assert meaning in line
    api.forbidden = 0
    assert await following == 1


async def test_a_watch_that_the_server_ends_with_an_error_is_opened_again(api: FakeApi) -> None:
    controls = (await connect(api)).controls()
    assert await next_attempt(controls) == 1
    api.publish("gone")
    following = asyncio.create_task(next_attempt(controls))
    await until(lambda: api.watches > 1)
    api.control = control(3)
    assert await following == 3


async def test_a_report_is_one_merge_patch_of_the_pods_own_object(api: FakeApi) -> None:
    report = Report(pod="job-trainer-0", pod_uid="uid", boot_id="boot", attempt=3, state="running")
    await (await connect(api)).report(report)
    (patch,) = api.patches
    assert patch == {"name": "job-trainer-0-report", "data": {"report.json": report.dump_json()}}


async def test_a_control_larger_than_a_line_buffer_arrives(api: FakeApi) -> None:
    api.control = control(5, name="j" * 500_000)
    assert await next_attempt((await connect(api)).controls()) == 5


async def test_another_protocol_is_refused_before_the_rest_is_read(api: FakeApi) -> None:
    api.control = '{"protocol": 7, "attempt": 4, "spec": {"image": "trainer:old"}}'
    with pytest.raises(
        ProtocolMismatch, match="trainer:old, speaks protocol 1 of the control, the operator protocol 7"
    ):
        await next_attempt((await connect(api)).controls())


async def test_watches_that_are_ended_at_once_are_opened_once_a_second(api: FakeApi) -> None:
    controls = (await connect(api)).controls()
    assert await next_attempt(controls) == 1
    api.brief = True
    api.publish(control(1))
    following = asyncio.create_task(next_attempt(controls))
    await asyncio.sleep(1.5)  # a rate is measured
    following.cancel()
    assert api.watches <= 4


async def test_a_server_with_another_authority_is_accepted_once_the_kubelet_has_written_it(
    api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clusters replace theirs while jobs run."""
    (old, old_file), (new, new_file) = certified(tmp_path, "old"), certified(tmp_path, "new")
    known = tmp_path / "ca.crt"
    known.write_bytes(old_file.read_bytes())
    channel = KubernetesChannel(await api.start(old, known), "ns", "job-control", "job-trainer-0-report")
    controls = channel.controls()
    assert await next_attempt(controls) == 1
    known.write_bytes(b"")
    await api.certify(new)
    api.publish(control(2))
    following = asyncio.create_task(next_attempt(controls))
    await until(lambda: "certificate verify failed" in caplog.text)
    assert not following.done(), "the file is empty while it is replaced"
    known.write_bytes(new_file.read_bytes())
    assert await following == 2
