"""Calls that are alike: of the same options, on tensors that differ in their values and addresses alone.

All of those addresses are multiples of 16 bytes, so that whatever a kernel is compiled for, and told beside its tensors, is
the same in each of them: it is made in the first call, as ``Launches``, and not looked at in the others.
"""

from collections.abc import Callable

from kernels.common.launch import Launches
from kernels.common.plan import Bounded


def lie(tensors):
    """How tensors, ``None`` among them, lie in memory, hashable; ``None`` where one begins at no multiple of 16 bytes.

    Raises:
        RuntimeError: a transform has wrapped one.
    """
    seen, addresses = [], 0
    for t in tensors:
        if t is None:
            seen.append(None)
        else:
            seen += t.shape, t.stride(), t.dtype, t.device
            addresses |= t.data_ptr()
    return None if addresses & 15 else tuple(seen)


class Passes:
    """Both passes of an operator's calls that are alike: the operator's own, which take ``launches``.

    Args:
        forward, backward: as ``Operator``'s; ``launches`` is how they launch.
        numbers: the calls' arguments that are no tensors.
        switch: ``switch()`` is what the passes depend on beside their arguments, ``None`` for nothing.
    """

    def __init__(self, forward: Callable, backward: Callable, numbers: tuple, switch: Callable | None = None) -> None:
        self._forward, self._backward, self._numbers, self._switch = forward, backward, numbers, switch
        self._launches, self._known = {}, Bounded()

    def forward(self, *args):
        """The operator's forward pass."""
        on = self._switch and self._switch()
        launches = self._launches.get(on)
        if launches is None:
            launches = self._launches[on] = Launches()
        return self._forward(*args, launches=launches)

    def backward_of(self, *tensors):
        """The backward pass of output gradients and saved tensors that lie so; hooks may have given back others."""
        seen = lie(tensors)
        if seen is None:
            return None
        known_by = seen, self._switch and self._switch()
        return self._known.get(known_by) or self._known.keep(known_by, _Backward(self._backward, self._numbers).run)


class _Backward:
    def __init__(self, backward, numbers):
        self.backward, self.numbers, self.launches = backward, numbers, {}

    def run(self, *rest):
        *tensors, needs = rest
        launches = self.launches.get(needs)
        if launches is None:
            launches = self.launches[needs] = Launches()
        return self.backward(*tensors, *self.numbers, needs, launches=launches)
