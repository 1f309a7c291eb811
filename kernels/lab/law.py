"""The law of time: a kernel takes as long as what it waits for most.

Each resource of a machine has a rate: it serves so much in a second. A kernel wants some amount of each, and cannot be done
before the slowest of them is. A roofline is this law of two resources, bytes and products.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

from kernels.common.lines import joined, wrapped
from kernels.lab.machine_record import SECTOR, numbers_of
from kernels.lab.roofline import recorded

#: What no benchmark measures, by the CUDA programming guide (compute capability 8.0 to 9.0), a clock and multiprocessor:
#: shared memory serves one turn, of 32 banks with 4 bytes each; special functions (2^x, log2, 1/x, ...) have 16 results.
TURNS, SPECIAL_FUNCTIONS = 1, 16


class Rate(NamedTuple):
    """What a resource serves in a second, and the figure that it comes from."""

    resource: str
    per_second: float
    figure: str


@dataclass(frozen=True)
class Prediction:
    """``seconds`` by the law, and the resource that they are waited for; ``times``, the seconds of each resource."""

    times: dict[str, float]

    @property
    def seconds(self) -> float:
        """The longest of the times."""
        return max(self.times.values())

    @property
    def by(self) -> str:
        """The resource that takes them."""
        return max(self.times, key=self.times.get)


def predict(
    machine="machine", *, bytes=0, sectors=0, turns=0, instructions=0, special_functions=0, products=0,
    chain=(), programs=0, launches=0,
) -> Prediction:  # fmt: skip
    """Print how long each resource takes for what a kernel wants of it; the longest of these times is the prediction.

    t = max over resources of (amount / rate), and of steps × latency. What is left out is not waited for.

    machine: name of a record of ``benchmarks.machine`` in ``benchmarks/results``, or a path to one.
    bytes: distinct bytes that are read and written. sectors: 32-byte sectors that L2 is asked for: those that
        ``trace`` counts, less what L1 still holds. turns: turns of shared memory, conflicts counted. instructions: of warps,
        as often as they run. special_functions: numbers that go through 2^x and the like. products: operations of tensor
        cores, two a multiply-add.
    chain: ``(steps, ns)`` for steps of which each waits ns for the one before; of several kinds, a list of such pairs.
    programs, launches: how many are started; launches, as in a CUDA graph.

    Returns a ``Prediction``: ``seconds``, ``by`` which resource, ``times`` of each; ``ladder`` takes it. Raises
    ``ValueError`` where no amount is given, one is negative, or the machine's record has no rate for it.
    """
    amounts = {"bytes": bytes, "sectors": sectors, "turns": turns, "instructions": instructions}
    amounts |= {
        "special_functions": special_functions,
        "products": products,
        "programs": programs,
        "launches": launches,
    }
    record = _of_its_machine(recorded(machine))
    known, steps = rates(record), _steps(chain)
    found = law(known, steps, **amounts)
    print(_about(record))
    figures = {
        known[name].resource: f"{amount:,.0f} at {known[name].figure}" for name, amount in amounts.items() if amount
    }
    figures["chain"] = " + ".join(f"{count:,} steps of {ns:,.4g} ns" for count, ns in steps)
    for resource, seconds in found.times.items():
        print(_line(resource, seconds, figures[resource]))
    print(_line("predicted", found.seconds, found.by))
    return found


def law(rates: dict[str, Rate], chain: Iterable[tuple[float, float]] = (), **amounts: float) -> Prediction:
    """The same from rates, without a word; chain: pairs of steps and ns."""
    for name, amount in amounts.items():
        if not isinstance(amount, Real) or amount < 0:
            raise ValueError(f"{name} is {amount!r}: it must be a number, not negative")
        if amount and name not in rates:
            raise ValueError(f"{name} is {amount!r}, but this record has rates of {', '.join(rates)} alone")
    times = {rates[name].resource: amount / rates[name].per_second for name, amount in amounts.items() if amount}
    if latency := sum(steps * ns for steps, ns in chain):
        times["chain"] = latency / 1e9
    if not times:
        raise ValueError("nothing is given that a kernel could wait for: bytes, products, chain, ...")
    return Prediction(times)


def rates(record: dict) -> dict[str, Rate]:
    """What the machine of a record serves, by the names that ``predict`` has for the amounts.

    A machine has one set of rates, whichever benchmark asks: those of ``benchmarks.machine``. On a GPU where that has not run
    there are two: the copy and the large product that every benchmark times in its own run.
    """
    record = _of_its_machine(record)
    if "device" not in record:
        copy, product = record["machine"]["copy_tb_per_s"], record["machine"]["matmul_tflop_per_s"]
        return {
            "bytes": Rate("distinct bytes", copy * 1e12, f"{copy:.2f} TB/s, a large copy"),
            "products": Rate("products", product * 1e12, f"{product:.0f} TFLOP/s, a large matrix product"),
        }
    known = numbers_of(record)
    count, clock = known["multiprocessors"], known["ghz"] * 1e9
    peak = known["tensor_tflop_per_s"] * 1e12
    found = {
        "bytes": ("distinct bytes", known["dram_tb_per_s"] * 1e12, f"{known['dram_tb_per_s']} TB/s, a large copy"),
        "sectors": ("requested sectors", known["l2_tb_per_s"] * 1e12 / SECTOR, f"{known['l2_tb_per_s']} TB/s, from L2"),
        "turns": ("banks", TURNS * count * clock, f"{TURNS} a clock each, vendor's guide"),
        "instructions": (
            "issue slots",
            known["instructions_per_s"],
            f"{known['instructions_per_s'] / count / clock:.2f} a clock each, multiply-adds",
        ),
        "special_functions": (
            "special functions",
            SPECIAL_FUNCTIONS * count * clock,
            f"{SPECIAL_FUNCTIONS} a clock each, vendor's guide",
        ),
        "products": ("products", peak, f"{peak / 1e12:.0f} TFLOP/s, {peak / count / clock:,.0f} a clock each"),
        "programs": (
            "programs",
            count / known["program_ns"] * 1e9,
            f"{known['program_ns']} ns each on a multiprocessor",
        ),
        "launches": ("launches", 1e6 / known["launch_us"], f"{known['launch_us']} µs each, in a graph"),
    }
    return {name: Rate(*rate) for name, rate in found.items()}


def _of_its_machine(record: dict) -> dict:
    """What ``benchmarks.machine`` recorded on a record's GPU, or the record itself where it has not run there."""
    known = recorded("machine")
    alike = "device" not in record and record["machine"]["gpu"] == known["machine"]["gpu"]
    return known if alike else record


def _steps(chain) -> list[tuple[float, float]]:
    """A chain as a list of pairs."""
    pairs = chain if isinstance(chain, list) else [chain] if chain != () else []
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(x, Real) and x >= 0 for x in pair)):
            raise ValueError(f"chain is {chain!r}: it must be (steps, ns), or a list of such pairs")
    return pairs


def _about(record: dict) -> str:
    """The machine, whose multiprocessors' own rates are those of ``each``, and the date of the record."""
    machine, own = record["machine"], ""
    if "device" in record:
        known = numbers_of(record)
        own = f"{known['multiprocessors']} multiprocessors at {known['ghz']} GHz, "
    return f"{machine['gpu']}, {own}{machine['date']}"


def _line(resource: str, seconds: float, why: str) -> str:
    """A resource, its time and what that is made of, in columns."""
    line = f"{resource:<18}{1e3 * seconds:>7.3g} ms  "
    return wrapped(line + joined(r"\S+ steps of \S+ ns( \+)?|\S+ a clock each", why), len(line))
