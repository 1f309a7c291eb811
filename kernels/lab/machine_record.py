"""What ``python -m benchmarks.machine`` recorded, row by row, and the machine in a few numbers."""

from kernels.lab.roofline import recorded

KB, MB, GB = 2**10, 2**20, 2**30


def rows(measurement: str, results="machine", **wanted) -> list[dict]:
    """The recorded rows of one measurement whose fields have the values in ``wanted``."""
    return rows_of(recorded(results), measurement, **wanted)


def rows_of(record, measurement, **wanted):
    """The same of a record."""
    found = [row for row in record["rows"] if row["measurement"] == measurement and "error" not in row]
    return [row for row in found if all(row[name] == value for name, value in wanted.items())]


def numbers(results="machine") -> dict:
    """The machine in a few numbers.

    ``multiprocessors``; ``dram_ns``, ``l2_ns`` and ``l1_ns``, the latencies of a walk among 1 GB, 8 MB and 64 kB;
    ``dram_tb_per_s``, the rate of a large copy; ``l2_tb_per_s``; ``tensor_tflop_per_s``, in bfloat16 on tiles that stay;
    ``matmul_tflop_per_s``, of a product of 8192³ from DRAM; ``ghz``, the clock.
    """
    return numbers_of(recorded(results))


def numbers_of(record):
    """The same of a record."""
    latency = {row["bytes"]: row["ns"] for row in rows_of(record, "latency")}
    l2 = [row["tb_per_s"] for row in l2_sets(record) if row["bytes"] < 20 * MB]
    cores = rows_of(record, "tensor_cores", dtype="bfloat16")
    return {
        "multiprocessors": record["device"]["multiprocessors"],
        "dram_ns": round(latency[GB]),
        "l2_ns": round(latency[8 * MB]),
        "l1_ns": round(latency[64 * KB]),
        "dram_tb_per_s": round(record["machine"]["copy_tb_per_s"], 2),
        "l2_tb_per_s": round(max(l2), 1),
        "tensor_tflop_per_s": 10 * round(max(row["tflop_per_s"] for row in cores) / 10),
        "matmul_tflop_per_s": round(record["machine"]["matmul_tflop_per_s"]),
        "ghz": round(rows_of(record, "clock")[0]["mhz"] / 1000, 2),
    }


def l2_sets(record):
    """The sets that are read round and round. Where a program has a single block, it stays in registers and says nothing."""
    found = rows_of(record, "working_set", caches="L2")
    return [row for row in found if row["bytes"] > found[0]["bytes"]]


def places(record) -> dict:
    """What ``drawings.machine`` writes at its places, as lines of text: size, latency, rate."""
    device, known = record["device"], numbers_of(record)
    return {
        "multiprocessors": device["multiprocessors"],
        "DRAM": (
            f"{device['dram_bytes'] / GB:.0f} GB",
            f"{known['dram_ns']} ns away",
            f"{known['dram_tb_per_s']:.1f} TB/s",
        ),
        "L2": (f"{device['l2_bytes'] / MB:.0f} MB", f"{known['l2_ns']} ns away", f"{known['l2_tb_per_s']:.1f} TB/s"),
        "shared memory": ("256 kB", f"{known['l1_ns']} ns away"),
        "registers": (f"{device['registers_a_multiprocessor'] * 4 // KB} kB", "no wait"),
        "tensor cores": (f"{known['tensor_tflop_per_s']} TFLOP/s", "all of them"),
    }
