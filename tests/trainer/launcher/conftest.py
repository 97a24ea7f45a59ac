from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trainer.launcher.gang import Gang


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Callable[..., Gang]]:
    """Makes gangs; their launchers end with the test."""
    made: list[Gang] = []

    def make(nodes: int = 1, processes: int = 1) -> Gang:
        made.append(Gang(tmp_path, nodes, processes))
        return made[-1]

    yield make
    for each in made:
        each.close()
