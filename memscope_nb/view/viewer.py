"""A page that shows one payload: Bokeh figures, the runtime, a strict Content-Security-Policy, one HTML text.

Nothing that comes from a recording is ever written into the page as text: the payload travels as base64 of a gzip
stream and the runtime shows its strings as DOM text only. The single exception is the ``<title>``, which is escaped.
The figures are built without data; the runtime fills their sources.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from . import theme
from .bundle import boot_script, runtime_css, runtime_script
from .codec import decode_payload
from .figures import GUTTER_PX, build_figures

_MAX_TITLE = 200
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")
"""What no title can hold, or what would turn the direction of the rest of a tab's name."""

TIMELINES_FILE = "timelines.js"
"""Side file in the top folder of an export: what else there is to see. Pages do without where it is missing."""


@lru_cache(maxsize=1)
def figures_text() -> str:
    """Return the runtime's third argument as JSON: ``doc`` (a Bokeh document), ``theme`` and ``gutter``.

    It is the same for every page of a Bokeh version: model ids are counted from 1 again.
    """
    from bokeh.document import Document

    document = Document()
    for plot in build_figures():
        document.add_root(plot)
    text = json.dumps(
        {"doc": document.to_json(deferred=False), "theme": theme.theme_json(), "gutter": GUTTER_PX},
        separators=(",", ":"),
    )
    ids: dict[str, str] = {}
    return re.sub(r'"p\d+"', lambda match: ids.setdefault(match.group(0), f'"p{len(ids) + 1}"'), text)


@lru_cache(maxsize=1)
def bokeh_source() -> tuple[str, bytes]:
    """Return file name and content of the installed BokehJS, core only."""
    paths = import_module("bokeh.util.paths")
    version: str = import_module("bokeh").__version__
    path = Path(paths.bokehjs_path()) / "js" / "bokeh.min.js"
    return f"bokeh-{version}.min.js", path.read_bytes()


@lru_cache(maxsize=1)
def library_files() -> dict[str, bytes]:
    """Return name and content of the side files that all pages of an export share: BokehJS and the viewer."""
    style = json.dumps(runtime_css())
    viewer = f"{runtime_script()}window.memscopeLibrary={{style:{style},figures:{figures_text()}}};\n".encode()
    name = f"memscope-{hashlib.sha256(viewer).hexdigest()[:10]}.js"
    return dict([bokeh_source(), (name, viewer)])


def data_script(payload: bytes) -> str:
    """Return the content of a side file that holds a payload, for ``<script src>``."""
    return f'window.memscopePayload="{base64.b64encode(payload).decode("ascii")}";\n'


def timelines_script(timelines: Sequence[Mapping[str, str]]) -> str:
    """Return the content of :data:`TIMELINES_FILE`: ``label``, ``href`` from the top folder and ``place`` of each."""
    packed = base64.b64encode(json.dumps(list(timelines)).encode()).decode("ascii")
    return f'window.memscopeTimelines="{packed}";\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _part(name: str, packed: bytes) -> str:
    """Write a gzip stream as a data block: a script of a type that no browser runs."""
    text = base64.b64encode(packed).decode("ascii")
    return f'<script type="application/gzip" data-part="{name}">{text}</script>\n'


def _pack(text: str | bytes) -> bytes:
    return gzip.compress(text.encode("utf-8") if isinstance(text, str) else text, compresslevel=9, mtime=0)


@lru_cache(maxsize=1)
def _packed_library() -> dict[str, bytes]:
    texts: dict[str, str | bytes] = {
        "figures": figures_text(),
        "style": runtime_css(),
        "runtime": runtime_script(),
        "bokeh": bokeh_source()[1],
    }
    return {name: _pack(text) for name, text in texts.items()}


def _script_link(href: str) -> str:
    return f'<script src="{html.escape(href)}"></script>\n'


def _policy(scripts: list[str], *, side_files: bool) -> str:
    """Write the page's Content-Security-Policy, which a browser enforces from the ``<meta>`` on.

    Scripts run by the hash of their text only (the ones that the boot script adds as well), or, with side files,
    from the page's own place: ``'self'`` covers neighbours on ``file://`` too. Without inline styles BokehJS draws
    nothing (it styles its canvases and its shadow trees that way). Images, fonts, frames, workers: none.
    """
    allowed = [*map(_hash, scripts), *(["'self'"] if side_files else [])]
    return "; ".join(
        [
            "default-src 'none'",
            "connect-src 'none'",
            f"script-src {' '.join(allowed)}",
            "style-src 'unsafe-inline'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def render_page(payload: bytes, *, data_href: str | None = None, library_href: str | None = None) -> str:
    """Write the HTML of one page.

    Parameters
    ----------
    payload : bytes
        From :func:`memscope_nb.view.codec.encode_payload`.
    data_href : str or None
        Relative link to the file with :func:`data_script`; None puts the payload into the page.
    library_href : str or None
        Relative link to the folder with :func:`library_files`, empty or ending in a slash; None puts BokehJS and the
        viewer into the page (0.5 MB).

    Returns
    -------
    str
        A complete page that makes no network request.
    """
    header, _ = decode_payload(payload)
    title = _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", str(header.get("title") or "memory profile"))[:_MAX_TITLE]
    boot = boot_script()
    if library_href is None:
        scripts = [boot, runtime_script(), bokeh_source()[1].decode("utf-8")]
        body = [_part(name, packed) for name, packed in _packed_library().items()]
    else:
        scripts = [boot]
        body = [_script_link(library_href + name) for name in (*library_files(), TIMELINES_FILE)]
    body.append(_part("payload", payload) if data_href is None else _script_link(data_href))
    policy = _policy(scripts, side_files=data_href is not None or library_href is not None)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n</head>\n"
        '<body class="memscope-page">\n<div class="memscope" data-memscope>Opening the profile…</div>\n'
        "<noscript>This page draws with JavaScript, which is switched off.</noscript>\n"
        f"{''.join(body)}<script>{boot}</script>\n</body>\n</html>\n"
    )
