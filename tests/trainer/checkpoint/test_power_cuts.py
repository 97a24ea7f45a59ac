"""A power cut before each fsync and after each rename of a save, with the files that ranks, another gang and the buffer write. Slow because of
megatron's imports."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_trainer.checkpoint.files import Tally, write_json
from rljob_trainer.checkpoint.manifest import BUFFERS, STEP_DIRECTORY, read_manifest
from rljob_trainer.failure import PeerLost
from trainer.checkpoint.disk import Cuts
from trainer.checkpoint.saving import open_store
from trainer.ranks import run_ranks


@pytest.mark.slow
def test_a_power_cut_at_any_point_leaves_whole_checkpoints_only_and_the_last_committed_one(tmp_path: Path) -> None:
    cuts, committed = run_ranks(1, lambda: several_saves(tmp_path))[0]
    assert cuts > 20, "hardly anything was left behind: no test"
    assert committed == 3


def several_saves(work: Path) -> tuple[int, int]:
    """First ones, one that is drained, one for which an old one goes, and one in the place of another branch's."""
    cuts = Cuts(work, look)
    cuts.committed = 0
    root = cuts.top / "new" / "run"
    with cuts.disk.watched(cuts.cut):
        saver = saver_of(root, 1)
        for step in (1, 2, 3):
            save(saver, step)
            cuts.committed = step
            if step != 1:
                saver._store.renew_buffer(step, write_buffer)
        cuts.committed = 2
        other = saver_of(root, 2, step=2)
        save(other, 3)
        cuts.committed = 3
        cuts.cut()
    return cuts.number, cuts.committed


@pytest.mark.slow
def test_a_save_whose_files_a_newer_attempt_deletes_says_that_the_attempt_is_over(tmp_path: Path) -> None:
    assert run_ranks(1, lambda: how_a_save_ends(tmp_path))[0] == "FencedOut"


def how_a_save_ends(root: Path) -> str:
    """That of an attempt which has been cut off from the cluster, and does not know that the next one has begun."""
    saver = saver_of(root, 1)
    saver.begin(1, "digest1", {"consumed": 1, "prompts": 10}, True, further)
    open_store(root, 2)
    try:
        saver.complete(wait=True)
    except Exception as error:
        return type(error).__name__
    return "saved"


def look(left: Path, committed: int, when: str) -> None:
    """All that an attempt takes for a checkpoint is whole, and it starts from the committed one."""
    root = left / "new" / "run"
    for directory in filter(lambda d: STEP_DIRECTORY.fullmatch(d.name), root.iterdir() if root.exists() else ()):
        manifest = read_manifest(directory)
        assert manifest, f"{directory.name} has no manifest: {when}"
        assert not (bad := manifest.corruption(directory, 0, 1, Tally())), f"{directory.name}: {bad}: {when}"
    start = open_store(root, 9).start
    assert (start.manifest.step if start else 0) >= committed, when


def saver_of(root: Path, attempt: int, step: int | None = None) -> Any:
    from rljob_trainer.checkpoint.saving import CheckpointPart, Saver
    from rljob_trainer.megatron import compat
    from rljob_trainer.wire.collective import Ranks

    compat.install()
    ranks = Ranks(60)
    return Saver(
        Engine(), ranks, open_store(root, attempt, step), Gang(CheckpointPart(Engine(), ranks)), has_gangs=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["buffer_saved", "gangs_saved"])
@pytest.mark.parametrize("wait", [False, True])
def test_nothing_is_left_of_a_save_whose_buffer_or_critic_cannot_be_written(
    tmp_path: Path, asked: str, wait: bool
) -> None:
    """The driver ends then, and says why in its own file."""
    assert run_ranks(1, lambda: left_without(tmp_path, asked, wait)) == [[]]


def left_without(root: Path, asked: str, wait: bool) -> list[str]:
    saver = saver_of(root, 1)

    def lost(*_: Any) -> Any:
        raise PeerLost("the driver is gone")

    setattr(saver._writers, asked, lost)
    saver.begin(1, "digest1", {"consumed": 1, "prompts": 10}, True, further)
    assert [*root.glob("*.tmp-*")]
    with pytest.raises(PeerLost):
        while True:
            saver.complete(wait)
    return [path.name for path in root.glob("*.tmp-*")]


def save(saver: Any, step: int) -> None:
    saver.begin(step, f"digest{step}", {"consumed": step, "prompts": 10}, True, further)
    assert saver.complete(wait=True).step == step


def further(directory: Path) -> None:
    write_buffer(directory / BUFFERS[0])


def write_buffer(directory: Path) -> None:
    directory.mkdir()
    (directory / "groups").write_bytes(b"groups")
    write_json(directory / "buffer.json", {})


class Engine:
    """Writes a tensor as megatron's engine writes its tensors."""

    layout = "tp1-pp1-dp1"

    def heartbeat(self) -> None:
        pass

    def save(self, directory: Path, alongside: bool) -> Any:
        from megatron.core.dist_checkpointing import ShardedTensor

        from rljob_trainer.checkpoint.staging import Staging
        from rljob_trainer.checkpoint.torch_dist import Writing
        from rljob_trainer.megatron.compat.core_checkpoints import new_queue

        directory.mkdir(parents=True)
        weights = {name: ShardedTensor.from_rank_offsets(name, torch.ones(5)) for name in "ab"}
        return Writing(directory, {"layout": self.layout, **weights}, set(), Staging(), 2, new_queue())


class Gang:
    """A critic's, which saves as those ranks do."""

    def __init__(self, part: Any):
        self._part = part

    def save_gangs(self, step: int, directory: Path, alongside: bool) -> None:
        self._part.begin(step, directory / "critic", alongside)

    def buffer_saved(self, wait: bool) -> dict[str, Any]:
        return {"files": {}}

    def gangs_saved(self, step: int, wait: bool) -> dict[str, Any]:
        written = self._part.complete(wait)
        return {"critic": {"layout": "tp1-pp1-dp1", "files": written.files}} if written else {}
