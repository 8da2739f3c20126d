"""The channel between an explorer and its views in browsers: one anywidget and the messages on it.

Nothing large is a trait: nbclient stores traits in the notebook, and so does JupyterLab if asked to. The front end asks
for what it needs (``kit``: what all viewers share; ``hello``: what this one shows) and gets it as custom messages with
binary buffers, which nobody stores. The other end is ``view/runtime/widget.js`` (fetches the kit) and ``hub.js``.

=========== =========================== ================================================================================
kind        direction                   content, buffers
=========== =========================== ================================================================================
``kit``     to Python and back          → text of ``hub.js``; BokehJS, runtime, style sheet, figures, all gzipped
``hello``   to Python                   asks for a scene
``scene``   to browsers                 ``key turn range series``, payload (gzip), selected ids (float64)
``state``   to browsers                 ``key turn range series``, selected ids: moved by Python or another browser
``view``    to Python                   ``t0 t1 series``, a bit for each block of the payload: whether it is in view
``ack``     to browsers                 the last ``view`` was read: the next may come
``select``  to Python                   selected ids (float64)
``segment`` to Python                   ``href t0 t1``: a link to another segment
``problem`` to browsers                 ``text``
=========== =========================== ================================================================================

Times are integers, offsets from the timeline's start (below 2**53, as are block ids). ``turn`` counts Python's changes,
``key`` what is loaded; what a browser sends names those it knew, so that an answer to an old state moves nothing back.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from uuid import uuid4

import anywidget
import numpy as np
import traitlets

from ..model import Int64Array
from ..view.bundle import hub_module, runtime_css, runtime_module, widget_module
from ..view.viewer import bokeh_source, figures_text

Receive = Callable[[dict[str, Any], Sequence[memoryview]], None]


@lru_cache(maxsize=1)
def kit() -> tuple[str, tuple[bytes, ...]]:
    """Return what the viewers of a page share, gzipped, and a name for this version of it."""
    parts = (bokeh_source()[1], *(text.encode("utf-8") for text in (runtime_module(), runtime_css(), figures_text())))
    name = hashlib.sha256(b"\0".join((*parts, hub_module().encode("utf-8")))).hexdigest()[:16]
    return name, tuple(gzip.compress(part, compresslevel=9, mtime=0) for part in parts)


def pack_ids(block_ids: Int64Array) -> bytes:
    """Write ids as the numbers that JavaScript has; exact below 2**53."""
    return block_ids.astype("<f8").tobytes()


def unpack_ids(buffer: memoryview | bytes) -> Int64Array:
    """Read ids that a browser sent."""
    return np.frombuffer(buffer, "<f8").astype(np.int64)


class Link(anywidget.AnyWidget):  # type: ignore[misc]
    """The widget that hosts the viewer; it hands every message to ``receive``."""

    _esm = widget_module()
    name = traitlets.Unicode().tag(sync=True)
    """Names this widget in the page."""
    kit = traitlets.Unicode().tag(sync=True)
    """Names the version of :func:`kit`."""

    def __init__(self, receive: Receive, **options: Any) -> None:
        super().__init__(kit=kit()[0], name=uuid4().hex, **options)
        self._receive = receive
        self.on_msg(self._hand_over)

    def _hand_over(self, _: Any, content: dict[str, Any], buffers: Sequence[memoryview]) -> None:
        self._receive(content, buffers)

    def leave(self) -> None:
        """Hand over nothing more."""
        self.on_msg(self._hand_over, remove=True)
        self._receive = lambda content, buffers: None

    def post(self, kind: str, *buffers: bytes, **content: Any) -> None:
        """Send a message to all browsers that show this widget."""
        self.send({"kind": kind, **content}, list(buffers))

    def post_kit(self, to: str) -> None:
        """Send the kit to one browser."""
        self.post("kit", *kit()[1], hub=hub_module(), to=to)
