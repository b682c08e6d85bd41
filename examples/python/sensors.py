"""A time series of sensor records, with range queries into pandas.

    pip install 'isobath[lab]'
    python examples/python/sensors.py sensors.iso --sensors 100 --hours 24

A key is the sensor's name and the time in nanoseconds, big-endian: a sensor's records are in order
beside each other, and a query of a span of time is one range. A value is a few numbers.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
from isobath import Store, Tree

#: Temperature, pressure, humidity.
VALUE = struct.Struct("<fff")
COLUMNS = ["temperature", "pressure", "humidity"]
TYPE = numpy.dtype([(name, "<f4") for name in COLUMNS])


def key(sensor: str, at: pandas.Timestamp) -> bytes:
    """The key of a record. The sign's bit is turned, so that times before 1970 come first."""
    return sensor.encode() + b"\0" + (at.value + (1 << 63)).to_bytes(8, "big")


def recorded(sensor: str, frame: pandas.DataFrame) -> Iterator[tuple[bytes, bytes]]:
    """The records of a frame whose index is time."""
    prefix = sensor.encode() + b"\0"
    times = frame.index.to_numpy().astype("datetime64[ns]").astype("i8")
    values = numpy.ascontiguousarray(frame[COLUMNS].to_numpy(dtype="<f4"))
    for at, row in zip(times.tolist(), values):
        yield prefix + (at + (1 << 63)).to_bytes(8, "big"), row.tobytes()


def between(tree: Tree, sensor: str, start: Any = None, stop: Any = None) -> pandas.DataFrame:
    """A sensor's records from `start` to before `stop`."""
    prefix = sensor.encode() + b"\0"
    first = prefix if start is None else key(sensor, pandas.Timestamp(start))
    last = sensor.encode() + b"\1" if stop is None else key(sensor, pandas.Timestamp(stop))
    times, values = [], []
    for found, value in tree.range(first, last):
        times.append(found[-8:])
        values.append(value)
    # One copy each, instead of an object for each number.
    stamps = numpy.frombuffer(b"".join(times), ">u8") ^ numpy.uint64(1 << 63)
    rows = numpy.frombuffer(b"".join(values), TYPE)
    index = pandas.DatetimeIndex(stamps.astype("i8").view("datetime64[ns]"), name="time")
    return pandas.DataFrame({name: rows[name] for name in COLUMNS}, index=index)


def latest(tree: Tree, sensor: str) -> pandas.Series | None:
    """The last record of a sensor: the end of its range."""
    stop = sensor.encode() + b"\1"
    for found, value in tree.range(sensor.encode() + b"\0", stop, reverse=True):
        at = pandas.Timestamp(int.from_bytes(found[-8:], "big") - (1 << 63))
        return pandas.Series(dict(zip(COLUMNS, VALUE.unpack(value))), name=at)
    return None


def sensors(tree: Tree) -> list[str]:
    """The names of all sensors, from one record of each."""
    names: list[str] = []
    start = b""
    while True:
        for found in tree.keys(start=start):
            names.append(found[:-9].decode())
            start = found[:-9] + b"\1"
            break
        else:
            return names


def measured(sensor: int, hours: float, per_second: float, seed: int) -> pandas.DataFrame:
    """Records as a sensor might send them."""
    draw = numpy.random.default_rng([seed, sensor])
    count = int(hours * 3600 * per_second)
    index = pandas.date_range(
        "2026-01-01", periods=count, freq=pandas.Timedelta(1 / per_second, "s")
    )
    days = numpy.arange(count) / per_second / 86400
    return pandas.DataFrame(
        {
            "temperature": 15 + 5 * numpy.sin(2 * numpy.pi * days) + draw.normal(0, 0.2, count),
            "pressure": 1013 + draw.normal(0, 0.05, count).cumsum(),
            "humidity": numpy.clip(60 + draw.normal(0, 1, count), 0, 100),
        },
        index=index,
    )


def main(arguments: list[str] | None = None) -> pandas.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path)
    parser.add_argument("--sensors", type=int, default=5)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--per-second", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with Store.open_or_create(given.store, pool_bytes=64 << 20) as store:
        tree = store.open_or_create_tree("sensors")
        begun = time.perf_counter()
        records = 0
        for number in range(given.sensors):
            frame = measured(number, given.hours, given.per_second, given.seed)
            # About a thousand records in each commit, as they would come.
            tree.update(recorded(f"sensor {number:03}", frame))
            records += len(frame)
        seconds = time.perf_counter() - begun
        print(f"{records} records written in {seconds:.1f} s, {records / seconds:,.0f} per second")
        begun = time.perf_counter()
        hour = between(tree, "sensor 001", "2026-01-01 01:00", "2026-01-01 02:00")
        seconds = time.perf_counter() - begun
        print(f"{len(hour)} records of an hour read in {seconds * 1000:.1f} ms")
        print(hour.resample("10min").mean())
        print("latest:", latest(tree, "sensor 001"), sep="\n")
        print(", ".join(sensors(tree)))
        # What is old goes: one range for each sensor.
        for name in sensors(tree):
            tree.remove_range(
                name.encode() + b"\0", key(name, pandas.Timestamp("2026-01-01 00:30"))
            )
        return hour


if __name__ == "__main__":
    main()
