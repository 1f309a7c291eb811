"""Lesson 52's turns: registers dealt out twice, and what a loader asks for. The third is in ``by_model.py``."""

from kernels.check.lessons import Turn, as_given, listed

LAUNCHED = "65536 // (32 * (warps + 4)) // 8 * 8"
KEPT = "((warps + 4) * launched - 4 * loader) // warps // 8 * 8"
CHUNK = "n % (R * S) // S, n % S, n // (R * S) * BN"
SUMS = "each thread's sums are BM · BN / (32 · warps) registers, and 32 must be left"
TURNS = {
    "52-deal": Turn(
        "registers dealt out twice",
        arguments=as_given,
        cases=listed(
            "warps loader BM BN",
            (8, 24, 192, 192),  # the sums leave 32 and more of what there is afterwards, and less of what the launch gave
            *((12, 32, 128, 384), (8, 24, 128, 256), (8, 40, 128, 256)),
            (8, 72, 128, 256),  # here a share of a few registers, as of three warps for four, is not rounded away
            *((8, 32, 128, 256), (12, 32, 192, 256), (8, 24, 64, 896), (16, 24, 128, 512)),
        ),
        slips=(
            (LAUNCHED, LAUNCHED[:-9], "registers come in eights"),
            ("(32 * (warps + 4))", "(32 * warps)", "the loader's four warps get their share at the launch, too"),
            ("(32 * (warps + 4))", "(warps + 4)", "a warp has 32 threads"),
            (KEPT, KEPT[:-9], "registers come in eights, here as well"),
            ("(warps + 4) * launched - ", "2048 - ", "what the launch did not take cannot be dealt out afterwards"),
            ("4 * loader", "loader", "the loader's one warp counts as four"),
            ("4 * loader", "3 * loader", "all four of the loader's warps keep registers"),
            (KEPT, "launched", "the loader gives back what it does not keep"),
            (" >= 32", " > 0", SUMS),
            (" >= 32", " > 32", "32 left are enough"),
            (
                "mine - BM",
                "launched - BM",
                "a multiplying thread has more than at the launch: what it has afterwards counts",
            ),
            ("mine - BM * BN // (32 * warps) >= 32", "True", SUMS),
        ),
    ),
    "52-asks": Turn(
        "what a loader asks for",
        arguments=as_given,
        cases=listed(
            "tile tiles_m GROUPS BM BN R S",
            *((5, 2, 3, 128, 64, 3, 2), (0, 3, 2, 64, 128, 2, 3), (7, 3, 2, 64, 128, 2, 3), (13, 2, 3, 128, 64, 1, 1)),
        ),
        slips=(
            ("tile % tiles_m * BM", "tile // tiles_m * BM", "rows run fastest: the row is the remainder"),
            ("tile % tiles_m * BM", "tile % tiles_m", "a row of tiles is BM channels: so many times BM"),
            ("tile // tiles_m * GROUPS", "tile * GROUPS", "tiles_m tiles have the same chunks: divide by it first"),
            ("tiles_m * GROUPS", "tiles_m", "each tile has GROUPS chunks, so the next one's begin GROUPS further on"),
            (CHUNK, "n % (R * S) // R, n % R, n // (R * S) * BN", "a row of the filter has S taps, not R"),
            (CHUNK, "n % S, n % (R * S) // S, n // (R * S) * BN", "row and column are exchanged: columns run faster"),
            ("(R * S) * BN", "(R * S)", "a chunk is BN channels: so many times BN"),
            (CHUNK, "n // (R * S), n % S, n % (R * S) * BN", "taps run fastest, then the channels"),
        ),
    ),
}
