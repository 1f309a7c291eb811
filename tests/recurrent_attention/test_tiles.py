"""Tiles, chunks and runs are no part of the answer: paths that the interpreter's own table would never take."""

import pytest
import torch

from tests.recurrent_attention import cases

CHUNKED = {name: {"BLOCK_K": 16} for name in ("chunk_decay", "chunk_scores", "chunk_inside")}
CHUNKED |= {name: {"BLOCK_K": 16, "BLOCK_V": 16} for name in ("chunk_states", "chunk_gradients")}
CHUNKED["chunk_outputs"] = {"BLOCK_V": 16}  # holds all rows of the state
STORED = {name: options for name, options in CHUNKED.items() if name != "chunk_outputs"}
STORED["chunk_stored_outputs"] = {"BLOCK_K": 16, "BLOCK_V": 16}
CHUNKS = [
    {"chunk": {"C": 64, "runs": 1}},
    {"chunk": {"C": 16, "runs": 8}, **CHUNKED},
    {"chunk": {"C": 32, "runs": 8}, **CHUNKED},
    {"chunk": {"C": 16, "loops": 9}, **STORED},
    {"chunk": {"C": 16, "FORWARD_C": 32, "loops": 9}, **STORED, "chunk_stored_outputs": {"BLOCK_V": 16, "ROWS": 16}},
]
RECURRENCES = [
    {"backward": {"EVERY": 1}},
    {"backward": {"EVERY": 3}, "backward_pairs": {"SLICE": 16}},
    {
        "forward": {"BV": 16},
        "backward": {"BV": 16, "EVERY": 2},
        "backward_states": {"BV": 16},
        "backward_pairs": {"SLICE": 16},
    },
]
CALLS = {
    "no gate, reverse": ((1, 37, 1, 1, 20, 40), {"reverse": True}),
    "g, state": ((1, 37, 1, 1, 48, 20), {"gates": ("g",), "initial": True, "final": True, "strength": "resets"}),
    "gk, reverse": ((1, 37, 1, 1, 20, 20), {"gates": ("gk",), "reverse": True, "final": True}),
    "g + gk, packed": (
        (1, None, 1, 1, 20, 24),
        {"gates": ("g", "gk"), "cu_seqlens": [0, 3, 3, 21], "initial": True, "final": True, "layout": "padded"},
    ),
}
ON_VALUES = {"gk + gv": ((1, 37, 1, 1, 20, 40), {"gates": ("gk", "gv"), "initial": True, "final": True})}


def check(mode, call, variants):
    """Every variant agrees with the reference, and all with each other to the last bits."""
    sizes, options = call
    results = []
    for variant in variants:
        with cases.configured(**variant), cases.recorded() as seen:
            results.append(cases.check(*sizes, mode=mode, **options))
        names = ("C", "BLOCK_K", "BLOCK_V", "BV", "EVERY", "ROWS")
        tiles = [meta["TILE"]._asdict() for *_, meta in seen]
        told = [{name: tile.get(name) for name in names} | {"FORWARD_C": tile.get("C")} for tile in tiles]
        for kernel, wanted in variant.items():
            for name, value in wanted.items():
                used = name in ("runs", "loops", "SLICE") or any(meta[name] == value for meta in told)
                used |= name == "FORWARD_C" and "gk" in options.get("gates", ())  # both passes have the same chunks
                assert used, f"{kernel} {name} unused"
    for result in results[1:]:
        for name, (got, _) in result.items():
            assert cases.relative_error(got, results[0][name][0]) <= 2 * cases.bound(name, got.dtype, mode, {"q": got})


@pytest.mark.share(3)
@pytest.mark.parametrize("call", CALLS)
def test_chunks_runs_and_blocks(call):
    check("chunk", CALLS[call], CHUNKS)


@pytest.mark.parametrize("call", ["g, state", "g + gk, packed", *ON_VALUES])
def test_columns_and_checkpoints_of_the_recurrence(call):
    check("recurrent", (CALLS | ON_VALUES)[call], RECURRENCES)


@pytest.mark.slow
@pytest.mark.parametrize("C", [16, 32, 64])
@pytest.mark.parametrize("call", CALLS | ON_VALUES)
def test_blocks_of_any_length_in_the_recurrence(call, C):
    sizes, options = (CALLS | ON_VALUES)[call]
    with cases.configured(backward={"C": C, "EVERY": 2}):
        cases.check(*sizes, mode="recurrent", **options)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("C", [16, 32, 64])
@pytest.mark.parametrize("runs", [1, 2, 8])
@pytest.mark.parametrize("tiles", [{}, CHUNKED], ids=["one tile", "tiles"])
def test_every_chunk_run_and_block(call, C, runs, tiles):
    sizes, options = CALLS[call]
    with cases.configured(chunk={"C": C, "runs": runs}, **tiles):
        cases.check(*sizes, mode="chunk", **options)


def test_a_sequence_in_several_runs_is_chained():
    """Eight runs of a packed sequence that is shorter than one of them, empty, and longer than all: every kernel is used."""
    with cases.configured(chunk={"C": 16, "runs": 8}, **CHUNKED), cases.recorded() as seen:
        cases.check(
            1, None, 1, 1, 20, 20, mode="chunk", gates=("g",), cu_seqlens=[0, 5, 5, 40], initial=True, final=True
        )
    assert any("chain" in kernel.__name__ for kernel, *_ in seen)


def test_recorded_sees_every_launch():
    with cases.recorded(run=False) as seen:
        leaves, _ = cases.problem(1, 5, 1, 1, 4, 4)
        pairs = cases.measure(leaves, mode="recurrent")
    assert len(seen) >= 2 and pairs["o"][0].isnan().all() and not torch.isnan(pairs["o"][1]).any()
