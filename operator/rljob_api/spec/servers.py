"""What one vLLM server consists of, in the rollout pool and in every other one."""

from rljob_api.base import Model
from rljob_api.spec.common import Processes


class Servers(Model):
    """The pods of one vLLM server, and how its model is cut over their GPUs."""

    nodes: Processes = 1
    """Number of pods that one vLLM server consists of. They are placed, started and ended together, and each has tensorParallel x
    pipelineParallel x dataParallel / nodes GPUs."""
    tensor_parallel: Processes = 1
    """Number of GPUs that share every matrix of one vLLM server. A group of them may be larger than a pod, which only pays on fast networks."""
    pipeline_parallel: Processes = 1
    """Number of pipeline stages of one vLLM server: groups of consecutive layers, on GPUs of their own."""
    data_parallel: Processes = 1
    """Number of copies of the model in one vLLM server, each on tensorParallel GPUs, with requests and a key-value cache of its own. They share
    the experts of a mixture-of-experts model: with `expertParallel` every GPU holds whole ones, otherwise a part of each."""
    expert_parallel: bool = False
    """Whether each GPU of a vLLM server holds whole experts, `tensorParallel` x `dataParallel` GPUs all of a layer's, instead of a part of every
    expert."""

    @property
    def gpus(self) -> int:
        """Processes of one server, each with a GPU."""
        return self.gpus_of_a_copy * self.data_parallel

    @property
    def gpus_of_a_copy(self) -> int:
        """Of these, those that hold one copy of what `data_parallel` copies."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def gpus_sharing_experts(self) -> int:
        """GPUs that together hold the experts of a layer once."""
        return self.tensor_parallel * self.data_parallel

    @property
    def processes_per_pod(self) -> int:
        """Of these, how many each of its pods has."""
        return self.gpus // self.nodes
