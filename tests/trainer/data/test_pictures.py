"""Images of a row: where they stand in its messages, what is read of them, and what is refused with file and row."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from api.specs import make_spec
from rljob_trainer.data.encoding import Encoder, RawRow
from rljob_trainer.data.files import Place, places
from rljob_trainer.data.pictures import ImageReader, lifted, opened, with_parts
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.failure import ConfigurationError
from trainer.data.vision import png, png_url, processor_directory

PLACE = Place("spec.data.train[0]", "/data/a.jsonl", 7)
USER = {"role": "user", "content": "what is <image> and <image>?"}


def test_images_stand_where_the_messages_say_or_in_front_of_the_first_question() -> None:
    image, text = {"type": "image"}, lambda t: {"type": "text", "text": t}
    (marked,) = with_parts((USER,), 2, PLACE)
    assert marked["content"] == [text("what is "), image, text(" and "), image, text("?")]
    system, plain = {"role": "system", "content": "be brief"}, {"role": "user", "content": "what?"}
    assert with_parts((system, plain), 1, PLACE) == (system, {"role": "user", "content": [image, text("what?")]})
    said = {"role": "assistant", "content": "an <image>"}
    assert with_parts((plain, said), 0, PLACE) == (plain, said)


def test_images_within_messages_are_lifted_out_in_their_order() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [url, {"type": "text", "text": "and"}, {"type": "image", "image": b"1", "text": None}]
    record, images = lifted({"messages": [{"role": "user", "content": content}], "n": 1}, "images", PLACE)
    assert record == {"messages": [{"role": "user", "content": "<image>and<image>"}], "n": 1}
    assert images == ("data:image/png;base64,AAAA", b"1")


@pytest.mark.parametrize(
    ("messages", "count", "said"),
    [((USER,), 1, "its messages say <image> 2 times, and it has 1 images"), ((USER,), 0, "say <image> 2 times")],
)
def test_more_or_fewer_marks_than_images_are_refused(messages: Any, count: int, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        with_parts(messages, count, PLACE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processor_directory(tmp_path_factory.mktemp("model"))


def spec_of(model: Path, **data: Any) -> Any:
    return make_spec(
        model={"path": str(model)},
        data={"train": ["/data/a.jsonl"], "imageKey": "images", "maxPromptTokens": 64} | data,
    )


def reader_of(spec: Any) -> ImageReader:
    return ImageReader(spec.model.path, spec.data.image_key)


def test_an_image_is_cut_as_the_models_own_processor_cuts_it(model: Path) -> None:
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(model)
    reader = reader_of(spec_of(model))
    draw = np.random.default_rng(0)
    for width, height in ((16, 16), (40, 24), (9, 30)):
        picture = Pictures.fromarray(draw.integers(0, 256, (height, width, 3), np.uint8))
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        found = reader.read(stream.getvalue(), PLACE)
        theirs = processor(text=["<|image_pad|>"], images=[picture], return_tensors="np")
        assert [1, *found.grid] == theirs["image_grid_thw"][0].tolist()
        assert (
            np.abs(found.pixels - theirs["pixel_values"]).max() < 2e-2
        )  # torchvision rounds a resized pixel otherwise
        assert found.tokens == reader.tokens(stream.getvalue(), PLACE) == theirs["input_ids"].shape[1]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("patch_size", "patch_size"),
        ("temporal_patch_size", "temporal_patch_size"),
        ("spatial_merge_size", "merge_size"),
    ],
)
def test_a_processor_that_cuts_otherwise_than_the_tower_reads_is_refused(tmp_path: Path, key: str, name: str) -> None:
    directory = processor_directory(tmp_path)
    file = directory / "config.json"
    config = json.loads(file.read_text())
    del config["vision_config"][key]
    file.write_text(json.dumps(config))
    before = getattr(reader_of(spec_of(directory))._processor, name)
    config["vision_config"][key] = before // 2
    file.write_text(json.dumps(config))
    said = (
        rf"its preprocessor_config.json has {name} = {before}, and its config.json vision_config.{key} = {before // 2}"
    )
    with pytest.raises(ConfigurationError, match=said):
        reader_of(spec_of(directory))


def test_an_image_is_shown_as_the_model_reads_it(model: Path) -> None:
    reader, draw = reader_of(spec_of(model)), np.random.default_rng(0)
    pixels = draw.integers(0, 256, (24, 40, 3), np.uint8)
    stream = io.BytesIO()
    Pictures.fromarray(pixels).save(stream, "PNG")
    read = reader.read(stream.getvalue(), PLACE)
    shown = Pictures.open(io.BytesIO(reader.png(read, 640)))
    assert shown.format == "PNG" and (np.asarray(shown) == pixels).all(), "its size needs no scaling"
    assert Pictures.open(io.BytesIO(reader.png(read, 20))).size == (20, 12)


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("gone.png", "its image /data/gone.png cannot be read: No such file"),
        (b"no picture", "cannot be read: cannot identify image file"),
        ("data:image/png;base64,%%%", "which is no base64"),
        ("https://example.org/a.png", "none that can be read here"),
        (7, "holds the image 7"),
        (png(16, 16)[:45], "cannot be read"),
        (png(9000, 9000), "9000 x 9000 pixels"),
    ],
)
def test_an_image_that_cannot_be_used_is_refused_with_file_and_row(model: Path, image: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        reader_of(spec_of(model)).read(image, PLACE)
    assert "/data/a.jsonl row 7" in str(caught.value)


def test_a_prompt_has_as_many_image_tokens_as_its_images_take(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(16, 24))
    row = {"prompt": [{"role": "user", "content": "w5 <image> w6 <image>"}], "images": ["a.png", png_url(32, 16)]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({"prompt": row["prompt"][:1]}) + "\n")
    spec = spec_of(model, train=[str(tmp_path / "a.jsonl")])
    reader = reader_of(spec)
    load = lambda: load_prompts(  # noqa: E731
        spec.data, places("spec.data.train", spec.data.train), _tokenizer(spec), lambda *_: None, tmp_path / "s", reader
    )
    with pytest.raises(ConfigurationError, match="row 2.*<image> 2 times, and it has 0 images"):
        load()
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    (prompt,) = load()
    assert prompt.images
    (first, a), (second, b) = prompt.images()
    assert (a.grid, b.grid) == ((6, 4), (4, 8))
    pads = [i for i, token in enumerate(prompt.tokens) if token == reader.token]
    assert pads == [*range(first, first + 6), *range(second, second + 8)]


def test_a_conversation_is_learnt_without_its_images(model: Path) -> None:
    messages = [{"role": "user", "content": "w5 <image>"}, {"role": "assistant", "content": "w9"}]
    spec = make_spec(
        task="sft", model={"path": str(model)}, data={"train": ["/data/a.jsonl"], "imageKey": "images", "lossOn": "all"}
    )
    example = Encoder(spec, _tokenizer(spec))(
        RawRow(0, {"messages": messages, "images": png(16, 16)}, PLACE, "messages")
    )
    (segments,) = example.variants
    ((start, image),) = [placed for s in segments for placed in s.images]
    (holder,) = [s for s in segments if s.images]
    assert holder.source != "demonstration"
    assert set(holder.tokens[start : start + image.tokens].tolist()) == {reader_of(spec).token}
    assert image.tokens == 4


def _tokenizer(spec: Any) -> Any:
    from rljob_trainer.data.tokenizer import load_tokenizer

    return load_tokenizer(spec)


def test_an_image_that_is_no_base64_of_ascii_is_refused_with_its_row() -> None:
    with pytest.raises(ConfigurationError, match=r"a.jsonl row 7: .* no base64"):
        opened("data:image/png;base64,\u00e9", PLACE)


def test_an_image_has_no_place_where_only_the_assistant_speaks() -> None:
    with pytest.raises(ConfigurationError, match="say <image> 0 times, and it has 1 images"):
        with_parts(({"role": "assistant", "content": "hi"},), 1, PLACE)
