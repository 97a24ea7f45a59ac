"""The teacher on a real vLLM server, against transformers; and what may be a teacher."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from api.specs import make_spec
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import AlgorithmSpec, Distillation
from rljob_api.spec.roles import ReferenceSpec
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.driver.buffer.measured import Teacher, require_same_vocabulary
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import RewardFailed
from rljob_trainer.rewards.vllm_server import Pools
from rljob_trainer.wire.batch import TEACHER_LOG_PROBS, Batch, candidates
from rljob_trainer.wire.images import Image
from rljob_trainer.wire.trajectory import Trajectory, environment, prompt, sampled
from trainer.server import models
from trainer.server.servers import TOKEN, Server, pool_server

VLLM_ARGS = {"dtype": "float32", "max-model-len": 64, "kv-cache-memory-bytes": 67108864}
FIELDS = {"prompt_index": 0, "sample": 0, "finish_reason": "stop", "reward": 0.0, "data_source": "test"}


def distilling(student: Path, teacher: Path) -> RLJobSpec:
    return make_spec(
        model={"path": str(student)},
        pools=[{"name": "teacher", "model": str(teacher)}],
        algorithm={"distillation": {"pool": "teacher"}},
        rewards=[],
    )


def trajectories() -> list[Trajectory]:
    """Of one turn; of two, with words of a tool between; without a response."""
    one = (prompt([5, 6, 7]), sampled([8, 9, 10, 11], [-1.0] * 4, 0))
    two = (prompt([20]), sampled([21, 22], [-1.0] * 2, 0), environment([23, 24, 25]), sampled([26], [-1.0], 0))
    return [Trajectory(s, group=i, **FIELDS) for i, s in enumerate((one, two, (prompt([30, 31]),)))]


async def asked(server: Server, found: list[Trajectory], top_k: int | None = None) -> dict[str, np.ndarray]:
    pools = Pools(["teacher"], TOKEN)
    pools.follow({"teacher": [server.endpoint]})
    teacher = Teacher(Distillation(pool="teacher", where="loss", top_k=top_k), pools)
    await teacher.start()
    try:
        return dict(await teacher.measure(Batch.of(1, found, {})))
    finally:
        await teacher.stop()


@pytest.mark.slow
def test_a_real_teacher_says_of_every_token_of_a_response_what_transformers_says(tmp_path: Path) -> None:
    model = models.make(tmp_path / "teacher", seed=1)
    pool = {"name": "teacher", "model": str(model), "vllmArgs": VLLM_ARGS}
    with pool_server(pool, tmp_path / "log") as server:
        found = asyncio.run(asked(server, trajectories()))
        best = asyncio.run(asked(server, trajectories(), 3))
        with pytest.raises(RewardFailed, match="status 400"):
            asyncio.run(
                asked(server, [Trajectory((prompt([5]), sampled([6] * 80, [-1.0] * 80, 0)), group=0, **FIELDS)])
            )
    texts = [(t.prompt_tokens.tolist(), t.response_tokens.tolist()) for t in trajectories()[:2]]
    expected = torch.cat([models.log_probs(model, *text) for text in texts])
    assert found.keys() == {TEACHER_LOG_PROBS} and found[TEACHER_LOG_PROBS].dtype == np.float32
    for said in (found, best):
        torch.testing.assert_close(torch.from_numpy(said[TEACHER_LOG_PROBS]), expected, atol=1e-4, rtol=0)
    tokens, log_probs = (np.stack([best[name] for name in names], 1) for names in candidates(3))
    likeliest = torch.cat([models.distributions(model, *text) for text in texts]).topk(3)
    assert tokens.tolist() == likeliest.indices.tolist()
    torch.testing.assert_close(torch.from_numpy(log_probs), likeliest.values, atol=1e-4, rtol=0)


async def test_a_sample_that_has_come_to_hold_an_image_is_not_sent_without_it() -> None:
    image = Image(np.zeros((1, 4), np.float32), (1, 1), 1)
    shown = Trajectory((prompt([9, 6], [(0, image)]), sampled([7], [-1.0], 0)), group=0, **FIELDS)
    with pytest.raises(ConfigurationError, match=r"spec\.algorithm\.distillation\.pool.*a sample has images"):
        await Teacher(Distillation(pool="teacher"), Pools(["teacher"], TOKEN)).measure(Batch.of(1, [shown], {}))


def test_a_teacher_of_another_vocabulary_is_refused_by_the_first_word_that_differs(tmp_path: Path) -> None:
    student, teacher = tmp_path / "student", tmp_path / "teacher"
    for directory, first in ((student, "a"), (teacher, "b")):
        save_tokenizer(directory, ["<pad>", "<end>", first, "c"])
    load = load_tokenizer(distilling(student, teacher))
    require_same_vocabulary(distilling(student, student), load)
    with pytest.raises(ConfigurationError) as caught:
        require_same_vocabulary(distilling(student, teacher), load)
    assert str(caught.value).startswith("spec.pools[0].model")
    assert "'a' is token 2 of student and no token here" in str(caught.value)
    spec = distilling(student, teacher).model_copy(
        update={"algorithm": AlgorithmSpec(distillation=Distillation(reference=True))}
    )
    require_same_vocabulary(spec, load)  # a Megatron checkpoint has none
    with pytest.raises(ConfigurationError, match=r"^spec\.reference\.path"):
        require_same_vocabulary(spec.model_copy(update={"reference": ReferenceSpec(path=str(teacher))}), load)


def save_tokenizer(directory: Path, words: list[str]) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(directory)
