"""The agent of the example as a program that knows nothing of RLJob: it talks to an OpenAI-compatible endpoint through the client library."""

import json

from openai import AsyncOpenAI

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def result(arguments: str) -> str:
    """Of a call. What cannot be read as one is said to whoever called."""
    try:
        given = json.loads(arguments)
        return str(given["a"] + given["b"])
    except (ValueError, TypeError, KeyError) as error:
        return f"error: {error}"


async def solve(client: AsyncOpenAI, model: str, problem: str) -> str:
    """The answer to a problem such as "37+48+12="."""
    messages: list = [{"role": "user", "content": problem}]
    while True:
        choice = (await client.chat.completions.create(model=model, messages=messages, tools=[ADD])).choices[0]
        messages.append(choice.message)
        if choice.finish_reason != "tool_calls":
            return choice.message.content or ""
        for call in choice.message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result(call.function.arguments)})


CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="any", max_retries=0, timeout=600)
"""Of all trajectories, with connections of their own. A request that was repeated would be another turn, so none is; and when many begin at the same
time, connecting may take longer than the library's 5 s."""


async def rollout(prompt, policy, row):
    """What makes the program above an agent of RLJob: the policy behind its base URL, and the trajectory that was recorded there."""
    await solve(CLIENT.with_options(base_url=policy.base_url), "policy", prompt.text)
    return await policy.trajectory()
