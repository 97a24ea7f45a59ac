"""Gangs that tests share, one attempt after another: starting launchers takes longer than most tests. What a test starts, it ends."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer.pod.gang import Gang

Make = Callable[..., Gang]


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    made: list[Gang] = []

    def make(nodes: int = 1, processes: int = 1) -> Gang:
        directory: Path = tmp_path_factory.mktemp("gang")
        made.append(Gang(directory, nodes, processes))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def solo(gangs: Make) -> Gang:
    """One launcher with two ranks."""
    return gangs(processes=2)


@pytest.fixture(scope="module")
def pair(gangs: Make) -> Gang:
    """Two launchers with one rank each."""
    return gangs(nodes=2)
