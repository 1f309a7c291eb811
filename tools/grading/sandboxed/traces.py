"""A recorded trace as tables of integers, and back; whoever reads it checks every entry."""

import numpy

from kernels.lab.accesses import Access, Launch, Operand, RaceInside

KINDS = ("load", "store", "atomic")
_COLUMNS = 10  # program (3), order, kind, tensor, bytes, sectors, line, source
MOST_ELEMENTS = 1 << 26
MOST_ACCESSES = 1 << 20  # of one call: each becomes an object in the judge


def pack(launches: list[Launch]) -> tuple[list[dict], list[numpy.ndarray]]:
    """What describes each launch, and its arrays: the accesses' numbers, elements hit, distances outside, and lengths."""
    described, arrays = [], []
    for launch in launches:
        names, sources = list(launch.operands), {}
        rows = numpy.zeros((len(launch.accesses), _COLUMNS + 2), dtype=numpy.int64)
        for row, access in zip(rows, launch.accesses):
            tensor = names.index(access.tensor) if access.tensor in launch.operands else -1
            source = sources.setdefault(access.source, len(sources))
            row[:] = (
                *access.program, access.order, KINDS.index(access.kind), tensor, access.nbytes, access.sectors,
                access.line, source, access.offsets.size, access.outside.size,
            )  # fmt: skip
        described.append(
            {
                "kernel": launch.kernel,
                "grid": list(launch.grid),
                "undefined": launch.undefined,
                "sources": list(sources),
                "executed": [[line, count] for line, count in launch.executed.items()],
                "largest_exponent": launch.largest_exponent,
                "races_inside": [
                    [
                        *race.program,
                        names.index(race.tensor),
                        race.element,
                        *map(KINDS.index, race.kinds),
                        *race.lines,
                        *map(sources.get, race.sources),
                    ]
                    for race in launch.races_inside
                ],
                "operands": [
                    [operand.name, list(operand.shape), list(operand.strides), operand.itemsize, operand.dtype]
                    for operand in launch.operands.values()
                ],
            }
        )
        arrays += [rows, *(_joined(launch.accesses, name) for name in ("offsets", "outside"))]
    return described, arrays


def _joined(accesses, name) -> numpy.ndarray:
    parts = [numpy.ravel(getattr(access, name)) for access in accesses]
    whole = numpy.concatenate(parts) if parts else numpy.empty(0, dtype=numpy.int64)
    small = not whole.size or (abs(whole) < 2**31).all()
    return whole.astype(numpy.int32 if small else numpy.int64)


def unpack(described, arrays: list[numpy.ndarray]) -> list[Launch]:
    """The launches again. Raises ``ValueError`` where an entry is not what ``pack`` writes."""
    _hold(isinstance(described, list) and len(arrays) == 3 * len(described), "as many arrays as launches")
    _hold(sum(len(rows) for rows in arrays[::3] if rows.ndim) <= MOST_ACCESSES, "fewer accesses")
    return [_launch(item, *arrays[3 * i : 3 * i + 3]) for i, item in enumerate(described)]


def _launch(item, rows, offsets, outside) -> Launch:
    _hold(isinstance(item, dict) and isinstance(item.get("kernel"), str), "a launch's name")
    grid, operands = item.get("grid"), item.get("operands")
    _hold(_integers(grid) and len(grid) <= 3, "a launch's grid")
    _hold(all(isinstance(item.get(key), list) for key in ("operands", "sources", "undefined", "races_inside")), "lists")
    _hold(all(isinstance(text, str) for text in item["sources"] + item["undefined"]), "lines of text")
    launch = Launch(item["kernel"][:100], tuple(grid), undefined=[text[:300] for text in item["undefined"][:100]])
    executed, largest = item.get("executed"), item.get("largest_exponent")
    _hold(isinstance(executed, list) and isinstance(largest, float), "counts of executed lines")
    for pair in executed:
        _hold(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str), "a line and its count")
        _hold(type(pair[1]) is int and 0 <= pair[1] < 2**40, "a line's count")
        launch.executed[pair[0][:300]] += pair[1]
    launch.largest_exponent = largest
    for operand in operands:
        _hold(isinstance(operand, list) and len(operand) == 5, "an operand")
        name, shape, strides, itemsize, dtype = operand
        _hold(isinstance(name, str) and isinstance(dtype, str) and itemsize in (1, 2, 4, 8), "an operand's name")
        _hold(_integers(shape) and _integers(strides) and len(shape) == len(strides) <= 8, "an operand's shape")
        elements = 1
        for size in shape:
            _hold(0 <= size <= MOST_ELEMENTS, "an operand's size")
            elements *= max(size, 1)
        _hold(elements <= MOST_ELEMENTS, "an operand's size")
        launch.operands[name[:100]] = Operand(name[:100], tuple(shape), tuple(strides), itemsize, dtype[:20])
    launch.races_inside += [_race(race, launch.operands, item["sources"]) for race in item["races_inside"]]
    _hold(rows.ndim == 2 and rows.shape[1] == _COLUMNS + 2 and rows.dtype == numpy.int64, "a table of accesses")
    _hold(offsets.ndim == outside.ndim == 1, "lists of elements")
    names, first, last = list(launch.operands), 0, 0
    sizes = [int(numpy.prod(operand.shape)) for operand in launch.operands.values()]
    for row in rows.tolist():
        *program, order, kind, tensor, nbytes, sectors, line, source, hits, misses = row
        _hold(0 <= kind < 3 and -1 <= tensor < len(names) and 0 <= source < len(item["sources"]), "an access")
        _hold(hits >= 0 and misses >= 0, "an access's lengths")
        hit, miss = offsets[first : first + hits], outside[last : last + misses]
        first, last = first + hits, last + misses
        _hold(len(hit) == hits and len(miss) == misses, "as many elements as an access says")
        if hits:
            _hold(tensor >= 0 and int(hit.min()) >= 0 and int(hit.max()) < sizes[tensor], "elements of the tensor")
        launch.accesses.append(
            Access(
                launch.kernel,
                tuple(program),
                order,
                KINDS[kind],
                names[tensor] if tensor >= 0 else None,
                hit.astype(numpy.int64),
                miss.astype(numpy.int64),
                nbytes,
                sectors,
                line,
                item["sources"][source][:300],
            )  # fmt: skip
        )
    return launch


def _race(race, operands: dict[str, Operand], sources: list[str]) -> RaceInside:
    _hold(_integers(race) and len(race) == 11, "a race's numbers")
    *program, tensor, element, one, other, line, later, source, text = race
    _hold(0 <= tensor < len(operands) and 0 <= one < 3 and 0 <= other < 3, "a race's tensor and kinds")
    name = list(operands)[tensor]
    _hold(0 <= element < numpy.prod(operands[name].shape), "an element of a race's tensor")
    _hold(0 <= source < len(sources) and 0 <= text < len(sources), "a race's lines")
    both = sources[source][:300], sources[text][:300]
    return RaceInside(tuple(program), name, element, (KINDS[one], KINDS[other]), (line, later), both)


def _integers(value) -> bool:
    return isinstance(value, list) and all(type(n) is int and abs(n) < 2**62 for n in value)


def _hold(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"the trace is not one: it needs {what}")
