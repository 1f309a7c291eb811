"""What lesson 40 goes on with, made from notebooks/40_conv_as_matmul.ipynb: see this package."""

import triton
import triton.language as tl


def same_padding(H, R, stride, dilation):
    P = -(-H // stride)
    missing = max((P - 1) * stride + dilation * (R - 1) + 1 - H, 0)
    return missing // 2, missing - missing // 2


@triton.jit
def torch_tile(offs_j, h0, w0, R, S, dil_h, dil_w, stride_h, stride_w, stride_c):
    r, s, c = offs_j // S % R, offs_j % S, offs_j // (R * S)
    h, w = h0 + r * dil_h, w0 + s * dil_w
    return h, w, h * stride_h + w * stride_w + c * stride_c


def dense(i, k, a, stride, top):
    h = (a - top) % stride + i * stride
    r = a + k * stride
    return h, r, (h + top - r) // stride
