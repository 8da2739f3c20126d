"""The arrows of the design, and what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import memscope_nb

PACKAGE = Path(memscope_nb.__file__).parent
LAYERS = ("io", "model", "analysis", "view", "notebook", "export", "cli")
MAY_IMPORT = {
    "io": {"io", "model", "schema", "stacks", "units", "errors"},
    "analysis": {"analysis", "model", "stacks", "units", "errors"},
    "view": {"view", "analysis", "model", "stacks", "units", "errors", "_version"},
    "export": {"export", "io", "view", "analysis", "model", "stacks", "units", "errors", "_version"},
    "notebook": {"notebook", "export", "view", "analysis", "model", "stacks", "units", "errors", "_version"},
    "demo": {"demo", "errors", "units"},
}
HEAVY = {"bokeh", "ipywidgets", "anywidget"}


def imports(path: Path) -> set[str]:
    """Absolute names of everything a module imports anywhere."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            found.add(".".join(filter(None, (base, node.module))))
    return found


def test_arrows_go_one_way():
    checked = 0
    for folder, allowed in MAY_IMPORT.items():
        for path in sorted((PACKAGE / folder).glob("*.py")):
            inner = {name.split(".")[1] for name in imports(path) if name.startswith("memscope_nb.")}
            assert inner <= allowed, f"{path.name} imports {inner - allowed}"
            checked += 1
    assert checked > 20


def test_io_model_and_analysis_know_no_plotting():
    paths = [*(PACKAGE / "io").glob("*.py"), *(PACKAGE / "analysis").glob("*.py"), PACKAGE / "model.py"]
    assert len(paths) > 10
    for path in paths:
        top = {name.split(".")[0] for name in imports(path)}
        assert not top & HEAVY, path


def test_import_is_light():
    code = "import sys, memscope_nb; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"bokeh", "pandera", "ipywidgets", "pandas", "pyarrow"} & set(loaded)


def test_public_names_exist():
    for name in memscope_nb.__all__:
        assert getattr(memscope_nb, name) is not None


def test_no_file_is_too_long():
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js")]:
        assert len(path.read_text().splitlines()) <= 400, path
