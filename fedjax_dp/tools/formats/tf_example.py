"""`tf.train.Example`, read with protobuf and without TensorFlow.

Source: `example.proto` and `feature.proto` of TensorFlow.
"""

import functools
from collections.abc import Collection
from typing import Any

import numpy as np

Feature = list[bytes] | np.ndarray

SCHEMA = """
name: "fedjax_dp/example.proto" package: "fedjax_dp" syntax: "proto3"
message_type { name: "Bytes" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Floats" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Integers" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes" number: 1 type: TYPE_MESSAGE type_name: "Bytes" oneof_index: 0 }
  field { name: "floats" number: 2 type: TYPE_MESSAGE type_name: "Floats" oneof_index: 0 }
  field { name: "integers" number: 3 type: TYPE_MESSAGE type_name: "Integers" oneof_index: 0 }
}
message_type {
  name: "Features" field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Entry" }
  nested_type {
    name: "Entry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: "fedjax_dp.Feature" }
  }
}
message_type { name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" } }
"""


class ExampleError(ValueError):
    """The bytes are no Example."""


@functools.cache
def _message() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fedjax_dp.Example"))


def features_of(raw: bytes, wanted: Collection[str] | None = None) -> dict[str, Feature]:
    """The features by name, all that exist or the `wanted` ones of them.

    A BytesList is a list of bytes, a FloatList float32 `(values,)`, an Int64List int64 `(values,)`, a feature without a
    list an empty list of bytes.
    Raises: ExampleError for bytes that are no Example.
    """
    from google.protobuf.message import DecodeError

    try:
        features = _message().FromString(raw).features.feature
    except DecodeError as error:
        raise ExampleError(f"bytes that are none ({error})"[:100]) from None
    return {name: _values(features[name]) for name in (features if wanted is None else wanted) if name in features}


def _values(feature: Any) -> Feature:
    kind = feature.WhichOneof("kind")
    if kind == "floats":
        return np.array(feature.floats.value, np.float32)
    return np.array(feature.integers.value, np.int64) if kind == "integers" else list(feature.bytes.value)
