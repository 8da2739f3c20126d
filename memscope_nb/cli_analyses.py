"""Analyses as commands: each prints the tables of a result, or with ``--json`` the whole of it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import pandas as pd

from .analysis.result import Result
from .errors import InputError
from .units import format_bytes

MAX_ROWS = 40


def add_analyses(commands: Any) -> None:
    """Add ``leaks``, ``compare``, ``inefficient``, ``decompose``, ``oom`` and ``watch``."""
    _add_leaks(commands)
    _add_compare(commands)
    _add_inefficient(commands)
    _add_decompose(commands)
    _add_oom(commands)
    watch = _command(commands, "watch", "which watched memory changed, and which operator is suspected", _watch)
    watch.add_argument("--may-write", action="append", metavar="REGEX", help="operators that are expected to write")


def _command(commands: Any, name: str, text: str, run: Any, *, paths: tuple[str, ...] = ("path",)) -> Any:
    parser = commands.add_parser(name, help=text)
    for path in paths:
        parser.add_argument(path, metavar=path.upper())
    parser.add_argument("--json", action="store_true", help="machine-readable, complete")
    parser.add_argument("--rows", type=int, default=MAX_ROWS, metavar="N", help="most rows a table")
    parser.set_defaults(run=run)
    return parser


def _add_leaks(commands: Any) -> None:
    leaks = _command(commands, "leaks", "blocks that stayed between marks, or from step to step", _leaks)
    leaks.add_argument("--mstx", metavar="TEXT", help="marks A, B, C with this text; without it, the rule over steps")
    leaks.add_argument("--start", type=int, default=0, metavar="I", help="number of mark A (default %(default)s)")
    leaks.add_argument("--pools", default=None, metavar="A,B", help="pools to look into, or all")
    _add_compat(leaks)


def _add_compare(commands: Any) -> None:
    compare = _command(
        commands, "compare", "operators or kernels of two dumps, aligned", _compare, paths=("base", "compare")
    )
    compare.add_argument("--level", choices=["op", "kernel", "op,kernel"], default="op")
    compare.add_argument("--csv", metavar="DIR", help="also write memory_compare_*.csv as msMemScope does")
    _add_compat(compare)


def _add_inefficient(commands: Any) -> None:
    found = _command(commands, "inefficient", "blocks that hold memory while nobody uses it", _inefficient)
    found.add_argument("--mem-size", type=int, default=0, metavar="BYTES", help="leave out smaller blocks")
    found.add_argument("--type", action="append", metavar="LABEL", help="only this label; may be repeated")
    found.add_argument("--idle-threshold", type=int, default=3000, metavar="N")
    found.add_argument("--unit", choices=["api", "ns"], default="api", help="of the threshold")
    found.add_argument("--copy", metavar="FILE", help="also write a labelled copy of the dump (.csv or .db)")
    _add_compat(found)


def _add_decompose(commands: Any) -> None:
    decompose = _command(commands, "decompose", "what the memory of each pool is for", _decompose)
    decompose.add_argument("--at", type=int, metavar="NS", help="instant (default: the peak of each pool)")
    decompose.add_argument("--rules", metavar="FILE", help="own rules, TOML")


def _add_oom(commands: Any) -> None:
    oom = _command(commands, "oom", "why an allocation failed, and what kept idle memory from it", _oom)
    oom.add_argument(
        "--at", default="oom", metavar="WHEN", help="oom (the last one), end, peak, number of a failure, or ns"
    )
    oom.add_argument("--request", metavar="SIZE", help="ask for this much then, such as '4 GiB' (PyTorch snapshots)")
    oom.add_argument("--stream", type=int, metavar="HANDLE", help="stream that asks (default: 0); with --request")


def _add_compat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--compat", choices=["msmemscope"], help="answer as the original tool does, its faults included"
    )


# -- running ------------------------------------------------------------------------------------------------------


def _leaks(args: argparse.Namespace) -> int:
    from .analysis.leaks import check_leaks
    from .analysis.step_leaks import step_leaks

    pools: Any = None if args.pools is None else "all" if args.pools == "all" else tuple(args.pools.split(","))
    chosen = {} if pools is None else {"pools": pools}
    if args.mstx is None:
        result: Any = step_leaks(args.path, compat=args.compat, **chosen)
        tables = {"growth": result.growth, "blocks": result.frame}
    else:
        result = check_leaks(args.path, mstx_info=args.mstx, start_index=args.start, compat=args.compat, **chosen)
        tables = {"verdicts": result.checks, "by stack": result.stacks, "blocks": result.frame}
    return _show(args, result, tables)


def _compare(args: argparse.Namespace) -> int:
    from .analysis.align import align_ops

    result = align_ops(args.base, args.compare, level=args.level, compat=args.compat)
    if args.csv:
        from .export.compare_csv import write_compare_csv

        written = write_compare_csv(result, args.csv)
        print(f"wrote {written}" if written else "nothing to write", file=sys.stderr)
    changed = result.frame[result.frame["diff_bytes"].fillna(0) != 0]
    by_stack = {} if args.compat else {"by operator": result.by_op, "by stack": result.by_stack}
    return _show(args, result, {**by_stack, "operators that differ": changed})


def _inefficient(args: argparse.Namespace) -> int:
    from .analysis.inefficient import find_inefficient

    options = {"mem_size": args.mem_size, "inefficient_type": args.type, "idle_threshold": args.idle_threshold}
    result = find_inefficient(args.path, unit=args.unit, compat=args.compat, **options)
    if args.copy:
        from .export.labelled_copy import labelled_copy

        print(f"wrote {labelled_copy(args.path, args.copy, found=result)}", file=sys.stderr)
    return _show(args, result, {"blocks": result.frame})


def _decompose(args: argparse.Namespace) -> int:
    from .analysis.decompose import decompose

    result = decompose(args.path, at=args.at, rules=args.rules)
    return _show(args, result, {"tree": result.frame})


def _oom(args: argparse.Namespace) -> int:
    from .analysis.fragmentation import fragmentation
    from .analysis.oom import explain_oom
    from .model import as_profile

    profile = as_profile(args.path)
    if len(profile.events):  # rows of msMemScope
        if args.at != "oom" or args.request or args.stream is not None:
            raise InputError("--at, --request and --stream are for PyTorch snapshots; this is a msMemScope dump")
        report = explain_oom(profile)
        return _show(args, report, {"failures": report.frame, "pools": report.pools, "snapshots": report.snapshots})
    when = int(args.at) if args.at.isdecimal() else args.at
    if not isinstance(when, int) and when not in ("oom", "end", "peak"):
        raise InputError(f"--at {when}: expected oom, end, peak, the number of a failure, or ns")
    found = fragmentation(profile).at(when, request=args.request, stream=args.stream)
    if not args.json:
        print("\n".join(found.answer))
    keys = ["source", "device"] if found.frame["source"].nunique() > 1 else ["device"]
    pins = found.pins.sort_values("idle_bytes", ascending=False, kind="stable")
    pins = pins[[*keys, "size_bytes", "idle_before_bytes", "idle_after_bytes", "reason", "site"]]
    fits = found.fits[["route", *keys, "size_bytes", "site"]]
    reasons = found.reasons[[*keys, "reason", "n_ranges", "idle_bytes", "largest_bytes"]]
    status = _show(args, found, {"idle by reason": reasons, "it would fit without": fits, "beside idle memory": pins})
    if not args.json:
        print("\n".join(f"advice: {text}" for text in found.advice))
    return status


def _watch(args: argparse.Namespace) -> int:
    from .analysis.watch import locate_corruption
    from .io.watch import load_watch

    result = locate_corruption(load_watch(args.path), may_write=args.may_write)
    return _show(args, result, {"watched blocks": result.frame})


def _show(args: argparse.Namespace, result: Result, tables: dict[str, pd.DataFrame]) -> int:
    for message in getattr(result, "messages", ()):  # what the original tool prints
        print(message, file=sys.stderr)
    if args.json:
        print(json.dumps(result.to_dict(), indent=1, ensure_ascii=False))
        return 0
    for title, table in tables.items():
        print(f"{title}: {len(table)}")
        if len(table):
            print(_readable(table.head(args.rows)).to_string(index=False, max_colwidth=70))
        if len(table) > args.rows:
            print(f"… and {len(table) - args.rows} more (--rows, --json)")
    for caveat in result.caveats:
        print(f"note: {caveat}")
    return 0


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    """Sizes with units; columns that are empty throughout are left out."""
    shown = table.dropna(axis="columns", how="all")
    return shown.assign(
        **{name: shown[name].map(_size) for name in shown if name == "bytes" or str(name).endswith("_bytes")}
    )


def _size(value: Any) -> str:
    return "" if pd.isna(value) else format_bytes(int(value))
