"""The laboratory: the command's measurements and simulations as DataFrames of pandas.

>>> from isobath import lab
>>> rows = lab.sim_clean(policy=["greedy", "mdc"], workload="zipf:0.99", device="1GiB")
>>> rows[["policy", "wamp_steady_ratio"]]

The functions run the command `isobath`: the one of `command=`, of the variable `ISOBATH_COMMAND`,
or on PATH. Keywords are its options: `sort_buffer=[0, 16]` is `--sort-buffer 0,16`. Numbers of
times are seconds. Needs `pip install isobath[lab]`.

`isobath.lab.figures` draws, `isobath.lab.sweep` runs grids on many machines.
"""

from isobath.lab._advice import Advice, advise
from isobath.lab._bench import Benchmark, bench, read_campaign
from isobath.lab._command import (
    CommandFailed,
    CommandNotFound,
    CommandRefused,
    LabError,
    documents,
    find,
)
from isobath.lab._drive import (
    Models,
    Profile,
    best_node_pages,
    model,
    predict,
    printed_lsm_us,
    probe,
    raw,
)
from isobath.lab._sim import sim_analysis, sim_clean, sim_overlay

__all__ = [
    "Advice",
    "Benchmark",
    "CommandFailed",
    "CommandNotFound",
    "CommandRefused",
    "LabError",
    "Models",
    "Profile",
    "advise",
    "bench",
    "best_node_pages",
    "documents",
    "find",
    "model",
    "predict",
    "printed_lsm_us",
    "probe",
    "raw",
    "read_campaign",
    "sim_analysis",
    "sim_clean",
    "sim_overlay",
]
