"""Jet-Nemotron's layer by its own names, over our kernels: what its published model imports can come from here.

To port that model (https://github.com/NVlabs/Jet-Nemotron, ``jetai/modeling/hf``): its ``jet_block.py`` imports
``DynamicShortConvolution`` from here instead of from ``.dynamic_conv``; the files ``dconv_*.py`` are needed no more. Its
checkpoints load, since parameters have the same names. The gated delta rule of its blocks is not among our operators and
stays flash-linear-attention's; its layers with attention take ``flex_attention`` as those of any model in transformers do.
"""

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from kernels.common.checks import check_choice
from kernels.dynamic_conv import module


class DynamicShortConvolution(module.DynamicShortConvolution):
    """``kernels.dynamic_conv.DynamicShortConvolution`` with the constructor, parameter names and ``forward`` of the published
    layer.

    Two things differ from it: without ``static_conv_init``, or with it, :math:`W_1` starts as in ``nn.Linear`` (there all of
    the generator starts at zero, where neither of its matrices has a gradient), and x is not modified by ``mask``.

    Args:
        hidden_size, kernel_size, generator_input_size, generator_reduction, activation: as there.
        static_conv_init: a function that fills the kernel every token starts with, a tensor [D, W], in place.
        generator_activation: ``"silu"`` or ``"swish"``.
        use_fast_conv1d, implementation: accepted and ignored; there is one implementation.

    Raises:
        ValueError: as the class above; another activation.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        generator_input_size: int | None = None,
        generator_reduction: int | None = None,
        generator_activation: str = "silu",
        activation: str | None = "silu",
        static_conv_init: Callable[[Tensor], object] | None = None,
        use_fast_conv1d: bool = True,
        implementation: str = "naive",
    ) -> None:
        check_choice("generator_activation", generator_activation, ("silu", "swish"))
        super().__init__(
            hidden_size, kernel_size, generator_input_size, generator_reduction, activation, static_conv_init
        )
        w1, w2 = self.w1, self.w2
        del self.w1, self.w2
        self.kernel_generator = nn.Sequential(OrderedDict(w1=w1, act=nn.SiLU(), w2=w2))

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
        generator_input: Tensor | None = None,
        **ignored: object,
    ) -> tuple[Tensor, Tensor | None]:
        """``(y, cache)``; the cache [N, D, W] is updated in place, and made where ``output_final_state`` asks for it."""
        if cache is None and output_final_state:
            N = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
            cache = x.new_zeros(N, self.hidden_size, self.kernel_size)
        y = super().forward(x, generator_input=generator_input, cu_seqlens=cu_seqlens, mask=mask, cache=cache)
        return (y, None) if isinstance(y, Tensor) else y

    def _generate(self, g):
        return self.kernel_generator(g)
