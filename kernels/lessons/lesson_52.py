"""What lesson 52 goes on with, made from notebooks/52_wgrad_on_hopper_and_blackwell.ipynb: see this package."""

def deal(warps, loader, BM, BN):
    launched = 65536 // (32 * (warps + 4)) // 8 * 8
    mine = ((warps + 4) * launched - 4 * loader) // warps // 8 * 8
    roomy = mine - BM * BN // (32 * warps) >= 32
    return launched, mine, roomy


def asks(tile, tiles_m, GROUPS, BM, BN, R, S):
    first_output = tile % tiles_m * BM
    numbers = [tile // tiles_m * GROUPS + group for group in range(GROUPS)]
    chunks = [(n % (R * S) // S, n % S, n // (R * S) * BN) for n in numbers]
    return first_output, chunks
