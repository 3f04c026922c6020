# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps: every combination of schedulers, knobs, workloads, machines and seeds.

Owns: the form of a sweep in Python, which is that of `sweep.toml` (docs/guide/sweep.md). Does not:
decide what a cell is, or which are missing; the native half does.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _scxlab
from ._scxlab import Table
from .inputs import Value
from .places import open_store
from .progress import Progress, shown

if TYPE_CHECKING:
    from distributed import Client

#: Names with the values of their knobs or parameters: one value or a list for each.
Axis = str | Sequence[str] | Mapping[str, Mapping[str, Value | Sequence[Value]]]


class Sweep:
    """Cells to simulate, each once.

        sweep = scxlab.Sweep(
            schedulers={"eevdf": {}, "vtime": {"slice_ns": [1_000_000, 5_000_000]}},
            workloads={"schbench": {"workers": [4, 16]}},
            machines=["laptop-4c8t", "2n4c2t"],
            seeds=5,
            duration="100ms",
        )
        results = sweep.run("slices.sweep")

    All names, knobs and files are checked when the object is made.
    """

    def __init__(
        self,
        *,
        schedulers: Axis,
        workloads: Axis,
        machines: str | Sequence[str],
        seeds: int | Sequence[int],
        duration: str | None = None,
        numa_balancing: str | None = None,
        metrics: Sequence[str] | None = None,
        exclude: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        files: dict[str, bytes] = {}
        names = [machines] if isinstance(machines, str) else machines
        top: dict[str, Any] = {
            "machines": [_as_file(name, f"machine-{at}", files) for at, name in enumerate(names)],
            "seeds": seeds if isinstance(seeds, int) else list(seeds),
            "duration": duration,
            "numa_balancing": numa_balancing,
            "metrics": None if metrics is None else list(metrics),
        }
        lines = [f"{key} = {_toml(value)}" for key, value in top.items() if value is not None]
        lines += _entries("scheduler", "knobs", schedulers, files)
        lines += _entries("workload", "parameters", workloads, files)
        for rule in exclude:
            lines += ["", "[[exclude]]"] + [f"{_key(k)} = {_toml(v)}" for k, v in rule.items()]
        self._set("sweep", "\n".join(lines) + "\n", files)

    @classmethod
    def from_toml(cls, text: str, name: str = "sweep.toml") -> Sweep:
        """Makes a sweep from the text of a `sweep.toml`; `name` is for messages."""
        sweep = cls.__new__(cls)
        sweep._set(name, text, {})
        return sweep

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Sweep:
        """Reads a `sweep.toml`."""
        return cls.from_toml(Path(path).read_text(), str(path))

    def _set(self, name: str, text: str, files: dict[str, bytes]) -> None:
        self._name = name
        self._text = text
        self._files = files
        self._plan = _scxlab.Plan(name, text, files)

    def __str__(self) -> str:
        """Returns the sweep as the text of a `sweep.toml`."""
        return self._text

    def __len__(self) -> int:
        """Number of cells."""
        return len(self._plan)

    def __repr__(self) -> str:
        return f"<scxlab.Sweep of {len(self)} cells>"

    def run(
        self,
        store: str | PathLike[str],
        client: Client | None = None,
        *,
        jobs: int = 0,
        progress: Progress = None,
    ) -> SweepResults:
        """Runs the cells that the store lacks, and returns the results of all.

        `store` is a folder, or a URL that fsspec knows. The cells run on `jobs` threads of this
        process (0: one per CPU), or on the Dask cluster of `client`, whose workers must have the
        same scxlab. Whatever is killed, the same call continues.
        """
        opened = open_store(store)
        cells = opened.missing(self._plan)
        with shown(progress) as tell:
            if client is None:
                opened.run(self._plan, cells, jobs, tell)
            else:
                from .cluster import Cluster

                Cluster(client, self._plan, self._name, self._text).run(opened, cells, tell)
        return SweepResults(*opened.publish(self._plan))


class SweepResults:
    """The results of a sweep: a row for each cell, in the order of the sweep."""

    def __init__(self, table: Table, summary: str) -> None:
        #: The table (docs/reference/sweep-store.md).
        self.table = table
        #: How the cells ended, as text.
        self.summary = summary

    def __len__(self) -> int:
        return len(self.table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<scxlab.SweepResults of {len(self)} cells>\n{self.summary}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary)}</pre>"


def _entries(kind: str, settings: str, axis: Axis, files: dict[str, bytes]) -> list[str]:
    """Returns the tables of an axis."""
    if isinstance(axis, str):
        axis = [axis]
    named = axis if isinstance(axis, Mapping) else {name: {} for name in axis}
    lines: list[str] = []
    for at, (name, values) in enumerate(named.items()):
        lines += ["", f"[[{kind}]]", f"name = {_toml(_as_file(name, f'{kind}-{at}', files))}"]
        if values:
            lines.append(f"{settings} = {_toml(values)}")
    return lines


def _as_file(text: str, name: str, files: dict[str, bytes]) -> str:
    """Makes a file of a machine or a workload that is given as the text of one."""
    if "\n" not in text:
        return str(text)
    path = f"{name}.toml"
    files[path] = text.encode()
    return path


def _key(name: str) -> str:
    return json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, bool | str):
        # JSON's form of texts and truth values is also TOML's.
        return json.dumps(str(value) if isinstance(value, str) else value, ensure_ascii=False)
    if isinstance(value, int | float):
        return repr(value)
    return "[" + ", ".join(_toml(one) for one in value) + "]"
