"""What this GPU is, in numbers: latencies, rates, waves and the price of a launch: ``python -m benchmarks.machine``.

Each function whose name is in ``MEASUREMENTS`` is one experiment of lesson 03 or 04 and gives its rows. Nothing is tuned:
the kernels are the smallest that isolate one property of the machine, and each row says how it was launched.
"""

import argparse
import re

import torch

from benchmarks import harness
from benchmarks.experiments.clocks import clock
from benchmarks.experiments.common import warm_up
from benchmarks.experiments.launches import add_sizes, launches, puzzle
from benchmarks.experiments.memory import bytes_a_load, bytes_in_flight, latency, strides, working_set
from benchmarks.experiments.products import matmul_tiles, tensor_cores
from benchmarks.experiments.schedule import occupancy, schedule, waves
from kernels import runtime


def device():
    """The sizes that the driver reports."""
    given = torch.cuda.get_device_properties(runtime.device)
    fields = {
        "multiprocessors": "multi_processor_count",
        "warp_size": "warp_size",
        "threads_a_multiprocessor": "max_threads_per_multi_processor",
        "registers_a_multiprocessor": "regs_per_multiprocessor",
        "shared_bytes_a_multiprocessor": "shared_memory_per_multiprocessor",
        "shared_bytes_a_program": "shared_memory_per_block_optin",
        "l2_bytes": "L2_cache_size",
        "dram_bytes": "total_memory",
    }
    return {name: getattr(given, field, None) for name, field in fields.items()}


MEASUREMENTS = {
    f.__name__: f
    for f in (clock, puzzle, latency, bytes_in_flight, working_set, bytes_a_load, strides, tensor_cores, matmul_tiles, waves,
              schedule, occupancy, launches, add_sizes)
}  # fmt: skip


def measure(case, machine, rounds):
    """The rows of one measurement; ``machine`` and ``rounds`` are what every benchmark is given."""
    torch.manual_seed(0)
    warm_up()
    return MEASUREMENTS[case]()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=harness.RESULTS, help="folder for machine.json")
    parser.add_argument("--only", default="", help="only the measurements this regular expression is found in")
    given = parser.parse_args()
    harness.require_gpu()
    machine = harness.machine()
    selected = [name for name in MEASUREMENTS if re.search(given.only, name)]
    rows, failed = [], []
    measured = harness.measure_all("benchmarks.machine", selected, machine, 1)
    for name, found, error in harness.progress(measured, total=len(selected), desc="machine"):
        rows += found
        if error:
            failed.append({"measurement": name, "error": error})
        print(name, error or f"{len(found)} rows", flush=True)
        for row in found:
            print("  ", {key: value for key, value in row.items() if key not in ("measurement", "ran")})
    record = {"machine": machine, "device": device(), "rows": rows, "failed": failed}
    print(machine, harness.write("machine", record, given.out))


if __name__ == "__main__":
    main()
