"""The text reader on literal rows: every layout, every emptiness, every broken part."""

from __future__ import annotations

import gzip

import pandas as pd
import pytest
from tiny import T0, ns, op, record, row, us, write_collection

import memscope_nb as ms
from memscope_nb.errors import InputError

MIB = 1 << 20


def load(tmp_path, **parts):
    write_collection(tmp_path, **parts)
    return ms.load(tmp_path)


def test_a_row_becomes_a_block_exactly(tmp_path):
    p = load(tmp_path, operators=[row("aten::mm", 512.5, 10.001, 20.123, 19.5, 3.0)], records=None)
    block = p.blocks.iloc[0]
    assert (block["name"], block["pool"], block["device"]) == ("aten::mm", "PTA", "NPU:0")
    assert block["size_bytes"] == 524800
    assert (block["alloc_ns"], block["free_ns"], block["active_free_ns"]) == (ns(10.001), ns(20.123), ns(19.5))
    assert (block["allocated_bytes"], block["reserved_bytes"], block["stream"]) == (3 * MIB, 64 * MIB, 2)
    source = p.sources.iloc[0]
    assert (source["host"], source["pid"], source["role"], source["rank_id"]) == ("my_host", 77, "actor", 0)
    assert source["facts"]["n_duration_checked"] == 1


@pytest.mark.parametrize(
    ("free", "late", "is_open"), [(20, 19, False), (None, None, True), (20, None, False), (None, 19, False)]
)
def test_every_emptiness_of_the_release_cells(tmp_path, free, late, is_open):
    p = load(tmp_path, operators=[row("a", 512, 10, free, late, 3.0), row("b", 1, 30, 40, 39, 2.6)], records=None)
    block = p.blocks.iloc[0]
    assert block["free_ns"] is pd.NA if free is None else block["free_ns"] == ns(free)
    assert block["active_free_ns"] is pd.NA if late is None else block["active_free_ns"] == ns(late)
    assert p.sources["n_open"][0] == int(is_open)


def test_life_ends_at_the_earlier_release_for_allocated_and_at_the_active_one_for_active(tmp_path):
    held = row("held", 1024, 10, 20, 30, 1.0).replace(",0.0,64.0,0.0,", ",0.0,64.0,1.0,")
    p = load(
        tmp_path, operators=[held], records=[record("PTA", 10, 1), record("PTA", 20, 0, active=1), record("PTA", 30, 0)]
    )
    curve = ms.curve(p)
    assert curve["allocated_bytes"].tolist() == [MIB, 0, 0]
    assert curve["active_bytes"].tolist() == [MIB, MIB, 0]
    assert curve["older_bytes"].tolist() == [0, 0, 0]


def ge_row(name, kib, alloc, free, duration, total, release_total):
    cells = [name, kib, us(alloc), us(free), "", duration, "", total, 64.0, "", release_total, 64.0, "", "", "NPU:0"]
    return ",".join(map(str, cells))


def test_graph_engine_rows_are_a_pool_of_their_own_and_zero_length_means_open(tmp_path):
    rows = [
        row("aten::mm", 1024, 10, 20, 19, 1.0),
        ge_row("cann::b", 512, 30, 40, "10.0", 0.5, 0.5),
        ge_row("cann::open", 256, 12, 12, "0.0", 0.25, 0),
    ]
    p = load(tmp_path, operators=rows, records=None)
    assert p.blocks["name"].tolist() == ["aten::mm", "cann::open", "cann::b"]  # sorted: the file is not
    assert p.blocks["pool"].tolist() == ["PTA", "GE", "GE"]
    assert p.blocks["free_ns"].isna().tolist() == [False, True, False]
    assert p.summary().set_index("pool")["n_open"].to_dict() == {"PTA": 0, "GE": 1}


def test_old_negative_rows_are_memory_from_before_the_window(tmp_path):
    old = f"cann::,-128,,{us(50)},,,,,,,0,64.0,,,NPU:0"
    p = load(tmp_path, operators=[ge_row("cann::a", 512, 30, 40, "10.0", 0.625, 0.625), old], records=None)
    block = p.blocks[p.blocks["alloc_ns"].isna()].iloc[0]
    assert (block["size_bytes"], block["free_ns"]) == (128 * 1024, ns(50))
    assert ms.live_at(p, ns(35))["size_bytes"].tolist() == [512 * 1024, 128 * 1024]


def test_a_negative_row_of_another_pool_only_repeats_a_release(tmp_path):
    again = row("aten::a", 512, 10, 20, 19, 3.0).replace("512", "-512", 1)
    p = load(tmp_path, operators=[row("aten::a", 512, 10, 20, 19, 3.0), again], records=None)
    assert len(p.blocks) == 1
    assert "a negative size, which repeats the release of another row" in " ".join(p.sources["warnings"][0])


def test_rows_that_describe_nothing_are_counted_by_reason(tmp_path):
    backwards = row("aten::c", 1, 30, 20, 19, 1.0)
    rows = [row("aten::a", 1, 10, 20, 19, 1.0), ",,,,,,,,,,,,,,NPU:0", "aten::b,1,,,,,,,,,,,,,NPU:0", backwards]
    p = load(tmp_path, operators=rows, records=None)
    assert len(p.blocks) == 1
    assert p.sources["n_skipped"][0] == 3
    text = " ".join(p.sources["warnings"][0])
    assert "no size (1x, first: line 3)" in text
    assert "neither an allocation nor a release time (1x, first: line 4)" in text
    assert "released before it was allocated (1x, first: line 5)" in text


def test_wrong_durations_are_told(tmp_path):
    wrong = row("aten::a", 1, 10, 20, 19, 1.0).replace("10.000\t", "10.001\t")
    p = load(tmp_path, operators=[wrong], records=None)
    assert any("durations that are not release - allocation" in w for w in p.sources["warnings"][0])


def test_the_ten_column_layout_of_2023(tmp_path):
    header = (
        "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us),Allocation Total Allocated(MB),"
        "Allocation Total Reserved(MB),Release Total Allocated(MB),Release Total Reserved(MB),Device Type"
    )
    data = f"{header}\ncann::x,192,{T0}.5,{T0 + 30}.2,29.7,0.25,242,0.0625,242,NPU:1\n".encode()
    p = load(tmp_path, operators=data, records=None)
    block = p.blocks.iloc[0]
    assert (block["alloc_ns"], block["free_ns"]) == (T0 * 1000 + 500, T0 * 1000 + 30200)
    assert block["active_free_ns"] is pd.NA
    assert p.summary()["device"].tolist() == ["NPU:1"]


def test_old_memory_record_without_active_and_stream(tmp_path):
    folder = write_collection(tmp_path, operators=[row("aten::a", 1024, 10, 20, 19, 5.0)])
    old = f"Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type\nPTA,{T0 + 10},5.0,64.0,NPU:0\n"
    (folder / "ASCEND_PROFILER_OUTPUT" / "memory_record.csv").write_text(old)
    curve = ms.curve(ms.load(tmp_path))
    assert curve["allocated_bytes"].tolist()[0] == 5 * MIB
    assert curve["active_bytes"].isna().all()


def test_process_samples_and_pools_are_different_scopes_and_synthetic_rows_are_dropped(tmp_path):
    records = [record("APP", 1, "", 300.0), record("PTA", 10, 3.0), record("PTA+GE", 10, 3.5), record("GE", 11, 0.5)]
    p = load(tmp_path, operators=[row("aten::a", 512, 10, None, None, 3.0)], records=records)
    there = p.totals[["scope", "component", "allocated_bytes", "reserved_bytes"]]
    there = there.fillna({"allocated_bytes": -1}).astype(object)
    assert sorted(map(tuple, there.to_numpy().tolist())) == [
        ("pool", "GE", MIB // 2, 64 * MIB),
        ("pool", "PTA", 3 * MIB, 64 * MIB),
        ("process", "APP", -1, 300 * MIB),
    ]
    assert p.sources["start_ns"][0] == ns(10)  # process samples are context, not window
    assert p.summary().set_index("pool")["resident_peak_bytes"].to_dict() == {"PTA": 300 * MIB, "GE": 300 * MIB}


def test_modules_that_are_zero_throughout_are_dropped(tmp_path):
    folder = write_collection(tmp_path, operators=[row("aten::a", 1, 10, 20, 19, 1.0)])
    lines = [
        f"0,{c},{us(t)},{mb},NPU:0" for c, t, mb in (("HCCL", 1, 9.0), ("HCCL", 2, 0), ("SLOG", 1, 0), ("76", 1, 2.0))
    ]
    head = "Device_id,Component,Timestamp(us),Total Reserved(MB),Device"
    (folder / "ASCEND_PROFILER_OUTPUT" / "npu_module_mem.csv").write_text("\n".join([head, *lines]))
    totals = ms.load(tmp_path).totals
    modules = totals[totals["scope"] == "module"]
    assert sorted(set(modules["component"])) == ["76", "HCCL"]
    assert modules["reserved_bytes"].max() == 9 * MIB


# -- what is missing or broken ----------------------------------------------------------------------------------


def test_without_recorded_totals_both_ends_of_the_rows_serve(tmp_path):
    rows = [row("a", 1024, 10, 20, 19, 6.0), row("b", 512, 15, None, None, 6.5)]
    p = load(tmp_path, operators=rows, records=None)
    assert p.sources["status"][0] == "partial"
    assert set(p.totals["origin"]) == {"rows"}
    summary = p.summary().iloc[0]
    assert (summary["baseline_bytes"], summary["peak_bytes"]) == (5 * MIB, 6 * MIB + MIB // 2)


def test_without_operator_rows_the_curve_remains(tmp_path):
    p = load(tmp_path, operators=None, records=[record("PTA", 1, 2.0), record("PTA", 3, 4.0)])
    assert p.sources["status"][0] == "partial"
    assert ms.curve(p)["allocated_bytes"].tolist() == [2 * MIB, 4 * MIB]


def test_a_missing_trace_costs_only_the_stacks(tmp_path):
    p = load(tmp_path, operators=[row("a", 1, 10, 20, 19, 1.0)], records=[record("PTA", 10, 1.0)])
    assert p.sources["status"][0] == "partial"
    assert "no stacks" in p.sources["warnings"][0][0]
    assert p.blocks["stack_kind"].tolist() == ["none"]


GOOD = {"operators": [row("a", 1, 10, 20, 19, 1.0)], "records": [record("PTA", 10, 1.0)], "trace": [op("a", 9, 5)]}


def test_one_broken_rank_never_stops_the_others(tmp_path):
    write_collection(tmp_path, rank=0, name="a_ascend_pt", **GOOD)
    not_analysed = write_collection(tmp_path, rank=1, name="b_ascend_pt", operators=None, records=None)
    (not_analysed / "ASCEND_PROFILER_OUTPUT").rmdir()
    (not_analysed / "FRAMEWORK").mkdir()
    database = write_collection(tmp_path, rank=2, name="c_ascend_pt", operators=None, records=None)
    (database / "ASCEND_PROFILER_OUTPUT" / "unrelated.txt").touch()
    write_collection(tmp_path, rank=3, name="d_ascend_pt", operators=b"\x00\xff\xfe", records=None)
    p = ms.load(tmp_path)
    assert p.sources["status"].tolist() == ["ok", "failed", "failed", "failed"]
    reasons = [" ".join(w) for w in p.sources["warnings"]]
    assert reasons[0] == ""
    assert "not analysed yet" in reasons[1]
    assert "neither operator_memory.csv nor memory_record.csv" in reasons[2]
    assert reasons[3]
    assert len(p.blocks) == 1
    with pytest.raises(InputError, match="3 of 4 sources cannot be read"):
        ms.load(tmp_path, strict=True)


def test_settings_explain_missing_files(tmp_path):
    info = {"rank_id": 0, "config": {"common_config": {"profile_memory": False}}}
    write_collection(tmp_path, operators=None, records=None, info=info)
    with pytest.raises(InputError, match="recorded with profile_memory=False"):
        ms.load(tmp_path)


def test_spreadsheet_damaged_record_leaves_the_rows(tmp_path):
    damaged = "PTA,1.69512E+15,1,64,1,2,NPU:0"
    p = load(tmp_path, operators=[row("a", 1024, 10, 20, 19, 6.0)], records=[damaged])
    assert p.sources["status"][0] == "partial"
    assert any("lost their resolution" in w for w in p.sources["warnings"][0])
    assert p.summary()["peak_bytes"].tolist() == [6 * MIB]


def test_reading_changes_nothing(tmp_path):
    folder = write_collection(tmp_path, **GOOD)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
    ms.load(tmp_path)
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
    assert before == after
    assert len(before) == 4


def test_order_of_rows_does_not_matter(tmp_path):
    rows = [row(f"op{i % 3}", 512 * (i % 5 + 1), 10 + i, 40 + (7 * i) % 20, 39 + (7 * i) % 20, 9.0) for i in range(12)]
    write_collection(tmp_path / "a", operators=rows, records=None)
    write_collection(tmp_path / "b", operators=rows[::-1], records=None)
    a, b = (ms.load(tmp_path / k) for k in "ab")
    key = ["alloc_ns", "free_ns", "size_bytes"]
    assert a.blocks[key].equals(b.blocks[key])
    assert a.blocks["name"].tolist() == b.blocks["name"].tolist()


# -- traces -----------------------------------------------------------------------------------------------------


def joined(tmp_path, ops, rows):
    return load(tmp_path, operators=rows, records=None, trace=ops)


def stack_of(profile, block=0):
    return profile.frames(int(profile.blocks["stack_id"].iloc[block])), profile.blocks["stack_kind"].iloc[block]


def test_the_enclosing_operator_of_the_name_wins_when_the_nearest_has_ended(tmp_path):
    ops = [op("aten::mm", 1, 100, stack="outer.py(1): f"), op("aten::mm", 5, 2, stack="ended.py(2): g")]
    assert stack_of(joined(tmp_path, ops, [row("aten::mm", 1, 10, 20, 19, 1.0)])) == (("outer.py(1): f",), "own")


def test_of_running_operators_the_latest_start_wins_and_at_a_tie_the_later_in_the_file(tmp_path):
    ops = [
        op("a", 1, 100, stack="far.py(1): f"),
        op("a", 5, 50, stack="x.py(1): f"),
        op("a", 5, 50, stack="y.py(1): f"),
    ]
    assert stack_of(joined(tmp_path, ops, [row("a", 1, 10, 20, 19, 1.0)])) == (("y.py(1): f",), "own")


@pytest.mark.parametrize(("alloc", "kind"), [(9.999, "none"), (10, "own"), (12, "own"), (12.001, "none")])
def test_operator_intervals_are_closed_to_the_nanosecond(tmp_path, alloc, kind):
    ops = [op("a", 10, 2, stack="a.py(1): f")]
    assert stack_of(joined(tmp_path, ops, [row("a", 1, alloc, 20, 19, 1.0)]))[1] == kind


def test_a_stack_of_another_name_is_never_taken(tmp_path):
    ops = [op("b", 1, 100, stack="b.py(1): f"), op("", 1, 100, stack="empty.py(1): f")]
    p = joined(tmp_path, ops, [row("a", 1, 10, 20, 19, 1.0), row("", 1, 11, 20, 19, 1.0)])
    assert p.blocks["stack_kind"].tolist() == ["none", "none"]


def test_backward_blocks_get_the_stack_of_the_forward_operator(tmp_path):
    ops = [
        op("aten::linear", 1, 5, seq=7, stack="model.py(3): forward"),
        op("aten::linear", 7, 1, seq=7, stack="model.py(9): later"),
        op("LinearBackward0", 20, 20, tid=2, seq=7, fwd=1),
        op("aten::mm", 22, 5, tid=2),
    ]
    p = joined(tmp_path, ops, [row("aten::mm", 1, 23, 30, 29, 1.0)])
    assert stack_of(p) == (("model.py(9): later",), "forward")
    assert p.sources["facts"][0]["n_forward_stack"] == 1
    assert p.blocks["tid"].tolist() == [2]


def test_sequence_number_minus_one_is_never_looked_up(tmp_path):
    ops = [op("aten::add", 1, 5, seq=-1, stack="wrong.py(3): f"), op("aten::mm", 22, 5, tid=2, seq=-1)]
    assert stack_of(joined(tmp_path, ops, [row("aten::mm", 1, 23, 30, 29, 1.0)])) == ((), "none")


def test_the_enclosing_number_must_be_of_the_same_thread(tmp_path):
    ops = [
        op("aten::linear", 1, 5, seq=7, stack="model.py(3): forward"),
        op("OtherBackward", 20, 20, tid=3, seq=7, fwd=1),
        op("aten::mm", 22, 5, tid=2),
    ]
    assert stack_of(joined(tmp_path, ops, [row("aten::mm", 1, 23, 30, 29, 1.0)]))[1] == "none"


def test_steps_and_ranges_become_marks(tmp_path):
    events = [
        op("ProfilerStep#12", 5, 100),
        {"ph": "X", "name": "micro 0", "pid": 77, "tid": 1, "ts": us(10).strip(), "dur": 7.5, "args": {}},
        {"ph": "X", "name": "kernel", "pid": 991, "tid": 1, "ts": us(10).strip(), "dur": 7.5},
        {"ph": "M", "name": "process_name", "pid": 77, "args": {"name": "Python"}},
    ]
    marks = load(tmp_path, operators=GOOD["operators"], trace=events).marks
    assert marks["kind"].tolist() == ["step", "range"]
    assert marks["name"].tolist() == ["ProfilerStep#12", "micro 0"]
    assert marks["step"].tolist()[0] == 12
    assert marks["start_ns"].tolist() == [ns(5), ns(10)]
    assert marks["end_ns"].tolist() == [ns(105), ns(17.5)]


ARRAY = (
    '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":"'
    + us(9).strip()
    + '","dur":5,"args":{"Call stack":"s.py(1): f"}}'
)


@pytest.mark.parametrize(
    ("text", "status", "note"),
    [
        (f"[{ARRAY}]", "ok", ""),
        (f"\ufeff[{ARRAY}]", "ok", ""),
        (f"[{ARRAY},]", "ok", "ends in ',]'"),
        (f"[{ARRAY}", "ok", "no closing bracket"),
        (f'[{ARRAY},{{"ph":"X","na', "partial", "broken after 1 events"),
        (f'{{"traceEvents":[{ARRAY}],"other":1}}', "ok", ""),
        (f"[{ARRAY},17,null]", "ok", "elements that are not events"),
        (f'[{ARRAY},{{"ph":"X","cat":"cpu_op","name":"b","ts":"inf"}}]', "ok", "without a readable time"),
    ],
)
def test_shapes_of_traces(tmp_path, text, status, note):
    p = load(tmp_path, operators=GOOD["operators"], records=GOOD["records"], trace=text)
    assert p.sources["status"][0] == status
    assert note in " ".join(p.sources["warnings"][0])
    assert stack_of(p) == (("s.py(1): f",), "own")


@pytest.mark.parametrize("text", ["", "   ", "null", "not json"])
def test_a_file_that_is_no_trace_costs_the_stacks(tmp_path, text):
    p = load(tmp_path, operators=GOOD["operators"], records=GOOD["records"], trace=text)
    assert p.sources["status"][0] == "partial"
    assert "not a JSON trace" in " ".join(p.sources["warnings"][0])
    assert len(p.blocks) == 1


@pytest.mark.parametrize("cut", [None, -20])
def test_gzipped_traces_whole_and_cut(tmp_path, cut):
    folder = write_collection(tmp_path, operators=GOOD["operators"], records=GOOD["records"])
    many = "[" + ",".join([ARRAY] * 500) + "]"
    data = gzip.compress(many.encode())[:cut]
    (folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json.gz").write_bytes(data)
    p = ms.load(tmp_path)
    assert p.sources["status"][0] == ("ok" if cut is None else "partial")
    assert stack_of(p)[1] == "own"


def test_numeric_times_are_exact_and_relative_ones_are_another_clock(tmp_path):
    numeric = ARRAY.replace(f'"{us(9).strip()}"', us(9.001).strip())
    p = load(tmp_path / "n", operators=[row("a", 1, 9.001, 20, 19, 1.0)], records=GOOD["records"], trace=f"[{numeric}]")
    assert stack_of(p)[1] == "own"
    relative = ARRAY.replace(f'"{us(9).strip()}"', "9.5")
    p = load(tmp_path / "r", operators=GOOD["operators"], records=GOOD["records"], trace=f"[{relative}]")
    assert p.sources["status"][0] == "partial"
    assert "another clock" in " ".join(p.sources["warnings"][0])
    assert stack_of(p)[1] == "none"


def test_lone_surrogates_do_not_survive(tmp_path):
    text = f"[{ARRAY}]".replace("s.py(1): f", r"s\ud800.py(1): f")
    p = load(tmp_path, operators=GOOD["operators"], records=GOOD["records"], trace=text)
    stack_of(p)[0][0].encode("utf-8")
