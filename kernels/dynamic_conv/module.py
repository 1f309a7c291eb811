"""``DynamicShortConvolution``: the layer that generates a kernel for every token and convolves with it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.common.checks import check_cu_seqlens, check_tensor, is_whole, left_to_reference, shown
from kernels.dynamic_conv import caches
from kernels.dynamic_conv.operator import activation_named, dynamic_conv
from kernels.dynamic_conv.reference import dynamic_conv_reference


class DynamicShortConvolution(nn.Module):
    """A causal depthwise convolution whose kernel is a small network's function of each token.

    .. math::
        h_t = \\mathrm{SiLU}(W_1 g_t), \\qquad k_t = W_2 h_t + b_2, \\qquad y = \\mathrm{dynamic\\_conv}(x, k)

    Args:
        hidden_size: D, channels of x.
        kernel_size: W, taps.
        generator_input_size: features of g; ``None``: D, and g is x itself.
        generator_reduction: :math:`h` has ``hidden_size // generator_reduction`` features; ``None``: hidden_size.
        activation: ``"silu"``, which is called ``"swish"``, too, or ``None``: applied to the convolution's output.
        static_conv_init: the kernel every token starts with: a tensor [D, W], or a function that fills such a tensor in
            place (as ``torch.nn.init`` has them). It becomes :math:`b_2`, with :math:`W_2` zero, so that the layer begins
            as that static convolution. ``None``: :math:`W_2` and :math:`b_2` start as in ``nn.Linear``.

    A ``state_dict`` of Jet-Nemotron's layer is loaded as it is (there the names begin with ``kernel_generator.``); with that
    layer's constructor, names and ``forward`` it is ``kernels.dynamic_conv.jet_nemotron.DynamicShortConvolution``, which
    loads this one's.

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
        generator_reduction = 1 if generator_reduction is None else generator_reduction
        sizes = {"hidden_size": hidden_size, "kernel_size": kernel_size, "generator_input_size": generator_input_size}
        for name, size in sizes.items():
            if not is_whole(size) or size < 1:
                raise ValueError(f"{name} is {shown(size)}, needs a whole number, at least 1")
        if not is_whole(generator_reduction) or not 1 <= generator_reduction <= hidden_size:
            got = shown(generator_reduction)
            raise ValueError(f"generator_reduction is {got}, needs 1 to {hidden_size}, the hidden size")
        self.hidden_size = hidden_size
        self.kernel_size = kernel_size
        self.generator_input_size = generator_input_size
        self.activation = activation_named(activation)
        self.w1 = nn.Linear(generator_input_size, hidden_size // generator_reduction, bias=False)
        self.w2 = nn.Linear(self.w1.out_features, hidden_size * kernel_size)
        if static_conv_init is not None:
            self._start_static(static_conv_init)
        self.register_load_state_dict_pre_hook(_own_names)

    @torch.no_grad()
    def _start_static(self, init):
        nn.init.zeros_(self.w2.weight)
        kernel = self.w2.bias.view(self.hidden_size, self.kernel_size)
        if callable(init):
            init(kernel)
            return
        if not isinstance(init, Tensor):
            got = shown(init)
            raise ValueError(f"static_conv_init is {got}, needs a tensor [D, W] = {list(kernel.shape)}, or a function")
        if init.shape != kernel.shape:
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
        mask: Tensor | None = None,
        cache: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Generate the kernels and convolve; x is never modified. CPU tensors where kernels are compiled for a GPU are
        convolved by the reference, in plain PyTorch, with one warning.

        Args:
            x: [B, T, D]. Batches of unequal length are packed end to end, with B = 1 and ``cu_seqlens``, or padded on the
                left, with ``mask``.
            generator_input: g, [B, T, generator_input_size]; ``None``: x.
            state: [N, D, W-1], the last inputs of what came before, or ``None``.
            output_final_state: return the state after the last token too; decoding is this with T = 1.
            cu_seqlens: [N+1], see ``dynamic_conv``.
            mask: [B, T], zero where x is padding and counts as zero; g isn't masked where it is given.
            cache: [N, D, W], the last W inputs of what came before, zeros at the start, instead of ``state``; shifted in
                place, without a gradient of its own.

        Returns:
            y [B, T, D], or ``(y, state)`` with ``output_final_state``, or ``(y, cache)`` with ``cache``.

        Raises:
            ValueError: a shape, dtype, device or layout does not fit; both ``state`` and ``cache`` are given.
        """
        on_reference = isinstance(x, torch.Tensor) and left_to_reference(type(self).__name__, x)
        if not isinstance(x, torch.fx.Proxy):  # torch.fx.symbolic_trace records what follows, without sizes to check
            self._check(x, generator_input, mask, state, cu_seqlens, on_reference)
        if mask is not None:
            x = x * mask[..., None].to(x.dtype)
        g = x if generator_input is None else generator_input
        if cache is not None:
            if state is not None:
                raise ValueError("state and cache are both given, needs one: a cache holds the state")
            N = check_cu_seqlens(cu_seqlens, x.shape[0], ("x", x))
            caches.check_cache("cache", cache, N, self.hidden_size, self.kernel_size, ("x", x))
            if x.shape[1] == 1 and cu_seqlens is None and not self._differentiates(x, g):
                return self.step(x[:, 0], cache, generator_input=g[:, 0])[:, None], cache
            state = caches.state_of(cache, self.kernel_size).clone()  # what the backward pass reads
        convolve = dynamic_conv_reference if on_reference else dynamic_conv
        out = convolve(
            x,
            self._kernels(g),
            activation=self.activation,
            initial_state=state,
            output_final_state=output_final_state and cache is None,
            cu_seqlens=cu_seqlens,
        )
        if cache is None:
            return out
        caches.remember(cache, x, cu_seqlens)
        return out, cache

    def _check(self, x, generator_input, mask, state, cu_seqlens, on_reference):
        check_tensor("x", x, (None, None, self.hidden_size), "[B, T, D]", like=("x", x) if on_reference else None)
        tokens = tuple(x.shape[:2])
        if mask is not None:
            any_dtype = (mask.dtype,) if isinstance(mask, Tensor) else ()
            check_tensor("mask", mask, tokens, "[B, T]", dtypes=any_dtype, like=("x", x))
        g = x if generator_input is None else generator_input
        wanted = (*tokens, self.generator_input_size)
        check_tensor("generator_input", g, wanted, "[B, T, generator_input_size]", like=("x", x))
        N = tokens[0] if cu_seqlens is None else check_cu_seqlens(cu_seqlens, tokens[0], ("x", x), tokens[1])
        if state is not None:
            check_tensor("state", state, (N, self.hidden_size, self.kernel_size - 1), "[N, D, W-1]", like=("x", x))

    def step(
        self, x: Tensor, cache: Tensor, *, generator_input: Tensor | None = None, slots: Tensor | None = None
    ) -> Tensor:
        """One token for each sequence, for decoding: one kernel after the generator. Not differentiable.

        Args:
            x: [B, D].
            cache: [B or pool, D, W], the last W inputs, or a state [B or pool, D, W-1], at any strides; shifted in place.
            generator_input: g, [B, generator_input_size]; ``None``: x.
            slots: integers [B], which row of the pool belongs to each row of x, see ``dynamic_conv_step``.

        Returns:
            y [B, D].

        Raises:
            ValueError: a shape, dtype, device or layout does not fit.
        """
        on_reference = isinstance(x, torch.Tensor) and left_to_reference(type(self).__name__, x)
        check_tensor("x", x, (None, self.hidden_size), "[B, D]", like=("x", x) if on_reference else None)
        g = x if generator_input is None else generator_input
        wanted = (x.shape[0], self.generator_input_size)
        check_tensor("generator_input", g, wanted, "[B, generator_input_size]", like=("x", x))
        with torch.no_grad():
            k, rest = self._kernels(g), {"activation": self.activation, "slots": slots}
            if on_reference:
                caches.check_rows(x, cache, slots, self.kernel_size)
                return caches.several(x[:, None], k[:, None], cache, convolve=dynamic_conv_reference, **rest)[:, 0]
            return caches.step(x, k, cache, **rest)

    def _kernels(self, g):
        """k [..., D, W] of g [..., generator_input_size]."""
        made = self._generate(g)
        # Not unflatten: where a program has set a default device, dynamo cannot trace it.
        return made.reshape(made.shape[:-1] + (self.hidden_size, self.kernel_size))

    def _generate(self, g):
        return self.w2(F.silu(self.w1(g)))

    def _differentiates(self, *tensors):
        return torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *self.parameters()))

    def extra_repr(self):
        """What ``print(module)`` adds."""
        return f"{self.hidden_size}, kernel_size={self.kernel_size}, activation={self.activation!r}"


def _own_names(module, state_dict, prefix, *rest):
    """Jet-Nemotron's layer keeps its generator as a submodule, ours doesn't: each loads the other's."""
    own, others = prefix, f"{prefix}kernel_generator."
    if "kernel_generator" in module._modules:
        own, others = others, own
    for name in ("w1.weight", "w2.weight", "w2.bias"):
        if others + name in state_dict:
            state_dict[own + name] = state_dict.pop(others + name)
