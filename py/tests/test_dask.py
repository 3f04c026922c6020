# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps on a Dask cluster of worker processes: the same bytes, whoever is killed."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import scxlab
from conftest import CELLS, SWEEP, stored
from distributed import Client, LocalCluster
from scxlab import _scxlab, cluster


@pytest.fixture
def client() -> Iterator[Client]:
    """Four worker processes of one thread, which a nanny replaces when they die."""
    with LocalCluster(
        n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None
    ) as local, Client(local) as client:
        yield client


def pids(client: Client) -> list[int]:
    return list(client.run(os.getpid).values())


def test_shuffled_cells_with_two_killed_workers_give_the_same_bytes(
    client: Client, expected: bytes, tmp_path: Path
) -> None:
    plan = _scxlab.Plan("s.toml", SWEEP, {})
    store = _scxlab.Store.local(tmp_path)
    cells = store.missing(plan)
    random.Random(7).shuffle(cells)
    victims = pids(client)[:2]

    def kill(done: int, whole: int) -> None:
        # In the middle of the work, whenever that is.
        if done >= whole // 4 and victims:
            os.kill(victims.pop(), signal.SIGKILL)

    cluster.Cluster(client, plan, "s.toml", SWEEP).run(store, cells, kill)
    assert victims == []
    store.publish(plan)
    assert (tmp_path / "results.parquet").read_bytes() == expected
    keys = stored(tmp_path)
    assert len(keys) == len(set(keys)) == CELLS


def test_a_sweep_continues_on_a_cluster_and_on_threads(
    client: Client, expected: bytes, tmp_path: Path
) -> None:
    sweep = scxlab.Sweep.from_toml(SWEEP)
    few = scxlab.Sweep.from_toml(SWEEP.replace("seeds = 5", "seeds = 2"))
    few.run(tmp_path, client)
    before = set(stored(tmp_path))
    assert len(before) == CELLS * 2 // 5
    sweep.run(tmp_path, client)
    keys = stored(tmp_path)
    assert before < set(keys) and len(keys) == len(set(keys))
    assert (tmp_path / "results.parquet").read_bytes() == expected
    sweep.run(tmp_path)
    assert stored(tmp_path) == keys


def test_files_reach_workers_that_do_not_have_them(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.toml").write_text("[[thread]]\nname = 't'\nops = [{ compute = '1ms' }]\n")
    monkeypatch.chdir(tmp_path)
    sweep = scxlab.Sweep(
        schedulers="eevdf", workloads="w.toml", machines="host", seeds=4, duration="5ms"
    )
    (tmp_path / "w.toml").unlink()
    results = sweep.run(tmp_path / "store", client)
    assert results.table.column("counts") == [True] * 4


def test_workers_of_another_version_are_refused(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = scxlab.Sweep.from_toml(SWEEP)
    monkeypatch.setattr(cluster, "abi", lambda: "0.0.1 (simulator 0123, format 1)")
    with pytest.raises(scxlab.HostError, match="the same wheel everywhere"):
        sweep.run(tmp_path, client)
    assert stored(tmp_path) == []


def test_a_worker_refuses_a_bundle_of_another_version() -> None:
    bundle = cluster.Bundle("0.0.1", "s.toml", SWEEP, (), ())
    with pytest.raises(scxlab.HostError, match="the client has 0.0.1"):
        cluster.run_batch(bundle, [0])


def test_a_cluster_without_workers_is_refused(tmp_path: Path) -> None:
    with LocalCluster(n_workers=0, dashboard_address=None) as local, Client(local) as client:
        with pytest.raises(scxlab.HostError, match="no worker"):
            scxlab.Sweep.from_toml(SWEEP).run(tmp_path, client)


def test_a_dead_scheduler_loses_nothing(expected: bytes, tmp_path: Path) -> None:
    sweep = scxlab.Sweep.from_toml(SWEEP)
    local = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with local, Client(local) as client:
        closed = threading.Event()

        def close(done: int, whole: int) -> None:
            if done >= whole // 4 and not closed.is_set():
                closed.set()
                local.sync(local.scheduler.close)

        with pytest.raises(scxlab.HostError, match="finished cells are in the store"):
            sweep.run(tmp_path, client, progress=close)
    before = stored(tmp_path)
    assert before and len(before) < CELLS
    sweep.run(tmp_path)
    keys = stored(tmp_path)
    assert set(before) < set(keys) and len(keys) == len(set(keys)) == CELLS
    assert (tmp_path / "results.parquet").read_bytes() == expected


def test_batches_are_long_enough_and_the_last_are_short() -> None:
    class Fake(cluster.Cluster):
        def __init__(self) -> None:
            self.seconds, self._cells = 10.0, 200

    fake = Fake()
    # A cell takes 50 ms: 20 cells are a second of work.
    assert fake._size(2000, 2) == 20
    assert fake._size(8, 2) == 2
    assert fake._size(1, 2) == 1
    # A thousand threads get batches so long that the client can handle all of them.
    assert fake._size(2_000_000, 1000) * 0.05 >= 2 * cluster.HANDLING * 1000


def sweep_by_command(command: Path, folder: Path, python: str, address: str) -> tuple[int, str]:
    (folder / "s.toml").write_text(SWEEP)
    out = subprocess.run(
        [command, "sweep", "s.toml", "--dask", address],
        cwd=folder,
        env={**os.environ, "SCXLAB_PYTHON": python},
        capture_output=True,
        text=True,
    )
    return out.returncode, out.stdout + out.stderr


def test_the_command_uses_a_cluster(
    client: Client, command: Path, expected: bytes, tmp_path: Path
) -> None:
    address = client.scheduler.address
    code, said = sweep_by_command(command, tmp_path, sys.executable, address)
    assert code == 0, said
    assert (tmp_path / "s.sweep" / "results.parquet").read_bytes() == expected


def test_the_command_needs_the_module(command: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"No module named 'scxlab'\" >&2\nexit 1\n")
    python.chmod(0o755)
    code, said = sweep_by_command(command, tmp_path, str(python), "tcp://127.0.0.1:1")
    assert code == 7 and "No module named 'scxlab'" in said
    python.write_text("#!/bin/sh\necho 0.0.1\n")
    code, said = sweep_by_command(command, tmp_path, str(python), "tcp://127.0.0.1:1")
    assert code == 7 and "its scxlab is 0.0.1, and this is" in said
