"""Facts that an analysis needs and a recording lacks: what to record, in the words of whoever recorded it."""

from __future__ import annotations

from ..errors import MissingFactError
from ..model import MemoryProfile

_NO_EVENTS = "PyTorch numbers no events that its operators and marks could be matched by"
_ONLY_DUMPS: dict[str, str] = {
    "align_ops": f"{_NO_EVENTS}; compare p.summary() and ms.phases(p) of the two runs",
    "check_leaks": f"{_NO_EVENTS}; what is open at the end is in p.blocks, growth in ms.collection_growth(p)",
    "step_leaks": (
        f"{_NO_EVENTS}; the floor of each step is in ms.phases(p, kinds=['step']), if PyTorch recorded steps: "
        "torch.profiler.record_function('step') around each, or profiler.step()"
    ),
    "find_inefficient": "PyTorch records no accesses, only allocations and releases",
    "explain_oom": (
        "a failed allocation of PyTorch is explained by ms.fragmentation(p), from a snapshot recorded with "
        "_record_memory_history(enabled='all', context='all') and dumped in an out-of-memory observer"
    ),
    "fragmentation": "PyTorch's profiler tells levels and blocks, but not where in the pool they lie",
    "layers": (
        "PyTorch records the pool only; what the process and the device hold beside it is in torch.cuda.mem_get_info() "
        "(torch.npu alike)"
    ),
    "decompose": (
        "PyTorch: _record_memory_history(enabled='all') before the part of interest, or "
        "torch.profiler.profile(profile_memory=True)"
    ),
}
_ONLY_DUMPS["device_layers"] = _ONLY_DUMPS["layers"]
_ONLY_DUMPS["segment_map"] = "the file has no segments, or PyTorch's recorder wrote none into it"


def missing_fact(profile: MemoryProfile, analysis: str, text: str) -> MissingFactError:
    """Return the error for a recording that an analysis cannot use.

    Parameters
    ----------
    profile : MemoryProfile
        What was recorded: PyTorch's own recorders are given their own advice.
    analysis : str
        Name of the public function.
    text : str
        What is needed, and the setting of the recorder that gives it.
    """
    kinds = set(profile.sources.get("kind", ())) & {"pytorch_snapshot", "kineto"}
    if kinds and analysis in _ONLY_DUMPS:
        names = {"pytorch_snapshot": "a PyTorch snapshot", "kineto": "a Kineto trace"}
        text += f". This is {' and '.join(names[kind] for kind in sorted(kinds))}: {_ONLY_DUMPS[analysis]}"
    return MissingFactError(text)
