# SPDX-License-Identifier: GPL-2.0-only
"""Time of a query for one axis over the table of a sweep with a million cells.

The store is made, not simulated: its rows have the columns of real cells, with random values of the
metrics, because equal ones would be compressed to nothing. Prints the time in which
Polars and pyarrow answer "mean throughput by slice", and in which scxlab makes the table from the
store.

    python py/benchmarks/query.py [CELLS]
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy
import polars
import pyarrow
import pyarrow.parquet as parquet
from scxlab import _scxlab

TEXT = """\
machines = ["1c", "2c"]
seeds = {seeds}
duration = "1us"
[[scheduler]]
name = "vtime"
knobs = {{ slice_ns = [{slices}] }}
[[workload]]
name = "hogs"
"""
SLICES = 20


def fill(store: Path, plan: _scxlab.Plan) -> None:
    """Writes files with a row for each cell of the plan, from one real cell for each setup."""
    random = numpy.random.default_rng(1)
    seeds = len(plan) // (2 * SLICES)
    for setup in range(2 * SLICES):
        cell = plan.run([setup * seeds])
        table = parquet.read_table(pyarrow.BufferReader(cell))
        rows = table.take([0] * seeds)
        at = rows.column_names.index("seed")
        rows = rows.set_column(at, "seed", pyarrow.array(range(1, seeds + 1)))
        for at, name in enumerate(rows.column_names):
            if name.startswith("metric."):
                rows = rows.set_column(at, name, pyarrow.array(random.random(seeds)))
        parquet.write_table(
            rows, store / "cells" / f"{setup:016x}.parquet",
            compression="gzip", use_dictionary=False, data_page_version="1.0",
            data_page_size=1 << 30, row_group_size=1 << 18, write_page_index=False,
        )


def timed(name: str, work: object) -> None:
    begin = time.perf_counter()
    work()  # type: ignore[operator]
    print(f"{name}: {time.perf_counter() - begin:.2f} s")


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    slices = ", ".join(str(1_000_000 + 100_000 * at) for at in range(SLICES))
    text = TEXT.format(seeds=cells // (2 * SLICES), slices=slices)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        begin = time.perf_counter()
        plan = _scxlab.Plan("s.toml", text, {})
        print(f"plan of {len(plan)} cells: {time.perf_counter() - begin:.2f} s")
        store = _scxlab.Store.local(path)
        (path / "cells").mkdir(exist_ok=True)
        fill(path, plan)
        timed("cells that are missing", lambda: print(len(store.missing(plan)), end=" "))
        timed("table of results", lambda: store.publish(plan))
        results = path / "results.parquet"
        print(f"results.parquet: {results.stat().st_size / 1e6:.0f} MB")
        lazy = polars.scan_parquet(results).filter(polars.col("counts"))
        query = lazy.group_by("knob.slice_ns").agg(polars.col("throughput").mean())
        timed("query with Polars", query.collect)
        columns = ["knob.slice_ns", "counts", "throughput"]
        timed(
            "query with pyarrow",
            lambda: parquet.read_table(results, columns=columns)
            .group_by("knob.slice_ns")
            .aggregate([("throughput", "mean")]),
        )


if __name__ == "__main__":
    main()
