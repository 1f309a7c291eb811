"""Lesson 52's "Your turn" cells: registers dealt out twice, what a loader asks for, a storer behind a ring of sums."""

from kernels.check.steps import described, step
from kernels.check.steps.helpers import said_by_model


@step("52-deal", "registers dealt out twice")
def deal(answer):
    """Two and three groups, loaders that keep more or less, and tiles that leave room, just so, or don't."""
    for warps, loader, BM, BN in (
        (12, 32, 128, 384),
        (8, 24, 128, 256),
        (8, 40, 128, 256),
        (8, 72, 128, 256),  # here a share of a few registers, as of three warps for four, is not rounded away
        (8, 32, 128, 256),
        (12, 32, 192, 256),
        (8, 24, 64, 896),
        (16, 24, 128, 512),
    ):
        got = answer(warps, loader, BM, BN)
        if not isinstance(got, (tuple, list)) or len(got) != 3:
            return f"It must return launched, mine and roomy, and returns {described(got)}: {got!r}"
        everybody = warps + 4
        launched = 65536 // (32 * everybody) // 8 * 8
        mine = (everybody * launched - 4 * loader) // warps // 8 * 8
        sums = BM * BN // (32 * warps)
        case = f"With {warps} warps to multiply and a loader that keeps {loader}"
        if got[0] != launched:
            why = {
                65536 // (32 * everybody): "Registers come in eights",
                65536 // (32 * warps) // 8 * 8: "The loader's four warps get their share at the launch, too",
                65536 // everybody // 8 * 8: "A warp has 32 threads",
            }.get(got[0], "All of the launch's warps share 65,536")
            return f"{case}, the launch gives each thread {got[0]!r}, expected {launched}. {why}"
        if got[1] != mine:
            why = {
                (everybody * launched - 4 * loader) // warps: "Registers come in eights, here as well",
                (65536 // 32 - 4 * loader) // warps // 8 * 8: "What the launch did not take cannot be dealt out afterwards",
                (everybody * launched - loader) // warps // 8 * 8: "The loader's one warp counts as four",
                launched: "The loader gives back what it does not keep",
            }.get(got[1], "What the launch took, without what the loader keeps, goes to the multiplying warps")
            return f"{case}, a multiplying thread has {got[1]!r}, expected {mine}. {why}"
        if bool(got[2]) != (mine - sums >= 32):
            why = "32 left are enough" if mine - sums == 32 else f"each thread's sums are {sums} registers"
            return (
                f"{case}, a tile of {BM} x {BN} leaves a thread {mine - sums} of {mine}, and you say that this is "
                f"{'enough' if got[2] else 'too little'}: {why}"
            )
    return ""


@step("52-asks", "what a loader asks for")
def asks(answer):
    """Filters that are not square, rows of tiles that the chunks do not divide, tiles of the first and of later rows."""
    for tile, tiles_m, GROUPS, BM, BN, R, S in (
        (5, 2, 3, 128, 64, 3, 2),
        (0, 3, 2, 64, 128, 2, 3),
        (7, 3, 2, 64, 128, 2, 3),
        (13, 2, 3, 128, 64, 1, 1),
    ):
        got = answer(tile, tiles_m, GROUPS, BM, BN, R, S)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            return f"It must return first_output and chunks, and returns {described(got)}: {got!r}"
        first, right = tile % tiles_m * BM, _chunks(tile // tiles_m * GROUPS, GROUPS, BN, R, S)
        case = f"For tile {tile} of rows of {tiles_m}, {GROUPS} groups and a filter of {R} x {S}"
        if got[0] != first:
            why = {
                tile // tiles_m * BM: "Rows run fastest: the row is the remainder",
                tile % tiles_m: "That is the number of the tile's row, which begins so many times BM channels on",
            }.get(got[0], "Rows run fastest, BM channels each")
            return f"{case}, the first output channel is {got[0]!r}, expected {first}. {why}"
        try:
            chunks = [tuple(chunk) for chunk in got[1]]
        except TypeError:
            return f"chunks must be a list of (r, s, first input channel), and is {described(got[1])}"
        if chunks != right:
            known = (
                (_chunks(tile // tiles_m * GROUPS, GROUPS, BN, S, R), "A row of the filter has S taps, not R"),
                ([(r, s, c // BN) for r, s, c in right], "A chunk is BN channels: so many times BN"),
                ([(s, r, c) for r, s, c in right], "Row and column are exchanged: the column runs faster"),
                (
                    _chunks(tile * GROUPS, GROUPS, BN, R, S),
                    "Tiles that lie in the same GROUPS chunks differ in their rows alone: divide by tiles_m first",
                ),
                (
                    _chunks(tile // tiles_m, GROUPS, BN, R, S),
                    "Each tile has GROUPS chunks, so the next one's begin GROUPS further on",
                ),
            )
            why = next((f". {why}" for wrong, why in known if chunks == wrong), ". Taps run fastest, then the channels")
            return f"{case}, the chunks are {chunks}, expected {right}{why}"
    return ""


def _chunks(first, GROUPS, BN, R, S):
    """``(r, s, first input channel)`` of the chunks from number ``first`` on."""
    return [(n % (R * S) // S, n % S, n // (R * S) * BN) for n in range(first, first + GROUPS)]


#: Kind of finding -> what in this storer leads to it, in the order in which they are asked for.
CAUSES = {
    "wrong phase": "The storer waits for another round than its own, or signals for another accumulator: the slot is "
    "tile % SUMS, for both barriers, and the parity turns once in SUMS tiles",
    "early read": "Sums are read before they are complete: wait for the phase of this round",
    "barrier": "The arrival goes to a barrier that waits for somebody else's: the storer says that the sums are *stored*",
    "early overwrite": "An accumulator is filled again while it is read: tell whoever fills it, on its own barrier",
    "deadlock": "Nobody can go on: the multiplier waits to be told that an accumulator is stored",
}


@step("52-store", "a storer behind a ring of sums")
def store(run):
    """Five tiles through one, two and three accumulators, whatever the order of events."""
    for SUMS in (1, 2, 3):
        try:
            result, right = run(SUMS)
        except RuntimeError as stopped:
            if "index" not in str(stopped):
                raise
            accumulators = f"{SUMS} accumulator{'s' * (SUMS > 1)}"
            return f"With {accumulators} there is none of the number that you ask for: how many there are is SUMS"
        if said := said_by_model(result, right, CAUSES, f"{SUMS} accumulator{'s' * (SUMS > 1)}"):
            return said
    return ""
