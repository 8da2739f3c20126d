"""The ``memscope-nb`` command."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

from ._version import __version__
from .analysis.result import records
from .cli_analyses import add_analyses
from .errors import MemscopeError, ValidationError

OK, FINDINGS, BAD_INPUT = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 ok, 1 findings, 2 bad input or ``--strict``."""
    args = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):  # file names may hold what no text can, and terminals know few letters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return int(args.run(args))
    except ValidationError as error:
        print(error, file=sys.stderr)
        return FINDINGS
    except MemscopeError as error:
        print(f"memscope-nb: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        return OK
    except KeyboardInterrupt:
        print("memscope-nb: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="memscope-nb", description="Accelerator memory profiles: what peaked, what grew."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    report = commands.add_parser("report", help="write interactive pages that open without a network")
    _add_input(report)
    report.add_argument("--out", required=True, metavar="DIR", help="folder for the pages")
    report.add_argument(
        "--bars-per-segment", type=int, default=100_000, metavar="N", help="blocks a page (default %(default)s)"
    )
    report.add_argument("--capacity", metavar="SIZE", help="memory of a device, such as '61 GiB', drawn as a line")
    report.add_argument("--inline", action="store_true", help="everything inside each page, to send one file")
    report.add_argument("--redact", action="store_true", help="no user and host names, no absolute paths in the pages")
    report.add_argument("--hide", type=_words, default=[], metavar="A,B,…", help="with --redact: more words to replace")
    report.add_argument("--force", action="store_true", help="write into a folder that holds other files")
    report.set_defaults(run=_report)

    scan = commands.add_parser("scan", help="what is there, how large, and the memory a load would take; reads no data")
    scan.add_argument("paths", nargs="+", metavar="PATH")
    scan.add_argument("--json", action="store_true", help="machine-readable")
    _add_names(scan)
    scan.set_defaults(run=_scan)

    info = commands.add_parser("info", help="what is there: sources, levels, peaks, remarks")
    _add_input(info)
    info.add_argument("--json", action="store_true", help="machine-readable")
    info.set_defaults(run=_info)

    validate = commands.add_parser("validate", help="check every table against its schema")
    _add_input(validate)
    validate.set_defaults(run=_validate)

    triage = commands.add_parser("triage", help="about 30 redacted lines of Markdown for an issue report")
    _add_input(triage)
    triage.add_argument("--hide", type=_words, default=[], metavar="A,B,…", help="more words to replace")
    triage.add_argument("--json", action="store_true", help="machine-readable, every rank; redacted, too")
    triage.set_defaults(run=_triage)

    add_analyses(commands)

    demo = commands.add_parser("demo", help="write profiles of a made-up RL run, to try things on")
    demo.add_argument("--out", required=True, metavar="DIR", help="folder for the profiles, new or empty")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument(
        "--export", choices=["text", "db", "both", "dump", "pytorch"], default="text", help="form of the profiles"
    )
    demo.set_defaults(run=_demo)
    return parser


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a tree, a role's folder or one collection")
    parser.add_argument("--ranks", type=_numbers, metavar="0,1,…", help="only these ranks")
    parser.add_argument("--roles", type=_words, metavar="A,B,…", help="only these roles")
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="reading processes (default: one a core)")
    parser.add_argument("--cache", metavar="DIR", help="keep what was parsed in this folder and reuse it")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if a source cannot be read")
    _add_names(parser)


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--torch-name",
        action="append",
        default=[],
        metavar="REGEX",
        help="whose a PyTorch file is, from its path: 'worker(?P<rank>[0-9]+)'; groups rank, step, pid, host, role",
    )


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ranks such as 0,1,7") from None


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _load(args: argparse.Namespace) -> Any:
    from .io import load

    return load(args.paths, strict=args.strict, **_reading(args))


def _reading(args: argparse.Namespace) -> dict[str, Any]:
    """Options of reading that all commands share."""
    return {
        "ranks": args.ranks or "all",
        "roles": args.roles or "all",
        "n_jobs": args.jobs,
        "cache": args.cache,
        "torch_names": args.torch_name,
    }


def _report(args: argparse.Namespace) -> int:
    from .export.pages import PageOptions
    from .export.report import write_report

    options = PageOptions.of(
        bars_per_segment=args.bars_per_segment,
        max_segments=20,
        capacity=args.capacity,
        inline=args.inline,
        redact=args.hide or args.redact,
    )
    report = write_report(args.paths, args.out, options=options, strict=args.strict, force=args.force, **_reading(args))
    for source in report.sources:
        if source.status != "ok":
            print(f"{source.status}: {source.path}: {'; '.join(source.warnings)}", file=sys.stderr)
    print(f"open {report.index.resolve()}")
    return OK


def _scan(args: argparse.Namespace) -> int:
    from .io import scan

    catalog = scan(args.paths, torch_names=args.torch_name)
    if args.json:
        print(json.dumps({"sources": records(catalog.frame)}, indent=1, ensure_ascii=False))
    else:
        print(repr(catalog))
    return OK


def _info(args: argparse.Namespace) -> int:
    from .analysis.quality import check_quality

    profile = _load(args)
    summary = profile.summary()
    if args.json:
        sources = profile.sources.drop(columns="facts").assign(facts=profile.sources["facts"])
        found = {"sources": records(sources), "series": records(summary), "quality": check_quality(profile).to_dict()}
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return OK
    print(repr(profile))
    _print_quality(profile)
    return OK


def _triage(args: argparse.Namespace) -> int:
    from .export.summary import triage

    found = triage(args.paths, hide=args.hide, strict=args.strict, **_reading(args))
    if args.json:
        print(json.dumps(found.to_dict(), indent=1, ensure_ascii=False))
    else:
        print(found.to_markdown(), end="")
    return OK


def _validate(args: argparse.Namespace) -> int:
    from .schema import validate

    profile = validate(_load(args))
    _print_problems(profile)
    unexplained = profile.summary()["n_unexplained"].fillna(0).sum()
    print(f"valid: {len(profile.sources)} sources, {len(profile.blocks):,} blocks; {unexplained} unexplained rises")
    return OK


def _demo(args: argparse.Namespace) -> int:
    from .demo import write_demo, write_demo_pytorch

    if args.export == "pytorch":
        truth = write_demo_pytorch(args.out, seed=args.seed)
        print(f"a failed allocation: memscope-nb oom {args.out}/{truth.oom_path}")
    else:
        write_demo(args.out, seed=args.seed, export=args.export)
    print(f"wrote {args.out}; now run: memscope-nb report {args.out} --out demo-report")
    return OK


def _print_quality(profile: Any) -> None:
    from .analysis.quality import check_quality

    quality = check_quality(profile)
    frame = quality.to_frame()
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in frame["verdict"].value_counts().items())
    print(
        f"  quality: {verdicts}; {frame['n_unexplained'].sum()} unexplained rises, "
        f"{frame['n_total_mismatch'].sum()} of {frame['n_total_checked'].sum():,} written totals differ from the "
        f"record, {frame['n_skipped'].sum()} rows skipped, {frame['n_repaired'].sum()} values repaired"
    )
    for line in quality.check_lines():
        print(f"  check of {line}")
    for hint in quality.hints:
        print(f"  hint: {hint}")


def _print_problems(profile: Any) -> None:
    for row in profile.sources[profile.sources["status"] != "ok"].itertuples():
        print(f"{row.status}: {row.path}: {'; '.join(row.warnings)}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
