"""pandera schemas of the model's tables and of the 12-column contract, and ``validate``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from .errors import ValidationError
from .model import SOURCE_TABLES, MemoryProfile

if TYPE_CHECKING:
    from pandera.pandas import DataFrameSchema

Checked = TypeVar("Checked", MemoryProfile, pd.DataFrame)

MAX_LINES = 20
FAILURE_COLUMNS = ["table", "column", "check", "row", "value"]


@cache
def schemas() -> Mapping[str, DataFrameSchema]:
    """Return the schema of each table of the model, and ``contract``. pandera is imported on the first call."""
    import pandera.pandas as pa

    text = {"nullable": False}
    ints = {"nullable": True, "required": False}

    def not_before(column: str) -> Any:
        return pa.Check(
            lambda frame: (
                frame[column].isna() | frame["alloc_ns"].isna() | (frame[column] >= frame["alloc_ns"])
                if column in frame
                else True
            ),
            name=f"{column} >= alloc_ns",
            error=f"{column} >= alloc_ns",
        )

    natural = pa.Check.ge(0)
    return {
        "sources": pa.DataFrameSchema(
            {
                "source": pa.Column("int32", natural, unique=True),
                "run": pa.Column(**text),
                "role": pa.Column(**text),
                "rank_id": pa.Column("Int64", natural, nullable=True),
                "start_ns": pa.Column("Int64", nullable=True),
                "end_ns": pa.Column("Int64", nullable=True),
                "status": pa.Column(checks=pa.Check.isin(["ok", "partial", "failed"])),
            }
        ),
        "blocks": pa.DataFrameSchema(
            {
                "block_id": pa.Column("int64", natural, unique=True),
                "source": pa.Column("int32", natural),
                "device": pa.Column("category"),
                "pool": pa.Column("category"),
                "name": pa.Column("category"),
                "stack_id": pa.Column("int32", pa.Check.ge(-1)),
                "size_bytes": pa.Column("int64", pa.Check.gt(0)),
                "alloc_ns": pa.Column("Int64", pa.Check.gt(0), nullable=True),
                "free_ns": pa.Column("Int64", pa.Check.gt(0), nullable=True),
                "active_free_ns": pa.Column("Int64", pa.Check.gt(0), **ints),
                "allocated_bytes": pa.Column("Int64", natural, **ints),
                "reserved_bytes": pa.Column("Int64", natural, **ints),
                "active_bytes": pa.Column("Int64", natural, **ints),
            },
            checks=[not_before("free_ns"), not_before("active_free_ns")],
        ),
        "totals": pa.DataFrameSchema(
            {
                "source": pa.Column("int32", natural),
                "scope": pa.Column("category", pa.Check.isin(["pool", "process", "device", "module"])),
                "t_ns": pa.Column("int64", pa.Check.gt(0)),
                "allocated_bytes": pa.Column("Int64", natural, **ints),
                "reserved_bytes": pa.Column("Int64", natural, **ints),
                "active_bytes": pa.Column("Int64", natural, **ints),
            }
        ),
        "marks": pa.DataFrameSchema(
            {"kind": pa.Column("category"), "start_ns": pa.Column("int64"), "end_ns": pa.Column("int64")},
            checks=pa.Check(lambda frame: frame["end_ns"] >= frame["start_ns"], error="end_ns >= start_ns"),
        ),
        "ops": pa.DataFrameSchema(
            {"name": pa.Column("category"), "start_ns": pa.Column("int64"), "end_ns": pa.Column("int64")},
            checks=pa.Check(lambda frame: frame["end_ns"] >= frame["start_ns"], error="end_ns >= start_ns"),
        ),
        "events": pa.DataFrameSchema(
            {
                "source": pa.Column("int32", natural),
                "event_id": pa.Column("int64", natural),
                "event": pa.Column("category"),
                "type": pa.Column("category"),
                "t_ns": pa.Column("int64", natural),
                "stack_id": pa.Column("int32", pa.Check.ge(-1)),
            }
        ),
        "accesses": pa.DataFrameSchema(
            {
                "source": pa.Column("int32", natural),
                "block_id": pa.Column("int64", pa.Check.ge(-1)),
                "t_ns": pa.Column("int64", natural),
            }
        ),
        "segments": pa.DataFrameSchema(
            {
                "source": pa.Column("int32", natural),
                "device": pa.Column("category"),
                "addr": pa.Column("UInt64"),
                "size_bytes": pa.Column("int64", natural),
                "stack_id": pa.Column("int32", pa.Check.ge(-1)),
            }
        ),
        "stacks": pa.DataFrameSchema({"stack_id": pa.Column("int32", natural, unique=True), "site": pa.Column(**text)}),
        "contract": _contract(),
    }


def _contract() -> DataFrameSchema:
    """Check what RL-Insight's output rules ask, except that an empty name is legal (spec/ascend_profiler 3.4)."""
    import pandera.pandas as pa

    def numbers() -> Any:
        return pa.Check(_is_number, error="is a number")

    positive = pa.Check(lambda s: bool((pd.to_numeric(s, errors="coerce") > 0).any()), error="has a positive size")
    return pa.DataFrameSchema(
        {
            "name": pa.Column(nullable=False),
            "size_kb": pa.Column(checks=[numbers(), positive]),
            "start_time_ms": pa.Column(checks=numbers()),
            "duration_ms": pa.Column(checks=numbers()),
            "total_allocated_mb": pa.Column(checks=numbers()),
        }
    )


def _is_number(values: pd.Series) -> pd.Series:
    """Value by value: text that looks like a number is not one."""
    if pd.api.types.is_numeric_dtype(values):
        return values.notna()
    return values.map(lambda value: isinstance(value, Real) and not isinstance(value, bool)).astype(bool)


def validate(what: Checked) -> Checked:
    """Check a profile against the schemas of its tables, or a frame against the 12-column contract.

    Parameters
    ----------
    what : MemoryProfile or pandas.DataFrame
        A frame is taken for the contract of :func:`memscope_nb.memory_summary`.

    Returns
    -------
    MemoryProfile or pandas.DataFrame
        The argument, unchanged.

    Raises
    ------
    ValidationError
        With every failure, its row and value, in ``failures``; the message shows the first 20.
    """
    if isinstance(what, MemoryProfile):
        tables = {name: getattr(what, name) for name in (*SOURCE_TABLES, "stacks")}
        found = [_failures(name, table) for name, table in tables.items()]
        found.append(_dangling_stacks(what))
    else:
        found = [_failures("contract", what)]
    found = [frame for frame in found if len(frame)]
    if found:
        failures = pd.concat(found, ignore_index=True)
        lines = [_failure_line(row) for row in failures.head(MAX_LINES).itertuples()]
        more = f"\n  … and {len(failures) - MAX_LINES} more" if len(failures) > MAX_LINES else ""
        raise ValidationError(f"{len(failures)} failures:\n" + "\n".join(lines) + more, failures)
    return what


def _failures(name: str, table: pd.DataFrame) -> pd.DataFrame:
    from pandera.errors import SchemaErrors

    try:
        schemas()[name].validate(table, lazy=True)
    except SchemaErrors as error:
        cases = error.failure_cases
        rows = [_failure(name, table, case) for case in cases.itertuples()]
        return pd.DataFrame(rows, columns=FAILURE_COLUMNS).drop_duplicates(
            ["check", "row", "column"], ignore_index=True
        )
    return pd.DataFrame(columns=FAILURE_COLUMNS)


def _failure(name: str, table: pd.DataFrame, case: Any) -> tuple[str, object, str, object, object]:
    """Turn pandera's report of one case into: table, column, check, row, value."""
    check = str(case.check)
    if check == "column_in_dataframe":
        return name, case.failure_case, "required column is missing", None, None
    row = None if pd.isna(case.index) else case.index
    if case.schema_context == "DataFrameSchema" and row is not None:
        # A check over several columns is reported once for every column of the table: keep the one it is about.
        column = check.split(" ")[0]
        return name, column, check, row, table.at[row, column]
    return name, case.column, check, row, case.failure_case


def _dangling_stacks(profile: MemoryProfile) -> pd.DataFrame:
    """Blocks that point to a stack which is not there."""
    ids = profile.blocks["stack_id"]
    bad = ids[ids >= len(profile.stacks)]
    rows = [("blocks", "stack_id", "stack_id is in stacks", row, value) for row, value in bad.items()]
    return pd.DataFrame(rows, columns=FAILURE_COLUMNS)


def _failure_line(row: Any) -> str:
    where = "" if row.row is None or pd.isna(row.row) else f" row {row.row}"
    value = "" if row.value is None else f": {str(row.value)[:80]!r}"
    return f"  {row.table}.{row.column}{where}: {row.check}{value}"
