"""The protobuf messages of the clients' protocol: our own description, from which protobuf's runtime makes classes.

A line of a message is number, label, type and name of a field. What the protocol has as `oneof` is `optional` here: both are the same bytes.
"""

import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

DTYPES = {1: "<f4", 2: "<i8", 3: "<i4"}
"""numpy's types by the number in Tensor.dtype."""
FLOAT32 = 1
STOP, LENGTH = 0, 1
"""SampledSequence.stop_reason."""
NO_TOKEN = -99999.0
"""TopkLogprobs.logprobs of what is not there."""

_DESCRIPTION = """
ForwardBackwardRequest
  1 one string model_id
  2 one int32 seq_id
  3 repeated Datum data
  4 one string loss_fn
  5 map double loss_fn_config
  6 one bool forward_only
  7 map LossConfigValue loss_fn_config_v2
LossConfigValue
  1 optional double number
  2 optional string text
Datum
  1 repeated Chunk model_input
  2 map Tensor loss_fn_inputs
Chunk
  1 optional EncodedTextChunk encoded_text
  2 optional Unread image
  3 optional Unread dmel
EncodedTextChunk
  1 one bytes tokens
Unread
Tensor
  1 optional bytes dense
  2 optional SparseCsr sparse_csr
  3 one int32 dtype
  4 repeated int64 shape
SparseCsr
  1 one bytes values
  2 one bytes crow_indices
  3 one bytes col_indices
ForwardBackwardOutput
  1 one string loss_fn_output_type
  2 repeated ArrayRecord loss_fn_outputs
  3 map double metrics
ArrayRecord
  1 one string type_tag
  2 map BatchedTensor fields
  3 one int64 num_datums
BatchedTensor
  1 one bytes data
  2 one bytes offsets
  3 one int32 dtype
  4 repeated int64 trailing_shape
SampleResponse
  1 repeated SampledSequence sequences
  2 optional bytes prompt_logprobs
  3 optional TopkLogprobs topk_prompt_logprobs
SampledSequence
  1 one int32 stop_reason
  2 one bytes tokens
  3 optional bytes logprobs
  4 optional TopkLogprobs topk_sampled_logprobs
TopkLogprobs
  1 one bytes token_ids
  2 one bytes logprobs
  3 one uint32 k
  4 one uint32 length
"""
_PACKAGE = "rljob.service"
_SCALARS = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="service.proto", package=_PACKAGE, syntax="proto3")
    for line in filter(None, _DESCRIPTION.splitlines()):
        if line.startswith(" "):
            number, label, kind, name = line.split()
            _add(file.message_type[-1], int(number), label, kind, name)
        else:
            file.message_type.add(name=line)
    return file


def _add(message: DescriptorProto, number: int, label: str, kind: str, name: str) -> None:
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if label == "map":
        entry = message.nested_type.add(name="".join(map(str.capitalize, name.split("_"))) + "Asked")
        entry.options.map_entry = True
        _add(entry, 1, "one", "string", "key")
        _add(entry, 2, "one", kind, "value")
        kind = f"{message.name}.{entry.name}"
    if label in ("repeated", "map"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    field.type = _SCALARS.get(kind, FieldDescriptorProto.TYPE_MESSAGE)
    if kind not in _SCALARS:
        field.type_name = f".{_PACKAGE}.{kind}"
    elif label == "optional":  # presence, which messages have anyway
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def _classes() -> Iterator[tuple[str, Any]]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    for name in re.findall(r"^\w+", _DESCRIPTION, re.MULTILINE):
        yield name, message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


MESSAGES: dict[str, Any] = dict(_classes())
"""Classes of messages, by name."""
