"""A loop of a client: `python service_client.py URL MODEL STEPS SECONDS RANK PAUSE` prints its losses, and log-probabilities at the end.

A step takes SECONDS at least, so that there is time to disturb it. RANK 0: all parameters are trained. After step PAUSE it waits for a line.
"""

import json
import sys
import time

import numpy as np
import tinker
from tinker import types

LENGTH = 20


def tokens_of(text: int) -> list[int]:
    """Of a text, in a vocabulary of 16."""
    return [3 + (5 * i + text) % 12 for i in range(LENGTH)]


def datum(text: int) -> types.Datum:
    tokens = tokens_of(text)
    weights = types.TensorData.from_numpy(np.ones(LENGTH - 1, np.float32))
    targets = types.TensorData.from_numpy(np.array(tokens[1:]))
    inputs = {"target_tokens": targets, "weights": weights}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def main(url: str, model: str, steps: int, seconds: float, rank: int, pause: int) -> None:
    with tinker.ServiceClient(base_url=url, api_key="tml-any") as service:
        training = service.create_lora_training_client(base_model=model, rank=rank, seed=1).result()
        losses = []
        for step in range(steps):
            found = training.forward_backward([datum(step % 3)], "cross_entropy")
            training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
            losses.append(found.result().metrics["loss:sum"])
            print(f"step {step + 1}", flush=True)
            time.sleep(seconds)
            if step + 1 == pause:
                sys.stdin.readline()
        sampler = training.save_weights_and_get_sampling_client().result()
        served = sampler.compute_logprobs(types.ModelInput.from_ints(tokens_of(0))).result()
        last = training.forward([datum(0)], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
    print(json.dumps({"losses": losses, "log_probs": last.tolist(), "served": served[1:]}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))
