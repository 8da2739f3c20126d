"""Text of others, made harmless and readable: for HTML, for Markdown, in one line, of bounded length."""

from __future__ import annotations

import html
import re

MAX_TEXT = 160

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\uffff\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
"""Characters that no one sees, that turn the direction of their neighbours, or that no file can hold."""
_LOOKALIKES = str.maketrans({"`": "ˋ", "|": "¦"})


def visible(text: object) -> str:
    r"""Write characters that cannot be seen as escapes such as ``\u202e``; a line end becomes ``\n``."""
    return _HIDDEN.sub(_escaped, str(text))


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    short = {9: r"\t", 10: r"\n", 13: r"\r"}.get(number)
    return short or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")


def clip(text: object, length: int = MAX_TEXT) -> str:
    """Cut the end of a long text and say how long it is."""
    whole = str(text)
    if len(whole) <= length:
        return whole
    tail = f"… ({len(whole):,} characters)"
    return whole[: max(length - len(tail), 1)] + tail


def clip_front(text: object, length: int = MAX_TEXT) -> str:
    """Cut the front of a long text: of a path and a function the end says most."""
    whole = str(text)
    return whole if len(whole) <= length else "…" + whole[1 - length :]


def html_text(text: object) -> str:
    """Return text as HTML, ready for an element or a quoted attribute."""
    return html.escape(visible(text), quote=True)


def html_name(text: object) -> str:
    """Return a name from a recording as HTML: isolated, so that its writing direction stays its own."""
    shown = html_text(text)
    return shown if shown.isascii() else f"<bdi>{shown}</bdi>"


def code(text: object, length: int = MAX_TEXT) -> str:
    """Return text as Markdown code in one line, inert anywhere, in a table too.

    A code span shows what is in it: no link, mention, reference or markup. What would end it, or a cell (backtick,
    vertical bar), becomes a lookalike; blanks around would be stripped, so they are not kept.
    """
    inner = clip_front(visible(text).translate(_LOOKALIKES), length).strip()
    return f"`{inner or ' '}`"
