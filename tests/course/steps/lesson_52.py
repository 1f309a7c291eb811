"""Wrong answers to lesson 52's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def deal(
    launched="65536 // (32 * (warps + 4)) // 8 * 8",
    mine="((warps + 4) * launched - 4 * loader) // warps // 8 * 8",
    roomy="mine - BM * BN // (32 * warps) >= 32",
):
    return f"""def deal(warps, loader, BM, BN):
    launched = {launched}
    mine = {mine}
    return launched, mine, {roomy}
"""


def asks(
    first="tile % tiles_m * BM",
    number="tile // tiles_m * GROUPS + group",
    chunk="n % (R * S) // S, n % S, n // (R * S) * BN",
):
    return f"""def asks(tile, tiles_m, GROUPS, BM, BN, R, S):
    numbers = [{number} for group in range(GROUPS)]
    return {first}, [({chunk}) for n in numbers]
"""


def store(slot="tile % SUMS", parity="tile // SUMS & 1", arrives="stored.index(slot)"):
    return f"""@gluon.jit
def store_tiles(c_ptr, sums, done, stored, tiles, M, N, SUMS: gl.constexpr):
    for tile in range(tiles):
        slot = {slot}
        mbarrier.wait(done.index(slot), {parity})
        acc = sums.index(slot).load()
        mbarrier.arrive({arrives}, count=1)
        store_tile(c_ptr, acc, tile * 64, 0, M, N, acc.type.layout)
"""


WRONG = {
    "52-deal": [
        (deal(launched="65536 // (32 * (warps + 4))"), "come in eights"),
        (deal(launched="65536 // (32 * warps) // 8 * 8"), "The loader's four warps"),
        (deal(launched="65536 // (warps + 4) // 8 * 8"), "A warp has 32 threads"),
        (deal(mine="((warps + 4) * launched - 4 * loader) // warps"), "here as well"),
        (deal(mine="(2048 - 4 * loader) // warps // 8 * 8"), "cannot be dealt out afterwards"),
        (deal(mine="((warps + 4) * launched - loader) // warps // 8 * 8"), "counts as four"),
        (deal(mine="((warps + 4) * launched - 3 * loader) // warps // 8 * 8"), "without what the loader keeps"),
        (deal(mine="launched"), "The loader gives back"),
        (deal(roomy="mine > BM * BN // (32 * warps)"), "you say that this is enough"),
        (deal(roomy="mine - BM * BN // (32 * warps) > 32"), "32 left are enough"),
        (deal(roomy="True"), "you say that this is enough"),
    ],
    "52-asks": [
        (asks(first="tile // tiles_m * BM"), "the row is the remainder"),
        (asks(first="tile % tiles_m"), "so many times BM"),
        (asks(number="tile * GROUPS + group"), "divide by tiles_m first"),
        (asks(number="tile // tiles_m + group"), "GROUPS further on"),
        (asks(chunk="n % (R * S) // R, n % R, n // (R * S) * BN"), "S taps, not R"),
        (asks(chunk="n % S, n % (R * S) // S, n // (R * S) * BN"), "exchanged"),
        (asks(chunk="n % (R * S) // S, n % S, n // (R * S)"), "so many times BN"),
        (asks(chunk="n // (R * S), n % S, n % (R * S) * BN"), "Taps run fastest"),
    ],
    "52-store": [
        (store(parity="(tile // SUMS + 1) & 1"), "another round than its own"),
        (store(parity="tile & 1"), "another round than its own"),
        (store(slot="tile % 2"), "how many there are is SUMS"),
        (store(slot="0"), "or signals for another accumulator"),
        (store(arrives="done.index(slot)"), "the multiplier waits to be told"),
        (store(arrives="stored.index(0)"), "or signals for another accumulator"),
    ],
}
