# SPDX-License-Identifier: GPL-2.0-only
"""scxlab: run and compare CPU schedulers on simulated machines.

    import scxlab
    results = scxlab.compare("hackbench,groups=4", "2n4c2t", ["eevdf", "vtime"], runs=5)
    print(results)
    table = pyarrow.table(results.table())

Start at `run`, `compare` and `Sweep`. Failures are exceptions below `Error`, whose class says whose
fault it is; Ctrl-C ends any work.
"""

from ._scxlab import (
    Error,
    HostError,
    InputError,
    StoreError,
    Table,
    UnmodelledError,
    __version__,
    abi,
)
from .inputs import Machine, Workload, scheduler, shipped
from .runs import Advice, Inspection, Reproduction, Results, Run, advise, compare, inspect, reproduce, run
from .sweeps import Sweep, SweepResults

__all__ = [
    "Advice",
    "Error",
    "HostError",
    "InputError",
    "Inspection",
    "Machine",
    "Reproduction",
    "Results",
    "Run",
    "StoreError",
    "Sweep",
    "SweepResults",
    "Table",
    "UnmodelledError",
    "Workload",
    "__version__",
    "abi",
    "advise",
    "compare",
    "inspect",
    "reproduce",
    "run",
    "scheduler",
    "shipped",
]
