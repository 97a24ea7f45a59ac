"""Children of two jobs in one namespace never want the same name, whatever the jobs and their pools are called."""

from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest
from pydantic import ValidationError

from rljob_api import names
from rljob_api.spec.roles import PoolSpec

WORDS = ("a", "0", "control", "report", "token", "trainer")


def texts(longest: int) -> Iterator[str]:
    for length in range(1, longest + 1):
        yield from map("-".join, product(WORDS, repeat=length))


def is_pool(name: str) -> bool:
    try:
        PoolSpec(name=name, model="/model")
    except ValidationError:
        return False
    return name not in names.RESERVED_ROLES


JOBS, ROLES = list(texts(3)), [*names.RESERVED_ROLES, *filter(is_pool, texts(2))]


def of_all_jobs() -> Iterator[tuple[str, str]]:
    """Kind and name."""
    for job in JOBS:
        yield from (("ConfigMap", names.control(job)), ("Role", names.pods(job)), ("PodGroup", names.pod_group(job)))
        yield from (("Secret", names.token(job, "0a1b2c3d", number)) for number in (1, 2))
        for role in ROLES:
            yield "StatefulSet", names.gang(job, role)
            for pod in (names.pod(job, role, ordinal) for ordinal in (0, 1)):
                yield from (("Pod", pod), ("ConfigMap", names.report(pod)))


def test_two_jobs_never_want_the_same_name() -> None:
    assert len(ROLES) > len(names.RESERVED_ROLES)
    assert [name for name, count in Counter(of_all_jobs()).items() if count > 1] == []


@pytest.mark.parametrize("role", names.RESERVED_ROLES)
def test_a_role_is_one_word_that_fits_into_the_name_of_a_statefulset(role: str) -> None:
    assert role.isalnum()
    assert len(names.gang("j" * names.MAX_JOB_NAME, role)) <= 52
