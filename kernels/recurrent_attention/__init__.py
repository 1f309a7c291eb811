"""Gated recurrent attention: linear attention whose memory decays, with exact gradients of its gates."""

from kernels.recurrent_attention.operator import recurrent_attention, recurrent_attention_step

__all__ = ["recurrent_attention", "recurrent_attention_step"]
