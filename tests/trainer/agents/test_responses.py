"""The Responses API before the policy."""

import json

import pytest

from rljob_api.families import ParserNames
from trainer.agents.endpoint import CALLED, FUNCTION, REASONING, client_of, posted, served
from trainer.agents.test_tools import END, words


async def test_a_conversation_through_the_responses_api_keeps_the_ids_that_were_generated() -> None:
    async with served((CALLED, "3", "4")) as (session, policy), client_of(policy) as client:
        how = {"model": "any", "tools": [FUNCTION], "instructions": "add"}
        said: list = [{"role": "user", "content": [{"type": "input_text", "text": "1+2="}]}]
        first = await client.responses.create(input=said, **how)
        text, call = first.output
        assert (first.output_text, call.name, json.loads(call.arguments)) == ("hm ", "add", {"a": 1, "b": 2})
        assert text.type == "message" and first.status == "completed"
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        said += [*(item.model_dump() for item in first.output), result]
        second = await client.responses.create(input=said, **how)
        assert second.output_text == "3" and second.usage.output_tokens == len(words().encode("3" + END))
        said += [*second.output, {"role": "user", "content": "and 2+2=?"}]
        await client.responses.create(input=said, **how)
        rollout = session.rollout([(await policy.trajectory()).tokens])
    assert rollout is not None and (rollout.turns, rollout.left_out) == (3, 0)
    prompt, *_ = (words().decode(s.tokens) for s in rollout.segments)
    assert "<|im_start|>system\nadd" in prompt and '"name": "add"' in prompt


async def test_a_stream_of_responses_adds_up_to_the_response() -> None:
    async with (
        served((CALLED, "hm</think>3"), parsers=ParserNames("hermes", "")) as (_, policy),
        client_of(policy) as client,
    ):
        async with client.responses.stream(model="any", input="1+2=", tools=[FUNCTION]) as stream:
            kinds = [event.type async for event in stream]
            found = await stream.get_final_response()
        assert (found.output_text, found.output[1].name) == ("hm ", "add")
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert {"response.output_text.delta", "response.function_call_arguments.delta"} <= {*kinds}
        events = [e async for e in await client.responses.create(model="any", input="1+2=", stream=True)]
    assert [e.sequence_number for e in events] == [*range(len(events))]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "hm</think>3"


async def test_reasoning_is_an_item_of_a_response() -> None:
    async with (
        served(("hm</think>3",), parsers=REASONING) as (_, policy),
        client_of(policy) as client,
        client.responses.stream(model="any", input="1+2=") as stream,
    ):
        found = await stream.get_final_response()
    reasoning, message = found.output
    assert (reasoning.content[0].text, message.content[0].text) == ("hm", "3")


async def test_a_response_without_room_for_a_turn_is_incomplete() -> None:
    async with served(("1", "2", "3", "4")) as (_, policy), client_of(policy) as client:
        found = [await client.responses.create(model="any", input="1+2=") for _ in range(5)]
    assert [r.status for r in found] == ["completed"] * 4 + ["incomplete"]
    assert found[-1].incomplete_details.reason == "max_output_tokens" and found[-1].output_text == ""


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not served: nothing is kept between requests"),
        ({"tools": [{"type": "web_search"}]}, "tools: type web_search is not served, only function"),
        ({"tool_choice": "required"}, "tool_choice: 'required' is not served"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls: false is not served"),
        ({"max_tool_calls": 1}, "max_tool_calls is not served: it is for tools that the server runs"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format: json_object is not served, only text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input: an item of type item_reference is not served"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,"}]}]},
            "a part of a message is an image, and the policy reads texts only",
        ),
        ({"input": 7}, "input."),
    ],
)
async def test_what_the_responses_api_does_not_serve_is_refused(asked: dict, says: str) -> None:
    async with served(()) as (_, policy):
        status, error = await posted(f"{policy.base_url}/responses", {"input": "1+2="} | asked)
    assert status == 400 and error["message"].startswith(says)
