"""An agent that asks the policy in messages: what the policy wrote keeps its ids, and only what others say is rendered."""

from pathlib import Path

import pytest

from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from trainer.agents.talker import first_step, with_agent
from trainer.agents.test_tools import END, Caller, words, written
from trainer.driver.bench import Bench

CODE = """
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": prompt.text}]
    while turn := await policy.generate(messages, max_tokens=100):
        if turn.text == "3":
            return Trajectory(turn.whole, reward=float(len(messages)))
        messages += [turn.message, {"role": "user", "content": "really?"}]
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: words())
    found = Bench(tmp_path)
    found.spec["rewards"] = []
    return found


def with_code(bench: Bench, tmp_path: Path, code: str) -> None:
    with_agent(bench.spec, tmp_path, code, maxTokens=400)
    bench.spec["rollout"]["sampling"] = {"maxTokens": 200}


async def test_turns_of_a_conversation_keep_the_ids_that_were_generated(bench: Bench, tmp_path: Path) -> None:
    """The text of the first turn lacks its special token, so that a text that is tokenised again has other ids."""
    with_code(bench, tmp_path, CODE)
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=("1<s>2", "3"))
    assert written(found, "policy") == ["1<s>2" + END, "3" + END]
    assert written(found, "environment") == ["\n<|im_start|>user\nreally?<|im_end|>\n<|im_start|>assistant\n"]
    (prompt,) = written(found, "prompt")
    assert "system\nbe short" in prompt and prompt.endswith("<|im_start|>assistant\n")
    assert {s.reward for s in found.samples} == {4.0}
    assert found.metrics["agent/tokens_left_out"] == 0.0


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ('[{"content": "x"}]', "a message has no role"),
        ('[{"role": "judge", "content": None}, 3]', "'int' object is not iterable"),
        ("[]", "the context has no token"),
    ],
)
async def test_what_is_no_conversation_fails_the_sample_and_says_why(
    bench: Bench, tmp_path: Path, messages: str, why: str
) -> None:
    with_code(bench, tmp_path, CODE.replace("generate(messages", f"generate({messages}"))
    with pytest.raises(ConfigurationError, match=why):
        await first_step(bench, Caller("demo-rollout-0"), script=("3",))
