"""The bundler: order, names, and what it refuses. No browser needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memscope_nb.view import bundle as bundling
from memscope_nb.view.bundle import boot_script, bundle, runtime_css, runtime_module, runtime_script

RUNTIME = Path(bundling.__file__).with_name("runtime")


def test_orders_and_strips() -> None:
    main = (
        'import { b } from "./b.js";\nimport {\n  a,\n} from "./a.js";\n\n'
        "export function mount() {\n  return a + b();\n}\n"
    )
    files = {
        "main.js": main,
        "b.js": 'import { a } from "./a.js";\nexport function b() {\n  return a;\n}\n',
        "a.js": "// why\n/** What\n * it is. */\nexport const a = 1; // kept\n",
        "unused.js": "export const unused = 1;\n",
    }
    text = bundle(files, "main.js")
    assert "import" not in text
    assert "export" not in text
    assert "unused" not in text
    assert "why" not in text
    assert "What" not in text
    assert "it is" not in text
    assert text.index("const a = 1") < text.index("function b()") < text.index("function mount()")
    assert text.endswith("return { mount };\n")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"main.js": 'import { x } from "./x.js";\n'}, "x.js is imported but missing"),
        ({"main.js": 'import { y } from "./x.js";\n', "x.js": "export const x = 1;\n"}, "does not export"),
        (
            {"main.js": 'import { x } from "./x.js";\nconst y = 1;\n', "x.js": "export const x = 1;\nconst y = 2;\n"},
            "y is declared",
        ),
        ({"main.js": "export default 1;\n"}, "cannot bundle"),
        ({"main.js": "export const m = `a\n  b`;\n"}, "over several lines"),
        (
            {
                "main.js": 'import { x } from "./x.js";\nexport const m = 1;\n',
                "x.js": 'import { m } from "./main.js";\nexport const x = 1;\n',
            },
            "import each other",
        ),
    ],
)
def test_refuses(files: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        bundle(files, "main.js")


def test_runtime_bundles_whole() -> None:
    script = runtime_script()
    for path in RUNTIME.glob("*.js"):
        hosts = ("boot.js", "widget.js", "hub.js")  # they bring the runtime to a page or a notebook
        assert (f"// {path.name}\n" in script) == (path.name not in hosts)
    assert runtime_module().endswith("export const mount = runtime.mount;\n")
    assert "</script" not in script + boot_script()


def test_runtime_keeps_its_rules() -> None:
    for path in RUNTIME.glob("*.js"):
        text = path.read_text("utf-8")
        assert len(text.splitlines()) < 400, path.name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, (path.name, word)


def test_css_stays_below_the_root() -> None:
    rules = re.findall(r"^([^{}]+)\{", runtime_css(), re.MULTILINE)
    assert len(rules) > 50
    for rule in rules:
        for selector in rule.split(","):
            assert (
                selector.strip().startswith((".memscope ", ".memscope{", "body.memscope-page"))
                or selector.strip() == ".memscope"
            )
