"""Programs that know nothing of Isobath, over its file system and its store of zarr: pandas, pyarrow,
xarray and dask.array."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from isobath.fsspec import IsobathFileSystem
from isobath.zarr import IsobathStore

from conftest import SMALL

pandas = pytest.importorskip("pandas")
arrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.fs")

QUICK: Any = {**SMALL, "durability": "none"}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[IsobathFileSystem]:
    """Closes all stores that a test has opened by their names."""
    system = IsobathFileSystem(**QUICK)
    yield system
    system.close()


@pytest.fixture
def url(files: IsobathFileSystem, tmp_path: Path) -> str:
    return f"isobath://{tmp_path}/store.iso/tree"


@pytest.fixture
def arrays(tmp_path: Path) -> Iterator[IsobathStore]:
    with IsobathStore(tmp_path / "arrays.iso", options=QUICK) as store:
        yield store


def _frame() -> Any:
    cities = ["Ulm", "Jena", "Ulm"]
    return pandas.DataFrame({"day": [1, 1, 2], "city": cities, "rain": [0.5, 0.0, 2.25]})


def test_pandas_reads_and_writes_files(url: str, files: IsobathFileSystem) -> None:
    frame = _frame()
    frame.to_parquet(f"{url}/rain.parquet", storage_options=QUICK)
    frame.to_csv(f"{url}/rain.csv", index=False, storage_options=QUICK)
    names = [name.rsplit("/", 1)[1] for name in files.ls(url, detail=False)]
    assert names == ["rain.csv", "rain.parquet"]
    read = pandas.read_parquet(f"{url}/rain.parquet", storage_options=QUICK)
    pandas.testing.assert_frame_equal(read, frame)
    columns = pandas.read_parquet(f"{url}/rain.parquet", columns=["rain"], storage_options=QUICK)
    pandas.testing.assert_frame_equal(columns, frame[["rain"]])
    read = pandas.read_csv(f"{url}/rain.csv", storage_options=QUICK)
    pandas.testing.assert_frame_equal(read, frame)
    with pytest.raises(FileNotFoundError):
        pandas.read_parquet(f"{url}/snow.parquet", storage_options=QUICK)


def test_pyarrow_reads_and_writes_data_sets(url: str, files: IsobathFileSystem) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.Table.from_pandas(_frame())
    # Beside a file system it takes paths, not URLs.
    root = url.removeprefix("isobath://")
    dataset.write_dataset(
        table, f"{root}/rain", format="parquet", partitioning=["day"], filesystem=files
    )
    assert len(files.find(f"{root}/rain")) == 2
    rain = dataset.dataset(f"{root}/rain", partitioning=["day"], filesystem=files)
    assert rain.count_rows() == 3
    found = rain.to_table(filter=dataset.field("day") == 2).to_pydict()
    assert found == {"city": ["Ulm"], "rain": [2.25], "day": [2]}
    parquet.write_table(table, f"{root}/one.parquet", filesystem=files)
    assert parquet.read_table(f"{root}/one.parquet", filesystem=files).equals(table)
    assert files.exists(f"{url}/one.parquet")
    system = arrow.fs.PyFileSystem(arrow.fs.FSSpecHandler(files))
    with system.open_input_file(f"{root}/one.parquet") as file:
        assert file.read(4) == b"PAR1" and file.size() == files.size(f"{root}/one.parquet")


def _weather(xarray: Any) -> Any:
    values = numpy.arange(24, dtype="f4").reshape(4, 6)
    axes = {"day": range(4), "place": range(6)}
    return xarray.Dataset({"rain": (("day", "place"), values)}, axes, {"units": "mm"})


def test_xarray_reads_and_writes_zarr(
    arrays: IsobathStore, url: str, files: IsobathFileSystem
) -> None:
    xarray = pytest.importorskip("xarray")
    weather = _weather(xarray)
    first, later = weather.isel(day=slice(2)), weather.isel(day=slice(2, None))
    for place, options in [(arrays, None), (f"{url}/weather", QUICK)]:
        chunks = {"rain": {"chunks": (1, 3)}}
        first.to_zarr(place, encoding=chunks, consolidated=False, storage_options=options)
        later.to_zarr(place, append_dim="day", consolidated=False, storage_options=options)
        with xarray.open_zarr(place, consolidated=False, storage_options=options) as read:
            assert read["rain"].chunks == ((1, 1, 1, 1), (3, 3))
            xarray.testing.assert_identical(read.compute(), weather)
            assert float(read["rain"].sel(day=2, place=3)) == 15
    assert len([key for key in arrays.tree() if key.startswith(b"rain/c/")]) == 8


def test_dask_reads_and_writes_arrays(
    arrays: IsobathStore, url: str, files: IsobathFileSystem
) -> None:
    array = pytest.importorskip("dask.array")
    values = numpy.arange(10_000, dtype="i8").reshape(100, 100)
    lazy = array.from_array(values, chunks=(30, 50))
    array.to_zarr(lazy, arrays, component="numbers")
    array.to_zarr(lazy, f"{url}/numbers", storage_options=QUICK)
    for read in (
        array.from_zarr(arrays, component="numbers"),
        array.from_zarr(f"{url}/numbers", storage_options=QUICK),
    ):
        assert read.chunks == ((30, 30, 30, 10), (50, 50))
        assert (read.compute() == values).all()
        assert read[:, 7].sum().compute() == values[:, 7].sum()
    assert len([key for key in arrays.tree() if key.startswith(b"numbers/c/")]) == 8
