"""Prompts with images, asked by the whole driver: what the server gets, and what people see of them."""

import json
from pathlib import Path

from PIL import Image

from rljob_api import names
from trainer.agents.talker import first_step
from trainer.data.vision import PAD, png_url, processor_directory
from trainer.driver.bench import Bench
from trainer.driver.servers import Seeing

COLOURS = ["#a01010", "#1010a0", "#10a010", "#a0a010"]


def row(colour: str) -> str:
    prompt = [{"role": "user", "content": "w5 <image>"}]
    return json.dumps({"prompt": prompt, "answer": "w7", "images": png_url(16, 16, colour)})


async def test_the_images_of_a_steps_samples_lie_next_to_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "train.jsonl").write_text("".join(f"{row(colour)}\n" for colour in COLOURS))
    bench.spec["model"] = {"path": str(processor_directory(tmp_path / "model"))}
    bench.spec["data"] = {"train": [str(tmp_path / "train.jsonl")], "imageKey": "images", "maxPromptTokens": 32}
    found, server = await first_step(bench, Seeing("demo-rollout-0"))
    assert len(found.samples) == 12 and all(len(body["images"]) == 1 for body in server.requests)
    seen = {}
    for line in names.samples_file(bench.root, 1).read_text().splitlines():
        sample = json.loads(line)
        prompt = sample["segments"][0]
        (number,) = prompt["images"]
        picture = Image.open(names.sample_image(bench.root, 1, number))
        seen[sample["prompt_index"]] = "#{:02x}{:02x}{:02x}".format(*picture.getpixel((8, 8)))
        assert prompt["text"].count("<|image_pad|>") == found.samples[0].tokens.tolist().count(PAD)
    assert seen == dict(enumerate(COLOURS)), "samples of a prompt share its image"
