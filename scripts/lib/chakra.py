"""Execution traces of MLCommons Chakra: the messages and fields that chakra.py writes, and their file.

Names and numbers are those of schema/protobuf/et_def.proto in https://github.com/mlcommons/chakra, commit 21585d8. The
schema has more of both; whoever reads with it finds them unset.
"""

import enum

from lib import require

require({"google.protobuf": "protobuf"})
from google.protobuf import descriptor_pb2, message_factory, wrappers_pb2  # noqa: E402

PACKAGE = "ChakraProtoMsg"
SCHEMA = "1.0.2-chakra.1.0.0"  # as Chakra's own converters name it, in src/converter


class NodeType(enum.IntEnum):
    INVALID_NODE = 0  # an enumeration has its 0 first
    COMP_NODE = 4
    COMM_COLL_NODE = 7


class CollectiveCommType(enum.IntEnum):
    """Values of the attribute comm_type."""

    ALL_REDUCE = 0
    ALL_GATHER = 2
    ALL_TO_ALL = 6


# {message: {field: (number, type)}}; a type in brackets is repeated, and the fields *_val exclude each other.
MESSAGES = {
    "AttributeProto": {"name": (1, "string"), "int64_val": (9, "int64"), "bool_val": (27, "bool"),
                       "string_val": (29, "string")},
    "GlobalMetadata": {"attr": (2, ["AttributeProto"])},
    "Node": {"id": (1, "uint64"), "name": (2, "string"), "type": (3, "NodeType"), "data_deps": (5, ["uint64"]),
             "duration_micros": (7, "uint64"), "attr": (10, ["AttributeProto"])},
}


def message_classes():
    """{name: class} of MESSAGES."""
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="onebit/chakra.proto", package=PACKAGE, syntax="proto3")
    file.enum_type.add(name="NodeType").value.extend(
        descriptor_pb2.EnumValueDescriptorProto(name=value.name, number=value) for value in NodeType)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            repeated, kind = isinstance(kind, list), kind[0] if isinstance(kind, list) else kind
            field = message.field.add(name=field_name, number=number,
                                      label=field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL)
            if kind[0].isupper():
                field.type = field_type.TYPE_ENUM if kind == "NodeType" else field_type.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{kind}"
            else:
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
            if field_name.endswith("_val"):
                field.oneof_index = 0  # which writes 0 too: ALL_REDUCE is 0
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
    classes = message_factory.GetMessages([file])
    return {name: classes[f"{PACKAGE}.{name}"] for name in MESSAGES}


_classes = message_classes()
Node, GlobalMetadata = _classes["Node"], _classes["GlobalMetadata"]


def attributes(values):
    """Attributes of {name: integer, truth or text}."""
    fields = {bool: "bool_val", int: "int64_val", str: "string_val"}
    return [_classes["AttributeProto"](name=name, **{fields[type(value)]: value}) for name, value in values.items()]


def trace(metadata, nodes):
    """The bytes of a trace file: the metadata and then the nodes, each behind its length as a varint."""
    def delimited(message):
        content = message.SerializeToString()
        # Behind its tag of one byte, an integer field is a varint.
        return wrappers_pb2.UInt64Value(value=len(content)).SerializeToString()[1:] + content
    return b"".join(map(delimited, [metadata, *nodes]))
