"""The tensors of one call, in the kernels' terms: what its mods capture, and the lists of blocks of its mask."""

from functools import cached_property

import torch

from kernels.flex_attention import block_mask as masks
from kernels.flex_attention.problem import cdiv

#: The lists of a block mask, as attributes of torch's ``BlockMask``.
LISTS = tuple(f"{full}{side}_{part}" for side in ("kv", "q") for full in ("", "full_") for part in ("num_blocks", "indices"))


class Inputs:
    """The tensors of one call of a ``Problem``."""

    score_captured = score_numbers = score_tables = mask_numbers = mask_tables = ()
    transposed_lists = None  # once they have been asked for
    settled = None  # the ``Settled`` of calls that are alike

    def __init__(self, problem, query, key, value, captured, lists, numbers):
        self.problem, self.query, self.key, self.value = problem, query, key, value
        score, mask = problem.score, problem.mask
        of_score = ns = 0
        if score is not None:
            of_score, ns = len(score.learned), len(score.number_kinds)
            self.score_captured, self.score_numbers = captured[:of_score], numbers[:ns]
            self.score_tables = score.tables(self.score_captured, self.score_numbers)
        if mask is not None:
            self.mask_numbers = numbers[ns:]
            self.mask_tables = mask.tables(captured[of_score:], self.mask_numbers)
        self._lists = lists

    @property
    def partial(self):
        """Blocks of keys of each block of queries, ``None`` without a mask."""
        return rows_of_lists(*self._lists[:2]) if self._lists else None  # in the order of ``LISTS``, the same in all problems

    @property
    def full(self):
        """The same of full blocks."""
        return rows_of_lists(*self._lists[2:4]) if self._lists and self.problem.HAS_FULL else None

    @cached_property
    def lists(self):
        """The block mask's, by their names."""
        return dict(zip(self.problem.lists, self._lists, strict=True))

    @property
    def reach(self):
        """``(behind, ahead)`` as the kernel compares them with positions: the mask lets no query see a key farther off."""
        span = self.problem.mask.reach(tuple(self.mask_numbers), self.problem.M, self.problem.N)
        return tuple(int(max(-(2**30), min(end, 2**30))) for end in span[:2])

    @property
    def transposed(self):
        """``(partial, full)`` blocks of queries of each block of keys."""
        if self.transposed_lists is None:
            self.transposed_lists = (
                self._transpose("") if self._lists else None,
                self._transpose("full_") if self._lists and self.problem.HAS_FULL else None,
            )
        return self.transposed_lists

    def _transpose(self, full):
        p = self.problem
        rows, columns = cdiv(p.M, p.SPARSE_M), cdiv(p.N, p.SPARSE_N)
        lists = self.lists
        num_blocks, indices = lists.get(f"{full}q_num_blocks"), lists.get(f"{full}q_indices")
        if num_blocks is None or num_blocks.shape[-1] < columns:  # not given, or made from lists that were cut short
            num_blocks, indices = lists[f"{full}kv_num_blocks"], lists[f"{full}kv_indices"]
            dense = masks.dense_blocks(num_blocks[..., :rows], indices[..., :rows, :], columns)
            num_blocks, indices = masks.ordered_lists(dense.mT)
        return rows_of_lists(num_blocks, indices)


def rows_of_lists(num_blocks, indices):
    """``(num_blocks, indices, batch stride, head stride, width)`` in rows; a batch or head of one serves all."""
    B, H, rows = num_blocks.shape
    if num_blocks.dtype != torch.int32 or not num_blocks.is_contiguous():
        num_blocks = num_blocks.to(torch.int32).contiguous()
    if indices.dtype != torch.int32 or not indices.is_contiguous():
        indices = indices.to(torch.int32).contiguous()
    return num_blocks, indices, H * rows if B > 1 else 0, rows if H > 1 else 0, indices.shape[-1]
