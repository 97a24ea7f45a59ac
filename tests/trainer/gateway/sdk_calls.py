"""What of the clients' API works: a program that makes the calls of the SDK one after another, and prints as JSON what came of each.

`python sdk_calls.py URL BASE_MODEL`, with whatever version of `tinker` is on its path.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tinker
from tinker import types

SECONDS = 300
TOKENS = list(range(10, 29))
STEP = types.AdamParams(learning_rate=1e-2)
SERVED = "yes"

Call = tuple[str, Callable[[], Any]]


def done(found: Any) -> Any:
    """What a call has returned, once it is there. Older versions return it at once where newer ones return a future."""
    return found.result(timeout=SECONDS) if hasattr(found, "result") else found


def outcome(call: Callable[[], Any]) -> str:
    """SERVED, or the error."""
    try:
        done(call())
    except Exception as error:  # whatever the SDK raises
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return SERVED


def prompt(tokens: list[int] = TOKENS) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)


def datum(targets: int = 0, **columns: float) -> types.Datum:
    """`targets`: of each token; 0: one, without a dimension for it."""
    shape = (len(TOKENS), targets) if targets else (len(TOKENS),)
    found = {name: types.TensorData.from_numpy(np.full(shape, value, np.float32)) for name, value in columns.items()}
    found["target_tokens"] = types.TensorData.from_numpy(np.full(shape, 7))
    return types.Datum(model_input=prompt(), loss_fn_inputs=found)


RATIO = {"logprobs": -4.0, "advantages": 0.5}
LOSSES = {
    "cross_entropy": datum(weights=1.0),
    "importance_sampling": datum(**RATIO),
    "ppo": datum(**RATIO),
    "cispo": datum(**RATIO),
    "dro": datum(**RATIO),
    "gspo": datum(**RATIO, sequence_ratio_mask=1.0),
    "stable_reinforce": datum(**RATIO),
}


def custom(data: Any, log_probs: Any) -> Any:
    loss = sum(values.mean() for values in log_probs)
    return loss, {"mine": loss.item()}


def training_calls(training: Any) -> Iterator[Call]:
    for loss, given in LOSSES.items():
        yield f"forward_backward: {loss}", lambda loss=loss, given=given: training.forward_backward([given], loss)
    several = datum(targets=3, weights=0.1)
    yield "forward_backward: several targets", lambda: training.forward_backward([several], "cross_entropy")
    yield "forward_backward_custom", lambda: training.forward_backward_custom([LOSSES["cross_entropy"]], custom)
    yield "forward", lambda: training.forward([LOSSES["cross_entropy"]], "cross_entropy")
    yield "optim_step", lambda: training.optim_step(STEP)
    yield "get_info", training.get_info
    yield "get_tokenizer", training.get_tokenizer
    yield "save_state", lambda: training.save_state("a")
    yield "save_weights_for_sampler", lambda: training.save_weights_for_sampler("a")
    yield "save_weights_and_get_sampling_client", training.save_weights_and_get_sampling_client
    yield "save_weights_external", lambda: training.save_weights_external("a")


def saved_calls(service: Any, training: Any, state: str, snapshot: str) -> Iterator[Call]:
    """Of what was saved."""
    yield "load_state", lambda: training.load_state(state)
    yield "load_state_with_optimizer", lambda: training.load_state_with_optimizer(state)
    yield "create_training_client_from_state", lambda: service.create_training_client_from_state(state)
    again = "create_training_client_from_state_with_optimizer"
    yield again, lambda: getattr(service, again)(state)
    yield "create_sampling_client: a snapshot", lambda: service.create_sampling_client(model_path=snapshot)
    yield "copy_weights", lambda: service.copy_weights(state)


def sampling_calls(sampler: Any) -> Iterator[Call]:
    few = types.SamplingParams(max_tokens=2)
    every = types.SamplingParams(max_tokens=2, temperature=0.5, top_k=5, top_p=0.9, seed=1, stop=["a"])
    yield "sample", lambda: sampler.sample(prompt(), 2, few)
    yield "sample: temperature, top_k, top_p, seed, stop", lambda: sampler.sample(prompt(), 1, every)
    yield "sample: include_prompt_logprobs", lambda: sampler.sample(prompt(), 1, few, include_prompt_logprobs=True)
    yield "sample: topk_prompt_logprobs", lambda: sampler.sample(prompt(), 1, few, True, 2)
    yield "compute_logprobs", lambda: sampler.compute_logprobs(prompt())
    yield "get_base_model", sampler.get_base_model


def rest_calls(rest: Any, run: str, state: str) -> Iterator[Call]:
    yield "get_training_run", lambda: rest.get_training_run(run)
    yield "get_training_run_by_tinker_path", lambda: rest.get_training_run_by_tinker_path(state)
    yield "get_weights_info_by_tinker_path", lambda: rest.get_weights_info_by_tinker_path(state)
    yield "list_training_runs", rest.list_training_runs
    yield "list_checkpoints", lambda: rest.list_checkpoints(run)
    yield "list_user_checkpoints", rest.list_user_checkpoints
    yield "list_sessions", rest.list_sessions
    yield "get_session", lambda: rest.get_session(run.partition(":")[0])
    yield "whoami", rest.whoami
    yield "publish_checkpoint_from_tinker_path", lambda: rest.publish_checkpoint_from_tinker_path(state)
    yield "set_checkpoint_ttl_from_tinker_path", lambda: rest.set_checkpoint_ttl_from_tinker_path(state, 60)
    yield "get_external_weights_urls", lambda: rest.get_external_weights_urls(f"tinker://{run}/external_weights/a")
    yield "delete_checkpoint_from_tinker_path", lambda: rest.delete_checkpoint_from_tinker_path(state)


def outcomes(url: str, model: str) -> Iterator[tuple[str, str]]:
    service = tinker.ServiceClient(base_url=url, api_key="tml-any")
    yield "get_server_capabilities", outcome(service.get_server_capabilities)
    training = done(service.create_lora_training_client(base_model=model, rank=4, train_unembed=False))
    yield "create_lora_training_client", SERVED
    base = done(service.create_sampling_client(base_model=model))
    yield "create_sampling_client: the base model", SERVED
    for name, call in training_calls(training):
        yield name, outcome(call)
    state, snapshot = done(training.save_state("b")).path, done(training.save_weights_for_sampler("b")).path
    for name, call in (
        *saved_calls(service, training, state, snapshot),
        *sampling_calls(base),
        *rest_calls(service.create_rest_client(), training.model_id, state),
    ):
        yield name, outcome(call)
    done(service.close("success"))


if __name__ == "__main__":
    print(json.dumps({"version": tinker.__version__, "calls": dict(outcomes(*sys.argv[1:]))}))
