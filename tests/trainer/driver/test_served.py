"""The numbers of what servers answered."""

import numpy as np
import pytest

from rljob_trainer.driver.replicas import Served
from rljob_trainer.wire.rollout_client import Generation


def answer(tokens: int, guesses: tuple[int, int] = (0, 0)) -> Generation:
    return Generation(np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), "stop", 0, guesses=guesses)


def test_a_step_s_metrics_are_of_what_came_in_it() -> None:
    before = Served().with_more([answer(100, (50, 50))])
    after = before.with_more([answer(20, (8, 4)), answer(10, (2, 4))])
    assert after.metrics(before, 2.0) == {"rollout/tokens_per_s": 15.0, "rollout/acceptance_length": pytest.approx(1.8)}


def test_servers_that_guess_nothing_have_no_acceptance_length() -> None:
    after = Served().with_more([answer(30)])
    assert after.metrics(Served(), 3.0) == {"rollout/tokens_per_s": 10.0}
    assert after.metrics(after, 0.0) == {}
