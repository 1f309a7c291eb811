"""The course's drawings: one function a figure, each made for an idea, all in one visual language.

>>> from kernels.lab import drawings
>>> drawings.machine(lit="shared memory")   # the last line of a cell: one line in the notebook, the code here

A drawing is a figure with ``alt`` (what it looks like, stored beside the image for whoever cannot see it). One that
shows a process is a filmstrip: its ``slider()`` steps through the same frames where a kernel runs.
"""

from kernels.lab.drawings.attention_backward import attention_backward
from kernels.lab.drawings.block_masks import block_lists, block_walks
from kernels.lab.drawings.blocks import address_tile, memory_line, padding, programs, stripes, tile_sectors, views, walk
from kernels.lab.drawings.conv1d import (
    conv_band,
    conv_banks,
    conv_state,
    conv_walk,
    conv_window,
    conv_words,
    word_bits,
)
from kernels.lab.drawings.conv1d_backward import conv_sums, conv_who_saw
from kernels.lab.drawings.conv_wgrad import split_k, wgrad_tiles
from kernels.lab.drawings.im2col import im2col_rows
from kernels.lab.drawings.machine import machine, program_on_threads
from kernels.lab.drawings.matmul import matmul_tile, pipelined, tile_order
from kernels.lab.drawings.matmul_measured import matmul_roofline, matmul_sizes, matmul_sweeps
from kernels.lab.drawings.online_softmax import online_softmax
from kernels.lab.drawings.pipelines import happens_before, ping_pong, registers, ring, ring_depths
from kernels.lab.drawings.recurrence import handed_on, packed_wall, state_step, step_chain
from kernels.lab.drawings.recurrence_backward import (
    FORMULAS,
    chunk_gradients,
    gate_errors,
    gate_parts,
    gradient_step,
    slopes,
    trainings,
    two_walks,
    undone_steps,
)
from kernels.lab.drawings.score_mods import score_mod_lines, score_mod_tile

__all__ = [
    "FORMULAS",
    "address_tile",
    "attention_backward",
    "block_lists",
    "block_walks",
    "chunk_gradients",
    "conv_band",
    "conv_banks",
    "conv_state",
    "conv_sums",
    "conv_walk",
    "conv_who_saw",
    "conv_window",
    "conv_words",
    "gate_errors",
    "gate_parts",
    "gradient_step",
    "handed_on",
    "happens_before",
    "im2col_rows",
    "machine",
    "matmul_roofline",
    "matmul_sizes",
    "matmul_sweeps",
    "matmul_tile",
    "memory_line",
    "online_softmax",
    "packed_wall",
    "padding",
    "ping_pong",
    "pipelined",
    "program_on_threads",
    "programs",
    "registers",
    "ring",
    "ring_depths",
    "score_mod_lines",
    "score_mod_tile",
    "slopes",
    "split_k",
    "state_step",
    "step_chain",
    "stripes",
    "tile_order",
    "tile_sectors",
    "trainings",
    "two_walks",
    "undone_steps",
    "views",
    "walk",
    "wgrad_tiles",
    "word_bits",
]
