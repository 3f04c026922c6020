# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps on a Dask cluster.

Owns: the size of batches, the check that workers have this scxlab, and what happens when a worker
or the scheduler dies. Workers compute; only the client writes the store. A batch that was not
stored is computed again, which gives the same bytes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from distributed import Client, KilledWorker, as_completed
from distributed.comm.core import CommClosedError

from . import _scxlab
from ._scxlab import HostError, abi

#: Largest part of the work that scheduling may cost.
COST = 0.02
#: Time in which the client and the scheduler handle one batch, in s: as py/benchmarks/efficiency.py
#: measured it on two busy CPUs that client, scheduler and workers shared.
HANDLING = 0.016
#: Shortest work of a batch in s. A longer batch loses more when a worker dies.
WORK_MIN = 1.0
#: Number of batches that each thread of the cluster has or waits for, so that it never idles.
AHEAD = 2
#: Largest number of cells in a batch.
CELLS_MAX = 10_000


@dataclass(frozen=True)
class Bundle:
    """All that a worker needs to run cells of a sweep."""

    abi: str
    name: str
    text: str
    files: tuple[tuple[str, bytes], ...]
    sysfs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Batch:
    """A file of finished cells, and the time in which a worker made it, in s."""

    file: bytes
    seconds: float


@lru_cache(maxsize=4)
def _plan(bundle: Bundle) -> _scxlab.Plan:
    return _scxlab.Plan(bundle.name, bundle.text, dict(bundle.files), dict(bundle.sysfs))


def run_batch(bundle: Bundle, cells: list[int]) -> Batch:
    """Runs cells; called on a worker."""
    if bundle.abi != abi():
        raise HostError(_mixed("a worker", abi(), bundle.abi))
    plan = _plan(bundle)
    begin = time.perf_counter()
    file = plan.run(cells)
    return Batch(file, time.perf_counter() - begin)


def _mixed(worker: str, found: str, wanted: str) -> str:
    return (
        f"{worker} has scxlab {found}, and the client has {wanted}; "
        "results of two versions must not be mixed: install the same wheel everywhere"
    )


class Cluster:
    """A sweep on the workers of a client."""

    def __init__(self, client: Client, plan: _scxlab.Plan, name: str, text: str) -> None:
        self._client = client
        self._plan = plan
        files, sysfs = plan.bundle()
        self._bundle = Bundle(
            abi(), name, text, tuple(sorted(files.items())), tuple(sorted(sysfs.items()))
        )
        #: Work of all batches so far in s, without the time of waiting and of scheduling.
        self.seconds = 0.0
        self._cells = 0

    def check(self) -> None:
        """Refuses a cluster without workers, or with workers that have another scxlab."""
        try:
            found: dict[str, str] = self._client.run(abi)
        except Exception as error:
            raise HostError(f"a worker cannot load scxlab: {error}") from error
        if not found:
            raise HostError("the Dask cluster has no worker")
        for worker, version in found.items():
            if version != self._bundle.abi:
                raise HostError(_mixed(f"worker {worker}", version, self._bundle.abi))

    def run(
        self,
        store: _scxlab.Store,
        cells: list[int],
        tell: Callable[[int, int], object] | None = None,
    ) -> None:
        """Runs cells, in their order, and adds each batch to the store when it comes in."""
        self.check()
        try:
            self._run(store, cells, tell)
        except (CommClosedError, OSError, TimeoutError) as error:
            raise HostError(
                f"the connection to the Dask scheduler is lost: {error}; "
                "finished cells are in the store, and the same call continues"
            ) from error
        store.merge()

    def _run(
        self,
        store: _scxlab.Store,
        cells: list[int],
        tell: Callable[[int, int], object] | None,
    ) -> None:
        whole = len(self._plan)
        done = whole - len(cells)
        left = deque(cells)
        retried: set[int] = set()
        bundle = self._client.scatter(self._bundle, broadcast=True, hash=False)
        batches: dict[Any, list[int]] = {}
        finished = as_completed(raise_errors=False)

        def submit(some: list[int]) -> None:
            future = self._client.submit(run_batch, bundle, some, pure=False)
            batches[future.key] = some
            finished.add(future)

        def fill() -> None:
            threads = self._threads()
            while left and len(batches) < AHEAD * threads:
                size = self._size(len(left), threads)
                submit([left.popleft() for _ in range(size)])

        fill()
        while batches:
            ready = next(finished.batches())
            files = []
            for future in ready:
                if future.status in ("pending", "lost"):
                    # Its worker died after it was finished, and before the result was fetched.
                    # Dask computes it again.
                    finished.add(future)
                    continue
                some = batches.pop(future.key)
                if future.status == "finished":
                    batch: Batch = future.result()
                    files.append(batch.file)
                    done += len(some)
                    self._count(batch, len(some))
                else:
                    for cell in self._alone(future, some, retried):
                        submit([cell])
            store.add(files)
            fill()
            if tell:
                tell(done, whole)

    def _alone(self, future: Any, cells: list[int], retried: set[int]) -> list[int]:
        """Returns the cells of a failed batch to try alone, unless they were alone."""
        if future.status == "cancelled":
            raise HostError(
                "the Dask scheduler dropped a batch; finished cells are in the store, "
                "and the same call continues"
            )
        error: BaseException = future.exception()
        if not isinstance(error, KilledWorker):
            raise error
        if cells[0] in retried:
            raise HostError(
                f"{self._plan.describe(cells[0])}: every worker that ran this cell died"
            ) from error
        retried.update(cells)
        return cells

    def _threads(self) -> int:
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        threads: int = sum(worker["nthreads"] for worker in workers)
        return max(1, threads)

    def _count(self, batch: Batch, cells: int) -> None:
        self.seconds += batch.seconds
        self._cells += cells

    def _size(self, left: int, threads: int) -> int:
        """Returns the number of cells of the next batch.

        The batch is long enough that handling it costs less than `COST` of its work, and that the
        client can handle the batches of all threads in half of its time. The last batches are
        shorter, so that the threads finish together.
        """
        if not self._cells:
            return 1
        work = max(WORK_MIN, HANDLING / COST, 2 * HANDLING * threads)
        fits = int(work * self._cells / max(self.seconds, 1e-9))
        return max(1, min(fits, left // (AHEAD * threads), CELLS_MAX))
