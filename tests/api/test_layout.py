from api.specs import make_spec
from rljob_api.layout import Amounts, Layout


def test_data_parallel_size_is_what_tensor_and_pipeline_leave() -> None:
    layout = Layout.of(
        make_spec(trainer={"nodes": 4, "processesPerNode": 2, "parallelism": {"tensor": 2, "pipeline": 2}})
    )
    assert (layout.world, layout.data, str(layout)) == (8, 2, "tp2-pp2-dp2")


def test_samples_are_counted_globally_per_step() -> None:
    amounts = Amounts.of(make_spec(train={"promptsPerStep": 16, "samplesPerPrompt": 8, "miniBatches": 4}))
    assert amounts == Amounts(
        samples_per_step=128, prompts_per_mini_batch=4, samples_per_mini_batch=32, optimizer_steps=40
    )
