"""Count what PyTorch's own calls read and write, one call at a time, as they would without fusion."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Counter(TorchDispatchMode):
    total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            operands = {id(t): t for t in (*args, *(kwargs or {}).values()) if isinstance(t, torch.Tensor)}
            results = result if isinstance(result, (tuple, list)) else [result]
            results = [t for t in results if isinstance(t, torch.Tensor)]
            self.total += sum(t.nbytes for t in (*operands.values(), *results))
        return result


def bytes_of_calls(function) -> int:
    """Bytes that the PyTorch calls made by ``function()`` move: each reads its operands and writes its results.

    An operand that is passed twice is read once; a view moves nothing.
    """
    with _Counter() as counter:
        function()
    return counter.total
