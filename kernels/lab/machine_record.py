"""What ``python -m benchmarks.machine`` recorded, row by row, and the machine in a few numbers."""

from kernels.lab.roofline import recorded

KB, MB, GB = 2**10, 2**20, 2**30
SECTOR = 32  # bytes


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
    ``dram_tb_per_s``, the rate of a large copy; ``l2_tb_per_s``; ``ordinary_tflop_per_s``, multiply-adds in float32 without
    tensor cores, and ``instructions_per_s``, the same as instructions of warps; ``ghz``, the clock of a multiprocessor that
    waits; ``program_ns``, what one more program costs its multiprocessor, and ``launch_us`` a launch in a graph.

    ``tensor_tflop_per_s`` is the machine's one peak of products: the best of the bfloat16 tiles that stay in place. (Hopper's
    data sheet has 989 TFLOP/s, which is 4,096 operations a clock on each of 132 multiprocessors at 1.83 GHz; under such load
    the clock sinks, and 900 are as many at 1.66 GHz. What a product from DRAM reaches is no peak: that is a kernel, too.)
    """
    return numbers_of(recorded(results))


def numbers_of(record):
    """The same of a record."""
    latency = {row["bytes"]: row["ns"] for row in rows_of(record, "latency")}
    l2 = [row["tb_per_s"] for row in l2_sets(record) if row["bytes"] < 20 * MB]
    cores = rows_of(record, "tensor_cores", dtype="bfloat16")
    ordinary = max(row["tflop_per_s"] for row in rows_of(record, "occupancy"))
    launch, many = (rows_of(record, "launches", what=f"empty kernel{more}")[0] for more in ("", ", 100000 programs"))
    count = record["device"]["multiprocessors"]
    return {
        "multiprocessors": count,
        "dram_ns": round(latency[GB]),
        "l2_ns": round(latency[8 * MB]),
        "l1_ns": round(latency[64 * KB]),
        "dram_tb_per_s": round(record["machine"]["copy_tb_per_s"], 2),
        "l2_tb_per_s": round(max(l2), 1),
        "tensor_tflop_per_s": 10 * round(max(row["tflop_per_s"] for row in cores) / 10),
        "ordinary_tflop_per_s": ordinary,
        "instructions_per_s": ordinary * 1e12 / (32 * 2),  # 32 lanes, each a product and a sum
        "ghz": round(rows_of(record, "clock")[0]["mhz"] / 1000, 2),
        "program_ns": round((many["graph_us"] - launch["graph_us"]) * 1e3 * count / 100_000),
        "launch_us": round(launch["graph_us"], 1),
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
