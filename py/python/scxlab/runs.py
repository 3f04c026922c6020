# SPDX-License-Identifier: GPL-2.0-only
"""Runs, comparisons, advice, predictions of published tables, inspection."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _scxlab
from ._scxlab import InputError, Table
from .progress import Progress, shown


@dataclass(frozen=True)
class Run:
    """The result of one scheduler under one seed."""

    scheduler: str
    seed: int
    #: Whether the metrics describe the scheduler over the whole workload.
    counts: bool
    #: Kind of the scheduler's exit; "none" if it stayed.
    exit: str
    exit_message: str
    #: Kind of the run's end.
    stop: str
    virtual_ns: int
    trace_hash: str
    metrics: dict[str, float]
    #: Unit of each metric.
    units: dict[str, str]
    #: The run as JSON has it (docs/reference/results.md).
    data: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Run:
        metrics = data["metrics"]
        return cls(
            scheduler=data["scheduler"],
            seed=data["seed"],
            counts=data["counts"],
            exit=data["exit"]["kind"],
            exit_message=data["exit"]["message"],
            stop=data["stop"]["kind"],
            virtual_ns=data["virtual_ns"],
            trace_hash=data["trace_hash"],
            metrics={name: metric["value"] for name, metric in metrics.items()},
            units={name: metric["unit"] for name, metric in metrics.items()},
            data=data,
        )

    def _verdict(self) -> str:
        if self.exit != "none":
            return f"ejected: {self.exit}: {self.exit_message}"
        return "counts" if self.counts else f"ended early: {self.stop}"

    def __repr__(self) -> str:
        throughput = self.metrics.get("throughput")
        unit = self.units.get("throughput")
        work = "" if throughput is None else f", {throughput:.6g} {unit}"
        length = f"{self.virtual_ns / 1e9:.6g} s"
        return f"<scxlab.Run {self.scheduler}, seed {self.seed}: {length}{work}, {self._verdict()}>"

    def _repr_html_(self) -> str:
        head = f"{self.scheduler}, seed {self.seed}: {self._verdict()}"
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{value:.6g}</td>"
            f"<td>{html.escape(self.units[name])}</td></tr>"
            for name, value in self.metrics.items()
            if not _is_of_one_cpu(name)
        )
        return (
            f"<table><caption>{html.escape(head)}</caption><thead><tr><th>metric</th><th>value</th>"
            f"<th>unit</th></tr></thead><tbody>{rows}</tbody></table>"
        )


def _is_of_one_cpu(name: str) -> bool:
    return name.startswith("cpu") and name[3:4].isdigit()


class Results:
    """The runs of one workload on one machine, by scheduler and then by seed."""

    def __init__(self, session: _scxlab.Session) -> None:
        self._session = session
        #: The results as JSON has them (docs/reference/results.md).
        self.data: dict[str, Any] = json.loads(session.json())
        self.runs: list[Run] = [Run._of(run) for run in self.data["runs"]]
        #: For each scheduler after the first and each metric: means, change and its interval.
        self.comparisons: list[dict[str, Any]] = self.data["comparisons"]

    def table(self) -> Table:
        """Returns a row for each run and metric (docs/reference/results-folder.md)."""
        return self._session.runs_table()

    def tasks(self) -> Table:
        """Returns a row for each run and task."""
        return self._session.tasks_table()

    def text(self, metrics: str | None = None) -> str:
        """Returns the table that the command prints. `metrics` has the form of `--metrics`."""
        return self._session.text(metrics)

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, at: int) -> Run:
        return self.runs[at]

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        schedulers = dict.fromkeys(run.scheduler for run in self.runs)
        return f"<scxlab.Results of {len(self.runs)} runs: {', '.join(schedulers)}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"


class _Report:
    """A text for people, with its data."""

    def __init__(self, text: str, data: str) -> None:
        self._text = text
        self.data: dict[str, Any] = json.loads(data)

    def __str__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>"


class Advice(_Report):
    """A recommendation (docs/reference/advise.md)."""


class Reproduction(_Report):
    """Published tables beside their predictions."""


@dataclass(frozen=True)
class Inspection:
    """What the object of a scheduler needs, and its knobs."""

    name: str
    licence: str
    programs: list[str]
    maps: list[str]
    ops: list[dict[str, Any]]
    knobs: list[dict[str, Any]]
    #: What prevents loading.
    missing: list[str]
    #: What is a fault if a run reaches it.
    missing_if_run: list[str]


def run(
    workload: str,
    machine: str,
    scheduler: str | Sequence[str] = "eevdf",
    *,
    runs: int = 1,
    seed: int = 1,
    duration: str | None = None,
    jobs: int = 0,
    progress: Progress = None,
) -> Results:
    """Simulates a workload on a machine under one or several schedulers, as `scxlab run` does.

    Run i of each scheduler has the seed `seed + i`. `jobs` is the number of simulations at a time; 0
    is one per CPU. `progress` is True for a bar, or a function of the finished and all runs.
    """
    schedulers = [scheduler] if isinstance(scheduler, str) else list(scheduler)
    if not schedulers:
        raise InputError("no scheduler is given; give eevdf, a shipped scheduler or an object file")
    if runs < 1:
        raise InputError(f"{runs} runs: at least one is needed")
    with shown(progress) as tell:
        return Results(
            _scxlab.run(schedulers, workload, machine, runs, seed, duration, jobs, tell)
        )


def compare(
    workload: str,
    machine: str,
    schedulers: Sequence[str],
    *,
    runs: int = 5,
    seed: int = 1,
    duration: str | None = None,
    jobs: int = 0,
    progress: Progress = None,
) -> Results:
    """Compares schedulers with the first of them, as `run` with several schedulers does."""
    if isinstance(schedulers, str) or len(schedulers) < 2:
        raise InputError("compare needs a list of two or more schedulers")
    return run(
        workload,
        machine,
        schedulers,
        runs=runs,
        seed=seed,
        duration=duration,
        jobs=jobs,
        progress=progress,
    )


def advise(
    workload: str,
    machine: str = "host",
    goals: str | Sequence[str] = (),
    *,
    schedulers: Sequence[str] = (),
    rounds: str | None = None,
    budget: str = "60s",
    seed: int = 1,
    duration: str | None = None,
    jobs: int = 0,
    progress: Progress = None,
) -> Advice:
    """Recommends a scheduler, as `scxlab advise` does: by default within a minute.

    Equal `rounds`, such as "24+12", give equal advice.
    """
    wanted = [goals] if isinstance(goals, str) else list(goals)
    with shown(progress) as tell:
        text, data = _scxlab.advise(
            workload,
            machine,
            wanted,
            list(schedulers),
            rounds,
            budget,
            seed,
            duration,
            jobs,
            tell,
        )
    return Advice(text, data)


def reproduce(
    thread: str | None = None,
    tables: Sequence[str] = (),
    *,
    runs: int = 3,
    seed: int = 1,
    jobs: int = 0,
    progress: Progress = None,
) -> Reproduction:
    """Predicts the published tables of a list thread, or of all, as `scxlab reproduce` does."""
    with shown(progress) as tell:
        return Reproduction(*_scxlab.reproduce(thread, list(tables), runs, seed, jobs, tell))


def inspect(object: str) -> Inspection:
    """Tells what an object file, or a shipped scheduler, needs from the kernel, and its knobs."""
    return Inspection(**json.loads(_scxlab.inspect(object)))
