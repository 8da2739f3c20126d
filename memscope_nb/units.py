"""Bytes and nanoseconds to text and back: the only place where units are converted.

Inside the package every size is an int64 of bytes and every time an int64 of nanoseconds. Sizes are
shown with binary prefixes (KiB = 1024 B) and always with their unit.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from decimal import Decimal

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_PREFIXES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(B|[KMGTP]iB)?\s*", re.IGNORECASE)


def format_bytes(n_bytes: int, *, signed: bool = False) -> str:
    """Write a size with a binary prefix: ``1536`` becomes ``"1.50 KiB"``.

    Three significant digits and never fewer than the whole number; ``signed`` writes the plus of a difference.
    """
    value = float(abs(n_bytes))
    power = 0
    while value >= 1024 and power < len(_PREFIXES) - 1:
        value /= 1024
        power += 1
    if power and round(value, 1) >= 1024 and power < len(_PREFIXES) - 1:  # 1023.96 KiB reads as 1.00 MiB
        value /= 1024
        power += 1
    sign = "-" if n_bytes < 0 else "+" if signed and n_bytes > 0 else ""
    digits = 0 if power == 0 else 2 if value < 10 else 1
    return f"{sign}{value:.{digits}f} {_PREFIXES[power]}"


def parse_bytes(text: str | int) -> int:
    """Read a size such as ``"61 GiB"``, ``"512 B"`` or a plain number of bytes.

    Raises
    ------
    ValueError
        For anything else, decimal units (``GB``) included: they are too often meant as binary ones.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for instance '61 GiB' (B, KiB, MiB, GiB, TiB)")
    number, unit = match.groups()
    power = [prefix.lower() for prefix in _PREFIXES].index((unit or "B").lower())
    return round(float(number) * 1024**power)


def format_duration(n_ns: int) -> str:
    """Write a duration in the unit that reads best: ``1_500_000`` becomes ``"1.500 ms"``."""
    size = abs(n_ns)
    if size < NS_PER_US:
        return f"{n_ns} ns"
    for limit, unit, divisor in ((NS_PER_MS, "µs", NS_PER_US), (NS_PER_S, "ms", NS_PER_MS)):
        if size < limit:
            return f"{n_ns / divisor:.3f} {unit}"
    return f"{n_ns / NS_PER_S:,.3f} s"


def format_epoch(t_ns: int) -> str:
    """Write an epoch time as UTC with all nine decimals, without ever passing through a float."""
    seconds, rest = divmod(int(t_ns), NS_PER_S)
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S") + f".{rest:09d} UTC"


def format_offset_ms(n_ns: int) -> str:
    """Write an offset from the start of a timeline in milliseconds, exact to the nanosecond."""
    sign = "-" if n_ns < 0 else ""
    whole, rest = divmod(abs(int(n_ns)), NS_PER_MS)
    return f"{sign}{whole:,}.{rest:06d}".rstrip("0").rstrip(".") + " ms"


def us_to_ns(value: str | int | Decimal) -> int:
    """Convert microseconds, as decimal text or an exact number, to whole nanoseconds; more decimals are cut.

    Raises
    ------
    ValueError
        For anything that is not a plain decimal number, a float included: it has lost digits already.
    """
    if isinstance(value, str):
        whole, _, decimals = value.strip().partition(".")
        if whole.lstrip("-").isdecimal() and (not decimals or decimals.isdecimal()):
            ns = int(whole) * NS_PER_US
            part = int(decimals[:3].ljust(3, "0")) if decimals else 0
            return ns - part if whole.startswith("-") else ns + part
    elif isinstance(value, int):
        return value * NS_PER_US
    elif isinstance(value, Decimal) and value.is_finite():
        return int(value * NS_PER_US)
    raise ValueError(f"{value!r} is not a time in microseconds")
