# SPDX-License-Identifier: GPL-2.0-only
"""Plots of a sweep's results, with matplotlib: `pip install 'scxlab[plot]'`.

Owns: what the plots show. Only cells that count and have all values enter them; a title says how
many do not. Each function takes `SweepResults`, a table or a pandas frame with its columns, and
returns the axes.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa

from ._scxlab import OUTCOME_COLUMNS, InputError, mean_interval

def frame(results: Any) -> pd.DataFrame:
    """Returns results as a pandas frame, in which whole numbers stay whole beside nulls."""
    if isinstance(results, pd.DataFrame):
        return results
    return pa.table(results).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def heat_map(results: Any, x: str, y: str, metric: str, ax: Any = None) -> Any:
    """Shows the mean of a metric for each pair of values of two axes."""
    some, left_out = _counting(results, x, y, metric)
    means = some.pivot_table(index=y, columns=x, values=metric, aggfunc="mean")
    ax = ax or plt.gca()
    image = ax.imshow(means.to_numpy(), aspect="auto", origin="lower")
    ax.set_xticks(range(len(means.columns)), [f"{value}" for value in means.columns], rotation=30)
    ax.set_yticks(range(len(means.index)), [f"{value}" for value in means.index])
    ax.figure.colorbar(image, ax=ax, label=metric)
    return _labelled(ax, x, y, left_out)


def response(results: Any, x: str, metric: str, by: str | None = None, ax: Any = None) -> Any:
    """Shows the mean of a metric at each value of an axis, with its 95 % interval.

    `by` names an axis whose values get a line each. The interval is over all cells at a point, so
    it contains the spread of all axes that are not named; choose rows of `frame(results)` first if
    only the seeds are to differ.
    """
    axes = [x] if by is None else [x, by]
    some, left_out = _counting(results, *axes, metric)
    ax = ax or plt.gca()
    groups = [(None, some)] if by is None else list(some.groupby(by))
    for label, group in groups:
        points = [(at, *mean_interval(list(one[metric]))) for at, one in group.groupby(x)]
        at, means, lows, highs = zip(*points, strict=True)
        # A single run has no interval.
        below = [0.0 if low is None else mean - low for mean, low in zip(means, lows, strict=True)]
        above = [0.0 if high is None else high - mean for mean, high in zip(means, highs, strict=True)]
        ax.errorbar(at, means, yerr=(below, above), marker="o", capsize=3, label=label)
    if by is not None:
        ax.legend(title=by)
    return _labelled(ax, x, metric, left_out)


def pareto(results: Any, less: str, more: str, by: list[str], ax: Any = None) -> Any:
    """Shows the mean of two metrics for each combination of `by`, and the front of those that no
    other one beats in both: `less` is to be small, `more` to be large.
    """
    some, left_out = _counting(results, *by, less, more)
    means = some.groupby(by, dropna=False)[[less, more]].mean().reset_index()
    best = front(means, less, more)
    ax = ax or plt.gca()
    ax.scatter(means[less], means[more], alpha=0.5)
    ax.plot(best[less], best[more], marker="o", color="tab:red")
    for _, row in best.iterrows():
        text = ", ".join(f"{row[name]}" for name in by if not pd.isna(row[name]))
        ax.annotate(text, (row[less], row[more]), fontsize="small")
    return _labelled(ax, less, more, left_out)


def front(means: pd.DataFrame, less: str, more: str) -> pd.DataFrame:
    """Returns the rows that no other row beats in one metric without losing in the other."""
    ordered = means.sort_values([less, more], ascending=[True, False])
    best = ordered[more].astype(float).cummax().shift(fill_value=float("-inf"))
    return ordered[ordered[more] > best]


def sensitivity(results: Any, metric: str, ax: Any = None) -> Any:
    """Shows how much of a metric's variance each axis explains by itself."""
    parts = explained(results, metric)
    ax = ax or plt.gca()
    ax.barh(list(parts.index), list(parts * 100))
    ax.invert_yaxis()
    left_out = len(frame(results)) - len(_counting(results, metric)[0])
    return _labelled(ax, f"part of the variance of {metric} in %", "", left_out)


def explained(results: Any, metric: str) -> pd.Series:
    """Returns the part of a metric's variance between the means of each axis's values, the largest
    first. Interactions of axes are in none of the parts, so they need not add up to 1.
    """
    some, _ = _counting(results, metric)
    whole = float(((some[metric] - some[metric].mean()) ** 2).sum())
    parts = {}
    for axis in _axes(some):
        if some[axis].nunique(dropna=False) < 2:
            continue
        means = some.groupby(axis, dropna=False)[metric].transform("mean")
        between = float(((means - some[metric].mean()) ** 2).sum())
        parts[axis] = between / whole if whole else 0.0
    return pd.Series(parts, dtype=float).sort_values(ascending=False)


def _axes(every: pd.DataFrame) -> list[str]:
    columns = list(every.columns)
    return columns[: columns.index("work_unit")]


def _counting(results: Any, *columns: str) -> tuple[pd.DataFrame, int]:
    """Returns the rows that count and have the columns, and the number of the others."""
    every = frame(results)
    for column in columns:
        if column not in every.columns or column in OUTCOME_COLUMNS:
            known = ", ".join(name for name in every.columns if name not in OUTCOME_COLUMNS)
            raise InputError(f"no column \"{column}\"; there are {known}")
    some = every[every["counts"].astype(bool)]
    axes = _axes(every)
    some = some.dropna(subset=[column for column in columns if column not in axes])
    if some.empty:
        raise InputError(f"no cell counts and has {', '.join(columns)}")
    return some, len(every) - len(some)


def _labelled(ax: Any, x: str, y: str, left_out: int) -> Any:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if left_out:
        ax.set_title(f"without {left_out} cells that do not count or lack a value", fontsize="small")
    return ax
