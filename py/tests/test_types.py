# SPDX-License-Identifier: GPL-2.0-only
"""The types that the module declares are those that it has."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

from scxlab import _scxlab

PACKAGE = Path(__file__).resolve().parents[1]


def test_mypy_finds_no_fault() -> None:
    call = [sys.executable, "-m", "mypy", "--cache-dir", "/dev/null", "python/scxlab"]
    out = subprocess.run(call, cwd=PACKAGE, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


def test_the_stubs_declare_the_native_half() -> None:
    stubs = ast.parse((PACKAGE / "python/scxlab/_scxlab.pyi").read_text())
    declared = {
        node.name: {one.name for one in getattr(node, "body", []) if isinstance(one, ast.FunctionDef)}
        for node in stubs.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name != "Place"
    }
    constants = {
        node.target.id
        for node in stubs.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    found = {name for name in vars(_scxlab) if not name.startswith("__")}
    assert found == set(declared) | {name for name in constants if not name.startswith("__")}
    for name, methods in declared.items():
        cls = getattr(_scxlab, name)
        if inspect.isclass(cls):
            public = {
                method
                for method in vars(cls)
                if not method.startswith("__") or method.startswith("__arrow")
            }
            assert public == {m for m in methods if m in public or not m.startswith("__")}, name
