"""The tensors of one call, in the kernels' terms: what its mods capture, and the lists of blocks of its mask."""

from dataclasses import dataclass
from functools import cached_property

import torch

from kernels.flex_attention import block_mask as masks
from kernels.flex_attention.checks import Lists, listed
from kernels.flex_attention.problem import Problem, cdiv


@dataclass(eq=False)
class Inputs:
    """The tensors of one call of a ``Problem``.

    callers, outputs: query, key and value as the caller has them, which TMA may not read, and ``Problem.outputs`` of these.
    captured, numbers: the score mod's; score_tables, mask_tables: what the mods read; mask_numbers: the mask's. lists:
    ``Lists`` by their names, ``"kv"`` of blocks of keys, ``"q"`` of queries, with ``"full_"`` of full blocks; partial, full:
    those of keys.
    """

    problem: Problem
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    callers: tuple
    outputs: tuple
    captured: list
    numbers: tuple
    score_tables: tuple
    mask_numbers: tuple
    mask_tables: tuple
    lists: dict
    partial: Lists | None
    full: Lists | None

    @property
    def extent(self):
        """``(behind, ahead)`` as kernels compare them with positions: the mask lets no query see a key farther off."""
        span = self.problem.mask.extent(tuple(self.mask_numbers), self.problem.M, self.problem.N)
        return tuple(int(max(-(2**30), min(end, 2**30))) for end in span[:2])

    @cached_property
    def transposed(self):
        """``(partial, full)`` blocks of queries of each block of keys."""
        return self._transpose("kv", "q"), self._transpose("full_kv", "full_q")

    def _transpose(self, of_rows, of_columns):
        if of_rows not in self.lists:
            return None
        p, kv = self.problem, self.lists[of_rows]
        rows, columns = cdiv(p.M, p.SPARSE_M), cdiv(p.N, p.SPARSE_N)
        q = self.lists.get(of_columns)
        if q is not None and q.num_blocks.shape[-1] == columns and kv.num_blocks.shape[-1] == rows:
            return q
        # there is none, or it was made for other lengths
        dense = masks.dense_blocks(kv.num_blocks[..., :rows], kv.indices[..., :rows, :], columns)
        return listed(*masks.ordered_lists(dense.mT))
