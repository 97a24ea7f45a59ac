"""From the spec to vLLM's command line."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from api.specs import make_spec
from rljob_api.family import DeviceType
from rljob_api.server_group import ServerGroup, ServerPart
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import PoolSpec, TrainerSpec
from rljob_trainer.pod.arguments import pool_arguments, server_arguments, server_environment
from rljob_trainer.pod.part import PodPart
from rljob_trainer.pod.supervisor import with_targets_of_its_model
from rljob_trainer.wire.weights.drafts import LEARNS
from trainer.server.servers import spec


def option(arguments: list[str], name: str) -> str:
    return arguments[len(arguments) - 1 - arguments[::-1].index(f"--{name}") + 1]


def test_what_we_own_is_always_said() -> None:
    arguments = server_arguments(spec(Path("/model")), 8123)
    expected = {
        "model": "/model",
        "dtype": "float32",
        "port": "8123",
        "host": "::",
        "served-model-name": "policy",
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "max-model-len": "300",
        "tensor-parallel-size": "1",
        "distributed-executor-backend": "uni",
        "weight-transfer-config": '{"backend": "rljob-chain"}',
        "middleware": "rljob_trainer.server.front.Front",
        "worker-extension-cls": "rljob_trainer.server.weights.engine.WorkerExtension",
        "scheduler-cls": "rljob_trainer.server.compat.scheduler.scheduler",
    }
    assert {name: option(arguments, name) for name in expected} == expected
    assert "--no-trust-remote-code" in arguments


def test_a_server_of_a_service_reads_adapters_or_gets_whole_models() -> None:
    for rank, adapters in ((8, True), (0, False)):
        service = {"maxRank": rank, "maxModels": 1}
        arguments = server_arguments(make_spec(task="service", service=service), 1)
        middleware = "sample.ServiceFront" if adapters else "front.Front"
        assert option(arguments, "middleware") == f"rljob_trainer.server.{middleware}"
        assert option(arguments, "logprobs-mode") == "raw_logprobs"
        assert ("--enable-lora" in arguments) == adapters


def test_experts_are_returned_where_the_trainer_replays_them() -> None:
    given = spec(Path("/model"))
    for replay in ("none", "trainer", "rollout"):
        correction = given.algorithm.rollout_correction.model_copy(update={"router_replay": replay})
        algorithm = given.algorithm.model_copy(update={"rollout_correction": correction})
        arguments = server_arguments(given.model_copy(update={"algorithm": algorithm}), 1)
        assert ("--enable-return-routed-experts" in arguments) == (replay == "rollout")


def test_a_server_has_room_for_adapters_where_they_come_without_the_model() -> None:
    given = spec(Path("/model")).dump()
    for sync, rank, room in (
        ("merged", 12, None),
        ("adapters", 12, "16"),
        ("adapters", 16, "16"),
        ("adapters", 400, "512"),
    ):
        lora = {"rank": rank, "sync": sync}
        arguments = server_arguments(RLJobSpec.model_validate(given | {"model": given["model"] | {"lora": lora}}), 1)
        assert ("--enable-lora" in arguments) == (sync == "adapters")
        assert room is None or option(arguments, "max-lora-rank") == room
        assert room is None or arguments.index("down_proj") == arguments.index("--lora-target-modules") + 1
        assert room is None or {"q_proj", "qkv_proj", "gate_up_proj"} < set(arguments), "whatever its files have as one"


def test_a_server_has_adapters_where_the_models_family_has_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "glm4_moe"}')
    given = spec(tmp_path).dump()
    lora = {"rank": 8, "sync": "adapters"}
    job = RLJobSpec.model_validate(given | {"model": given["model"] | {"lora": lora}})
    arguments = server_arguments(with_targets_of_its_model(job), 1)
    assert "o_proj" in arguments
    assert not {"down_proj", "gate_proj", "up_proj"} & set(arguments), "of shared experts, too"


def test_evaluation_may_have_the_longest_response() -> None:
    given = spec(Path("/model"))
    data, evaluation = (
        given.data.model_copy(update={"validation": ["/held.parquet"]}),
        given.evaluation.model_copy(update={"every_steps": 5}),
    )
    longer = given.model_copy(update={"data": data, "evaluation": evaluation})
    assert option(server_arguments(longer, 1), "max-model-len") == str(200 + 1024)


def test_the_users_arguments_pass_verbatim_and_replace_defaults_but_nothing_we_own() -> None:
    users = {
        "max-num-seqs": 64,
        "kv-cache-memory-bytes": 1000,
        "enforce-eager": False,
        "compilation-config": {"level": 0},
        "port": 1,
        "seed": None,
        "allowed-origins": ["a", "b"],
    }
    arguments = server_arguments(spec(Path("/model"), vllmArgs=users), 8000)
    assert option(arguments, "max-num-seqs") == "64"
    assert option(arguments, "kv-cache-memory-bytes") == "1000" and arguments.count("--kv-cache-memory-bytes") == 1
    assert "--no-enforce-eager" in arguments and "--enforce-eager" not in arguments
    assert option(arguments, "compilation-config") == '{"level": 0}'
    assert option(arguments, "port") == "8000" and arguments.count("--port") == 1
    assert "--seed" not in arguments
    first = arguments.index("--allowed-origins")
    assert arguments[first + 1 : first + 3] == ["a", "b"]


def test_the_users_environment_wins_over_our_defaults() -> None:
    environment = server_environment(spec(Path("/model")), 1, {"OMP_NUM_THREADS": "4", "PATH": "/bin"})
    assert environment["OMP_NUM_THREADS"] == "4" and environment["PATH"] == "/bin"
    assert environment["HF_HUB_OFFLINE"] == environment["TORCHDYNAMO_DISABLE"] == "1"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in server_environment(spec(Path("/model")), 2, {})


@pytest.mark.parametrize("device", get_args(DeviceType))
def test_a_server_knows_whether_every_policy_brings_a_draft(device: DeviceType) -> None:
    def environment(**speculation: Any) -> dict[str, str]:
        given = spec(Path("/model"), speculation={"method": "eagle3", "draft": "/draft"} | speculation)
        return server_environment(given.model_copy(update={"trainer": TrainerSpec(device=device)}), 1, {})

    assert LEARNS not in environment()
    assert environment(learningRate=1e-4)[LEARNS] == "1"


def test_servers_on_several_gpus_need_no_multicast_unless_the_user_says_otherwise() -> None:
    gpu = TrainerSpec(device="gpu")
    several = spec(Path("/model"), tensorParallel=2).model_copy(update={"trainer": gpu})
    pool = PoolSpec.model_validate({"name": "judge", "model": "/judge", "tensorParallel": 2})
    for arguments in (server_arguments(several, 1), pool_arguments(several, pool, 1)):
        assert '"fuse_allreduce_rms": false' in option(arguments, "compilation-config")
    environment = server_environment(several, 2, {"VLLM_ALLREDUCE_USE_SYMM_MEM": "1"})
    assert environment["VLLM_FLASHINFER_ALLREDUCE_BACKEND"] == "trtllm"
    assert environment["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert environment["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "1"
    users_own = server_environment(several, 2, {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "0"})
    assert users_own["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "0"
    users = {"compilation-config": {"pass_config": {"fuse_allreduce_rms": True}}}
    asked = spec(Path("/model"), tensorParallel=2, vllmArgs=users).model_copy(update={"trainer": gpu})
    assert '"fuse_allreduce_rms": true' in option(server_arguments(asked, 1), "compilation-config")
    one = spec(Path("/model")).model_copy(update={"trainer": gpu})
    assert "--compilation-config" not in server_arguments(one, 1)
    assert "VLLM_FLASHINFER_ALLREDUCE_BACKEND" not in server_environment(one, 1, {})


def test_a_server_of_a_pool_has_the_users_arguments_and_none_of_a_rollouts() -> None:
    pool = PoolSpec.model_validate({"name": "judge", "model": "/judge", "vllmArgs": {"runner": "pooling", "port": 1}})
    arguments = pool_arguments(spec(Path("/model")), pool, 8000)
    expected = {"model": "/judge", "served-model-name": "judge", "port": "8000", "runner": "pooling", "host": "::"}
    expected |= {"middleware": "rljob_trainer.server.guard.PoolFront", "tensor-parallel-size": "1"}
    assert {name: option(arguments, name) for name in expected} == expected
    assert not {"--weight-transfer-config", "--scheduler-cls", "--max-model-len", "--dtype"} & set(arguments)
    gpu = spec(Path("/model")).model_copy(update={"trainer": TrainerSpec(device="gpu")})
    assert not {"--max-num-seqs", "--kv-cache-memory-bytes", "--enforce-eager"} & set(pool_arguments(gpu, pool, 8000))


def test_parts_of_a_server_have_its_place_and_their_own_address() -> None:
    job = spec(Path("/model"), nodes=2, tensorParallel=4, pipelineParallel=2)
    pods = [
        ServerPart(pod=f"p{i}", pod_uid="", boot_id=f"b{i}", address=address, node_rank=i)
        for i, address in enumerate(("fd00::7", "127.0.0.1"))
    ]
    group = ServerGroup(name="demo-rollout-0", generation=3, parts=pods, master_port=29703, rpc_port=29803)
    parts = [PodPart(group, rank) for rank in range(2)]
    for rank, part in enumerate(parts):
        arguments = server_arguments(job, 8000, part)
        expected = {"tensor-parallel-size": "4", "pipeline-parallel-size": "2", "distributed-executor-backend": "mp"}
        expected |= {"nnodes": "2", "node-rank": str(rank), "master-addr": "fd00::7", "master-port": "29703"}
        assert {name: option(arguments, name) for name in expected} == expected
        assert ("--headless" in arguments) == part.follows == (rank == 1)
    assert server_environment(job, 8, {}, parts[0])["VLLM_HOST_IP"] == "fd00::7"
    follower = server_environment(job, 8, {}, parts[1])
    assert (follower["VLLM_HOST_IP"], follower["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")


@pytest.mark.parametrize(("pods", "local"), [(1, None), (2, "4"), (4, "2")])
def test_pods_have_equal_parts_of_the_data_parallel_copies(pods: int, local: str | None) -> None:
    job = spec(Path("/model"), nodes=pods, tensorParallel=2, dataParallel=8, expertParallel=True)
    places = [
        ServerPart(pod=f"p{i}", pod_uid="", boot_id=f"b{i}", address=f"10.0.0.{i}", node_rank=i) for i in range(pods)
    ]
    group = ServerGroup(name="demo-rollout-0", generation=3, parts=places, master_port=29703, rpc_port=29803)
    for rank in range(pods):
        part = PodPart(group, rank) if pods > 1 else None
        arguments = server_arguments(job, 8000, part)
        expected = {"data-parallel-size": "8", "tensor-parallel-size": "2", "distributed-executor-backend": "mp"}
        assert {name: option(arguments, name) for name in expected} == expected
        assert "--enable-expert-parallel" in arguments and "--nnodes" not in arguments
        assert ("--headless" in arguments) == ("--data-parallel-start-rank" in arguments) == (rank > 0)
        if local:
            met = {"data-parallel-address": "10.0.0.0", "data-parallel-rpc-port": "29803"}
            met |= {"data-parallel-size-local": local}
            assert {name: option(arguments, name) for name in met} == met
        else:
            assert "--data-parallel-size-local" not in arguments
        if rank:
            assert option(arguments, "data-parallel-start-rank") == str(rank * 8 // pods)


def test_a_copy_on_one_gpu_has_its_worker_in_its_engine() -> None:
    arguments = server_arguments(spec(Path("/model"), dataParallel=2), 8000)
    assert option(arguments, "distributed-executor-backend") == "uni"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in server_environment(spec(Path("/model")), 2, {})


def test_a_pool_s_servers_are_cut_as_those_of_rollouts() -> None:
    pool = {"name": "judge", "model": "/judge", "tensorParallel": 2, "expertParallel": True}
    arguments = pool_arguments(spec(Path("/model")), PoolSpec.model_validate(pool), 8000)
    assert option(arguments, "tensor-parallel-size") == "2" and "--enable-expert-parallel" in arguments
    assert "--pipeline-parallel-size" not in arguments and "--nnodes" not in arguments


@pytest.mark.parametrize(("device", "exact"), [("gpu", True), ("gpu", False), ("cpu", True)])
def test_servers_on_gpus_compute_exactly_in_the_way_that_was_measured(device: str, exact: bool) -> None:
    given = spec(Path("/model")).dump()
    given["trainer"] |= {"device": device}
    given["rollout"] |= {"exact": exact, "vllmArgs": {}}
    job = RLJobSpec.model_validate(given)
    arguments, environment = server_arguments(job, 8000), server_environment(job, 1, {})
    measured = exact and device == "gpu"
    assert ("--no-enable-prefix-caching" in arguments) == ("--compilation-config" in arguments) == measured
    assert (environment.get("VLLM_BATCH_INVARIANT") == "1") == measured
    if measured:
        assert json.loads(option(arguments, "compilation-config"))["mode"] == 0
