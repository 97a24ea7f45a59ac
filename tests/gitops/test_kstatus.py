"""Tools that wait by kstatus see a job as it is, in every state."""

from gitops.kstatus import compute
from gitops.lives import EVERY_STATE, documents

EXPECTED = {
    "Pending": "InProgress",
    "Starting": "InProgress",
    "Restarting": "InProgress",
    "Suspending": "InProgress",
    "Running": "Current",
    "Suspended": "Current",
    "Succeeded": "Current",
    "Failed": "Failed",
}


def observed() -> list[tuple[str, dict]]:
    return [(what, job) for what, job in documents() if not what.endswith("unobserved")]


def test_every_state_is_seen() -> None:
    assert {job["status"]["state"] for _, job in observed()} == EVERY_STATE == EXPECTED.keys()


def test_what_kstatus_says_follows_the_state() -> None:
    for what, job in observed():
        if job["status"]["observedGeneration"] == job["metadata"]["generation"]:
            assert compute(job) == EXPECTED[job["status"]["state"]], what


def test_a_change_that_the_operator_has_not_seen_is_in_progress() -> None:
    fresh = [job for what, job in documents() if what.startswith(("applied", "edited")) and what.endswith("unobserved")]
    assert {compute(job) for job in fresh} == {"InProgress"}


def test_one_pass_observes_a_change() -> None:
    """Also of a job that has ended, or that runs and has been given a mistake: nobody waits for ever."""
    for what in ("edited", "edited after the end", "spoilt while it runs", "mended"):
        first = next(job for seen, job in documents() if seen == what)
        assert first["status"]["observedGeneration"] == first["metadata"]["generation"], what


def test_reconciling_and_stalled_exclude_each_other_and_name_their_reason() -> None:
    for what, job in observed():
        true = [c for c in job["status"]["conditions"] if c["status"] == "True"]
        assert not {"Reconciling", "Stalled"} <= {c["type"] for c in true}, what
        for condition in true:
            assert condition["reason"], what
            assert condition["observedGeneration"] == job["status"]["observedGeneration"]
            assert condition["message"] or condition["type"] not in ("Reconciling", "Stalled"), (what, condition)
