"""Accelerator memory profiles in Jupyter: exact numbers, linked interactive plots, standalone HTML pages.

Names are loaded on first use, so that ``import memscope_nb`` stays quick and pulls in neither bokeh, pandera nor
ipywidgets.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .analysis.align import align_ops
    from .analysis.contract import memory_summary
    from .analysis.decompose import decompose
    from .analysis.decompose_layers import device_layers
    from .analysis.fragmentation import fragmentation
    from .analysis.growth import collection_growth
    from .analysis.inefficient import find_inefficient
    from .analysis.layers import layers
    from .analysis.leaks import check_leaks
    from .analysis.oom import explain_oom
    from .analysis.quality import check_quality
    from .analysis.segment_map import free_gaps, segment_map
    from .analysis.series import curve, live_at
    from .analysis.step_leaks import step_leaks
    from .analysis.timeline import phases
    from .analysis.watch import locate_corruption
    from .errors import InputError, MemscopeError, MissingFactError, ValidationError
    from .export.pages import export_html
    from .export.redact import redact_profile
    from .export.summary import triage
    from .io import load, scan
    from .io.watch import load_watch
    from .model import MemoryProfile
    from .notebook.display import show
    from .notebook.widget import explore
    from .schema import validate

_HOMES = {
    "InputError": "errors",
    "MemoryProfile": "model",
    "MemscopeError": "errors",
    "MissingFactError": "errors",
    "ValidationError": "errors",
    "align_ops": "analysis.align",
    "check_leaks": "analysis.leaks",
    "check_quality": "analysis.quality",
    "collection_growth": "analysis.growth",
    "curve": "analysis.series",
    "decompose": "analysis.decompose",
    "device_layers": "analysis.decompose_layers",
    "explain_oom": "analysis.oom",
    "explore": "notebook.widget",
    "export_html": "export.pages",
    "find_inefficient": "analysis.inefficient",
    "free_gaps": "analysis.segment_map",
    "fragmentation": "analysis.fragmentation",
    "layers": "analysis.layers",
    "live_at": "analysis.series",
    "load": "io",
    "load_watch": "io.watch",
    "locate_corruption": "analysis.watch",
    "memory_summary": "analysis.contract",
    "phases": "analysis.timeline",
    "redact_profile": "export.redact",
    "scan": "io",
    "segment_map": "analysis.segment_map",
    "show": "notebook.display",
    "step_leaks": "analysis.step_leaks",
    "triage": "export.summary",
    "validate": "schema",
}

__all__ = [
    "InputError",
    "MemoryProfile",
    "MemscopeError",
    "MissingFactError",
    "ValidationError",
    "__version__",
    "align_ops",
    "check_leaks",
    "check_quality",
    "collection_growth",
    "curve",
    "decompose",
    "device_layers",
    "explain_oom",
    "explore",
    "export_html",
    "find_inefficient",
    "fragmentation",
    "free_gaps",
    "layers",
    "live_at",
    "load",
    "load_watch",
    "locate_corruption",
    "memory_summary",
    "phases",
    "redact_profile",
    "scan",
    "segment_map",
    "show",
    "step_leaks",
    "triage",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
