"""Which GPUs colocated servers see."""

from rljob_trainer.pod.colocated import visible


def test_a_server_has_its_own_gpus_first_and_sees_all_whose_memory_it_reads() -> None:
    assert visible(4, 2, ["4", "5", "6", "7"]) == ["4,5,6,7", "6,7,4,5"]
    assert visible(2, 1, ["0", "1"]) == ["0,1", "1,0"]
    assert visible(1, 1, ["3"]) == ["3"]
