# SPDX-License-Identifier: GPL-2.0-only
"""Machines, workloads and schedulers as arguments: objects that are also text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _scxlab

if TYPE_CHECKING:
    from typing import Self

Value = int | float | bool | str


class _Text(str):
    """A text that is checked when it is made, and that pickles as itself."""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Reads a file now, so that the object does not depend on it later."""
        return cls(Path(path).read_text())

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self),))


class Machine(_Text):
    """A machine: a spec such as "2n4c2t", a preset, a path, or the text of a file.

    The object is that text, so it can be printed, stored, compared and passed on as text. It is
    checked when it is made.
    """

    name: str
    description: str
    nr_cpus: int
    #: Hash of all properties that can change a run.
    fingerprint: str
    #: The whole machine with its costs, from which the fingerprint is made.
    canonical: str

    def __new__(cls, text: str) -> Self:
        machine = super().__new__(cls, text)
        about = json.loads(_scxlab.machine(text))
        machine.name = about["name"]
        machine.description = about["description"]
        machine.nr_cpus = about["nr_cpus"]
        machine.fingerprint = about["fingerprint"]
        machine.canonical = about["canonical"]
        return machine

    def __repr__(self) -> str:
        return f"<scxlab.Machine {self.name}: {self.nr_cpus} CPUs>"


class Workload(_Text):
    """A workload: a generator such as "hackbench,groups=4", a path, or the text of a file.

    The object is that text. It is checked when it is made.
    """

    name: str
    #: Name of one unit of work.
    unit: str
    #: Its own duration in ns, if it has one.
    duration_ns: int | None
    #: The workload as the text of a workload file.
    toml: str

    def __new__(cls, text: str, **parameters: Value) -> Self:
        text = with_settings(text, parameters)
        workload = super().__new__(cls, text)
        about = json.loads(_scxlab.workload(text))
        workload.name = about["name"]
        workload.unit = about["unit"]
        workload.duration_ns = about["duration_ns"]
        workload.toml = about["toml"]
        return workload

    def __repr__(self) -> str:
        return f"<scxlab.Workload {self.name}>"


def scheduler(name: str, **knobs: Value) -> str:
    """Returns the form of `-s`: `scheduler("vtime", slice_ns=3_000_000)`."""
    return with_settings(name, knobs)


def with_settings(name: str, settings: dict[str, Value]) -> str:
    return name + "".join(f",{key}={plain(value)}" for key, value in settings.items())


def plain(value: Value) -> str:
    """Returns a value as the command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def shipped() -> dict[str, list[str]]:
    """Lists the schedulers, machines, workloads and generators inside the module."""
    found: dict[str, list[str]] = json.loads(_scxlab.shipped())
    return found
