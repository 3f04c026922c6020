# SPDX-License-Identifier: GPL-2.0-only
"""Tables: read without a copy, with their types and nulls, and alive as long as a reader."""

import gc

import pandas
import polars
import pyarrow
import pytest
import scxlab


@pytest.fixture(scope="module")
def table() -> scxlab.Table:
    schedulers = ["eevdf", "vtime"]
    return scxlab.compare("hogs,tasks=3", "1n2c1t", schedulers, runs=3, duration="20ms").table()


def test_all_readers_see_the_same_values(table: scxlab.Table) -> None:
    arrow = pyarrow.table(table)
    frame = polars.DataFrame(table)
    assert arrow.num_rows == len(table) == frame.height
    assert arrow.column_names == table.column_names == frame.columns
    for name in table.column_names:
        assert arrow[name].to_pylist() == table.column(name) == frame[name].to_list()
    arrow.validate(full=True)
    by_pandas = pandas.DataFrame(arrow.to_pandas())
    assert by_pandas["value"].sum() == pytest.approx(sum(table.column("value")))


def test_types_and_nulls_arrive(table: scxlab.Table) -> None:
    arrow = pyarrow.table(table)
    assert arrow.schema.field("counts").type == pyarrow.bool_()
    assert arrow.schema.field("seed").type == pyarrow.int64()
    assert arrow.schema.field("value").type == pyarrow.float64()
    hashes = arrow["object_hash"].to_pylist()
    schedulers = arrow["scheduler"].to_pylist()
    for scheduler, hash in zip(schedulers, hashes):
        assert (hash is None) == (scheduler == "eevdf")


def test_nothing_is_copied(table: scxlab.Table) -> None:
    first, second = pyarrow.table(table), pyarrow.record_batch(table)
    at = first.column_names.index("value")
    addresses = [
        first.column(at).chunk(0).buffers()[1].address,
        second.column(at).buffers()[1].address,
    ]
    assert addresses[0] == addresses[1]


def test_a_reader_keeps_the_memory() -> None:
    results = scxlab.run("hogs,tasks=3", "1n2c1t", duration="20ms")
    arrow = pyarrow.table(results.table())
    before = arrow.to_pydict()
    column = arrow["metric"]
    del results, arrow
    gc.collect()
    assert column.to_pylist() == before["metric"]


def test_an_unread_stream_is_released() -> None:
    table = scxlab.run("hogs", "1c", duration="5ms").tasks()
    for _ in range(100):
        table.__arrow_c_stream__()
        table.__arrow_c_array__()
    assert pyarrow.table(table).num_rows == len(table)


def test_an_unknown_column_is_said(table: scxlab.Table) -> None:
    with pytest.raises(KeyError, match="there are workload"):
        table.column("valu")
