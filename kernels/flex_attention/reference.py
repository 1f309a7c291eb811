"""Flex attention in plain PyTorch: dense, obviously right, any float dtype, differentiable by autograd."""

import math

import torch
from torch.nn.attention.flex_attention import AuxOutput


def evaluate(mod, B, H, M, N, device, score=None):
    """A mod's value at every (b, h, m, n), [B, H, M, N]: a mask mod, or with ``score`` [B, H, M, N] a score mod."""
    b, h, m, n = (torch.arange(size, device=device, dtype=torch.int32) for size in (B, H, M, N))
    inner = mod if score is None else lambda b, h, m, n, s: mod(s, b, h, m, n)
    last = () if score is None else (0,)
    for axis in (3, 2, 1, 0):  # n is mapped innermost, b outermost
        inner = torch.vmap(inner, in_dims=(*(0 if i == axis else None for i in range(4)), *last), out_dims=0)
    return inner(b, h, m, n, *(() if score is None else (score,)))


def allowed(block_mask, B, H, M, N):
    """Where a block mask lets a query see a key, bool [B, H, M, N]: all of a full block, ``mask_mod`` of a partial one."""
    BLOCK_M, BLOCK_N = block_mask.BLOCK_SIZE
    rows, columns = -(-M // BLOCK_M), -(-N // BLOCK_N)

    def visited(num_blocks, indices):
        blocks = torch.zeros(B, H, rows, columns + 1, dtype=torch.bool, device=indices.device)
        num_blocks, indices = (t[:, :, :rows].expand(B, H, *t[:, :, :rows].shape[2:]) for t in (num_blocks, indices))
        listed = torch.arange(indices.shape[-1], device=indices.device) < num_blocks[..., None]
        blocks.scatter_(3, torch.where(listed, indices, columns).long(), True)  # what is not listed goes past the end
        blocks = blocks[..., :columns].repeat_interleave(min(BLOCK_M, M), 2).repeat_interleave(min(BLOCK_N, N), 3)
        return blocks[:, :, :M, :N]

    mask = visited(block_mask.kv_num_blocks, block_mask.kv_indices)
    mask &= evaluate(block_mask.mask_mod, B, H, M, N, mask.device)
    if block_mask.full_kv_num_blocks is not None:
        mask |= visited(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    return mask


def flex_attention_reference(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    *,
    return_aux=None,
):
    """The equation of ``flex_attention`` on the dense matrix of scores: same arguments, same results, in query's dtype.

    .. math::
        t = f(c\\, q k^\\top), \\quad z = t \\text{ where allowed, else } -\\infty, \\quad
        \\ell = \\log \\sum_n e^{z_n}, \\quad o = \\sum_n e^{z_n - \\ell} v_n

    A row in which every z is minus infinity has o = 0 and l = minus infinity.
    """
    B, Hq, M, D = query.shape
    N = key.shape[2]
    G = Hq // key.shape[1]
    k, v = (t.repeat_interleave(G, 1).expand(B, *[-1] * 3) for t in (key, value))
    s = query @ k.mT * (1 / math.sqrt(D) if scale is None else scale)
    z = s if score_mod is None else evaluate(score_mod, B, Hq, M, N, query.device, s).to(s.dtype)
    if block_mask is not None:
        z = z.masked_fill(~allowed(block_mask, B, Hq, M, N), -math.inf)
    dead = (z == -math.inf).all(-1, keepdim=True)
    z = z.masked_fill(dead, 0)  # any finite number: these rows are replaced, and their gradients vanish with them
    lse = z.logsumexp(-1).masked_fill(dead[..., 0], -math.inf) if N else z.new_full(z.shape[:-1], -math.inf)
    out = (z.softmax(-1) @ v).masked_fill(dead, 0)
    if return_aux is not None:
        top = z.detach().masked_fill(dead, -math.inf).amax(-1) if N else lse.detach()
        return out, AuxOutput(lse if return_aux.lse else None, top if return_aux.max_scores else None)
    return (out, lse) if return_lse else out
