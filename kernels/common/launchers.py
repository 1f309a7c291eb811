"""What Triton's launcher does at every start, with what stays the same done once.

``compiled.run`` asks for scratch memory, of kernels that have none, too, and encodes each descriptor for TMA. The encoding
depends on the address alone where descriptors are alike otherwise, and tensors come to lie where others have lain: it is
remembered. This knows the launcher of one version of Triton; every other one's is called as Triton calls it.
"""

import triton

MOST = 256  # addresses that one maker of descriptors remembers; one more, and they are all forgotten

try:
    from triton.backends.driver import wrap_handle_tensordesc_impl
    from triton.backends.nvidia.driver import CudaLauncher, make_tensordesc_arg

    KNOWN = triton.__version__.startswith("3.9.")
except ImportError:  # an older Triton, or one without NVIDIA's GPUs
    KNOWN = False


def starter(compiled):
    """``start(x, y, z, stream, function, packed, metadata, before, after, args)``, which does what ``compiled.run`` does, the
    kernel's arguments as one tuple; ``None`` where Triton's launcher is another, or has something to ask for."""
    launcher = compiled.run
    if not KNOWN or type(launcher) is not CudaLauncher:
        return None
    if launcher.gsan_enabled or launcher.global_scratch_size or launcher.profile_scratch_size:
        return None
    call = launcher.launch
    if described := getattr(compiled.metadata, "tensordesc_meta", None):
        utils = triton.runtime.driver.active.utils
        call = wrap_handle_tensordesc_impl(utils.launch, dict(compiled.src.signature), described, encoded)
    cooperative, dependent = launcher.launch_cooperative_grid, launcher.launch_pdl
    annotations, signature = launcher.arg_annotations, launcher.kernel_signature

    def start(x, y, z, stream, function, packed, metadata, before, after, args):
        call(
            x, y, z, stream, function, cooperative, dependent, packed, metadata, before, after, None, None, annotations,
            signature, args,
        )  # fmt: skip

    return start


def encoded(descriptor, metadata, base):
    """What stands for a descriptor among a kernel's arguments: ``[for TMA, *sizes, *strides]``."""
    maker = getattr(descriptor, "alike", None)
    if maker is None or metadata is None:
        return make_tensordesc_arg(descriptor, metadata, base)
    at = descriptor.base.data_ptr(), id(metadata)
    found = maker.encoded.get(at)
    if found is None or found[0] is not metadata:  # ids are given again
        if len(maker.encoded) >= MOST:
            maker.encoded.clear()
        found = maker.encoded[at] = metadata, make_tensordesc_arg(descriptor, metadata, base)
    return found[1]
