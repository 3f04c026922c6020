# SPDX-License-Identifier: GPL-2.0-only
"""`python -m scxlab sweep FILE`: a sweep from the command line, on a Dask cluster if one is named.

`scxlab sweep --dask ADDRESS` calls this.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import Error, InputError, Sweep

#: Exit codes of the command (docs/reference/flags.md) for the classes of failures.
INPUT, TARGET, CANCELLED = 3, 7, 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scxlab")
    commands = parser.add_subparsers(required=True)
    sweep = commands.add_parser("sweep", help="run the cells of a sweep that its store lacks")
    sweep.add_argument("file", help="file of the sweep, in TOML")
    sweep.add_argument("-o", "--output", help="folder or fsspec URL of the store")
    sweep.add_argument("-j", "--jobs", type=int, default=0, help="threads; 0 is one per CPU")
    sweep.add_argument("--dask", metavar="ADDRESS", help="address of a Dask scheduler")
    args = parser.parse_args()
    try:
        return run_sweep(args)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return INPUT if isinstance(error, InputError) else TARGET
    except KeyboardInterrupt:
        return CANCELLED


def run_sweep(args: argparse.Namespace) -> int:
    try:
        sweep = Sweep.read(args.file)
    except OSError as error:
        print(f"error: {args.file}: {error.strerror}", file=sys.stderr)
        return INPUT
    store = args.output or Path(args.file).with_suffix(".sweep")
    progress = sys.stderr.isatty()
    if args.dask is None:
        results = sweep.run(store, jobs=args.jobs, progress=progress)
    else:
        try:
            from distributed import Client
        except ImportError:
            print("error: Dask is not installed: pip install distributed", file=sys.stderr)
            return TARGET
        try:
            client = Client(args.dask, timeout="10s")
        except (OSError, ValueError) as error:
            print(f"error: no Dask scheduler at {args.dask}: {error}", file=sys.stderr)
            return TARGET
        with client:
            results = sweep.run(store, client, progress=progress)
    print(results.summary, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
