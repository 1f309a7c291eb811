"""flash-linear-attention where it is not installed."""

from benchmarks import flash_linear_attention as fla
from kernels.recurrent_attention.reference import recurrent_attention_reference


def pretend(monkeypatch):
    """flash-linear-attention's functions, with its argument names, by the reference, a little wrong."""

    def function(name):
        def peer(
            q, k, v, *, g=None, g_gamma=None, gk=None, initial_state=None, output_final_state=False, normalize=True
        ):
            assert normalize == (name != "chunk_linear_attn")
            if name == "chunk_gla":
                g, gk = gk, g
            assert (g is not None or g_gamma is not None) == ("simple" in name)
            return recurrent_attention_reference(
                1.01 * q.float(), k.float(), v.float(), g=g, g_gamma=g_gamma, gk=gk, initial_state=initial_state,
                output_final_state=output_final_state,
            )  # fmt: skip

        return peer

    monkeypatch.setattr(fla, "available", lambda: True)
    monkeypatch.setattr(fla, "version", lambda: "0.0")
    monkeypatch.setattr(fla, "function", function)
