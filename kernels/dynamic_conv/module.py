"""``DynamicShortConvolution``: the layer that generates a kernel for every token and convolves with it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.common.validate import check_choice, check_tensor, left_to_reference
from kernels.dynamic_conv.operator import ACTIVATIONS, dynamic_conv
from kernels.dynamic_conv.reference import dynamic_conv_reference


class DynamicShortConvolution(nn.Module):
    """A causal depthwise convolution whose kernel is a small network's function of each token.

    .. math::
        h_t = \\mathrm{SiLU}(W_1 g_t), \\qquad k_t = W_2 h_t + b_2, \\qquad y = \\mathrm{dynamic\\_conv}(x, k)

    Args:
        hidden_size: D, channels of x.
        kernel_size: W, taps.
        generator_input_size: features of g; ``None``: D, and g is x itself.
        generator_reduction: :math:`h` has ``generator_input_size // generator_reduction`` features; ``None``: 8, or as many
            as leave one feature.
        activation: ``"silu"`` or ``None``, applied to the convolution's output.
        static_conv_init: the kernel every token starts with: a tensor [D, W], or a function that fills such a tensor in
            place (as ``torch.nn.init`` has them). It becomes :math:`b_2`, with :math:`W_2` zero, so that the layer begins
            as that static convolution. ``None``: :math:`W_2` and :math:`b_2` start as in ``nn.Linear``.

    Raises:
        ValueError: a size below 1, a reduction that leaves no feature, an unknown activation, an initial kernel of the
            wrong shape.

    Source: the dynamic convolution of Jet-Nemotron (Gu et al., 2025, arXiv:2508.15884).
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        generator_input_size: int | None = None,
        generator_reduction: int | None = None,
        activation: str | None = "silu",
        static_conv_init: Tensor | Callable[[Tensor], object] | None = None,
    ) -> None:
        super().__init__()
        generator_input_size = hidden_size if generator_input_size is None else generator_input_size
        generator_reduction = min(8, generator_input_size) if generator_reduction is None else generator_reduction
        sizes = {"hidden_size": hidden_size, "kernel_size": kernel_size, "generator_input_size": generator_input_size}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}, needs at least 1")
        if not 1 <= generator_reduction <= generator_input_size:
            raise ValueError(
                f"generator_reduction is {generator_reduction}, needs 1 to {generator_input_size}, the generator's input size"
            )
        check_choice("activation", activation, ACTIVATIONS)
        self.hidden_size = hidden_size
        self.kernel_size = kernel_size
        self.generator_input_size = generator_input_size
        self.activation = activation
        self.w1 = nn.Linear(generator_input_size, generator_input_size // generator_reduction, bias=False)
        self.w2 = nn.Linear(self.w1.out_features, hidden_size * kernel_size)
        if static_conv_init is not None:
            self._start_static(static_conv_init)

    @torch.no_grad()
    def _start_static(self, init):
        nn.init.zeros_(self.w2.weight)
        kernel = self.w2.bias.view(self.hidden_size, self.kernel_size)
        if callable(init):
            init(kernel)
            return
        if tuple(init.shape) != tuple(kernel.shape):
            raise ValueError(f"static_conv_init has shape {list(init.shape)}, needs [D, W] = {list(kernel.shape)}")
        kernel.copy_(init)

    def forward(
        self,
        x: Tensor,
        *,
        generator_input: Tensor | None = None,
        state: Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Generate the kernels and convolve; x is never modified. CPU tensors where kernels are compiled for a GPU are
        convolved by the reference, in plain PyTorch, with one warning.

        Args:
            x: [B, T, D]. Batches of unequal length are packed end to end, with B = 1 and ``cu_seqlens``, not padded.
            generator_input: g, [B, T, generator_input_size]; ``None``: x.
            state: [N, D, W-1], the last inputs of what came before, or ``None``.
            output_final_state: return the state after the last token too; decoding is this with T = 1.
            cu_seqlens: [N+1], see ``dynamic_conv``.

        Returns:
            y [B, T, D], or ``(y, state)`` with ``output_final_state``.

        Raises:
            ValueError: a shape, dtype or device does not fit.
        """
        on_reference = isinstance(x, torch.Tensor) and left_to_reference(type(self).__name__, x)
        here = ("x", x) if on_reference else None
        check_tensor("x", x, (None, None, self.hidden_size), "[B, T, D]", like=here)
        g = x if generator_input is None else generator_input
        wanted = (*x.shape[:2], self.generator_input_size)
        check_tensor("generator_input", g, wanted, "[B, T, generator_input_size]", like=("x", x))
        weight = self.w2(F.silu(self.w1(g))).unflatten(-1, (self.hidden_size, self.kernel_size))
        convolve = dynamic_conv_reference if on_reference else dynamic_conv
        return convolve(
            x,
            weight,
            activation=self.activation,
            initial_state=state,
            output_final_state=output_final_state,
            cu_seqlens=cu_seqlens,
        )

    def extra_repr(self):
        """What ``print(module)`` adds."""
        return f"{self.hidden_size}, kernel_size={self.kernel_size}, activation={self.activation!r}"
