"""A recorded trace as tables of integers, and back. Whoever wrote it, it comes out as launches or as a ``ValueError``."""

import math

import numpy

from kernels.lab.accesses import Access, Launch, Operand, RaceInside

KINDS = ("load", "store", "atomic")
_COLUMNS = 12  # program (3), order, kind, tensor, bytes, sectors, line, source, elements hit, and outside
MOST_ELEMENTS = 1 << 26  # of one tensor
MOST_ACCESSES = 1 << 20  # of one call: each becomes an object in the judge


def pack(launches: list[Launch]) -> tuple[list[dict], list[numpy.ndarray]]:
    """What describes each launch, and its arrays: the accesses' numbers, the elements that they hit, distances outside."""
    described, arrays = [], []
    for launch in launches:
        names, sources = list(launch.operands), {}

        def source(text, sources=sources):
            return sources.setdefault(text, len(sources))

        rows = [
            (
                *one.program, one.order, KINDS.index(one.kind), names.index(one.tensor) if one.tensor in names else -1,
                one.nbytes, one.sectors, one.line, source(one.source), one.offsets.size, one.outside.size,
            )
            for one in launch.accesses
        ]  # fmt: skip
        races = [[*race[:3], list(map(KINDS.index, race.kinds)), race.lines, race.sources] for race in launch.races_inside]
        operands = [[one.name, one.shape, one.strides, one.itemsize, one.dtype] for one in launch.operands.values()]
        described.append(
            {
                "kernel": launch.kernel, "grid": list(launch.grid), "undefined": launch.undefined, "sources": list(sources),
                "executed": launch.executed, "largest_exponent": launch.largest_exponent, "races_inside": races,
                "operands": operands,
            }
        )  # fmt: skip
        arrays.append(numpy.array(rows, dtype=numpy.int64).reshape(-1, _COLUMNS))
        arrays += [_joined(launch.accesses, name) for name in ("offsets", "outside")]
    return described, arrays


def _joined(accesses, name) -> numpy.ndarray:
    parts = [numpy.ravel(getattr(access, name)) for access in accesses]
    whole = numpy.concatenate(parts) if parts else numpy.empty(0, dtype=numpy.int64)
    small = not whole.size or (abs(whole) < 2**31).all()
    return whole.astype(numpy.int32 if small else numpy.int64)


def unpack(described, arrays: list[numpy.ndarray]) -> list[Launch]:
    """The launches again. Raises ``ValueError`` where they are none."""
    if sum(len(rows) for rows in arrays[::3]) > MOST_ACCESSES:
        raise ValueError("a trace has fewer accesses")
    try:
        return [_launch(item, *arrays[3 * i : 3 * i + 3]) for i, item in enumerate(described)]
    except (TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"this is no trace: {error}") from None


def _launch(item, rows, offsets, outside) -> Launch:
    launch = Launch(_text(item["kernel"]), _numbers(item["grid"]), undefined=[_text(one) for one in item["undefined"][:100]])
    launch.executed.update({_text(line): int(count) for line, count in item["executed"].items()})
    launch.largest_exponent = float(item["largest_exponent"])
    for name, shape, strides, itemsize, dtype in item["operands"]:
        operand = Operand(_text(name), _numbers(shape), _numbers(strides), int(itemsize), _text(dtype))
        if not 0 <= math.prod(operand.shape) <= MOST_ELEMENTS or len(operand.shape) != len(operand.strides):
            raise ValueError(f"{operand} is no tensor of a call")
        launch.operands[operand.name] = operand
    names, sizes = [*launch.operands, None], [math.prod(one.shape) for one in launch.operands.values()] + [0]
    sources = list(map(_text, item["sources"]))
    for program, tensor, element, kinds, lines, texts in item["races_inside"]:
        places = names.index(tensor), int(element)
        kinds, lines, texts = tuple(KINDS[kind] for kind in kinds), _numbers(lines), tuple(map(_text, texts))
        if not 0 <= places[1] < sizes[places[0]] or not len(kinds) == len(lines) == len(texts) == 2:
            raise ValueError("this is no race inside a program")
        launch.races_inside.append(RaceInside(_numbers(program), tensor, places[1], kinds, lines, texts))
    first = last = 0
    for *program, order, kind, tensor, nbytes, sectors, line, source, hits, misses in rows.tolist():
        hit, miss = offsets[first : first + hits].astype(numpy.int64), outside[last : last + misses].astype(numpy.int64)
        first, last = first + hits, last + misses
        if len(hit) != hits or len(miss) != misses or hits and not 0 <= hit.min() <= hit.max() < sizes[tensor]:
            raise ValueError("an access reaches what its tensor does not have")
        made = tuple(program), order, KINDS[kind], names[tensor], hit, miss, nbytes, sectors, line, sources[source]
        launch.accesses.append(Access(launch.kernel, *made))
    return launch


def _numbers(given) -> tuple[int, ...]:
    return tuple(map(int, given))


def _text(given: str) -> str:
    return given[:300].partition("\n")[0]
