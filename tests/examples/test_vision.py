"""What examples/vision/prepare.py makes: pictures that nothing but their digit tells apart, and a model that the trainer accepts."""

import json
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
import yaml

from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec
from rljob_trainer.data.files import places
from rljob_trainer.data.pictures import image_reader
from rljob_trainer.data.prompts import PromptSet, load_prompts
from rljob_trainer.data.tokenizer import load_tokenizer
from script import loaded

EXAMPLE = Path(__file__).parents[2] / "examples" / "vision"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    module = loaded(EXAMPLE / "prepare.py")
    module.TRAIN, module.HELD_OUT = 30, 10
    return module


@pytest.fixture(scope="module")
def started(prepare: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("vision")
    prepare.write_start(output, seed=5)
    return output


def test_the_careless_teacher_names_the_next_digit_of_the_same_picture(prepare: ModuleType, started: Path) -> None:
    right, careless = (pq.read_table(started / "data" / name).to_pydict() for name in ("train.parquet", "next.parquet"))
    assert right["images"] == careless["images"]
    assert careless["answer"] == [str((int(digit) + 1) % 10) for digit in right["answer"]]
    held_out = pq.read_table(started / "data" / "heldout.parquet").to_pydict()
    pictures = [images[0] for images in right["images"] + held_out["images"]]
    assert len(set(pictures)) == len(pictures) == 40


@pytest.mark.parametrize("file", ["rljob.yaml", "warm-up.yaml"])
def test_its_jobs_accept_its_model(started: Path, file: str) -> None:
    spec = RLJobSpec.model_validate(yaml.safe_load((EXAMPLE / file).read_text())["spec"])
    assert list(model_violations(spec, json.loads((started / "untrained" / "config.json").read_text()))) == []


def test_its_prompts_fit_and_have_their_picture(started: Path, tmp_path: Path) -> None:
    written = yaml.safe_load((EXAMPLE / "rljob.yaml").read_text().replace("/data/", f"{started}/"))["spec"]
    written["model"]["path"] = str(started / "untrained")
    spec = RLJobSpec.model_validate(written)
    train = places("spec.data.train", spec.data.train)
    found = load_prompts(spec.data, train, load_tokenizer(spec), lambda *_: None, tmp_path, image_reader(spec))
    assert isinstance(found, PromptSet) and len(found) == found.counts.rows == 30
    ((_, image),) = found[0].images()
    assert image.grid == (6, 6)
