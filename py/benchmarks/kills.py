# SPDX-License-Identifier: GPL-2.0-only
"""Kills the client, the scheduler and a worker of a sweep with SIGKILL, ten times each, at random
moments, and fails unless the sweep ends with the table of one that was not killed.

Prints how many cells were computed more than once. Those were in flight when something died.

    python py/benchmarks/kills.py [SEED] [TIMES]
"""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as parquet
import scxlab

SWEEP = """\
machines = ["1n2c1t", "2n2c1t"]
seeds = 100
duration = "4s"
metrics = ["throughput", "context_switches"]
[[scheduler]]
name = "vtime"
knobs = { slice_ns = [1_000_000, 5_000_000] }
[[workload]]
name = "schbench"
parameters = { workers = 4 }
"""
WORKERS = 2
#: Longest time until a kill, in s.
PAUSE = 6.0


def start(*args: str, folder: Path) -> subprocess.Popen[bytes]:
    """Starts a program in a process group of its own, so that its children die with it."""
    return subprocess.Popen(
        [sys.executable, *args],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class Cluster:
    """A scheduler, workers without nannies, and a client, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.client: subprocess.Popen[bytes] | None = None

    def mend(self) -> bool:
        """Starts what is dead; tells whether the sweep has ended."""
        if self.client is not None and self.client.poll() == 0:
            return True
        if self.scheduler is None or self.scheduler.poll() is not None:
            args = ["-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
            self.scheduler = start(
                *args, "--host", "127.0.0.1", "--port", str(self.port), folder=self.folder
            )
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < WORKERS:
            args = ["-m", "distributed.cli.dask_worker", self.address, "--nthreads", "1"]
            self.workers.append(
                start(*args, "--no-nanny", "--no-dashboard", folder=self.folder)
            )
        if self.client is None or self.client.poll() is not None:
            args = ["-m", "scxlab", "sweep", "s.toml", "-o", "store", "--dask", self.address]
            self.client = start(*args, folder=self.folder)
        return False

    def victim(self, kind: str) -> subprocess.Popen[bytes]:
        child = {"client": self.client, "scheduler": self.scheduler}.get(kind, self.workers[0])
        assert child is not None
        return child

    def close(self) -> None:
        for child in [self.client, *self.workers, self.scheduler]:
            if child is not None:
                kill(child)


def stored(store: Path) -> list[tuple[str, int]]:
    keys = []
    for file in (store / "cells").glob("*.parquet"):
        table = parquet.read_table(file, columns=["setup", "seed"])
        keys += zip(table["setup"].to_pylist(), table["seed"].to_pylist())
    return keys


def expected(folder: Path) -> bytes:
    scxlab.Sweep.from_toml(SWEEP).run(folder / "whole")
    return (folder / "whole" / "results.parquet").read_bytes()


def one(kind: str, moment: random.Random, folder: Path, wanted: bytes) -> None:
    """Kills one process once, and lets the sweep end."""
    (folder / "s.toml").write_text(SWEEP)
    cluster = Cluster(folder)
    try:
        pause = moment.uniform(0, PAUSE)
        cluster.mend()
        # Count the time from the first stored cells on, because processes start slowly.
        while not cluster.mend() and not stored(folder / "store"):
            time.sleep(0.05)
        time.sleep(pause)
        before = set(stored(folder / "store"))
        kill(cluster.victim(kind))
        while not cluster.mend():
            time.sleep(0.1)
    finally:
        cluster.close()
    keys = stored(folder / "store")
    assert (folder / "store" / "results.parquet").read_bytes() == wanted, "another table"
    assert before <= set(keys), "a stored cell was lost"
    again = len(keys) - len(set(keys))
    print(f"{kind} after {pause:.1f} s with {len(before)} cells stored: {again} stored twice")
    assert again == 0, "a stored cell was computed again"


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    moment = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        wanted = expected(Path(folder))
        for kind in ("client", "scheduler", "worker"):
            for at in range(times):
                place = Path(folder) / f"{kind}-{at}"
                place.mkdir()
                one(kind, moment, place, wanted)
    print(f"{3 * times} kills: every sweep ended with the same table")


if __name__ == "__main__":
    main()
