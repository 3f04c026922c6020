# SPDX-License-Identifier: GPL-2.0-only
"""Efficiency of sweeps on Dask: 2,000 cells of 50 ms on two workers against two bare processes.

Prints the wall times, the part that scheduling costs, the time in which the client and the scheduler
handle one batch, and the number of workers at which they saturate. Nothing is asserted, because
times depend on the load of the host.

    python py/benchmarks/efficiency.py [CELLS] [MILLISECONDS]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import scxlab
from distributed import Client, LocalCluster
from scxlab import _scxlab, cluster

PROCESSES = 2
#: Batches without work, for the time of handling one.
EMPTY = 400

TEXT = """\
machines = ["2n4c1t"]
seeds = {seeds}
duration = "{duration}us"
metrics = ["throughput"]
[[scheduler]]
name = "vtime"
[[workload]]
name = "schbench"
parameters = {{ workers = 8 }}
"""


def text(seeds: int, duration_us: int) -> str:
    return TEXT.format(seeds=seeds, duration=duration_us)


def calibrate(milliseconds: float) -> int:
    """Returns the virtual time in us whose cell takes this long."""
    duration = 20_000
    for _ in range(3):
        plan = _scxlab.Plan("s.toml", text(10, duration), {})
        begin = time.perf_counter()
        plan.run(list(range(10)))
        duration = int(duration * milliseconds / ((time.perf_counter() - begin) * 100))
    return duration


def bare(sweep: str, cells: int) -> float:
    """Runs the cells in processes that know nothing of each other."""
    code = (
        "import sys, time; from scxlab import _scxlab\n"
        "plan = _scxlab.Plan('s.toml', sys.argv[1], {})\n"
        "begin = time.perf_counter()\n"
        "plan.run(list(range(int(sys.argv[2]), int(sys.argv[3]))))\n"
        "print(time.perf_counter() - begin)\n"
    )
    part = cells // PROCESSES
    begins = range(0, part * PROCESSES, part)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, sweep, str(at), str(at + part)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for at in begins
    ]
    return max(float(child.communicate()[0]) for child in children)


def on_dask(client: Client, sweep: str) -> tuple[float, float]:
    """Returns wall time, and the work of all batches."""
    plan = _scxlab.Plan("s.toml", sweep, {})
    with tempfile.TemporaryDirectory() as folder:
        store = _scxlab.Store.local(Path(folder) / "store")
        cells = store.missing(plan)
        work = cluster.Cluster(client, plan, "s.toml", sweep)
        begin = time.perf_counter()
        work.run(store, cells)
        return time.perf_counter() - begin, work.seconds


def handling(client: Client) -> float:
    """Returns the time in s for one batch with next to no work, when the workers are not the limit."""
    sweep = text(EMPTY, 1)
    plan = _scxlab.Plan("s.toml", sweep, {})
    with tempfile.TemporaryDirectory() as folder:
        store = _scxlab.Store.local(Path(folder) / "store")
        work = cluster.Cluster(client, plan, "s.toml", sweep)
        work._size = lambda left, threads: 1  # type: ignore[method-assign]
        begin = time.perf_counter()
        work.run(store, store.missing(plan))
        wall = time.perf_counter() - begin
        return (wall - work.seconds / PROCESSES) / EMPTY


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    milliseconds = float(sys.argv[2]) if len(sys.argv) > 2 else 50.0
    duration = calibrate(milliseconds)
    sweep = text(cells, duration)
    print(f"scxlab {scxlab.__version__}: {cells} cells of {duration / 1000:.1f} ms virtual time")
    with LocalCluster(
        n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None
    ) as local, Client(local) as client:
        on_dask(client, text(8, duration))
        ratios = []
        # In turns, because the load of the host changes.
        for _ in range(3):
            alone = bare(sweep, cells)
            wall, work = on_dask(client, sweep)
            ratios.append(alone / wall)
            lost = 1 - work / (wall * PROCESSES)
            print(
                f"bare {alone:.1f} s, Dask {wall:.1f} s: efficiency {alone / wall:.1%}; "
                f"{lost:.1%} of the workers' time was not spent on cells"
            )
        each = handling(client)
    print(f"median efficiency {sorted(ratios)[1]:.1%}")
    print(f"handling of one batch: {each * 1000:.1f} ms, at most {1 / each:.0f} batches per second")
    for seconds in (1, 5, 20):
        print(f"  batches of {seconds} s saturate at {seconds / each:.0f} workers of one thread")


if __name__ == "__main__":
    main()
