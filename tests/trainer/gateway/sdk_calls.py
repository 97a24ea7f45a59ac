"""What of the clients' API works: a program that makes the calls of the SDK one after another, and prints as JSON what came of each.

`python sdk_calls.py URL BASE_MODEL`, with whatever version of `tinker` is on its path.
"""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tinker
from tinker import types
from tinker.lib.public_interfaces.rest_client import RestClient

SECONDS = 300
CLIENTS = tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, RestClient
KEY = "tml-any"
TOKENS = list(range(10, 29))
STEP = types.AdamParams(learning_rate=1e-2)
SERVED, ABSENT = "yes", "this version has no such call"

Call = tuple[str, Callable[[], Any]]


def done(found: Any) -> Any:
    """What a call has returned, once it is there. Older versions return it at once where newer ones return a future."""
    return found.result(timeout=SECONDS) if hasattr(found, "result") else found


def outcome(call: Callable[[], Any]) -> str:
    """SERVED, ABSENT, or the error."""
    try:
        done(call())
    except AttributeError as error:
        if error.obj is types or isinstance(error.obj, CLIENTS):
            return ABSENT
        return f"{type(error).__name__}: {error}"
    except TypeError as error:
        return ABSENT if "unexpected keyword" in str(error) else f"{type(error).__name__}: {error}"
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


def entropy(logprobs: Any, weights: Any) -> Any:
    loss = -(logprobs * weights).sum()
    return loss, {"custom/entropy:sum": loss}


def squares(logprobs: Any, weights: Any) -> Any:
    loss = (logprobs * logprobs * weights).sum()
    return loss, {"custom/squares:sum": loss}


def creating_calls(service: Any, model: str) -> Iterator[Call]:
    """What a model can be created with."""
    create, rest = partial(service.create_lora_training_client, base_model=model, rank=4), service.create_rest_client()

    def with_option(name: str, value: bool) -> None:
        """What the model saves must say that it has the option."""
        training = done(create(**{"train_unembed": False} | {name: value}))
        path = done(training.save_weights_for_sampler(name)).path
        said = getattr(done(rest.get_weights_info_by_tinker_path(path)), name)
        assert said is value, f"{name} is {said}"

    yield "create_lora_training_client: train_mlp=False", lambda: with_option("train_mlp", False)
    yield "create_lora_training_client: train_attn=False", lambda: with_option("train_attn", False)
    yield "create_lora_training_client: train_unembed=False", lambda: with_option("train_unembed", False)
    yield "create_lora_training_client: train_unembed=True", lambda: with_option("train_unembed", True)
    yield (
        "create_lora_training_client: the optimizer Dimuon",
        lambda: create(optimizer=types.DimuonOptimizerConfig(), train_unembed=False),
    )


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
    yield "save_state: ttl_seconds", lambda: training.save_state("c", ttl_seconds=3600)
    yield "save_weights_external", lambda: training.save_weights_external("a")


def saved_calls(service: Any, training: Any, state: str, snapshot: str) -> Iterator[Call]:
    """Of what was saved."""
    yield "load_state", lambda: training.load_state(state)
    yield "load_state_with_optimizer", lambda: training.load_state_with_optimizer(state)
    yield "create_training_client_from_state", lambda: service.create_training_client_from_state(state)
    again = "create_training_client_from_state_with_optimizer"
    yield again, lambda: getattr(service, again)(state)
    yield "create_sampling_client: a snapshot", lambda: service.create_sampling_client(model_path=snapshot)
    yield "create_sampling_client: of a training client", lambda: training.create_sampling_client(snapshot)
    yield "copy_weights", lambda: service.copy_weights(state)
    yield "create_custom_loss", lambda: handle_of(service, entropy)
    with_handle = "forward_backward_custom: a LossHandle"
    yield with_handle, lambda: training.forward_backward_custom([LOSSES["cross_entropy"]], handle_of(service, squares))


def sampling_calls(sampler: Any) -> Iterator[Call]:
    few = types.SamplingParams(max_tokens=2)
    every = types.SamplingParams(max_tokens=2, temperature=0.5, top_k=5, top_p=0.9, seed=1, stop=["a"])
    yield "sample", lambda: sampler.sample(prompt(), 2, few)
    yield "sample: temperature, top_k, top_p, seed, stop", lambda: sampler.sample(prompt(), 1, every)
    yield "sample: include_prompt_logprobs", lambda: sampler.sample(prompt(), 1, few, include_prompt_logprobs=True)
    yield "sample: topk_prompt_logprobs", lambda: sampler.sample(prompt(), 1, few, True, 2)
    yield "sample: topk_sample_logprobs", lambda: sampler.sample(prompt(), 1, few, topk_sample_logprobs=2)
    yield "compute_logprobs", lambda: sampler.compute_logprobs(prompt())
    yield (
        "compute_logprobs: prompt_logprobs_last_n",
        lambda: sampler.compute_logprobs(prompt(), prompt_logprobs_last_n=2),
    )
    yield "get_base_model", sampler.get_base_model
    yield "get_sampler_handle", lambda: sampler.get_sampler_handle()
    yield "from_sampler_handle", lambda: of_handle(sampler).sample(prompt(), 1, few)


def handle_of(service: Any, loss: Any) -> Any:
    """A loss that the SDK has traced."""
    return done(service.create_custom_loss(loss, {"logprobs": 1, "weights": 1}))


def of_handle(sampler: Any) -> Any:
    """As another process would make it."""
    return sampler.from_sampler_handle(sampler.get_sampler_handle(), api_key=KEY)


def rest_calls(rest: Any, run: str, state: str, snapshot: str, sampler: str) -> Iterator[Call]:
    yield "get_training_run", lambda: rest.get_training_run(run)
    yield "get_training_run_by_tinker_path", lambda: rest.get_training_run_by_tinker_path(state)
    yield "get_weights_info_by_tinker_path", lambda: rest.get_weights_info_by_tinker_path(state)
    yield "list_training_runs", lambda: rest.list_training_runs()
    yield "list_checkpoints", lambda: rest.list_checkpoints(run)
    yield "list_user_checkpoints", lambda: rest.list_user_checkpoints()
    yield "list_sessions", lambda: rest.list_sessions()
    session = run.partition(":")[0]
    yield "get_session", lambda: rest.get_session(session)
    yield "search_sessions", lambda: rest.search_sessions(types.SessionSearchRequest())
    yield "assign_session_project", lambda: rest.assign_session_project(session, "mine")
    yield "export_session_trace", lambda: rest.export_session_trace(session)
    yield "get_sampler", lambda: rest.get_sampler(sampler)
    yield "whoami", lambda: rest.whoami()
    yield "publish_checkpoint_from_tinker_path", lambda: rest.publish_checkpoint_from_tinker_path(state)
    yield "unpublish_checkpoint_from_tinker_path", lambda: rest.unpublish_checkpoint_from_tinker_path(state)
    yield "set_checkpoint_ttl_from_tinker_path", lambda: rest.set_checkpoint_ttl_from_tinker_path(state, 3600)
    yield "get_external_weights_urls", lambda: rest.get_external_weights_urls(f"tinker://{run}/external_weights/a")
    yield "get_audit_log", lambda: rest.get_audit_log()
    yield "get_billing_usage", lambda: rest.get_billing_usage("2026-01-01", "2026-02-01")
    yield "get_current_checkpoint_storage_usage", lambda: rest.get_current_checkpoint_storage_usage()
    yield "delete_checkpoint_from_tinker_path", lambda: rest.delete_checkpoint_from_tinker_path(state)
    yield "delete_checkpoint", lambda: rest.delete_checkpoint(run, snapshot.removeprefix(f"tinker://{run}/"))


def outcomes(url: str, model: str) -> Iterator[tuple[str, str]]:
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    yield "get_server_capabilities", outcome(service.get_server_capabilities)
    training = done(service.create_lora_training_client(base_model=model, rank=4, train_unembed=False))
    yield "create_lora_training_client", SERVED
    for name, call in creating_calls(service, model):
        yield name, outcome(call)
    base = done(service.create_sampling_client(base_model=model))
    yield "create_sampling_client: the base model", SERVED
    for name, call in training_calls(training):
        yield name, outcome(call)
    state, snapshot = done(training.save_state("b")).path, done(training.save_weights_for_sampler("b")).path
    for name, call in (
        *saved_calls(service, training, state, snapshot),
        *sampling_calls(base),
        *rest_calls(service.create_rest_client(), training.model_id, state, snapshot, base._sampling_session_id),
    ):
        yield name, outcome(call)
    yield "close", outcome(lambda: service.close("success"))


if __name__ == "__main__":
    print(json.dumps({"version": tinker.__version__, "calls": dict(outcomes(*sys.argv[1:]))}))
