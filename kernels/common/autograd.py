"""What the custom operators of several rooms tell autograd."""


def refuse_second_derivative(operator, room=None):
    """The gradient of ``operator``'s backward pass: an error that names the reference to differentiate twice instead.

    Args:
        operator: the public function's name; its reference is ``<operator>_reference``.
        room: the folder under ``kernels`` it lives in, ``None`` where that has the operator's name.
    """

    def refuse(ctx, *grads):
        raise RuntimeError(
            f"{operator} has no second derivative: its backward pass is a kernel without a gradient of its own. "
            f"For double backward use kernels.{room or operator}.reference.{operator}_reference."
        )

    return refuse
