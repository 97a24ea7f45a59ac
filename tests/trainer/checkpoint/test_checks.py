import pytest

from rljob_trainer.checkpoint import checks, files
from rljob_trainer.checkpoint.fence import claim
from rljob_trainer.failure import ConfigurationError


def test_ranks_on_one_volume_see_the_nonce_and_nothing_is_left_of_it(tmp_path):
    nonce = checks.write_nonce(tmp_path)
    assert checks.sees_nonce(tmp_path, nonce)
    checks.remove_nonce(tmp_path, nonce)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_on_another_volume_does_not_see_it(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VISIBLE_SECONDS", 0.2)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert not checks.sees_nonce(tmp_path / "b", checks.write_nonce(tmp_path / "a"))


def test_blind_ranks_are_named(tmp_path):
    checks.require_shared(tmp_path, [])
    with pytest.raises(ConfigurationError, match="ranks 1, 3 see another file system"):
        checks.require_shared(tmp_path, [1, 3])


def test_another_gang_sees_the_volume_by_the_fence_of_its_own_attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VISIBLE_SECONDS", 0.2)
    claim(tmp_path, "uid", 1, [])
    claim(tmp_path, "uid", 2, [])
    (tmp_path / "elsewhere").mkdir()
    assert checks.sees_fence(tmp_path, "uid", 2)
    assert not checks.sees_fence(tmp_path, "uid", 1), "a newer attempt owns it"
    assert not checks.sees_fence(tmp_path, "other", 2)
    assert not checks.sees_fence(tmp_path / "elsewhere", "uid", 2)
