"""Faults for Hopper's kernel, a line of its source each: tests plant them on the model, a benchmark on the GPU."""

from kernels.conv_wgrad import hopper

FAULTS = {  # module, function, old text, new text; kind of finding, partition, text of the line, barrier
    "the loader waits for the wrong parity": (
        (
            hopper,
            "load_blocks",
            "free.index(stage), (count // STAGES + 1) & 1)",
            "free.index(stage), (count // STAGES) & 1)",
        ),
        ("deadlock", "load_blocks", "mbarrier.wait(ring.free.index(stage), (count // STAGES) & 1)", "free[0]"),
    ),
    "the multipliers wait for the wrong parity": (
        (hopper, "multiply_blocks", "count // STAGES & 1)", "(count // STAGES + 1) & 1)"),
        ("wrong phase", "multiply_blocks", "mbarrier.wait(ring.ready.index(stage)", "ready["),
    ),
    "a buffer is released while it is multiplied": (
        (hopper, "multiply_blocks", "free.index(before), pred=count > 0", "free.index(stage)"),
        ("early overwrite", "load_blocks", "which multiply_blocks signalled", "free[0]"),
    ),
    "the sum is stored while it is computed": (
        (hopper, "multiply_blocks", "acc = warpgroup_mma_wait(0, deps=(acc,))", "pass"),
        ("missing wait", "multiply_blocks", "values.to(where.dtype.element_ty)", ""),
    ),
    "fewer bytes are expected than come": (
        (hopper, "load_blocks", "+ GROUPS * x_desc.nbytes_per_cta", "+ x_desc.nbytes_per_cta"),
        ("byte count", "load_blocks", "mbarrier.expect", "ready["),
    ),
    "a multiplier reads the next buffer": (
        (hopper, "multiply_blocks", "ring.x.index(stage * GROUPS", "ring.x.index((stage + 1) % STAGES * GROUPS"),
        ("early read", "multiply_blocks", "warpgroup_mma", "ready["),
    ),
    "two buffers are swapped": (
        (hopper, "load_blocks", "ring.dy.index(stage)", "ring.dy.index((stage + 1) % STAGES)"),
        ("early read", "multiply_blocks", "starts the TMA load into dy_s", "ready["),
    ),
}
