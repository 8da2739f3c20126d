"""Names that want to be more than names, and a profile that has one of them everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from tiny import profile_of

from memscope_nb.model import MemoryProfile
from memscope_nb.stacks import stacks_frame

NAMES = {
    "tag": "<img src=x onerror=alert(1)>",
    "script": "</script><script>alert(1)</script>",
    "title": "</title></style></svg><script>alert(1)</script>",
    "comment": "<!-- --> <![CDATA[ ]]> &lt;b&gt; &#60;",
    "attribute": '" onmouseover="alert(1)" \' autofocus onfocus=\'alert(1)',
    "tex": "$$\\href{javascript:alert(1)}{x}$$ \\(x\\)",
    "backticks": "``` `a` ~~~ ```",
    "table": "a | b || c \\| d",
    "lines": "a\nb\r\n# c\n\n- d\n\n    e\u2028f",
    "link": "[x](javascript:alert(1)) ![y](http://evil.example/z.png) <http://evil.example>",
    "mention": "@octocat #1 fixes #2 org/repo#3 http://evil.example/x www.evil.example",
    "emoji": "🧨👩‍💻 naïve ✓",
    "rtl": "\u202egnp.exe\u202c \u2067abc שלום مرحبا",
    "nul": "a\0b\x07\x1b[31mred",
    "formula": "=cmd|'/C calc'!A0",
    "path": "../../../../etc/passwd\\..\\x: *?",
    "long": "<b>" + "y" * 100_000 + "</b>",
    "empty": "",
    "blank": "   ",
}


def hostile_profile(name: str) -> MemoryProfile:
    """Return a small profile in which every text is ``name``: two ranks, blocks with and without a stack."""
    parts = []
    for rank in (0, 1):
        p = profile_of([(10, 60, 4096), (20, None, 8192), (30, 40, 512)], older=1 << 20, names=[name, "b", name])
        frames = (f"{name}.py(1): f", f"torch/{name}(2): {name}", name)
        blocks = p.blocks.assign(
            stack_id=np.array([0, -1, -1], dtype=np.int32),
            stack_kind=pd.Categorical(["own", "none", "none"], ["none", "own", "forward"]),
            owner=pd.Categorical([name, None, name]),
        )
        marks = pd.DataFrame(
            {
                "source": np.zeros(2, dtype=np.int32),
                "kind": pd.Categorical(["range", "mark"]),
                "name": [name, name],
                "step": pd.array([pd.NA, pd.NA], dtype="Int64"),
                "tid": pd.array([1, 1], dtype="Int64"),
                "start_ns": [12, 22],
                "end_ns": [50, 22],
            }
        )
        sources = p.sources.assign(
            run=name, host=name, role=name, path=f"/{name}/{rank}", kind="ascend_text", status="partial",
            rank_id=pd.array([rank], dtype="Int64"), pid=pd.array([7], dtype="Int64"), warnings=[(name, name)],
            facts=[{"torch_npu_version": name, "user": name, name: name}],
        )  # fmt: skip
        parts.append(replace(p, blocks=blocks, marks=marks, sources=sources, stacks=stacks_frame([frames])))
    return MemoryProfile.concat(parts)
