"""Learn sums from a loop of your own: `TINKER_BASE_URL=... TINKER_API_KEY=tml-anything python loop.py MODEL_DIRECTORY`."""

import random
import sys

import tinker
from tinker import types
from transformers import AutoTokenizer

STEPS, BATCH = 30, 16

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
service = tinker.ServiceClient()
training = service.create_lora_training_client(base_model="arithmetic", rank=16, train_unembed=False).result()


def example() -> types.Datum:
    """A sum: the tokens of the answer count, those of the question do not."""
    a, b = random.randint(10, 99), random.randint(10, 99)
    question, answer = tokenizer.encode(f"{a}+{b}="), [*tokenizer.encode(str(a + b)), tokenizer.eos_token_id]
    tokens = question + answer
    weights = [0.0] * (len(question) - 1) + [1.0 / BATCH] * len(answer)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights},
    )


for step in range(STEPS):
    loss = training.forward_backward([example() for _ in range(BATCH)], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    print(step, f"loss {loss.result().metrics['loss:sum']:.3f}")

sampler = training.save_weights_and_get_sampling_client().result()
prompt = types.ModelInput.from_ints(tokenizer.encode("37+48="))
found = sampler.sample(prompt, 4, types.SamplingParams(max_tokens=4)).result()
print("37+48=", [tokenizer.decode(sample.tokens) for sample in found.sequences])
service.close("success").result()
