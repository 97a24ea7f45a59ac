"""Advantages and losses of a job's own: the worked example of docs/algorithms.md is the built-in, and every mistake names the file and the line."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given

from rljob_api.spec.algorithm import AlgorithmSpec, Clip
from rljob_trainer.algorithm.advantages import ADVANTAGES, Advantages, estimate
from rljob_trainer.algorithm.episodes import Episodes
from rljob_trainer.algorithm.losses import LOSSES
from rljob_trainer.algorithm.user_functions import Formulas
from rljob_trainer.failure import ConfigurationError
from trainer.algorithm.cases import columns, episodes, responses, tensor
from trainer.algorithm.strategies import PROPERTY, steps

PAGE = (Path(__file__).parents[3] / "docs/algorithms.md").read_text()
EXAMPLE = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("example") / "algorithm.py"
    file.write_text(EXAMPLE)
    return file


def python(file: Path, **arguments: Any) -> AlgorithmSpec:
    """Both functions of the file; `arguments` of the loss."""
    return AlgorithmSpec.model_validate(
        {
            "advantage": "python",
            "advantageFunction": {"path": str(file), "function": "advantage"},
            "loss": "python",
            "lossFunction": {"path": str(file), "function": "loss", "arguments": arguments},
        }
    )


def formulas(tmp_path: Path, **bodies: str) -> Formulas:
    """Of a file whose functions `advantage` and `loss` have these bodies."""
    bodies = {"advantage": "return episodes.mask", "loss": "return -tokens.log_probs"} | bodies
    file = tmp_path / "algorithm.py"
    file.write_text(
        f"import torch\ndef advantage(episodes):\n    {bodies['advantage']}\n"
        f"def loss(tokens, sequences):\n    {bodies['loss']}\n"
    )
    return Formulas.of(python(file))


def estimated(found: Formulas, step: Episodes) -> Advantages:
    return estimate(step, AlgorithmSpec(), found.advantages)


@PROPERTY
@given(step=steps())
def test_the_example_of_the_page_is_grpo_bit_by_bit(example: Path, step: Episodes) -> None:
    step = replace(step, values=None)
    found = estimated(Formulas.of(python(example)), step).advantages
    assert torch.equal(found, estimate(step, AlgorithmSpec(), ADVANTAGES["grpo"]).advantages)


def test_the_loss_of_the_page_is_ppo_bit_by_bit(example: Path) -> None:
    """With its gradient, ratio and clip, in float32, off the policy on both sides."""
    log_probs = (torch.randn(64, generator=torch.Generator().manual_seed(1)) - 1).requires_grad_()
    advantages = torch.randn(64, generator=torch.Generator().manual_seed(2))
    tokens = columns(log_probs=log_probs, advantages=advantages)
    tokens = tokens._replace(old_log_probs=torch.full((64,), -1.0), mask=torch.ones(64))
    theirs = Formulas.of(python(example, low=0.1, high=0.3)).loss(tokens, responses(40, 24), Clip())
    ours = LOSSES["ppo"](tokens, responses(40, 24), Clip(low=0.1, high=0.3))
    assert 0 < ours.clipped.sum() < 64
    for found, expected in zip(theirs, ours, strict=True):
        assert torch.equal(found, expected)
    gradients = [torch.autograd.grad(found.loss.sum(), log_probs)[0] for found in (theirs, ours)]
    assert torch.equal(*gradients)


def test_bounds_hold_for_a_function_too(tmp_path: Path) -> None:
    found = formulas(tmp_path, advantage="return episodes.spread(episodes.rewards)").advantages
    spec = AlgorithmSpec.model_validate({"rewardClip": 3, "advantageClip": 2})
    assert estimate(episodes([5.0, 1.0]), spec, found).advantages.tolist() == [2.0, 1.0]


def test_what_is_returned_outside_the_mask_counts_for_nothing(tmp_path: Path) -> None:
    found = formulas(tmp_path, advantage="return episodes.mask.log() + 1", loss="return tokens.log_probs / tokens.mask")
    assert estimated(found, episodes([1.0], mask=[[1.0, 0.0]])).advantages.tolist() == [1.0, 0.0]
    tokens = columns(log_probs=[-1.0, -2.0], mask=[1.0, 0.0])
    assert found.loss(tokens, responses(2), Clip()).loss.tolist() == [-1.0, 0.0]


def test_with_a_critic_a_function_says_what_the_critic_learns(tmp_path: Path) -> None:
    step = episodes([1.0], values=[[0.25]])
    found = estimated(formulas(tmp_path, advantage="return episodes.mask * 2, episodes.values + 1"), step)
    assert (found.advantages.tolist(), found.returns.tolist()) == ([2.0], [1.25])
    with pytest.raises(ConfigurationError, match="returned NoneType as returns, which the critic learns"):
        estimated(formulas(tmp_path), step)


def test_an_error_names_the_field_the_file_and_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        estimated(formulas(tmp_path, advantage="return episodes.rewards / episodes.nothing"), episodes([1.0]))
    assert caught.value.field == "spec.algorithm.advantageFunction.path"
    assert caught.value.value == str(tmp_path / "algorithm.py")
    assert "advantage() in algorithm.py: AttributeError" in caught.value.rule
    assert "(line 3: return episodes.rewards / episodes.nothing)" in caught.value.rule


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return episodes.rewards", r"a tensor \[2\] as advantages; it is a tensor \[4\]"),
        ("return 1.0", "returned float as advantages"),
        ("return episodes.mask / 0", "not a finite number"),
    ],
)
def test_advantages_that_cannot_be_learnt_from_are_refused(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        estimated(formulas(tmp_path, advantage=body), episodes([1.0, 2.0], mask=[[1.0, 1.0]] * 2))


def test_a_loss_without_a_gradient_is_refused(tmp_path: Path) -> None:
    tokens = columns(log_probs=tensor([-1.0]).requires_grad_())
    with pytest.raises(ConfigurationError, match=r"does not depend on tokens\.log_probs"):
        formulas(tmp_path, loss="return tokens.log_probs.detach()").loss(tokens, responses(1), Clip())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def advantage(episodes:", "SyntaxError"),
        ("import nothing_of_this_name", r"ModuleNotFoundError.*\(line 1: import nothing_of_this_name\)"),
        ("def advantages(episodes): ...", "has no attribute 'advantage'"),
        ("def advantage(): ...", "TypeError: too many positional arguments"),
    ],
)
def test_a_file_that_cannot_be_called_is_refused_before_the_first_step(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "algorithm.py"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        Formulas.of(python(file))


def test_arguments_that_the_function_does_not_take_are_refused(example: Path) -> None:
    with pytest.raises(ConfigurationError, match="unexpected keyword argument 'width'"):
        Formulas.of(python(example, width=2))


def test_a_file_that_is_not_there_says_how_to_mount_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no such file in this pod.*spec\.volumes"):
        Formulas.of(python(tmp_path / "missing.py"))


def test_a_peer_that_is_gone_is_not_blamed_on_the_function(tmp_path: Path) -> None:
    gone = "raise RuntimeError('[gloo/transport/tcp/pair.cc] Connection closed by peer')"
    with pytest.raises(RuntimeError, match="gloo"):
        estimated(formulas(tmp_path, advantage=gone), episodes([1.0]))
