# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps on the threads of this process, in folders and behind fsspec."""

import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest
import scxlab
from conftest import CELLS, ROOT, SWEEP, stored


def test_threads_make_the_bytes_of_the_command(expected: bytes, tmp_path: Path) -> None:
    sweep = scxlab.Sweep.from_toml(SWEEP)
    assert len(sweep) == CELLS
    results = sweep.run(tmp_path, jobs=3)
    assert (tmp_path / "results.parquet").read_bytes() == expected
    assert len(results) == CELLS and f"{CELLS} of {CELLS} cells" in results.summary
    assert pyarrow.table(results).equals(parquet.read_table(tmp_path / "results.parquet").cast(
        pyarrow.table(results).schema
    ))


def test_the_form_of_python_is_that_of_the_file(expected: bytes, tmp_path: Path) -> None:
    sweep = scxlab.Sweep(
        schedulers={"eevdf": {}, "vtime": {"slice_ns": [1_000_000, 5_000_000]}},
        workloads={"hogs": {"tasks": [3, 5]}, "schbench": {"workers": 2}},
        machines=["1n2c1t", "2n2c1t"],
        seeds=5,
        duration="60ms",
        metrics=["throughput", "context_switches", "wakeup_latency_p99"],
    )
    sweep.run(tmp_path)
    assert (tmp_path / "results.parquet").read_bytes() == expected
    assert scxlab.Sweep.from_toml(str(sweep)).run(tmp_path).table.num_rows == CELLS


def test_texts_of_machines_and_workloads_are_axes(tmp_path: Path) -> None:
    machine = scxlab.Machine.read(ROOT / "machines/small.toml")
    workload = scxlab.Workload(scxlab.Workload("hogs,tasks=2").toml)
    sweep = scxlab.Sweep(
        schedulers="eevdf", workloads=[workload], machines=machine, seeds=[7], duration="5ms"
    )
    results = sweep.run(tmp_path)
    (run,) = scxlab.run(workload, machine, seed=7, duration="5ms")
    assert results.table.column("trace_hash") == [run.trace_hash]


def test_exclusions_leave_cells_out() -> None:
    sweep = scxlab.Sweep(
        schedulers={"eevdf": {}, "vtime": {"slice_ns": [1_000_000, 5_000_000]}},
        workloads="hogs",
        machines=["1c", "2c"],
        seeds=3,
        exclude=[{"machine": "1c", "knob": {"slice_ns": 5_000_000}}, {"seed": 2}],
    )
    assert len(sweep) == (3 * 2 - 1) * 2


def test_a_store_behind_fsspec_has_the_same_bytes(expected: bytes) -> None:
    import fsspec

    sweep = scxlab.Sweep.from_toml(SWEEP)
    sweep.run("memory://stores/one")
    fs = fsspec.filesystem("memory")
    assert fs.cat_file("/stores/one/results.parquet") == expected
    before = sorted(fs.ls("/stores/one/cells", detail=False))
    sweep.run("memory://stores/one")
    assert sorted(fs.ls("/stores/one/cells", detail=False)) == before


def test_a_store_in_s3_has_the_same_bytes(
    expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a server of moto, which speaks S3's protocol, in place of Amazon's."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        fs = fsspec.filesystem("s3")
        fs.mkdir("stores")
        more = scxlab.Sweep.from_toml(SWEEP)
        scxlab.Sweep.from_toml(SWEEP.replace("seeds = 5", "seeds = 2")).run("s3://stores/one")
        first = set(fs.ls("stores/one/cells", detail=False))
        more.run("s3://stores/one")
        assert fs.cat_file("stores/one/results.parquet") == expected
        after = set(fs.ls("stores/one/cells", detail=False))
        assert first < after
        more.run("s3://stores/one")
        fs.invalidate_cache()
        assert set(fs.ls("stores/one/cells", detail=False)) == after
    finally:
        server.stop()


def test_wrong_sweeps_are_refused_before_work(tmp_path: Path) -> None:
    def refused(change: tuple[str, str], why: str) -> None:
        with pytest.raises(scxlab.InputError, match=why):
            scxlab.Sweep.from_toml(SWEEP.replace(*change))

    refused(("seeds = 5", "seeds = 5000000"), "the limit is 2000000")
    refused(("slice_ns", "slize_ns"), "no variable `slize_ns`")
    refused(("tasks", "task"), "task")
    refused(("machines =", "machine ="), "machine")
    refused(('"1n2c1t"', '"absent.toml"'), "absent.toml")


def test_other_stores_are_refused(tmp_path: Path) -> None:
    sweep = scxlab.Sweep.from_toml(SWEEP)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(scxlab.StoreError, match="empty or a new folder"):
        sweep.run(tmp_path / "other")
    (tmp_path / "store").mkdir()
    about = '{"format": 1, "version": "0.0.1", "simulator": "0123456789abcdef"}'
    (tmp_path / "store" / "store.json").write_text(about)
    with pytest.raises(scxlab.StoreError, match="0.0.1 .simulator 0123456789abcdef"):
        sweep.run(tmp_path / "store")
    with pytest.raises(scxlab.StoreError, match="nothing://"):
        sweep.run("nothing://x")


def test_a_write_that_fails_loses_nothing(expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, as a file system that refuses the fourth file."""
    from scxlab import places

    sweep = scxlab.Sweep.from_toml(SWEEP)
    writes = 0
    write = places.Place.write

    def full(self: places.Place, name: str, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes > 1:
            raise OSError(28, "No space left on device")
        write(self, name, data)

    with monkeypatch.context() as patched:
        patched.setattr(places.Place, "write", full)
        with pytest.raises(scxlab.StoreError, match="No space left.*the same command continues"):
            sweep.run("memory://stores/full")
    sweep.run("memory://stores/full")
    import fsspec

    assert fsspec.filesystem("memory").cat_file("/stores/full/results.parquet") == expected


def test_a_killed_process_is_continued(expected: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SWEEP)
    call = [sys.executable, "-m", "scxlab", "sweep", "s.toml", "-j", "2"]
    for kill in range(3):
        before = len(stored(tmp_path / "s.sweep"))
        child = subprocess.Popen(call, cwd=tmp_path, stdout=subprocess.DEVNULL)
        # The first is killed at once, the others when more cells are stored, or at their end.
        while kill and len(stored(tmp_path / "s.sweep")) == before and child.poll() is None:
            pass
        child.kill()
        child.wait()
        keys = stored(tmp_path / "s.sweep")
        assert len(keys) == len(set(keys)) >= before
    subprocess.run(call, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    keys = stored(tmp_path / "s.sweep")
    assert len(keys) == len(set(keys)) == CELLS
    assert (tmp_path / "s.sweep" / "results.parquet").read_bytes() == expected
