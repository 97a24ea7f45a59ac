"""The clients' requests that are JSON, and what the service is asked by them. Fields that are not read are ignored: clients of other versions have
more."""

import asyncio
import json
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from aiohttp import web
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rljob_api.type_errors import first_problem
from rljob_trainer.gateway.completions import COPIES
from rljob_trainer.gateway.registry import sampler_name, session_of
from rljob_trainer.gateway.servers import MOST_OPEN
from rljob_trainer.gateway.wire.bodies import MOST_VALUES
from rljob_trainer.gateway.wire.content import whole
from rljob_trainer.wire.rollout_server import SampleRequest
from rljob_trainer.wire.service import LARGEST_NUMBER, SMALLEST_EPSILON, OptimStep, WorkFailure

SCHEME = "tinker://"
WEIGHTS, SAMPLER_WEIGHTS, EXTERNAL_WEIGHTS = "weights", "sampler_weights", "external_weights"
"""What a path names, between the model and the name: a state, a snapshot, or adapters to download."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$", max_length=128)]
"""What a client calls what it saves: one part of a path."""
ClientText = Annotated[str, StringConstraints(max_length=4096)]
FiniteNumber = Annotated[float, Field(allow_inf_nan=False, le=LARGEST_NUMBER)]
MOST_JSON, MOST_OF_TOKEN = 2**16, 16
"""Bytes of a body, and of each token in it. Python needs many times as much for what it reads."""
POLL_SECONDS = 35.0
"""For which a result is waited for at most: clients close after 45."""
MOST_NAMES = 2**20
"""Bytes of a body with the names of MOST_OPEN requests."""
LARGE = 2**14
"""Bytes of a body that is not read or written in the event loop."""
FIELDS = web.RequestKey("fields", object)
"""Where a request keeps what was read of its body."""
MOST_SAMPLES = 1024
"""Of one request."""
LEAST_TTL, MOST_TTL = 3600, 10 * 366 * 86400
"""Seconds for which something can be kept, as the SDK has them."""
Seq = Annotated[int, Field(ge=1, le=2**31 - 1)]
Likeliest = Annotated[int, Field(ge=0, le=20)]
"""Tokens at one position, up to what vLLM gives."""
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class ClientRequest(BaseModel):
    """A body."""

    model_config = ConfigDict(protected_namespaces=(), extra="ignore")


class OfSession(ClientRequest):
    session_id: ClientText


class NewModel(OfSession):
    model_seq_id: Count


class OptimizerConfig(ClientRequest):
    """Of a model. Other optimizers than AdamW would have parameters of their own."""

    type: Literal["adamw"] = "adamw"


class LoraConfig(ClientRequest):
    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class ModelParams(ClientRequest):
    """The rest of a new model: what is wrong with it fails the model, and not its submission."""

    base_model: ClientText
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()


class OfModel(ClientRequest):
    model_id: ClientText


class Numbered(OfModel):
    seq_id: Seq


class AdamParams(ClientRequest):
    learning_rate: Annotated[FiniteNumber, Field(ge=0)] = 1e-4
    beta1: Annotated[FiniteNumber, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[FiniteNumber, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[FiniteNumber, Field(ge=SMALLEST_EPSILON)] = 1e-12
    weight_decay: Annotated[FiniteNumber, Field(ge=0)] = 0.0
    grad_clip_norm: Annotated[FiniteNumber, Field(ge=0)] = 0.0
    type: Literal["adamw"] = "adamw"
    """Other optimizers' parameters have a type."""


class OptimStepParams(ClientRequest):
    """The rest of an optimizer step: what is wrong with it fails the step, and not its submission."""

    adam_params: AdamParams = Field(validation_alias=AliasChoices("adam_params", "optimizer_params"))

    def work(self, model: str, seq: int) -> OptimStep:
        return OptimStep(model=model, seq=seq, **self.adam_params.model_dump(exclude={"type"}))


Ttl = Annotated[int, Field(ge=LEAST_TTL, le=MOST_TTL)]


class SaveWeights(ClientRequest):
    PART: ClassVar[str] = WEIGHTS
    path: Name | None = None
    ttl_seconds: Ttl | None = None

    def saved_as(self, model: str, seq: int) -> str:
        """What the client calls what is saved. `model`, `seq`: of the request."""
        return f"{SCHEME}{model}/{self.PART}/{self.path or seq}"


class SaveWeightsForSampler(SaveWeights):
    PART = SAMPLER_WEIGHTS
    sampling_session_seq_id: Count | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    """`inflight` asks for what is saved now or later: a snapshot is that, too."""

    def saved_as(self, model: str, seq: int) -> str:
        """Without a path it is saved for a sampler alone, and goes with it."""
        if self.path is None and self.sampling_session_seq_id is not None:
            return sampler_name(session_of(model), self.sampling_session_seq_id)
        return super().saved_as(model, seq)


class SaveWeightsExternal(SaveWeights):
    PART = EXTERNAL_WEIGHTS
    age_encryption_recipients: Annotated[list[ClientText], Field(max_length=0)] | None = None
    """Nothing is encrypted."""


class LoadTarget(ClientRequest):
    """A new model (session_id, model_seq_id), or one that is there (model_id, seq_id)."""

    session_id: ClientText | None = None
    model_seq_id: Count | None = None
    model_id: ClientText | None = None
    seq_id: Seq | None = None


class LoadParams(ClientRequest):
    """What is loaded into it."""

    path: ClientText
    optimizer: bool = False
    base_model: ClientText | None = None
    """None: that of the state."""
    optimizer_config: OptimizerConfig | None = None


class CreateSamplingSession(OfSession):
    sampling_session_seq_id: Count
    base_model: ClientText | None = None
    model_path: ClientText | None = None


class OfSampler(ClientRequest):
    sampling_session_id: ClientText


class Chunk(ClientRequest):
    type: ClientText
    tokens: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] = []


class ClientPrompt(ClientRequest):
    chunks: list[Chunk]


class SamplingParams(ClientRequest):
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    stop: ClientText | list[ClientText] | list[int] | None = None
    temperature: Annotated[FiniteNumber, Field(ge=0)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    top_p: Annotated[FiniteNumber, Field(gt=0, le=1)] = 1.0


class Asample(OfSampler):
    """A request for samples, as far as it is needed to answer it at once."""

    seq_id: Annotated[int, Field(ge=0, lt=2**62)]
    num_samples: int = 1


class SampleParams(ClientRequest):
    """The rest of it: what is wrong with it fails the samples, and not their submission."""

    prompt: ClientPrompt
    sampling_params: SamplingParams
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Likeliest = 0
    topk_sample_logprobs: Likeliest = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: Annotated[int, Field(ge=1)] | None = None

    def request(self, n: int, seed: int, longest: int) -> SampleRequest | WorkFailure:
        """`seed`: for clients that name none. `longest`: most tokens of prompt and sample."""
        params, tokens = self.sampling_params, [t for chunk in self.prompt.chunks for t in chunk.tokens]
        most = longest - len(tokens) if params.max_tokens is None else params.max_tokens
        values = n * most * (1 + self.topk_sample_logprobs)
        why = _no_count(n) or self._refusal(tokens, longest) or _no_room(values)
        if why:
            return WorkFailure(message=why)
        stop = [params.stop] if isinstance(params.stop, str) else params.stop or []
        return SampleRequest(
            tokens=np.asarray(tokens, "<i4"),
            n=n,
            seed=seed if params.seed is None else params.seed % 2**62,
            max_tokens=most,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=max(params.top_k, 0),
            stop=[text for text in stop if isinstance(text, str)],
            stop_tokens=[token for token in stop if isinstance(token, int)],
            ends=params.stop is None,
            likeliest=self.topk_sample_logprobs,
            likeliest_of_prompt=self.topk_prompt_logprobs,
            prompt_log_probs=min(self.prompt_logprobs_last_n or len(tokens), len(tokens))
            if self.prompt_logprobs
            else 0,
        )

    def _refusal(self, tokens: list[int], longest: int) -> str:
        """Why it is refused; empty: it is not."""
        named = [name for name in ("target_prompt_logprobs", "prompt_alt_tokens_k") if getattr(self, name)]
        if named:
            return f"{', '.join(named)} is not served"
        if any(chunk.type != "encoded_text" for chunk in self.prompt.chunks):
            return "only text is served, no images and no audio"
        if not tokens:
            return "the prompt is empty"
        if len(tokens) + (self.sampling_params.max_tokens or 1) > longest:
            return f"prompt and sample have more than {longest} tokens (spec.service.maxTokens)"
        return ""


def _no_count(n: int) -> str:
    return "" if 1 <= n <= MOST_SAMPLES else f"num_samples is {n}; it must be from 1 to {MOST_SAMPLES}"


def _no_room(values: int) -> str:
    """`values`: tokens of all samples, and the likeliest ones at each."""
    if values <= MOST_VALUES:
        return ""
    return (
        f"these samples can have {values} values, and {MOST_VALUES} is the most: ask for fewer samples at a time, fewer max_tokens, or a lower "
        f"topk_sample_logprobs"
    )


class RetrieveFuture(ClientRequest):
    request_id: ClientText


class FuturesTarget(OfSampler):
    cloned_sampler_id: Annotated[int, Field(ge=0, le=COPIES)] = 0
    """Of a copy of the sampler, in another process of the client."""


class RetrieveFutures(ClientRequest):
    """What is complete of all samples of a sampler."""

    target: FuturesTarget
    prev_cursor: Annotated[int, Field(ge=0, lt=2**62)] = 0
    timeout: Annotated[FiniteNumber, Field(ge=0)] | None = None
    """Seconds; None: as long as the service waits for any result."""
    retrieved_request_ids: Annotated[list[ClientText], Field(max_length=MOST_OPEN)] = []


class KeepFor(ClientRequest):
    """How long something that is saved is kept from now on; None: until it is deleted."""

    ttl_seconds: Ttl | None


class WeightsInfo(ClientRequest):
    tinker_path: ClientText


async def read[R: ClientRequest](request: web.Request, kind: type[R], most: int = MOST_JSON) -> R:
    """The body, of at most so many bytes. Raises ValidationError, ValueError."""
    if FIELDS not in request:
        request[FIELDS] = await _fields(request, most)
    return kind.model_validate(request[FIELDS])


async def _fields(request: web.Request, most: int) -> Any:
    body = await whole(request, most)
    try:
        return await asyncio.to_thread(json.loads, body) if len(body) > LARGE else json.loads(body)
    except RecursionError:
        raise ValueError("the body is nested too deeply to be read") from None


async def read_rest[R: ClientRequest](request: web.Request, kind: type[R]) -> R | WorkFailure:
    """The part of a body whose mistakes fail the future."""
    try:
        return await read(request, kind)
    except ValidationError as error:
        return WorkFailure(message=first_problem(error))
