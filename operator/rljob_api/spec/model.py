"""spec.model, spec.data, spec.rewards: what is trained, on what, and what counts as good."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api.base import Model
from rljob_api.spec.common import (
    AbsolutePath,
    FunctionName,
    LibraryName,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    ObjectName,
    PositiveFloat,
    PositiveInt,
    RowKey,
    Source,
    SourceUrl,
    StringMap,
    Verbatim,
)
from rljob_api.spec.processes import GangSpec, Workers

LoraTarget = Literal[
    "linear_qkv",
    "linear_proj",
    "linear_fc1",
    "linear_fc2",
    "linear_q",
    "linear_k",
    "linear_v",
    "linear_fc1_gate",
    "linear_fc1_up",
]
FUSED_TARGETS: tuple[LoraTarget, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")

MODEL_FILES = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.py",
    "!original/*",
    "!consolidated*",
]
"""Files of a model directory that are read. Repositories of models also hold the weights in other formats."""


class LoraSpec(Model):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): a matrix W of the model computes W x + (alpha / rank) B A x, and only A and B are
    trained."""

    rank: PositiveInt = 32
    """Rows of A and columns of B; a multiple of `trainer.parallelism.tensor`."""
    alpha: PositiveInt = 32
    """What an adapter adds is multiplied by alpha / rank."""
    targets: Annotated[list[LoraTarget], Field(min_length=1, max_length=7)] | None = None
    """Matrices that get an adapter, by megatron-core's names: `linear_qkv` and `linear_proj` of the attention, `linear_fc1` (gate and up) and
    `linear_fc2` (down). With an A for each, as the peft library has it: `linear_q`, `linear_k`, `linear_v`, `linear_fc1_gate` and `linear_fc1_up`.
    Unset: those of the first four that the family of the model has adapters for."""
    path: AbsolutePath | None = None
    """A directory of the peft library (adapter_config.json, adapter_model.safetensors) whose adapters are the beginning, with the same rank, alpha
    and targets. Unset: A is random and B zero."""
    sync: Literal["merged", "adapters"] = "merged"
    """What rollouts get after a step: `merged` is the whole model, with what the adapters add in its matrices; `adapters` are the adapters alone,
    which vLLM computes next to the model that it loaded from `spec.model.path`. For `task: rl`."""

    @property
    def of_parts(self) -> bool:
        """Whether parts of a fused matrix have adapters of their own."""
        return not set(self.targets or ()) <= set(FUSED_TARGETS)


LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's max-lora-rank (0.32, vllm/config/lora.py, MaxLoRARanks)."""


class ModelSpec(Model):
    """The policy's starting point."""

    path: AbsolutePath
    """Hugging Face directory (config.json, safetensors, tokenizer) that every pod of the job can read, or the `checkpoint.path` of another job, whose
    newest export is then taken, and kept for all attempts of this job."""
    source: SourceUrl | None = None
    """Where `path` comes from: `hf://ORG/MODEL@REVISION`, or a directory in an object store, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`. It is
    copied once per volume, before the first attempt trains. Unset: `path` is there already."""
    megatron_checkpoint: AbsolutePath | None = None
    """A torch_dist directory of megatron-core (for example `global_step_100` of another job) whose weights are taken in place of `path`'s
    safetensors, in any parallel layout; config.json and the tokenizer are still `path`'s."""
    freeze: Annotated[list[Literal["vision", "projector"]], Field(max_length=2)] = []
    """Parts of a model with a vision tower that stay as they are, without gradients and optimizer states: `vision` is the tower, `projector` what
    makes the language model's embeddings of its output (`merger` in Qwen's models). The language model is always trained."""
    lora: LoraSpec | None = None
    """Train low-rank adapters; all weights of the model stay as they are, without gradients and optimizer states. Unset: all weights are
    trained."""
    multi_token_prediction: bool = False
    """Train the model's layer for multi-token prediction as well, which guesses the token after the next (arXiv 2412.19437, section 2.2), by cross
    entropy on all tokens of each step. It is exported and sent to the rollouts, and is what
    `rollout.speculation.method: mtp` guesses with. False: it is left out, of exports as well."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the parameters in training and generation. Optimizer states and gradients are float32."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model directory."""


class ChatTemplate(Model):
    """The template that makes a text of chat messages: the tokenizer's, unless `path` names another."""

    path: AbsolutePath | None = None
    """A Jinja file in place of the tokenizer's template. The exported model gets it too. Unset: the tokenizer's."""
    arguments: Verbatim = {}
    """What the template reads besides the messages, by name, for example `{enable_thinking: false}` of Qwen3's."""
    system_prompt: Annotated[str, StringConstraints(min_length=1, max_length=65536)] | None = None
    """Put in front of conversations that do not begin with a system message, as one; unset: nothing is."""
    texts: bool = False
    """Apply the template to prompts that are texts as well, as one message of the user. Conversations always go through it."""


class GeneratedData(Model):
    """A file of prompts that a library of tasks writes before the first attempt trains. The trainer image does not hold the libraries."""

    path: AbsolutePath
    """The file, whose name ends in .jsonl; `train`, `validation` or a set of `evaluation` names it too. A file that is there stays as it is."""
    library: Literal["reasoning-gym", "verifiers"]
    """The library: a data set of reasoning-gym is generated with `arguments` and `seed`; the tasks of verifiers are ordered by `seed`."""
    environment: LibraryName
    """Name of the data set or environment in the library."""
    arguments: Verbatim = {}
    """Its configuration, in the library's own words."""
    size: Annotated[int, Field(ge=1, le=10_000_000)]
    """Number of rows."""
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Rows of the library's order that are left out before the first. Held-out data begin behind the last row of the training data."""
    seed: NonNegativeInt = 0
    """Order of the library's rows. Held-out and training data need the same one: other seeds may give the same rows in other places."""


class CustomRows(Model):
    """A function or class of your own that makes the rows of the job from those of the data files, in a process of its own."""

    path: AbsolutePath
    """A Python file that the trainer pods can read, for example from a ConfigMap volume."""
    function: FunctionName = "rows"
    """Name of a function that takes `row` (and `file`, its path) and returns a row as a dict, several, or None for one that is left out; or of a
    class, which is made once for each list of files and whose object is called in the same way."""
    arguments: Verbatim = {}
    """Further arguments of the function, by name, the same in every call; of a class those of its constructor."""
    timeout_seconds: Annotated[Number, Field(gt=0, le=3600)] = 10.0
    """Longest time for one row, at most an hour. A row that takes longer, or for which the function raises, ends the job before it trains; the
    message names file and row."""


class DataSpec(Model):
    """Training and held-out data. Files are .parquet, .arrow, .json (a list of objects) or .jsonl; `pretrain` reads Megatron's indexed data sets too.
    One row is a prompt (`rl`), a conversation (`sft`), a pair of a better and a worse answer (`dpo`, `rewardModel`) or a document (`pretrain`)."""

    train: Annotated[list[AbsolutePath], Field(max_length=1024)] = []
    """Files of training data, at least one for every task but `service`, read in this order before shuffling."""
    validation: Annotated[list[AbsolutePath], Field(max_length=1024)] = []
    """Files of held-out data, for `evaluation`."""
    sources: Annotated[list[Source], Field(max_length=32)] = []
    """What is copied to the volumes before the first attempt trains: data, and any other files that the job reads, such as a reward model."""
    generated: Annotated[list[GeneratedData], Field(max_length=32)] = []
    """Files that are generated before the first attempt trains, in place of files that somebody made. For `task: rl`."""
    custom: CustomRows | None = None
    """Makes rows of those of `train`, `validation` and the held-out sets before anything else reads them. For all tasks but `pretrain`. Unset: rows
    are read as they are."""
    format: Literal["auto", "messages", "alpaca", "sharegpt", "columns", "text", "indexed"] = "auto"
    """How rows are read, for all tasks but `rl`. `auto`: from the columns of the first row; `messages`: lists of OpenAI's {role, content}; `alpaca`:
    instruction, input and output; `sharegpt`: conversations of {from, value}; `columns`: a prompt and a response, or chosen and rejected;
    `text`: documents; `indexed`: Megatron's .bin and .idx, named without their suffix. The last two are for `pretrain`."""
    prompt_key: RowKey = "prompt"
    """Column of the prompt: a text, or a list of chat messages `{role, content}`, which the tokenizer's chat template turns into one. Outside
    `task: rl` it is read with `format: columns`."""
    response_key: RowKey = "response"
    """Column of the response to be learnt (`task: sft` with `format: columns`)."""
    messages_key: RowKey = "messages"
    """Column of the conversation, a list of chat messages `{role, content}` or of turns `{from, value}` (`task: sft`, `dpo` and `rewardModel`, where
    it ends before the answers). A file without it may have `conversations` instead."""
    chosen_key: RowKey = "chosen"
    """Column of the better answer: a text, or chat messages (`task: dpo` and `rewardModel`)."""
    rejected_key: RowKey = "rejected"
    """Column of the worse answer, as `chosenKey` (`task: dpo` and `rewardModel`)."""
    text_key: RowKey = "text"
    """Column of the document (`task: pretrain` with `format: text`)."""
    chat_template: ChatTemplate = ChatTemplate()
    """How conversations become texts. For all tasks but `pretrain`."""
    image_key: RowKey | None = None
    """Column of a row's images, for models with a vision tower (`task: rl` and `sft`): one or a list, each bytes, `{bytes, path}`, the path of a
    file, or a `data:` URL with base64. They stand where the messages say `<image>`, in their order, or at the beginning of the user's first message.
    Messages may have images as parts of their content instead. Unset: rows are texts."""
    answer_key: RowKey = "answer"
    """Column of the expected answer, handed to rewards, or a dotted path into a nested one; without a column of the default name it is empty.
    For `task: rl`."""
    data_source_key: RowKey = "data_source"
    """Column, or dotted path, that chooses the reward functions of a row; without a column of the default name it is empty. For `task: rl`."""
    max_prompt_tokens: PositiveInt = 1024
    """Longer prompts are left out; how many is reported. For `task: rl`."""
    max_tokens: PositiveInt = 2048
    """Longest sequence, in tokens: a conversation (`sft`), each answer of a pair with its prompt (`dpo`, `rewardModel`), or the packed documents of
    one sample (`pretrain`, which fills it). `task: rl` has `maxPromptTokens` and `rollout.sampling.maxTokens` instead."""
    overlong: Literal["leaveOut", "cut"] = "leaveOut"
    """Conversations longer than `maxTokens` are left out, or cut behind the last turn of the assistant that fits; how many is reported. For
    `task: sft`; a pair of which one answer is too long is left out."""
    loss_on: Literal["assistant", "lastAssistant", "all"] = "assistant"
    """Which tokens of a conversation are learnt (`task: sft`): those of all the assistant's turns, of its last one, or all."""
    weights: Annotated[list[PositiveFloat], Field(max_length=1024)] = []
    """Share of the drawn samples that comes from each file of `train`, one number per file; empty: files are mixed by their sizes."""
    shuffle: bool = True
    """Shuffle the data in every epoch, in an order that depends on `seed` and the epoch only."""
    seed: NonNegativeInt = 0
    """Seed of the order of the data and, together with step, prompt and sample, of generation."""


class PythonReward(Model):
    """A Python function, run in a process of its own."""

    path: AbsolutePath
    """A Python file that the pods can read, for example from a ConfigMap volume."""
    interface: Literal["rljob", "verl"] = "rljob"
    """What the function takes, by these names. `rljob`: any of `prompt`, `response`, `answer`, `data_source`, `extra_info`, `row`, `tokens` and
    `truncated`; `verl`: what verl's custom_reward_function takes, `data_source`, `solution_str`, `ground_truth` and `extra_info`. Either returns a
    number, or a dict whose `score` is the reward and whose other numbers become metrics."""
    function: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] | None = None
    """Name of the function. Unset: `reward`, or `compute_score` with `interface: verl`."""
    arguments: Verbatim = {}
    """Further arguments of the function, by name, the same in every call."""

    @property
    def function_name(self) -> str:
        return self.function or {"rljob": "reward", "verl": "compute_score"}[self.interface]


class HttpReward(Model):
    """An HTTP service, called once per response."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=2048)]
    """Receives POST `{"prompt", "response", "answer", "data_source"}` and answers `{"reward": number}`."""
    headers: StringMap = {}
    """Further headers. `$NAME` in a value is replaced by the trainer's environment variable: for Secrets."""
    retries: NonNegativeInt = 2
    """How often a call is repeated after a connection error, a 429 or a 5xx, within `timeoutSeconds`."""


class Judge(Model):
    """A generative judge: a model that is asked in words and answers with a score."""

    prompt: Annotated[str, StringConstraints(min_length=1, max_length=32768)]
    """What the judge is asked, as one message of a user. `{prompt}`, `{response}` and `{answer}` stand for the texts of the row; other braces for
    themselves."""
    score: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    """Regular expression of Python. The number in its one group, where it matches last, is the reward, for example `Score: ([0-9.]+)`. An answer
    without it is a failed reward."""
    max_tokens: PositiveInt = 1024
    """Longest answer of the judge, in tokens."""
    temperature: NonNegativeFloat = 0.0
    """Temperature at which the judge answers; 0 is greedy."""


class VllmReward(Model):
    """A model on vLLM servers: a discriminative reward model or, with `judge`, a generative one. Exactly one of `pool` and `url`."""

    pool: ObjectName | None = None
    """Name of one of `spec.pools`. Requests go to the servers that are ready, and wait while none is."""
    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=2048)] | None = None
    """Base address of a server that the job does not manage."""
    judge: Judge | None = None
    """How to ask a generative model. Unset: the model is discriminative, started with `runner: pooling` (a pool's `vllmArgs`). The token ids of
    prompt and response go to its `/pooling` route, so that its vocabulary must be the policy's; the raw score of the last token is the reward."""


class MegatronReward(GangSpec):
    """A reward model that Megatron computes."""

    path: AbsolutePath
    """Hugging Face directory of a sequence classifier with one label, whose vocabulary is the policy's."""
    offload: bool = True
    """Keep its parameters in host memory while it is not used. A gang of its own keeps them on the GPU."""


class RewardSpec(Model):
    """A reward function for the rows of one data source. Exactly one of `rule`, `python`, `http`, `vllm` and `model`."""

    data_source: Annotated[str, StringConstraints(min_length=1, max_length=256)] = "*"
    """Value of the data-source column; `*`: every row that no other entry names."""
    rule: Literal["exactMatch", "number", "math"] | None = None
    """A built-in rule, 1 or 0. `exactMatch`: the response equals the answer, both stripped; `number`: its last number does (GSM8K: after `####` where
    there is one); `math`: its final expression (boxed or last) is mathematically equal, by the library math-verify."""
    python: PythonReward | None = None
    """A Python function in a file of the job's volumes computes the reward, in processes of its own."""
    http: HttpReward | None = None
    """An HTTP service that is asked for the reward of each response."""
    vllm: VllmReward | None = None
    """A model on vLLM servers."""
    model: MegatronReward | None = None
    """A reward model that Megatron computes, on the trainer's ranks or on a gang of its own."""
    weight: Number = 1.0
    """Factor of this reward. Several entries for one data source are weighted and summed."""
    timeout_seconds: PositiveFloat = 10.0
    """A call that takes longer has failed. A failed reward is counted and reported, and its sample leaves the batch; it is never a silent 0."""
    workers: Workers | None = None
    """Call the function in pods of its own. Unset: in processes next to the trainer's rank 0, at most 8. For `python` and `rule: math`."""

    @property
    def scores_tokens(self) -> str:
        """Name of the field of a model that is given token ids alone, without images; empty: it is none."""
        if self.model:
            return "model"
        return "vllm" if self.vllm and not self.vllm.judge else ""
