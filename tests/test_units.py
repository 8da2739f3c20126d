from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memscope_nb.units import (
    format_bytes,
    format_duration,
    format_epoch,
    format_offset_ms,
    parse_bytes,
    us_to_ns,
)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10240, "10.0 KiB"),
        (1048575, "1.00 MiB"),
        (1245688832, "1.16 GiB"),
        (-512, "-512 B"),
    ],
)
def test_sizes_are_binary_and_say_so(n, text):
    assert format_bytes(n) == text


def test_signed_sizes_carry_their_sign():
    assert format_bytes(2048, signed=True) == "+2.00 KiB"
    assert format_bytes(0, signed=True) == "0 B"


@pytest.mark.parametrize(("text", "n"), [("61 GiB", 61 << 30), ("512", 512), ("1.5KiB", 1536), (7, 7)])
def test_sizes_are_read(text, n):
    assert parse_bytes(text) == n


@pytest.mark.parametrize("text", ["61 GB", "", "-1 B", "1e3", "GiB"])
def test_ambiguous_sizes_are_refused(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


@given(st.integers(0, 2**62 - 1))
def test_time_text_is_exact_to_the_nanosecond(ns):
    assert us_to_ns(f"{ns // 1000}.{ns % 1000:03d}") == ns
    assert us_to_ns(Decimal(ns) / 1000) == ns


@pytest.mark.parametrize(
    ("text", "ns"), [("5", 5000), ("5.1", 5100), ("5.1239", 5123), (" 7.000\t", 7000), ("-1.5", -1500)]
)
def test_time_text_forms(text, ns):
    assert us_to_ns(text) == ns


@pytest.mark.parametrize("bad", ["1.69512E+15", "", "nan", "1.2.3", 1.5, None, Decimal("NaN")])
def test_times_that_lost_digits_are_refused(bad):
    with pytest.raises(ValueError, match="is not a time"):
        us_to_ns(bad)


def test_durations_and_instants():
    assert [format_duration(n) for n in (7, 1500, 2_500_000, 61_000_000_000)] == [
        "7 ns",
        "1.500 µs",
        "2.500 ms",
        "61.000 s",
    ]
    assert format_epoch(1779785515596661421) == "2026-05-26 08:51:55.596661421 UTC"
    assert format_offset_ms(1_234_567_890) == "1,234.56789 ms"
