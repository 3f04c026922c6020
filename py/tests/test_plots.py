# SPDX-License-Identifier: GPL-2.0-only
"""Plots: the numbers that they show."""

import matplotlib
import pandas
import pytest
import scxlab

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
from scxlab import plots  # noqa: E402


@pytest.fixture
def results() -> pandas.DataFrame:
    """A sweep whose metric is twice the knob plus the seed; one cell does not count."""
    rows = [
        {
            "scheduler": "vtime",
            "knob.slice": slice,
            "machine": machine,
            "seed": seed,
            "work_unit": "unit",
            "counts": (slice, machine, seed) != (3, "b", 1),
            "latency": 2.0 * slice + seed,
            "throughput": 10.0 * slice,
        }
        for slice in (1, 2, 3)
        for machine in ("a", "b")
        for seed in (1, 2)
    ]
    return pandas.DataFrame(rows)


def test_a_response_has_the_means_and_their_intervals(results: pandas.DataFrame) -> None:
    _, ax = plt.subplots()
    plots.response(results, "knob.slice", "latency", ax=ax)
    (line,) = [line for line in ax.get_lines() if len(line.get_xdata()) == 3][:1]
    # The cell that does not count is in no mean.
    assert list(line.get_ydata()) == pytest.approx([3.5, 5.5, (7 + 8 + 8) / 3])
    assert "without 1 cells" in ax.get_title()


def test_a_heat_map_has_the_mean_of_each_pair(results: pandas.DataFrame) -> None:
    _, ax = plt.subplots()
    plots.heat_map(results, "knob.slice", "machine", "latency", ax=ax)
    assert ax.images[0].get_array().tolist() == [[3.5, 5.5, 7.5], [3.5, 5.5, 8.0]]


def test_the_front_has_what_nothing_beats() -> None:
    means = pandas.DataFrame({"cost": [1, 2, 3, 4, 2], "gain": [1, 5, 4, 6, 2]})
    front = plots.front(means, "cost", "gain")
    assert list(front.index) == [0, 1, 3]


def test_a_pareto_front_is_marked(results: pandas.DataFrame) -> None:
    _, ax = plt.subplots()
    plots.pareto(results, "latency", "throughput", ["knob.slice"], ax=ax)
    assert len(ax.texts) == 3


def test_sensitivity_finds_the_axis_that_matters(results: pandas.DataFrame) -> None:
    parts = plots.explained(results, "latency")
    assert parts.index[0] == "knob.slice" and parts.iloc[0] > 0.8
    assert "scheduler" not in parts.index
    _, ax = plt.subplots()
    plots.sensitivity(results, "latency", ax=ax)
    assert len(ax.patches) == 3


def test_unknown_columns_are_said(results: pandas.DataFrame) -> None:
    with pytest.raises(scxlab.InputError, match="there are scheduler"):
        plots.response(results, "knob.slize", "latency")
    with pytest.raises(scxlab.InputError, match="no cell counts"):
        plots.response(results.assign(counts=False), "knob.slice", "latency")
