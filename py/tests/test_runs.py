# SPDX-License-Identifier: GPL-2.0-only
"""Runs, comparisons, advice, predictions, inspection: the same as the command's."""

import json
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import scxlab
from conftest import ROOT, output


def test_a_run_is_the_run_of_the_command(command: Path) -> None:
    results = scxlab.compare(
        "hogs,tasks=3", "1n2c1t", ["eevdf", "vtime,slice_ns=1000000"], runs=2, duration="30ms"
    )
    args = "run -s eevdf -s vtime,slice_ns=1000000 -w hogs,tasks=3 -m 1n2c1t -n 2 --duration 30ms"
    said = json.loads(output(command, *args.split(), "--format", "json"))
    assert [run.trace_hash for run in results] == [run["trace_hash"] for run in said["runs"]]
    assert results.comparisons == said["comparisons"]
    assert str(results) == output(command, *args.split())


def test_a_run_has_its_metrics_and_representations() -> None:
    (run,) = scxlab.run("hogs,tasks=3", "2c", "vtime", duration="30ms")
    assert run.counts and run.exit == "none" and run.virtual_ns == 30_000_000
    assert run.metrics["context_switches"] > 0
    # Hogs never sleep, so nothing wakes them.
    assert "wakeup_latency_p99" not in run.metrics and "wakeup_latency_p99" not in run.units
    assert "vtime, seed 1" in repr(run) and "counts" in repr(run)
    page = run._repr_html_()
    assert page.startswith("<table>") and "context_switches" in page and "cpu0" not in page
    (sleeps,) = scxlab.run("hackbench,groups=1", "2c", "vtime", duration="30ms")
    assert sleeps.metrics["wakeup_latency_p99"] > 0
    assert sleeps.units["wakeup_latency_p99"] == "ns"


def test_an_ejection_is_a_result() -> None:
    object = ROOT / "build/kernel/objects/scx_userland.bpf.o"
    (run,) = scxlab.run("hogs", "1n2c1t", str(object), duration="10ms")
    assert not run.counts and run.exit != "none"
    assert "ejected" in repr(run)


def test_machines_and_workloads_are_text() -> None:
    machine = scxlab.Machine("2n4c2t")
    assert machine == "2n4c2t" and machine.nr_cpus == 16 and "16 CPUs" in repr(machine)
    read = scxlab.Machine.read(ROOT / "machines/small.toml")
    assert scxlab.Machine(str(read)).fingerprint == read.fingerprint
    assert pickle.loads(pickle.dumps(read)) == read
    workload = scxlab.Workload("hackbench", groups=2)
    assert workload == "hackbench,groups=2"
    # The text of a workload is a workload.
    again = scxlab.Workload(workload.toml)
    assert again.toml == workload.toml
    runs = [scxlab.run(w, machine, duration="5ms")[0].trace_hash for w in (workload, again)]
    assert runs[0] == runs[1]


def test_the_module_has_what_the_project_ships() -> None:
    shipped = scxlab.shipped()
    files = {f"workloads/{path.name}" for path in (ROOT / "workloads").glob("*.toml")}
    assert set(shipped["workloads"]) == files
    for name in files:
        scxlab.Workload(name)
    for name in shipped["machines"]:
        scxlab.Machine(name)
    for name in shipped["schedulers"][1:]:
        assert scxlab.inspect(name).name


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (scxlab.InputError, ("run", "-s", "vtime,slize_ns=1", "-w", "hogs", "-m", "2c")),
        (scxlab.InputError, ("run", "-s", "vtim", "-w", "hogs", "-m", "2c")),
        (scxlab.InputError, ("run", "-s", "vtime", "-w", "hogs,task=1", "-m", "2c")),
        (scxlab.InputError, ("run", "-s", "vtime", "-w", "absent.toml", "-m", "2c")),
        (scxlab.InputError, ("run", "-s", "vtime", "-w", "hogs", "-m", "2x")),
        (scxlab.InputError, ("run", "-s", "vtime", "-w", "cmd:make", "-m", "2c")),
    ],
)
def test_messages_are_those_of_the_command(
    command: Path, kind: type[Exception], call: tuple[str, ...]
) -> None:
    _, _, scheduler, _, workload, _, machine = call
    out = subprocess.run([command, *call], capture_output=True, text=True)
    with pytest.raises(kind) as raised:
        scxlab.run(workload, machine, scheduler)
    assert out.stderr == f"error: {raised.value}\n"


def test_no_run_and_no_scheduler_are_refused() -> None:
    with pytest.raises(scxlab.InputError, match="at least one"):
        scxlab.run("hogs", "2c", runs=0)
    with pytest.raises(scxlab.InputError, match="two or more"):
        scxlab.compare("hogs", "2c", ["vtime"])


def test_other_threads_run_meanwhile() -> None:
    done = threading.Event()
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    scxlab.run("hackbench,groups=4", "2n4c2t", runs=2, duration="100ms")
    after = ticks
    done.set()
    thread.join()
    assert after > before


def test_progress_is_told_and_its_exception_ends_the_work() -> None:
    told: list[tuple[int, int]] = []
    scxlab.run("hogs", "2c", runs=3, duration="10ms", progress=lambda *now: told.append(now))
    assert told[-1] == (3, 3)

    def stop(done: int, whole: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        scxlab.run("hackbench", "2n4c2t", runs=1000, duration="10s", progress=stop)


def test_advice_is_the_advice_of_the_command(command: Path) -> None:
    args = ("advise", "-w", "hogs,tasks=3", "-m", "2c", "-s", "vtime", "--rounds", "3+2")
    options = {"schedulers": ["vtime"], "rounds": "3+2", "duration": "20ms"}
    advice = scxlab.advise("hogs,tasks=3", "2c", **options)
    assert str(advice) == output(command, *args, "--duration", "20ms")
    with pytest.raises(scxlab.InputError):
        scxlab.advise("hogs", "2c", "p99:nothing", rounds="3+2")


def test_predictions_are_those_of_the_command(command: Path) -> None:
    args = ("reproduce", "pelt-2012", "-n", "1", "--no-cache", "--format", "json")
    found = scxlab.reproduce("pelt-2012", runs=1)
    assert found.data == json.loads(output(command, *args))
    with pytest.raises(scxlab.InputError, match="unknown thread"):
        scxlab.reproduce("pelt")


def test_an_inspection_names_the_knobs() -> None:
    about = scxlab.inspect("vtime")
    assert "slice_ns" in [knob["name"] for knob in about.knobs]
    assert about.missing == [] and about.programs


def test_the_module_needs_no_other_package() -> None:
    code = (
        "import sys, scxlab; scxlab.run('hogs', '1c', duration='5ms')\n"
        "others = {'numpy', 'pandas', 'pyarrow', 'distributed', 'fsspec', 'matplotlib'}\n"
        "sys.exit(', '.join(others & set(sys.modules)) or 0)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (out.returncode, out.stderr) == (0, "")
