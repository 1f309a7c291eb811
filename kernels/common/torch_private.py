"""Names of PyTorch that are private, in this one file: what they do has no public form. Tried with 2.11 and 2.13.

Autograd's own kernel of an operator is made of two guards and a set of dispatch keys. They stand in for
``torch.library.register_autograd``, which looks at each argument of the schema anew in every call: 20 µs for eight.
"""

import torch
from torch._C import _functorch
from torch._subclasses.fake_tensor import is_fake
from torch.autograd import forward_ad  # and its ``_current_level``, below 0 outside of forward mode
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils._device import DeviceContext

__all__ = ["DeviceContext", "forward_ad", "function_modes", "is_fake"]

below_autograd = torch._C._AutoDispatchBelowAutograd
below_views = torch._C._AutoDispatchBelowADInplaceOrView
after_autograd = torch._C._after_autograd_keyset

count_function_modes = torch._C._len_torch_function_stack
any_autocast = torch._C._is_any_autocast_enabled
transforms = _functorch.peek_interpreter_stack  # of torch.func, the innermost, or None
is_batched = _functorch.is_legacy_batchedtensor  # by is_grads_batched
