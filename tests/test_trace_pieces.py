"""The fast trace reader against ijson: the same rows, or a remark."""

from __future__ import annotations

import functools
import gzip
import json
import random
from decimal import Decimal

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import us

from memscope_nb.errors import InputError
from memscope_nb.io import trace_view
from memscope_nb.io.report import ReadReport
from memscope_nb.io.trace_columns import exact_ns
from memscope_nb.io.trace_pieces import PieceReader
from memscope_nb.units import us_to_ns

PID = 77


def read(path, *, block=None, reader="auto", names=None):
    report = ReadReport()
    with pytest.MonkeyPatch.context() as patch:
        if block is not None:
            patch.setattr(trace_view, "PieceReader", functools.partial(PieceReader, block_bytes=block))
        trace = trace_view.read_trace(path, report=report, reader=reader, names=names)
    return trace, report


def rows(trace):
    """Operators with their names and stacks as text, one tuple each."""
    frames = [*trace.stacks["frames"], ()]
    ops = trace.ops
    columns = [ops[name].tolist() for name in ("name", "tid", "start_ns", "end_ns", "sequence", "fwd_tid")]
    return list(zip(*columns, [frames[i] for i in ops["stack_id"]], strict=True))


def assert_same(a, b):
    pd.testing.assert_frame_equal(a.ops, b.ops)
    pd.testing.assert_frame_equal(a.marks, b.marks)
    pd.testing.assert_frame_equal(a.stacks, b.stacks)
    assert (a.pid, a.relative) == (b.pid, b.relative)


def agree(path, *, block=None):
    """Check one file; returns both reports."""
    (fast, told), (plain, plain_told) = read(path, block=block), read(path, reader="ijson")
    fast_rows, plain_rows = rows(fast), rows(plain)
    assert fast_rows[: len(plain_rows)] == plain_rows, "the fast reader lost or changed a row"
    if len(fast_rows) > len(plain_rows):
        assert told.warnings
        assert plain_told.warnings
    elif not told.warnings:
        assert_same(fast, plain)
    return told, plain_told


# -- a trace with everything that is hard ---------------------------------------------------------------------------

NAMES = [
    "aten::mm",
    'brace }, {"ph": "X" in a name',
    'says "Call stack" and ] too',
    "back\\slash\\",
    "路径 ünï 😀",
    "ProfilerStep#3",
    "{[",
    "autograd::engine::evaluate_function: MmBackward0",
]
STACKS = ["a.py(1): f;\r\nb.py(2): g", "a.py(1): f", "x" * 700, "路径.py(3): 😀", 'q"uote.py(1): {', ""]


def hard_events(rng: random.Random, n: int) -> list[dict]:
    events: list[dict] = [{"ph": "M", "name": "process_name", "pid": PID, "args": {"name": "Python {[}], "}}]
    for i in range(n):
        kind = rng.random()
        ts = us(i * 3 + rng.choice([0, 0.001, 0.5])).strip()
        event = {"ph": "X", "name": rng.choice(NAMES), "pid": PID, "tid": rng.choice([1, 2, "3"]), "ts": ts}
        event["dur"] = rng.choice([0, 5, 5.5, 12.345, 0.001, 1e-05, 1998640.0])
        if kind < 0.6:
            args = {"Sequence number": rng.choice([-1, i, str(i)]), "Fwd thread id": rng.choice([0, 1])}
            if rng.random() < 0.6:
                args["Call stack"] = rng.choice(STACKS)
            if rng.random() < 0.3:
                args["Input Dims"] = [{"a": [1, {"b": "}, {"}]}, {"ph": "X", "cat": "cpu_op"}, []]
            event |= {"cat": "cpu_op", "args": args}
        elif kind < 0.75:
            event |= {"cat": rng.choice(["python_function", "enqueue"]), "args": {"Call stack": "decoy"}}
        elif kind < 0.85:
            event["pid"] = rng.choice([PID, PID, 9001, str(PID)])
            event.pop("cat", None)
        else:
            event |= {"ph": rng.choice(["s", "f", "C"]), "id": 1234567890123456789}
        keys = list(event)
        rng.shuffle(keys)
        events.append({key: event[key] for key in keys})
    return events


def hard_text(rng: random.Random, n: int = 60) -> bytes:
    layout = rng.choice([{}, {"indent": 1}, {"separators": (",", ":")}, {"separators": (" , ", " : ")}])
    return json.dumps(hard_events(rng, n), ensure_ascii=rng.random() < 0.5, **layout).encode()


@pytest.mark.parametrize("seed", range(25))
def test_any_block_size_gives_the_rows_of_ijson_and_no_false_alarm(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "trace_view.json"
    path.write_bytes(hard_text(rng))
    for block in (64, rng.randrange(64, 500), rng.randrange(500, 5000), 1 << 19):
        told, _ = agree(path, block=block)
        assert told.warnings == ()


@pytest.mark.parametrize("seed", range(60))
def test_cut_anywhere_all_whole_events_remain_and_the_cut_is_told(tmp_path, seed):
    rng = random.Random(1000 + seed)
    text = hard_text(rng, 30)
    if seed % 3 == 0:
        text = b'{"schemaVersion": 1, "traceEvents": ' + text + b', "displayTimeUnit": "ns"}'
    path = tmp_path / "trace_view.json"
    path.write_bytes(text[: rng.randrange(1, len(text.rstrip()))])
    told, plain = agree(path, block=rng.choice([64, 300, 4000, 1 << 19]))
    assert told.warnings
    assert told.partial == plain.partial


@pytest.mark.parametrize("seed", range(300))
def test_a_flipped_byte_changes_nothing_or_is_told(tmp_path, seed):
    rng = random.Random(2000 + seed)
    text = bytearray(hard_text(rng, 25))
    text[rng.randrange(len(text))] = rng.randrange(256) if seed % 2 else rng.choice(b'{}[]",:\\ 0aeE.-\n')
    path = tmp_path / "trace_view.json"
    path.write_bytes(text)
    agree(path, block=rng.choice([64, 300, 4000, 1 << 19]))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
odd_events = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "X", "M", None, 3]),
        "cat": st.sampled_from(["cpu_op", "cpu_op", "gc", None, 1]),
        "name": st.sampled_from(NAMES) | values,
        "ts": st.sampled_from(["1700000000000009.000", "1", "5.", ".5", "-4.5", " 7 ", "1e3", "٣", ""]) | values,
        "dur": st.sampled_from([0, 1.5, 1e-7, 10**25, "2.5", None]) | values,
        "pid": st.sampled_from([PID, str(PID), 5]) | values,
        "tid": values,
        "args": st.dictionaries(
            st.sampled_from(["Call stack", "Sequence number", "Fwd thread id", "x"]), values, max_size=4
        )
        | values,
    },
)


@settings(max_examples=150, deadline=None)
@given(st.lists(odd_events | values, max_size=8), st.integers(64, 400), st.booleans())
def test_events_of_any_shape(tmp_path_factory, events, block, ensure_ascii):
    path = tmp_path_factory.mktemp("t") / "trace_view.json"
    path.write_bytes(json.dumps(events, ensure_ascii=ensure_ascii).encode("utf-8", "surrogatepass"))
    told, plain = agree(path, block=block)
    if not plain.warnings:
        assert told.warnings == ()
    assert told.n_skipped >= plain.n_skipped


# -- hazards, one by one --------------------------------------------------------------------------------------------


def op_text(i: int, more: str = "", ts: str | None = None) -> str:
    ts = f'"{us(i).strip()}"' if ts is None else ts
    return f'{{"ph":"X","cat":"cpu_op","name":"op{i}","pid":{PID},"tid":1,"ts":{ts},"dur":5{more}}}'


def array(*elements: str) -> str:
    return "[" + ",".join(elements) + "]"


def second(more: str, **options) -> str:
    """Three operators; the second has something more."""
    return array(ONE, op_text(2, more, **options), SIX)


ONE, TWO, SIX = op_text(1), op_text(2), op_text(6)
RANGE = f'{{"ph":"X","cat":null,"name":"r","pid":{PID},"ts":"1","dur":1}}'
HUGE = op_text(3, ',"args":{"Call stack":"' + "h" * 300_000 + '","l":[' + ",".join(['{"a":1}'] * 3000) + "]}")
ODD = "not quite JSON"
NO_TIME = "operators without a readable time"
CASES = {
    # name: (text, numbers of the operators that must come out, part of the remark or "")
    "BOM": ("\ufeff" + array(ONE, TWO), [1, 2], ""),
    "space around everything": (f" \n [ {ONE} \t,\r\n {TWO} \n ] \n", [1, 2], ""),
    "empty": ("[]", [], ""),
    "traceEvents object": (f'{{"traceEvents":{array(ONE, TWO)},"unit":"ns"}}', [1, 2], ""),
    "traceEvents inside and last": (
        f'{{"a":{{"traceEvents":{array(SIX)}}},"traceEvents":{array(ONE, TWO)}}}',
        [1, 2],
        "",
    ),
    "traceEvents twice": (f'{{"traceEvents":{array(ONE)},"traceEvents":{array(TWO)}}}', [1, 2], ""),
    "traceEvents in a text": (f'{{"a":"\\"traceEvents\\":[","traceEvents":{array(ONE, TWO)}}}', [1, 2], ""),
    "no closing bracket": (f"[{ONE},{TWO}", [1, 2], "has no closing bracket"),
    "no closing bracket after a comma": (f"[{ONE},{TWO},", [1, 2], "has no closing bracket"),
    "comma before the bracket": (f"[{ONE},{TWO},]", [1, 2], "ends in ',]'"),
    "cut inside an event": (f"[{ONE},{TWO[:-9]}", [1], "broken after 1 events"),
    "garbage behind": (f"[{ONE},{TWO}] {SIX}", [1, 2], "broken after 2 events"),
    "garbage between": (f"[{ONE},{TWO} oops,{SIX}]", [1, 2], "broken after 2 events"),
    "Infinity as duration": (second("").replace('2.000","dur":5', '2.000","dur":Infinity'), [1, 6], ODD),
    "NaN elsewhere": (second(',"x":NaN'), [1, 2, 6], ODD),
    "NaN in the last event": (array(ONE, op_text(2, ',"x":-Infinity')), [1, 2], ODD),
    "raw control characters": (second(',"x":"a\x01\nb"'), [1, 2, 6], ODD),
    "first half of a surrogate pair": (second(r',"args":{"Call stack":"s\ud800.py"}'), [1, 2, 6], ODD),
    "second half of a surrogate pair": (second(r',"args":{"Call stack":"s\udc00.py"}'), [1, 2, 6], ODD),
    "surrogate pair": (second(r',"args":{"Call stack":"\ud83d\ude00.py"}'), [1, 2, 6], ""),
    "duplicate keys, the last wins": (array(op_text(9, ',"name":"op1","args":{},"args":null'), TWO), [1, 2], ""),
    "escaped keys": (second(r',"args":{"Call\u0020stack":"e.py(1): f"}'), [1, 2, 6], ""),
    "args is no object": (
        array(op_text(1, ',"args":"Call stack"'), op_text(2, ',"args":[{}]'), op_text(6, ',"args":null')),
        [1, 2, 6],
        "",
    ),
    "stack is no text": (
        array(op_text(1, ',"args":{"Call stack":null}'), op_text(2, ',"args":{"Call stack":[1]}'), SIX),
        [1, 2, 6],
        "",
    ),
    "category null": (array(ONE, RANGE, TWO), [1, 2], ""),
    "numeric times": (
        array(*(op_text(i, ts=f"170000000000000{i}{d}") for i, d in ((1, ".001"), (2, ".25"), (6, "")))),
        [1, 2, 6],
        "",
    ),
    "times missing, null or a list": (
        array(ONE, op_text(3, ts="null"), op_text(4, ts="[]"), TWO.replace('"ts"', '"st"'), SIX),
        [1, 6],
        f"{NO_TIME} (3x",
    ),
    "a time that is a word": (second("", ts='"inf"'), [1, 6], NO_TIME),
    "a time in a power of ten": (second("", ts='"1e15"'), [1, 6], NO_TIME),
    "a time too large": (second("", ts="1" * 40), [1, 6], NO_TIME),
    "elements that are no objects": (array("1", ONE, '"x"', array(SIX), "null", TWO), [1, 2], "not events (4x"),
    "an event larger than a block": (array(ONE, HUGE, TWO), [1, 3, 2], ""),
    "deep nesting": (second(',"x":' + "[" * 5000 + "]" * 5000), [1, 2, 6], ""),
    "pid as text": (array(ONE.replace(f":{PID},", f':"{PID}",'), TWO), [1, 2], ""),
}


@pytest.mark.parametrize("block", [64, 1 << 19])
@pytest.mark.parametrize("case", CASES)
def test_hazard(tmp_path, case, block):
    text, wanted, remark = CASES[case]
    path = tmp_path / "trace_view.json"
    path.write_bytes(text.encode())
    trace, report = read(path, block=block)
    assert trace.ops["name"].tolist() == [f"op{i}" for i in wanted]
    assert remark in " ".join(report.warnings)
    assert bool(report.warnings) == bool(remark)
    agree(path, block=block)


@pytest.mark.parametrize(("more", "remark"), [("", ""), (',"y":NaN', ODD)])
def test_a_number_of_5000_digits_is_json_though_ijson_crashes_on_it(tmp_path, more, remark):
    path = tmp_path / "trace_view.json"
    path.write_text(second(',"x":' + "9" * 5000 + more))
    trace, report = read(path)
    assert len(trace.ops) == 3
    assert remark in " ".join(report.warnings)


@pytest.mark.parametrize("block", range(64, 100))
def test_a_number_between_events_is_not_taken_for_whole_where_a_block_ends_in_it(tmp_path, block):
    path = tmp_path / "trace_view.json"
    odd = '{"cat":1}'  # makes the reader decode one by one
    path.write_text(array(odd, odd, odd, odd, odd, "1234567890123456789012345678901234567890", ONE))
    told, _ = agree(path, block=block)
    assert told.n_skipped == 1


@pytest.mark.parametrize("where", ["in a skipped text", "in a name", "in a stack"])
def test_bytes_that_are_not_utf8_cost_nothing_but_a_remark(tmp_path, where):
    text = {
        "in a skipped text": second(',"x":"@"'),
        "in a name": second("").replace("op2", "op@"),
        "in a stack": second(',"args":{"Call stack":"@.py(1): f"}'),
    }[where]
    path = tmp_path / "trace_view.json"
    path.write_bytes(text.encode().replace(b"@", b"\xb2\xff"))
    trace, report = read(path)
    assert len(trace.ops) == 3
    assert ODD in report.warnings[0]
    " ".join([*trace.ops["name"], *trace.stacks["site"]]).encode("utf-8")
    _, plain = read(path, reader="ijson")
    assert plain.partial  # ijson stops here


def test_numeric_times_keep_every_digit(tmp_path):
    path = tmp_path / "trace_view.json"
    path.write_text(f"[{op_text(1, ts='1700000000000001.001')},{op_text(2, ts='1700000000000002.0019999')}]")
    trace, _ = read(path)
    assert trace.ops["start_ns"].tolist() == [1700000000000001001, 1700000000000002001]


def test_ranges_count_from_the_first_operator_of_their_process_in_both_readers(tmp_path):
    def mark(name, pid):
        return f'{{"ph":"X","name":"{name}","pid":{pid},"tid":1,"ts":"{us(3).strip()}","dur":1}}'

    other = ONE.replace(str(PID), "88")
    path = tmp_path / "trace_view.json"
    path.write_text(f"[{mark('early', PID)},{ONE},{mark('dropped', 88)},{other},{mark('kept', 88)},{mark('gpu', 9)}]")
    for block in (64, 1 << 19):
        agree(path, block=block)
        assert read(path, block=block)[0].marks["name"].tolist() == ["early", "kept"]


def test_the_same_stack_written_in_two_ways_is_one(tmp_path):
    path = tmp_path / "trace_view.json"
    stacks = ['"a.py(1): f"', '"a.py\\u00281): f"', '"b.py(1): f"']
    path.write_text("[" + ",".join(op_text(i, f',"args":{{"Call stack":{s}}}') for i, s in enumerate(stacks)) + "]")
    trace, _ = read(path)
    assert trace.ops["stack_id"].tolist() == [0, 0, 1]


def test_stacks_that_agree_in_every_sampled_byte_are_still_told_apart(tmp_path):
    path = tmp_path / "trace_view.json"
    stacks = ["".join(random.Random(i).choices("ab", k=60)) for i in range(40)] * 2
    path.write_text("[" + ",".join(op_text(i, f',"args":{{"Call stack":"{s}"}}') for i, s in enumerate(stacks)) + "]")
    trace, _ = read(path)
    assert [frames[0] for frames in trace.stacks["frames"]] == stacks[:40]
    assert trace.ops["stack_id"].tolist() == [*range(40)] * 2


@pytest.mark.parametrize("cut", [None, -8, -200])
@pytest.mark.parametrize("damage", [False, True])
def test_gzip_whole_cut_and_damaged(tmp_path, cut, damage):
    data = bytearray(gzip.compress(hard_text(random.Random(5), 400))[:cut])
    if damage:
        data[len(data) // 2] ^= 0xFF
    path = tmp_path / "trace_view.json.gz"
    path.write_bytes(data)
    told, plain = agree(path, block=1000)
    assert told.partial == plain.partial


def test_a_filter_keeps_what_can_be_asked_for(tmp_path):
    events = hard_events(random.Random(8), 300)
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    fast, plain = (read(path, block=2000, reader=reader, names=["aten::mm"])[0] for reader in ("auto", "ijson"))
    assert_same(fast, plain)
    whole = rows(read(path)[0])
    wanted = [
        row
        for row in whole
        if row[0] == "aten::mm" or row[0].startswith(("ProfilerStep", "autograd")) or row[4] >= 0 or row[5] > 0
    ]
    assert rows(fast) == wanted
    assert 0 < len(wanted) < len(whole)


def test_progress_adds_up_to_the_file(tmp_path):
    path = tmp_path / "trace_view.json"
    path.write_bytes(hard_text(random.Random(1), 500))
    seen: list[int] = []
    trace_view.read_trace(path, report=ReadReport(), on_bytes=seen.append)
    assert sum(seen) == path.stat().st_size


def test_an_unknown_reader_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected 'auto' or 'ijson'"):
        read(tmp_path, reader="fast")


def test_memory_stays_small_when_the_text_breaks_early(tmp_path):
    """What cannot be cut is not collected: the rest of a broken file is only looked at by ijson."""
    path = tmp_path / "trace_view.json"
    path.write_text(f"[{ONE},{TWO} oops," + ",".join([SIX] * 40_000) + "]")
    pieces = []

    def spy(*args, **kwargs):
        pieces.append(PieceReader(*args, block_bytes=4096, **kwargs))
        return pieces[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_view, "PieceReader", spy)
        trace_view.read_trace(path, report=ReadReport())
    assert len(pieces[0].rest()) < 10_000


# -- times ----------------------------------------------------------------------------------------------------------

plain_texts = st.from_regex(r"\A[0-9]{1,12}(\.[0-9]{1,3})?\Z") | st.from_regex(r"\A1[0-9]{15}\.[0-9]{3}\Z")
odd_texts = st.text("0123456789.-+eE ", max_size=8)


@given(st.lists(plain_texts | odd_texts, min_size=1, max_size=8))
def test_times_of_a_piece_are_the_times_of_its_events_or_left_to_them(texts):
    exact = exact_ns([msgspec.Raw(json.dumps(text).encode()) for text in texts])
    if exact is not None:
        assert exact.tolist() == [us_to_ns(text) for text in texts]


@given(st.lists(plain_texts, min_size=1, max_size=8))
def test_plain_times_never_need_the_slow_way(texts):
    exact = exact_ns([msgspec.Raw(f'"{text}"'.encode()) for text in texts])
    assert exact is not None
    assert exact.dtype == np.int64
    numbers = [text.lstrip("0") if text.lstrip("0")[:1].isdigit() else "0" + text.lstrip("0") for text in texts]
    assert exact_ns([msgspec.Raw(text.encode()) for text in numbers]).tolist() == exact.tolist()
    assert exact.tolist() == [int(Decimal(text) * 1000) for text in texts]


# -- public samples -------------------------------------------------------------------------------------------------


def test_all_public_samples_agree(ascend_samples):
    files = sorted(path for path in ascend_samples.rglob("*trace*.json*") if path.is_file())
    assert len(files) >= 5
    n_ops = 0
    for path in files:
        (fast, told), (plain, plain_told) = read(path), read(path, reader="ijson")
        assert_same(fast, plain)
        assert told.warnings == plain_told.warnings
        assert_same(read(path, block=2000)[0], plain)
        n_ops += len(fast.ops)
    assert n_ops > 1000
