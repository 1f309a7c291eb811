"""Plausible wrong answers to lesson 03's turns, and what their diagnosis must say."""

IN_FLIGHT = "def programs(block, loads, element_bytes, latency_ns, tb_per_s):\n    "
ROOMS = """
def best_warps(registers, shared_bytes):
    def resident(warps):
        by_registers = 65536 // (32 * warps * registers)
        by_shared_memory = 228 * 1024 // (shared_bytes + 1024)
        return {}

    return max((1, 2, 4, 8, 16), key=resident)
"""
IDLE = """
def idle(M, N, tile_m, tile_n, multiprocessors=132):
    tiles = {}
    waves = math.ceil(tiles / multiprocessors)
    return {}
"""
RAGGED = "math.ceil(M / tile_m) * math.ceil(N / tile_n)"

WRONG = {
    "03-in-flight": [
        (
            IN_FLIGHT + "return math.ceil(1000 * latency_ns * tb_per_s / (block * element_bytes))",
            "loads of a program are under way together",
        ),
        (IN_FLIGHT + "return math.ceil(1000 * latency_ns * tb_per_s / (block * loads))", "a lane has 4 of them"),
        (IN_FLIGHT + "return math.ceil(latency_ns * tb_per_s / (block * loads * element_bytes))", "1,000 bytes"),
        (IN_FLIGHT + "return int(1000 * latency_ns * tb_per_s) // (block * loads * element_bytes)", "round up"),
    ],
    "03-rooms": [
        (ROOMS.format("min(2048 // (32 * warps), by_registers, by_shared_memory, 32)"), "You took the most programs"),
        (ROOMS.format("warps * min(2048 // (32 * warps), by_registers, by_shared_memory)"), "limit on programs"),
        (ROOMS.format("warps * min(2048 // (32 * warps), by_registers, 32)"), "limit on shared memory"),
        (
            ROOMS.format("warps * min(2048 // (32 * warps), by_registers, by_shared_memory, 32)").replace(
                "(1, 2, 4, 8, 16)", "(16, 8, 4, 2, 1)"
            ),
            "Of equals take the smallest",
        ),
        (ROOMS.format("warps * min(64 // warps, 65536 // (warps * registers), by_shared_memory, 32)"), "32 in a warp"),
        (
            ROOMS.format("warps * min(64 // warps, by_registers, 228 * 1024 // max(shared_bytes, 1), 32)"),
            "1 kB of shared memory more",
        ),
        (
            ROOMS.format("warps * min(64 // warps, by_registers, by_shared_memory, 32)").replace("8, 16)", "8)"),
            "16 warps for each program are a choice, too",
        ),
        (
            ROOMS.format("warps * min(64 / warps, by_registers, by_shared_memory, 32)").replace("//", "/"),
            "round each quotient down",
        ),
    ],
    "03-idle": [
        (IDLE.format(RAGGED, "1 - tiles % multiprocessors / multiprocessors"), "last wave alone"),
        (IDLE.format(RAGGED, "tiles / (waves * multiprocessors)"), "busy share"),
        (
            IDLE.format("math.ceil(M * N / (tile_m * tile_n))", "1 - tiles / (waves * multiprocessors)"),
            "round up along each axis",
        ),
        (IDLE.format(RAGGED, "1 - tiles / (tiles / multiprocessors * multiprocessors)"), "round the waves up"),
        (
            IDLE.format(RAGGED, "1 - tiles / ((tiles // multiprocessors + 1) * multiprocessors)"),
            "no further wave begins",
        ),
        (
            IDLE.format(RAGGED, "1 - tiles / (tiles // multiprocessors * multiprocessors)"),
            "A wave that is not full takes its time",
        ),
    ],
}
