"""The parquet files of a LeRobot v3.0 data set: rows of steps in files of bounded size, and the table of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actionpiece.data.lerobot_layout import COUNTERS, DATA
from actionpiece.errors import ActionPieceError

FILES_PER_CHUNK, FILE_MB = 1000, 100  # LeRobot's own defaults
_ROW_GROUP = 16 << 20  # bytes: few groups compress well and keep the file's footer small


class DataFiles:
    """Data files one after another, each of about `FILE_MB`; episodes are not cut in two."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._number = -1
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._size = self._waiting_size = 0

    def write(self, table: Any) -> int:
        """The number of the file that this table goes into."""
        if self._writer is None or self._size + table.nbytes > FILE_MB << 20:
            self.close()
            self._number += 1
            where = {"chunk_index": self._number // FILES_PER_CHUNK, "file_index": self._number % FILES_PER_CHUNK}
            path = self._root / DATA.format(**where)
            path.parent.mkdir(parents=True, exist_ok=True)
            # Floats of one column share their high bytes and row numbers their steps: a seventh less than plain zstd.
            self._writer = pq.ParquetWriter(
                path,
                table.schema,
                compression="zstd",
                use_dictionary=[name for name in COUNTERS if name != "index"],
                use_byte_stream_split=["action.list.element", "observation.state.list.element"],
                column_encoding={"index": "DELTA_BINARY_PACKED"},
            )
        self._waiting.append(table)
        self._waiting_size += table.nbytes
        self._size += table.nbytes
        if self._waiting_size >= _ROW_GROUP:
            self._flush()
        return self._number

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting, self._waiting_size = [], 0

    def close(self) -> None:
        if self._writer is not None:
            self._flush()
            self._writer.close()
        self._writer, self._size = None, 0


def column(values: npt.NDArray[Any]) -> Any:
    if values.ndim == 1 or values.shape[1] == 1:  # so LeRobot stores features of one number
        return pa.array(values.ravel())
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def task_table(tasks: list[str]) -> Any:
    """The table that pandas reads as a frame with the instruction as its index."""
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    columns = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
    ]
    description = {
        "index_columns": ["task"],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [column | {"metadata": None} for column in columns],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(description)})


def as_matrix(column: Any, where: str) -> npt.NDArray[Any]:
    """A column of numbers or of equally long lists as a two-dimensional array."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if array.null_count:
        raise ActionPieceError(f"{where} holds {array.null_count} empty rows")
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        widths = pc.unique(pc.list_value_length(array)).to_pylist()
        if len(widths) > 1:
            raise ActionPieceError(f"{where} holds rows of different widths: {', '.join(map(str, sorted(widths)))}")
        array, width = array.flatten(), widths[0] if widths else 0
    else:
        width = 1  # LeRobot stores an action of one number as a plain column
    if array.null_count or not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        raise ActionPieceError(f"{where} must hold numbers in every row, not {kind}")
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.reshape(-1, width) if width else values.reshape(0, 0)
