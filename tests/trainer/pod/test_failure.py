"""What an exception means, and which of several failures is the cause."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from rljob_api.protocol import Failure
from rljob_trainer import failure
from rljob_trainer.failure import ConfigurationError, PeerLost, RolloutLost
from rljob_trainer.pod.attempt import await_cause, unwritable
from rljob_trainer.pod.fork_client import ForkServerLost
from rljob_trainer.rank.weights.call import ReplicaRefusedError

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711"


class DistBackendError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize("error", [RuntimeError(GLOO), DistBackendError("NCCL error"), PeerLost("the driver is gone")])
def test_a_broken_collective_is_a_symptom(error: Exception) -> None:
    assert failure.classify(error).kind == "collective"


def test_a_volume_that_is_away_for_now_ends_the_attempt_and_not_the_job() -> None:
    kinds = {errno.ESTALE: "application", errno.EIO: "application", errno.ENOSPC: "full", errno.EROFS: "configuration"}
    for number, kind in kinds.items():
        error = unwritable("/ckpt", OSError(number, os.strerror(number), "/ckpt/logs"))
        assert failure.classify(error).kind == kind


class SafetensorError(Exception):
    """As that of safetensors, which has no errno."""


def test_a_volume_without_space_is_told_from_other_errors_also_behind_an_error_about_it() -> None:
    try:
        with Path("/dev/full").open("w") as stream:
            stream.write("x" * 100_000)
    except OSError as error:
        written = error
    try:
        raise RuntimeError("could not write its part of the checkpoint of step 4") from written
    except RuntimeError as error:
        wrapped = error
    rust = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    quota = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/data/run/metrics.jsonl")
    assert [failure.classify(error).kind for error in (written, wrapped, rust, quota)] == ["full"] * 4


def test_a_full_directory_of_the_pod_itself_is_an_error_that_comes_back() -> None:
    shared = RuntimeError("unable to write to file </torch_45_2_0>: No space left on device (28)")
    nccl = RuntimeError("Error while creating shared memory segment /dev/shm/nccl-x: No space left on device (28)")
    scratch = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/rows.arrow")
    assert [failure.classify(error).kind for error in (shared, nccl, scratch)] == ["application"] * 3


def test_a_peer_of_a_rank_that_found_the_volume_full_has_only_lost_it() -> None:
    assert failure.classify(PeerLost("rank 1 could not write: No space left on device")).kind == "collective"


def test_a_broken_collective_stays_one_when_it_is_wrapped() -> None:
    try:
        raise ValueError("the batch did not arrive") from RuntimeError(GLOO)
    except ValueError as error:
        assert failure.classify(error).kind == "collective"


def test_an_error_during_which_the_collective_broke_is_the_cause() -> None:
    try:
        try:
            raise ZeroDivisionError("no samples")
        finally:
            raise RuntimeError(GLOO)
    except RuntimeError as error:
        found = failure.classify(error, 3)
    assert (found.kind, found.exception, found.message, found.rank) == (
        "application",
        "ZeroDivisionError",
        "no samples",
        3,
    )


def test_a_mistake_of_the_users_names_its_field() -> None:
    found = failure.classify(ConfigurationError("spec.x", 3, "must be even", "take 4"))
    assert (found.kind, found.field, found.message) == ("configuration", "spec.x", "spec.x = 3: must be even; take 4")


def test_a_mistake_of_the_users_is_one_message_without_the_traceback_of_our_code() -> None:
    try:
        try:
            {}["missing"]
        except KeyError as error:
            raise ConfigurationError("spec.x", 3, "must be even", "take 4") from error
    except ConfigurationError as error:
        found = failure.classify(error)
    assert (found.message, found.lines) == ("spec.x = 3: must be even; take 4", [])


def test_an_exception_that_replaced_another_is_itself() -> None:
    try:
        try:
            {}["missing"]
        except KeyError:
            raise ConfigurationError("spec.x", 3, "must be even", "take 4") from None
    except ConfigurationError as error:
        assert failure.classify(error).exception == "ConfigurationError"


def test_a_signal_is_named() -> None:
    found = failure.ended(-signal.SIGSEGV, 1, "loading\n")
    assert (found.kind, found.exception, found.lines) == ("killed", "Signal 11 (SIGSEGV)", ["loading"])


def test_a_process_that_was_killed_for_memory_is_called_so_with_the_limit() -> None:
    killed = failure.ended(-signal.SIGKILL, 1, "step 3\n")
    lost = ForkServerLost("the imports of rljob_trainer.rank.main", -9).as_failure()
    for found in (failure.with_memory(f, kills=1, limit=32 * 2**30) for f in (killed, lost)):
        assert (found.kind, found.exception) == ("killed", "OutOfMemory")
        assert found.message.startswith("memory ran out (OOM, exit code 137): the container's limit is 32.0 GiB; ")
    assert "the container has no limit" in failure.with_memory(killed, kills=1, limit=None).message
    assert failure.with_memory(killed, kills=0, limit=1) == killed, "somebody else killed it"
    segfault = failure.ended(-signal.SIGSEGV, 1, "")
    assert failure.with_memory(segfault, kills=1, limit=1) == segfault


def test_a_fork_server_that_ended_is_reported_without_a_traceback_of_the_launcher() -> None:
    found = ForkServerLost("the imports of rljob_trainer.rank.main", 1).as_failure()
    assert (found.kind, found.exception, found.lines) == ("application", "ForkServerLost", [])
    assert found.message == "the imports of rljob_trainer.rank.main failed: exit code 1; the pod's log has the reason"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)", "collective"),
        ("NCCL error: remote process exited or there was a network error, NCCL version 2.27.5", "collective"),
        ("CUDA error: an illegal memory access was encountered", "killed"),
    ],
)
def test_a_rank_whose_peers_were_missed_by_the_watchdog_is_not_the_cause(reason: str, kind: str) -> None:
    """It is the common end of NCCL's ranks when a node is lost: as a cause it would count against the job, and hide the node."""
    said = f"[rank1]:[E1] [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: {reason}"
    frames = "".join(f"\nframe #{i}: clone3 + 0x2c (0x7f in libc.so.6)" for i in range(30))
    found = failure.ended(-signal.SIGABRT, 1, f"training\n{said}{frames}\n")
    assert (found.kind, found.message) == (kind, reason)


@pytest.mark.parametrize(
    ("log", "said", "last"),
    [
        (
            "loading\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: no device\n",
            *2 * ["CUDA error: no device"],
        ),
        ("loading\nAborted\n", "the process was killed", "Aborted"),
        ("", "the process was killed", ""),
    ],
)
def test_what_native_code_says_before_it_aborts_is_the_message(log: str, said: str, last: str) -> None:
    frames = "".join(f"frame #{i}: clone3 + 0x2c (0x7f in libc.so.6)\n" for i in range(30)) if "what()" in log else ""
    found = failure.ended(-signal.SIGABRT, 1, log + frames)
    assert (found.kind, found.exception, found.message) == ("killed", "Signal 6 (SIGABRT)", said)
    assert "".join(found.lines[-1:]).endswith(last)


def test_the_first_failure_is_the_cause_and_symptoms_lose_whenever_they_came() -> None:
    symptom = Failure(kind="collective", time=1)
    late, early = Failure(kind="application", time=3), Failure(kind="killed", time=2)
    assert failure.first([symptom, late, early]) is early
    assert failure.first([symptom]) is symptom
    assert failure.first([]) is None


def test_what_was_written_is_read(tmp_path: Path) -> None:
    failure.write(tmp_path, 2, ValueError("two"))
    failure.write(tmp_path, "driver", ValueError("driver"))
    assert [(f.rank, f.message) for f in failure.read(tmp_path)] == [(2, "two"), (None, "driver")]
    assert failure.read_first(tmp_path) == failure.read(tmp_path)[0]


def test_long_texts_and_tracebacks_fit_into_a_report(tmp_path: Path) -> None:
    failure.write(tmp_path, 0, ValueError("x" * 10_000 + "\n" * 100))
    (found,) = failure.read(tmp_path)
    assert len(found.message) == 4096 and len(found.lines) == 20


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (RolloutLost("/rljob/sleep"), True),
        (ReplicaRefusedError("/rljob/sleep: 500: EngineDeadError"), True),
        (ValueError("a rank's own"), False),
    ],
)
async def test_a_server_that_a_rank_has_lost_is_given_the_time_to_say_why(
    tmp_path: Path, error: Exception, named: bool
) -> None:
    async def server_ends() -> int:
        await asyncio.sleep(0.05 if named else 60.0)
        failure.record(tmp_path, "server", Failure(kind="killed", exception="ServerLost", message="killed", time=9e9))
        return 1

    failure.write(tmp_path, 0, error)
    servers = asyncio.create_task(server_ends())
    await await_cause(tmp_path, None, servers)
    cause = failure.read_first(tmp_path)
    assert servers.done() == named
    assert cause and cause.exception == ("ServerLost" if named else "ValueError")
    servers.cancel()
