"""A recording travels as data: what arrives leaves what the launcher left at home, and its texts are kernels."""

import json

import numpy
import pytest
import torch

from kernels.check import replay
from kernels.check.submission import Call, recorded, sources_of
from tools.grading import texts
from tools.grading.sandboxed import recordings, values
from tools.grading.sandboxed.room import Room

CELL = """
from __future__ import annotations
import math as m
from collections import namedtuple
from typing import Optional

import numpy as np
import torch
import triton
import triton.language as tl

Row = namedtuple("Row", "start pointer width")

@triton.jit
def row_of(matrix, N) -> Row:
    row = tl.program_id(0)
    return Row(row, matrix.pointer + row * N, matrix.width)

@triton.jit
def kernel(x: Nowhere, y, N: Optional[int], BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    {}

def launcher(x, y):
    M, N = x.shape
    {}
"""
TWICE = "tl.store(y + tl.program_id(0) * N + lanes, {} * tl.load(x + tl.program_id(0) * N + lanes))"
LAUNCH = "kernel[M,]({}, y, N, BLOCK=N)"


def arrived(source):
    """What a launcher leaves whose launches were recorded, packed, read by the judge, and replayed on other values."""
    room = Room()
    assert room.load([["kernel", source, ["launcher"], ""]]) == {"broken": {}}
    draws = [[torch.randn(4, 8), torch.zeros(4, 8)] for _ in range(3)]
    found = recorded(room.namespace["launcher"], [Call(draw, {}) for draw in draws[:2]], {1: "y"})
    assert found.recording, found
    described, arrays = recordings.pack(found.recording, sources_of, texts.of_values())
    for launch in described["launches"]:
        texts.hold(launch["text"])
    arrays = [numpy.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for array in arrays]
    replay.replay(recordings.unpack(json.loads(json.dumps(described)), arrays), draws[2])
    return draws[2]


@pytest.mark.parametrize(
    ("line", "launch"),
    (
        (TWICE.format("2.0"), LAUNCH.format("x")),
        (TWICE.format("(m.tau / m.pi)"), LAUNCH.format("x")),
        (TWICE.format("tl.where(lanes < np.inf, 2.0, -torch.inf)"), LAUNCH.format("x")),
        (TWICE.format("2.0"), "made = torch.empty_like(x)\n    kernel[M,](x, made, N, BLOCK=N)\n    y.copy_(made)"),
        (TWICE.format("2.0").replace("x +", "x.pointer +"), LAUNCH.format("Row(0, x, N)")),
        (
            "row = row_of(x, N)\n    tl.store(y + row.start * row.width + lanes, 2.0 * tl.load(row.pointer + lanes))",
            LAUNCH.format("Row(0, x, N)"),
        ),
    ),
    ids=("plain", "math", "numpy and torch", "copied at the end", "a tuple of one's own", "made in a kernel"),
)
def test_what_works_at_home_works_where_it_is_replayed(line, launch):
    x, y = arrived(CELL.format(line, launch))
    assert torch.equal(y, 2 * x)


def told(source, *tensors):
    """The error in which recording a launcher ends."""
    room, packed = Room(), values.Packed()
    room.load([["kernel", source, ["launcher"], ""]])
    call = {"args": list(map(packed.value, tensors)), "far": [None] * len(tensors), "kwargs": {}}
    request = {"function": "launcher", "calls": [call, call], "given": [], "outputs": {"0": "x"}, "known": []}
    return json.loads(json.dumps(room.record(request, packed.arrays)[0]))["error"][0]


def test_a_name_that_a_line_failed_to_bind_is_told_with_that_line():
    said = told("from my_blocks import length\ndef launcher(x):\n    length(3)", torch.zeros(3))
    assert said.startswith("ModuleNotFoundError: No module named 'my_blocks' in line 1 of your cell"), said


@pytest.mark.parametrize(
    ("launch", "says"),
    (
        ("kernel[(10**4400,)](x, y, N, BLOCK=N)", "Exceeds the limit"),
        ("kernel[M,](x, y, N, BLOCK=N, num_warps=10**4400)", "Exceeds the limit"),
        ("kernel[M,](x, y, 10**4400, BLOCK=N)", "Exceeds the limit"),
        ("kernel[M,](Row(10**4400, x, N), y, N, BLOCK=N)", "Exceeds the limit"),
        ("kernel[M,](x, y, N, BLOCK=N, num_warps=np.int64(4))", "int64"),
        ("raise ValueError(10**4400)", "ValueError: its text cannot be read"),
    ),
)
def test_what_no_message_can_hold_is_told_with_its_line(launch, says):
    """As an integer of more digits than Python writes."""
    said = told(CELL.format(TWICE.format("2.0"), launch), torch.randn(4, 8), torch.zeros(4, 8))
    assert says in said and "in line 26" in said and launch[:60] in said, said


def test_an_answer_that_no_message_can_hold_is_told_by_its_type():
    room, answer = Room(), "a = {'line': 10**4400, 10**4400: -10**4400, 'cause': 'mask', 'smallest': {'M': 2.0, 'N': True}}"
    room.load([["diagnosis", answer, ["a"], ""]])
    said = json.loads(json.dumps(room.said({"name": "a"}, [])[0]))
    assert said == {"answer": {"line": "int", "int": "int", "cause": "mask", "smallest": {"M": 2.0, "N": True}}}
