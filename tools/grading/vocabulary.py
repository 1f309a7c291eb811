"""The words that an answer may use: names of Triton, of Gluon, of Python, and of what tensors offer."""

MOST_CHARACTERS = 60_000  # of one answer cell; Python's parser is asked to read nothing longer

_TL_DTYPES = (
    "int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float8e4nv float8e5 float16 bfloat16 float32 float64 "
    "constexpr"
)
_TL_FUNCTIONS = (
    "program_id num_programs arange zeros zeros_like full cast cat join split interleave broadcast broadcast_to "
    "expand_dims permute ravel reshape trans view flip load store where maximum minimum clamp abs exp exp2 log log2 "
    "sqrt sqrt_rn rsqrt sin cos erf fma floor ceil div_rn fdiv umulhi sigmoid softmax max min sum argmax argmin xor_sum "
    "cumsum cumprod sort gather histogram dot dot_scaled cdiv range static_range static_assert static_print "
    "device_assert device_print multiple_of max_contiguous max_constancy assume debug_barrier reduce associative_scan "
    "swizzle2d atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor atomic_xchg atomic_cas "
    "make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor make_block_ptr advance squeeze unsqueeze topk "
    "reduce_or add sub mul PropagateNan"
)
TL = frozenset(f"{_TL_DTYPES} {_TL_FUNCTIONS}".split())
TL_MATH = frozenset("abs exp exp2 log log2 sqrt sqrt_rn rsqrt sin cos erf fma floor ceil div_rn fdiv umulhi".split())
#: Python's own module of numbers, the one that an answer may import: for launchers, compilers and tests.
MATH = frozenset(
    (
        "acos asin atan atan2 cbrt ceil copysign cos cosh dist e erf erfc exp exp2 expm1 fabs floor fmod frexp fsum gcd "
        "hypot inf isclose isfinite isinf isnan isqrt lcm ldexp log log10 log1p log2 modf nan pi prod remainder sin sinh "
        "sqrt tan tanh tau trunc ulp"
    ).split()
)
#: What of it is a number: a kernel may say that, and a compiler takes it.
NUMBERS = frozenset("e inf nan pi tau".split())
ITERTOOLS = frozenset("product permutations combinations chain islice".split())
#: Names of types, for annotations.
TYPING = frozenset("Any Callable Dict Iterable List Optional Sequence Tuple Union".split())
DTYPES = frozenset(
    "bool uint8 int8 int1 int16 int32 int64 int long short half float double float16 bfloat16 float32 float64".split()
)
TRITON = frozenset(["cdiv", "next_power_of_2"])
GL = frozenset(
    (
        "program_id num_programs cdiv arange zeros full cast where maximum minimum load store max min sum expand_dims "
        "broadcast reshape permute convert_layout static_range static_assert static_print device_print device_assert "
        "allocate_shared_memory warp_specialize num_warps "
        "abs exp exp2 log log2 sqrt rsqrt fma thread_barrier barrier constexpr int1 int8 int16 int32 int64 uint8 "
        "uint16 uint32 uint64 float16 bfloat16 float32 float64 BlockedLayout SliceLayout NVMMASharedLayout "
        "NVMMADistributedLayout"
    ).split()
)
MBARRIER = frozenset("allocate_mbarrier init invalidate expect wait arrive".split())
TMA = frozenset("async_copy_global_to_shared async_copy_shared_to_global async_load async_store store_wait".split())

#: What a tile, a scalar, a tuple of strides or a buffer offers inside a kernel.
IN_KERNELS = frozenset(
    (
        "to cast T trans permute reshape view expand_dims broadcast_to ravel split flip gather shape dtype type "
        "element_ty numel sum max min argmax argmin cumsum cumprod sort abs exp exp2 log log2 sqrt rsqrt sin cos erf "
        "floor ceil sigmoid softmax logical_and logical_or is_floating is_fp16 is_fp32 is_bf16 is_int value load store "
        "index slice block_type layout nbytes_per_cta associative_scan reduce histogram sqrt_rn xor_sum cdiv scalar "
        "is_ptr is_bool is_fp64 is_fp8 is_int8 is_int16 is_int32 is_int64 primitive_bitwidth ALL NONE append"
    ).split()
)
#: The last four are no compiler's: its verdict says so. Not ``list``, which Triton's compiler would perform itself.
IN_KERNELS_BUILTINS = frozenset("range min max abs int float bool len print enumerate zip reversed sum".split())
EXCEPTIONS = frozenset(
    "Exception KeyError ValueError TypeError IndexError NotImplementedError AssertionError StopIteration".split()
)
#: Names of Python's own that a kernel may give to its values, because they do no harm where they mean Python's.
OWN_IN_KERNELS = frozenset("id input filter hash slice map next all any pow round divmod bin hex oct format chr ord".split())
#: Modules that stand in the texts that are compiled, and in notebooks.
MODULES = frozenset("torch triton kernels collections math np numpy os sys subprocess ctypes gc inspect".split())
IN_PROGRAMS_BUILTINS = EXCEPTIONS | frozenset(
    "range min max abs int float bool len tuple list dict set map filter zip enumerate reversed sorted sum divmod round "
    "print str isinstance all any frozenset repr next iter slice complex bytes ord chr".split()
)
TORCH = frozenset(
    (
        "bool uint8 int8 int16 int32 int64 int long short half float double float16 bfloat16 float32 float64 dtype Tensor "
        "promote_types result_type is_tensor finfo iinfo inf pi nan tensor empty zeros ones arange where"
    ).split()
)
#: What a test of a clinic needs of torch besides: inputs of its own, the formula, and a comparison.
TORCH_IN_TESTS = frozenset(
    (
        "randn rand randint randperm manual_seed full ones_like zeros_like empty_like full_like randn_like rand_like "
        "linspace logspace eye tril triu cat stack flip roll clone as_strided broadcast_to arange isnan isinf isfinite "
        "isclose allclose equal eq all any softmax log_softmax logsumexp sigmoid exp exp2 log log2 sqrt rsqrt square abs "
        "sum mean amax amin max min maximum minimum cumsum cumprod prod einsum matmul mm bmm mv dot outer norm clamp "
        "from_numpy as_tensor argmax argmin sort topk bincount diff sign floor ceil round relu tanh meshgrid cartesian_prod "
        "split chunk repeat_interleave index_select gather scatter count_nonzero unique nonzero std var median "
        "nan_to_num where masked_fill transpose permute reshape unsqueeze squeeze flatten movedim conv1d conv2d no_grad"
    ).split()
)
#: What a test may import besides ``math``, and what of numpy it may use.
IN_TESTS_IMPORTS = frozenset(
    ("import numpy", "import numpy as np", "import torch.nn.functional as F", "from torch.nn import functional as F")
)
NUMPY = TORCH_IN_TESTS | frozenset("zeros ones empty array asarray float32 float64 int32 int64 pi inf nan testing".split())
#: Attributes through which Python's own machinery is reached from values that an answer holds.
MACHINERY = ("gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_")
#: Modules that Triton's interpreter, or a habit, may put under these names: asked for, they are refused.
LEAKED = MODULES - {"collections"} | frozenset("time tl gl check runtime".split())
