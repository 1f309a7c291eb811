"""What the custom operators of several rooms tell autograd."""


def refuse_second_derivative(operator):
    """The gradient of ``operator``'s backward pass: an error that names the reference to differentiate twice instead."""

    def refuse(ctx, *grads):
        raise RuntimeError(
            f"{operator} has no second derivative: its backward pass is a kernel without a gradient of its own. "
            f"For double backward use kernels.{operator}.reference.{operator}_reference."
        )

    return refuse
