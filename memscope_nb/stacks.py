"""Call stacks: splitting the text, telling plumbing from the line that asked, interning.

A stack is a tuple of frames, innermost first (spec/ascend_profiler 6.3). Its *site* is the first frame from the inside
that is not plumbing. Plumbing is decided by :data:`PLUMBING`, the one list to edit; it names frameworks, not "installed
packages", because vLLM and Megatron are installed packages and yet are where people look.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

Frames = tuple[str, ...]

PLUMBING: tuple[str, ...] = (
    # Frameworks below the model: operators, module call hooks, autograd, optimizers' wrappers.
    r"(^|/)torch/",
    r"(^|/)torch_npu/",
    r"(^|/)torchair/",
    r"(^|/)functorch/",
    # Launchers and remote calls around the program.
    r"(^|/)ray/",
    r"(^|/)uvloop/",
    # The standard library's own wrappers.
    r"(^|/)(functools|contextlib|threading|runpy|queue|abc|inspect|typing)\.py\(",
    r"(^|/)(multiprocessing|concurrent|asyncio|importlib)/",
    r"^<(string|frozen [^>]*|built-in[^>]*)>",
    # Compiled code: snapshots with stacks="all" have it inside every Python frame. Often without a file.
    r"\.(c|cc|cpp|cxx|cu|cuh|h|hpp|so[.\d]*)\(\d+\): ",
    r"^(?!.*\.py\().*::",
    r"^(THP\w+|_Z\w+|clone3?|start_thread)$",
    # The call protocol of modules, wherever it is reimplemented.
    r"\): (_call_impl|_wrapped_call_impl|__call__|_fn|wrapper|wrapped|inner|decorate_context)$",
)
"""Patterns searched in the frame text ``path(line): function`` (with ``/`` for path separators)."""

MODULE_LABEL = re.compile(r"^nn\.Module: ")
"""Kineto's frame for the call of a module, ``nn.Module: Linear_4`` (spec/pytorch 2.5): says where in the model, but is
no line of code, and so never a site."""

_PLUMBING = re.compile("|".join(f"(?:{pattern})" for pattern in PLUMBING))
_SEPARATOR = re.compile(r";\r?\n")


def split_stack(text: str) -> Frames:
    r"""Split the text of a ``Call stack`` cell, ``frame;\r\nframe``, innermost first."""
    return tuple(frame.strip() for frame in _SEPARATOR.split(text.rstrip(";\r\n")) if frame.strip())


@lru_cache(maxsize=1 << 16)  # a few thousand frames make up all stacks of a run
def is_plumbing(frame: str) -> bool:
    """Whether a frame is framework internals that the reader wants folded."""
    return _PLUMBING.search(frame.replace("\\", "/")) is not None or MODULE_LABEL.match(frame) is not None


def site_index(frames: Sequence[str]) -> int:
    """Position of the site in a stack; the innermost line of code if all is plumbing; -1 for an empty stack."""
    for position, frame in enumerate(frames):
        if not is_plumbing(frame):
            return position
    code = (position for position, frame in enumerate(frames) if not MODULE_LABEL.match(frame))
    return next(code, 0 if frames else -1)


class StackPool:
    """Gives every distinct stack text one number; the text is split only once."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def intern(self, text: str) -> int:
        """Return the number of a stack text, -1 for an empty one."""
        return self._ids.setdefault(text, len(self._ids)) if text else -1

    def to_frame(self) -> pd.DataFrame:
        """Return the ``stacks`` table of the model; stacks share the texts of their frames."""
        one: dict[str, str] = {}
        return stacks_frame(tuple([one.setdefault(f, f) for f in split_stack(text)]) for text in self._ids)


def stacks_frame(stacks: Iterable[Frames]) -> pd.DataFrame:
    """Build a ``stacks`` table: ``stack_id`` is the position, ``frames`` innermost first, ``site`` a frame or empty."""
    frames = list(stacks)
    sites = [stack[site_index(stack)] if stack else "" for stack in frames]
    return pd.DataFrame(
        {
            "stack_id": np.arange(len(frames), dtype=np.int32),
            "frames": pd.Series(frames, dtype=object),
            "site": pd.Series(sites, dtype=object),
        }
    )


def merge_stacks(tables: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, list[npt.NDArray[np.int32]]]:
    """Join ``stacks`` tables into one without repeats.

    Returns
    -------
    merged : pandas.DataFrame
        One row per distinct stack.
    mappings : list of int32 array
        For each input, the new number of each old one; index -1 (the last entry) maps to -1.
    """
    if len(tables) == 1 and not tables[0]["frames"].duplicated().any():
        n = len(tables[0])
        return tables[0], [np.append(np.arange(n, dtype=np.int32), np.int32(-1))]
    ids: dict[Frames, int] = {}
    mappings = []
    for table in tables:
        mapping = [ids.setdefault(tuple(frames), len(ids)) for frames in table["frames"]]
        mappings.append(np.array([*mapping, -1], dtype=np.int32))
    return stacks_frame(ids), mappings
