# SPDX-License-Identifier: GPL-2.0-only
"""Shared parts of the tests: a small sweep, the command, its store."""

import os
import subprocess
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

ROOT = Path(__file__).resolve().parents[2]

SWEEP = """\
machines = ["1n2c1t", "2n2c1t"]
seeds = 5
duration = "60ms"
metrics = ["throughput", "context_switches", "wakeup_latency_p99"]

[[scheduler]]
name = "eevdf"

[[scheduler]]
name = "vtime"
knobs = { slice_ns = [1_000_000, 5_000_000] }

[[workload]]
name = "hogs"
parameters = { tasks = [3, 5] }

[[workload]]
name = "schbench"
parameters = { workers = 2 }
"""
CELLS = 90


@pytest.fixture(scope="session")
def command() -> Path:
    """The command of the same build; `tools/python.sh` names it."""
    return Path(os.environ["SCXLAB"])


@pytest.fixture(scope="session")
def expected(command: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of results that the command makes of the small sweep."""
    folder = tmp_path_factory.mktemp("command")
    (folder / "s.toml").write_text(SWEEP)
    subprocess.run([command, "sweep", "s.toml"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return (folder / "s.sweep" / "results.parquet").read_bytes()


def output(command: Path, *args: str) -> str:
    """Runs the command, and returns what it prints without a limit of width.

    GNU readline, which pytest loads, sets COLUMNS in the environment that children inherit.
    """
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    out = subprocess.run([command, *args], check=True, capture_output=True, text=True, env=env)
    return out.stdout


def stored(store: Path) -> list[tuple[str, int]]:
    """Returns the key of each row of a store."""
    keys = []
    for file in sorted((store / "cells").glob("*.parquet")):
        table = parquet.read_table(file, columns=["setup", "seed"])
        keys += zip(table["setup"].to_pylist(), table["seed"].to_pylist())
    return keys
