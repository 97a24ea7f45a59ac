"""Every estimator, loss and weight against numbers worked out by hand."""

from pathlib import Path

import pytest

from trainer.algorithm.oracles import ADVANTAGE_ORACLES, Oracle
from trainer.algorithm.supervised_oracles import SUPERVISED_ORACLES
from trainer.algorithm.token_oracles import AMOUNT_ORACLES, CORRECTION_ORACLES, KL_ORACLES, LOSS_ORACLES

ORACLES = (*ADVANTAGE_ORACLES, *LOSS_ORACLES, *KL_ORACLES, *CORRECTION_ORACLES, *AMOUNT_ORACLES, *SUPERVISED_ORACLES)
TOLERANCE = 1e-9
DOCUMENT = Path(__file__).parents[3] / "docs/algorithms.md"


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda o: o.name)
def test_the_numbers_are_those_worked_out_by_hand(oracle: Oracle) -> None:
    assert oracle.compute() == pytest.approx(oracle.expected, rel=0, abs=TOLERANCE)


def test_the_documented_table_is_the_one_that_is_tested() -> None:
    rows = [f"| {o.name} | {o.working} | {', '.join(f'{x:.6g}' for x in o.expected)} |" for o in ORACLES]
    table = "\n".join(["| case | working | numbers |", "| --- | --- | --- |", *rows])
    print(f"\n{table}")
    assert table in DOCUMENT.read_text()
