"""The tensors of one call, in the kernels' terms: what its mods capture, and the lists of blocks of its mask."""

from functools import cached_property

import torch

from kernels.common.checks import values_checked
from kernels.flex_attention import block_mask as masks
from kernels.flex_attention.checks import check_blocks
from kernels.flex_attention.problem import cdiv


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
        self._lists = lists if problem.sparse else ()
        if self._lists:
            self._leave_out_what_is_not_there()

    def _leave_out_what_is_not_there(self):
        """A list may name blocks behind the last key, as torch's ``_adjust`` leaves some where it cuts rows of lists short. A
        kernel would read them: where they are seen, or where rows were cut and no values may be read, it gets other lists."""
        seen = values_checked(self._lists[0])
        if not seen and all(t.ndim == 3 or t.stride(2) == t.shape[3] for t in self._lists):
            return
        p, lists = self.problem, dict(self.lists)
        rows, columns = cdiv(p.M, p.BLOCK_SIZE[0]), cdiv(p.N, p.BLOCK_SIZE[1])
        for name in [name.removesuffix("_indices") for name in p.lists if name.endswith("_indices")]:
            listing, most = (rows, columns) if name.endswith("kv") else (columns, rows)
            pair = f"{name}_num_blocks", f"{name}_indices"
            num_blocks, indices = lists[pair[0]][..., :listing], lists[pair[1]][..., :listing, :]
            if not seen or check_blocks(name, num_blocks, indices, most):
                lists |= zip(pair, masks.ordered_lists(masks.dense_blocks(num_blocks, indices, most)), strict=True)
        self._lists, self.lists = list(lists.values()), lists

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
        of_rows = lists[f"{full}kv_num_blocks"]
        if num_blocks is None or num_blocks.shape[-1] != columns or of_rows.shape[-1] != rows:  # or made for other lengths
            num_blocks, indices = of_rows, lists[f"{full}kv_indices"]
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
