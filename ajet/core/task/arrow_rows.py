"""Reads rows of Parquet and Arrow files, and removes the nulls that struct types add to messages.

    {"zone": "UTC"}, {"city": "Oslo"}      the arguments of two rows' calls
      -> one type for the column           struct<zone: string, city: string>
      -> {"zone": "UTC", "city": None}     what pyarrow and `datasets` return
      -> {"zone": "UTC"}                   what the row had

Null fields are removed inside messages and tools only. There a written `"default": null` cannot be
distinguished from an absent field; JSON text keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import extra_advice

if TYPE_CHECKING:
    import pyarrow as pa

IPC_FILE_MAGIC = b"ARROW1"
"""The first bytes of an Arrow file with an index. Others are streams, as `save_to_disk` writes."""


def read_table(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a .parquet or .arrow file."""
    is_parquet = file.suffix.lower() == ".parquet"
    format_name = "Parquet" if is_parquet else "Arrow"
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise DataError(
            f"{file}: {format_name} needs pyarrow: {extra_advice('pyarrow')}",
            code=Code.PACKAGE_MISSING,
        ) from error
    try:
        if is_parquet:
            table = parquet.read_table(file)
        else:
            with file.open("rb") as source:
                has_index = source.read(len(IPC_FILE_MAGIC)) == IPC_FILE_MAGIC
                source.seek(0)
                open_ipc = pa.ipc.open_file if has_index else pa.ipc.open_stream
                table = open_ipc(source).read_all()
        return rows_of(table.to_pylist(), table.schema)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: not a readable {format_name} file: {error}", code=Code.DATA_UNREADABLE
        ) from error


def rows_of(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    """Returns the rows of a table, without the null fields that its schema adds."""
    converters = {field.name: _converter(field.type, in_message=False) for field in schema}
    return [
        {name: _converted(value, converters.get(name)) for name, value in row.items()}
        for row in rows
    ]


Converter = Callable[[Any], Any]


def _converted(value: Any, convert: Converter | None) -> Any:
    return value if value is None or convert is None else convert(value)


def _converter(data_type: pa.DataType, *, in_message: bool) -> Converter | None:
    """Returns the function that restores a value of this type to what was written; None where
    nothing needs restoring, which saves a call for each value."""
    from pyarrow import types

    if getattr(data_type, "extension_name", None) == "arrow.json":
        return lambda value: json.loads(value) if isinstance(value, str) else value
    if types.is_map(data_type) and in_message:
        return dict  # pyarrow returns a map as a list of pairs
    if types.is_float16(data_type) or types.is_float32(data_type):
        kind = np.float32 if types.is_float32(data_type) else np.float16
        return lambda value: float(str(kind(value)))  # pyarrow returns 0.1 as 0.10000000149011612
    if types.is_struct(data_type):
        return _struct_converter(data_type, in_message=in_message)
    inner_kind = getattr(data_type, "value_type", None)
    if inner_kind is None or types.is_dictionary(data_type):
        return None  # a scalar; pyarrow decodes dictionaries, whose value_type is not a list's
    inner = _converter(inner_kind, in_message=in_message)
    return (
        None if inner is None else lambda value: [_converted(element, inner) for element in value]
    )


def _struct_converter(data_type: pa.DataType, *, in_message: bool) -> Converter | None:
    fields = {data_type.field(i).name: data_type.field(i).type for i in range(data_type.num_fields)}
    # A message or a tool itself keeps its nulls (`content`); what is nested in it does not.
    is_tool = "name" in fields and bool(fields.keys() & {"parameters", "input_schema"})
    in_message_below = in_message or is_tool or bool(fields.keys() & {"role", "from", "function"})
    inner = {
        name: _converter(field_type, in_message=in_message_below)
        for name, field_type in fields.items()
    }
    if not in_message and not any(inner.values()):
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):  # an image that `datasets` decoded
            return value
        return {
            name: _converted(field_value, inner.get(name))
            for name, field_value in value.items()
            if not (in_message and field_value is None)
        }

    return convert
