"""Everything that an export holds, as one text to search."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from memscope_nb.view.codec import decode_payload
from memscope_nb.view.viewer import TIMELINES_FILE


def headers(folder: Path) -> list[dict[str, Any]]:
    """Decoded headers of all payloads, whether in side files or inside the pages."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.name.startswith("detail_data_"):
            found.append(re.search(r'memscopePayload="([^"]*)"', path.read_text("utf-8"))[1])
        elif path.suffix == ".html":
            found += re.findall(r'data-part="payload">([^<]*)<', path.read_text("utf-8"))
    return [decode_payload(base64.b64decode(text))[0] for text in found]


def everything(folder: Path) -> str:
    """Names of all files and folders, their text, and the texts of all payloads."""
    paths = sorted(folder.rglob("*"))
    parts = [str(path.relative_to(folder)) for path in paths]
    parts += [path.read_text("utf-8") for path in paths if path.suffix in (".html", ".json", ".js")
              and not path.name.startswith("bokeh-")]  # fmt: skip
    decoded = headers(folder)
    assert decoded, "no payload found"
    for path in folder.glob(TIMELINES_FILE):
        parts.append(base64.b64decode(re.search(r'"([^"]*)"', path.read_text("utf-8"))[1]).decode())
    return "\n".join([*parts, *(json.dumps(header, ensure_ascii=False) for header in decoded)])
