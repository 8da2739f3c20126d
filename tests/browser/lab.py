"""A JupyterLab server of its own, and a notebook in it that a browser runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import memscope_nb

TOKEN = "memscope"
REGISTRY = "globalThis[Symbol.for('memscope-nb')]"
HUBS = f"Array.from({REGISTRY}?.hubs.keys() ?? [])"
HUB = f"(await Array.from({REGISTRY}?.hubs.values() ?? []).at(-1))"
VIEWER = f"[...({HUB}?.views ?? [])].at($)?.viewer"


@contextmanager
def lab_server(folder: Path) -> Iterator[str]:
    """Run JupyterLab on a free port of this machine only; yield its address."""
    runtime = folder / "runtime"
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(memscope_nb.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": "0",
        "ServerApp.open_browser": "False",
        "ServerApp.root_dir": str(folder / "notebooks"),
        "ServerApp.terminals_enabled": "False",
        "IdentityProvider.token": TOKEN,
        "LabApp.expose_app_in_browser": "True",
        "LabApp.extension_manager": "readonly",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    (folder / "notebooks").mkdir(exist_ok=True)
    (folder / "config" / "labconfig").mkdir(parents=True, exist_ok=True)
    (folder / "config" / "labconfig" / "page_config.json").write_text(
        json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}})
    )
    command = [sys.executable, "-m", "jupyterlab", "--allow-root", *(f"--{k}={v}" for k, v in options.items())]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
        try:
            yield _address(server, runtime, folder / "server.log")
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _address(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            try:
                return str(json.loads(path.read_text())["url"])
            except (ValueError, KeyError):
                pass  # written this moment
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab does not start: {log.read_text()[-3000:]}")


class Notebook:
    """An open notebook in JupyterLab. Widgets are shown in its cell 1; other code runs in its last cell."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.path = page, path

    @classmethod
    def open(cls, page: Any, address: str, folder: Path, name: str, setup: str) -> Notebook:
        """Write a notebook, open it, wait for its kernel and run the first cell."""
        cells = [
            {"cell_type": "code", "id": f"c{k}", "metadata": {}, "outputs": [], "execution_count": None, "source": text}
            for k, text in enumerate([setup, "", ""])
        ]
        spec = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        path = folder / "notebooks" / name
        path.write_text(json.dumps({"cells": cells, "metadata": spec, "nbformat": 4, "nbformat_minor": 5}))
        page.goto(f"{address}lab/tree/{name}?token={TOKEN}")
        notebook = cls(page, path)
        notebook.wait_kernel()
        notebook.run(setup, cell=0)
        return notebook

    def wait_kernel(self) -> None:
        self.page.wait_for_function(
            "window.jupyterapp?.shell?.currentWidget?.context?.sessionContext?.session?.kernel?.status === 'idle'"
            " && window.jupyterapp.shell.currentWidget.content.widgets.length === 3",
            timeout=60_000,
        )

    def js(self, text: str, argument: Any = None) -> Any:
        return self.page.evaluate(text, argument)

    def command(self, name: str, **arguments: Any) -> None:
        self.js("([name, args]) => jupyterapp.commands.execute(name, args)", [name, arguments])

    def outputs(self, cell: int) -> list[dict[str, Any]]:
        return list(self.js("k => jupyterapp.shell.currentWidget.content.widgets.at(k).model.outputs.toJSON()", cell))

    def run(self, code: str, *, cell: int = -1) -> str:
        """Run code in a cell and return what it printed; an error raises."""
        self.js(
            """async ([code, k]) => {
              const { content } = jupyterapp.shell.currentWidget;
              content.activeCellIndex = k < 0 ? content.widgets.length + k : k;
              content.activeCell.model.sharedModel.setSource(code);
              await jupyterapp.commands.execute("notebook:run-cell");
            }""",
            [code, cell],
        )
        outputs = self.outputs(cell)
        errors = ["\n".join(out["traceback"]) for out in outputs if out["output_type"] == "error"]
        if errors:
            raise AssertionError(errors[0])
        return "".join("".join(out.get("text", "")) for out in outputs).strip()

    def read(self, expression: str) -> Any:
        """Return the value of an expression of the kernel, as JSON."""
        return json.loads(self.run(f"import json; print(json.dumps({expression}))"))

    def expect(self, expression: str, value: Any) -> None:
        """Wait until an expression of the kernel has a value: what a browser tells arrives a moment later."""
        deadline = time.monotonic() + 20
        while (found := self.read(expression)) != value and time.monotonic() < deadline:
            self.page.wait_for_timeout(50)
        assert found == value

    def show(self, code: str = "fresh()", *, views: int = 1) -> None:
        """Run code that shows a new explorer and wait until its views are drawn and have told so."""
        before = self.hubs()
        self.run(code, cell=1)
        self.wait(
            f"async ([before, views]) => {{ const hubs = {HUBS}; const hub = {HUB};"
            " return hubs.some(one => !before.includes(one)) && hub?.views.size === views"
            " && [...hub.views].every(view => view.viewer?.ready); }",
            [before, views],
        )
        self.settle()

    def wait(self, text: str, argument: Any = None) -> None:
        """Wait until an asynchronous function of the page returns something true."""
        deadline = time.monotonic() + 20
        while not self.js(text, argument):  # the browser's own polling takes a promise for true
            if time.monotonic() > deadline:
                raise AssertionError(f"not within 20 s: {text}")
            self.page.wait_for_timeout(30)

    def hubs(self) -> list[str]:
        return list(self.js(HUBS))

    def save(self) -> int:
        """Save and return the size of the file in bytes."""
        self.command("docmanager:save")
        return self.path.stat().st_size

    def viewer(self, text: str, argument: Any = None, *, view: int = 0) -> Any:
        """Evaluate an expression of ``viewer``, a view of the last explorer."""
        return self.js(
            f"async argument => {{ const viewer = {VIEWER}; return {text}; }}".replace("$", str(view)), argument
        )

    def wait_viewer(self, text: str, argument: Any = None, *, view: int = 0) -> None:
        """Wait until an expression of ``viewer`` holds."""
        condition = f"async argument => {{ const viewer = {VIEWER}; return Boolean(viewer?.ready && ({text})); }}"
        self.wait(condition.replace("$", str(view)), argument)

    def settle(self) -> None:
        """Wait until what browsers tell a moment after a change has been told and answered."""
        self.page.wait_for_timeout(300)
        self.wait(f"async () => {HUB}.idle()")

    def bar(self, block_id: int, *, view: int = 0) -> tuple[float, float]:
        """Scroll to the bar of a block; return its place in the window."""
        self.viewer("viewer.refs.gantt.scrollIntoView({ block: 'center' })", view=view)
        self.page.wait_for_timeout(100)
        box = self.viewer("viewer.boxOf(argument)", block_id, view=view)
        return (box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2
