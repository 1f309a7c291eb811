"""State: however a sequence is cut, packed, reversed or decoded, the numbers are those of the whole sequence."""

import pytest
import torch

from kernels import runtime
from kernels.recurrent_attention import recurrent_attention, recurrent_attention_step
from kernels.recurrent_attention.reference import recurrent_attention_step_reference
from tests.recurrent_attention import cases
from tests.tensors import same

MODES = ["recurrent", "chunk"]
GATES = {"recurrent": cases.GATES, "chunk": ("g", "g_gamma", "gk")}
WHOLE = ("g_gamma", "initial_state")  # arguments without a dimension of time


def values(*sizes, **options):
    leaves, packing = cases.problem(*sizes, **options)
    return {name: leaf.detach() for name, leaf in leaves.items()}, packing


def part(arguments, times):
    """The arguments of some of the tokens, without the initial state."""
    rest = {name: x for name, x in arguments.items() if name != "initial_state"}
    return {name: x if name in WHOLE else x[:, times] for name, x in rest.items()}


def close(a, b, mode):
    """The recurrence does the same operations on the same numbers; chunks that begin elsewhere sum in another order."""
    if mode == "recurrent" and runtime.interpreted:
        assert torch.equal(a, b)
    else:
        assert not b.numel() or cases.relative_error(a, b) <= 2 * cases.TOLERANCE[torch.float32]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_cut_anywhere_equals_the_whole(mode, reverse):
    x, _ = values(1, 35, 1, 1, 6, 5, gates=GATES[mode], initial=True)
    options = {"output_final_state": True, "mode": mode, "reverse": reverse}
    whole, last = recurrent_attention(**x, **options)
    for cut in (0, 1, 17, 32, 35):
        pieces = [slice(0, cut), slice(cut, 35)]
        o, state = {}, x["initial_state"]
        for piece in reversed(pieces) if reverse else pieces:
            o[piece.start > 0 or piece.stop == 0], state = recurrent_attention(
                **part(x, piece), initial_state=state, **options
            )
        o = torch.cat([o[key] for key in sorted(o)], 1) if cut else o[False]
        close(o, whole, mode)
        close(state, last, mode)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_flow_through_a_carried_state(mode):
    leaves, _ = cases.problem(1, 21, 1, 1, 6, 5, gates=GATES[mode], initial=True)
    options = {"output_final_state": True, "mode": mode}
    whole = recurrent_attention(**leaves, **options)
    first, state = recurrent_attention(**part(leaves, slice(0, 9)), initial_state=leaves["initial_state"], **options)
    second, last = recurrent_attention(**part(leaves, slice(9, 21)), initial_state=state, **options)
    torch.manual_seed(0)  # dg_gamma is one number, a sum that may nearly cancel
    outs = [torch.randn_like(x) for x in whole]
    wanted = torch.autograd.grad(whole, leaves.values(), outs)
    grads = torch.autograd.grad((torch.cat([first, second], 1), last), leaves.values(), outs)
    for name, got, want in zip(leaves, grads, wanted, strict=True):
        assert cases.relative_error(got, want) <= 2 * cases.bound(f"d{name}", got.dtype, mode, leaves), name


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_packed_equals_one_by_one(mode, reverse):
    cu = [0, 3, 3, 4, 21, 21]
    x, packing = values(1, None, 2, 1, 6, 5, gates=GATES[mode], initial=True, cu_seqlens=cu)
    options = {"output_final_state": True, "mode": mode, "reverse": reverse}
    o, final = recurrent_attention(**x, **packing, **options)
    for n, (a, b) in enumerate(zip(cu[:-1], cu[1:], strict=True)):
        state = x["initial_state"][n : n + 1]
        alone, end = recurrent_attention(**part(x, slice(a, b)), initial_state=state, **options)
        close(o[:, a:b], alone, mode)
        close(final[n : n + 1], end, mode)


@pytest.mark.parametrize("mode", MODES)
def test_reverse_is_the_flipped_sequence(mode):
    x, _ = values(2, 19, 1, 1, 6, 5, gates=GATES[mode], initial=True)
    o, final = recurrent_attention(**x, output_final_state=True, reverse=True, mode=mode)
    flipped = {name: y if name in WHOLE else y.flip(1) for name, y in x.items()}
    want, last = recurrent_attention(**flipped, output_final_state=True, mode=mode)
    assert torch.equal(o, want.flip(1)) and torch.equal(final, last)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_cu_seqlens_of_either_integer_type_and_any_stride(integers, mode):
    x, packing = values(1, None, 1, 1, 4, 4, gates=["g"], cu_seqlens=[0, 3, 7])
    plain, _ = recurrent_attention(**x, **packing, mode=mode)
    strided = torch.tensor([0, 9, 3, 9, 7], dtype=integers, device=runtime.device)[::2]
    assert torch.equal(recurrent_attention(**x, cu_seqlens=strided, mode=mode)[0], plain)


@pytest.mark.parametrize("mode", MODES)
def test_the_final_state_alone_and_the_output_alone(mode):
    """Asking for the state changes no bit of o, and a loss of the state alone has all the gradients it should."""
    leaves, _ = cases.problem(1, 19, 1, 1, 6, 5, gates=GATES[mode], initial=True)
    alone, nothing = recurrent_attention(**leaves, mode=mode)
    o, final = recurrent_attention(**leaves, output_final_state=True, mode=mode)
    assert nothing is None and cases.same(alone, o) and final.dtype == torch.float32
    dfinal = torch.randn_like(final)
    got = torch.autograd.grad(final, leaves.values(), dfinal, retain_graph=True)
    both = torch.autograd.grad((o, final), leaves.values(), (torch.zeros_like(o), dfinal))
    assert all(torch.equal(a, b) for a, b in zip(got, both, strict=True))
    assert got[0].count_nonzero() == 0 and got[1].count_nonzero() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gates", [(), ("g",), ("gk", "gv"), cases.GATES], ids=lambda g: "+".join(g) or "none")
def test_decoding_equals_the_sequence(gates, dtype):
    """Gates and states walk with the tokens; states stay float32 however the numbers are rounded."""
    x, _ = values(2, 5, 4, 2, 12, 20, gates=gates, dtype=dtype, gate_dtype=torch.float32, initial=True, layout="padded")
    state = x.pop("initial_state").float().contiguous()
    o, final = recurrent_attention(**x, initial_state=state, output_final_state=True, mode="recurrent")
    address = state.data_ptr()
    for t in range(5):
        token = {name: y if name in WHOLE else y[:, t] for name, y in x.items()}
        step = recurrent_attention_step(**token, state=state)
        assert step.dtype == dtype and cases.relative_error(step, o[:, t]) <= cases.TOLERANCE[dtype]
    assert state.data_ptr() == address and cases.relative_error(state, final) <= cases.TOLERANCE[torch.float32]


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_step_updates_only_its_slots_of_the_pool(layout):
    x, _ = values(3, 1, 2, 1, 20, 12, gates=cases.GATES, layout=layout)
    token = {name: y if name in WHOLE else y[:, 0] for name, y in x.items()}
    pool = torch.randn(7, 2, 20, 12, device=runtime.device)
    slots = torch.tensor([4, 9, 0, 9, 6], device=runtime.device)[::2]
    want, updated = recurrent_attention_step_reference(
        **{n: y.double() for n, y in token.items()}, state=pool.double(), slots=slots
    )
    before = pool.clone()
    with cases.configured(step={"BV": 16 if layout == "flat" else 512}):
        o = recurrent_attention_step(**token, state=pool, slots=slots)
    assert cases.relative_error(o, want) <= cases.TOLERANCE[torch.float32]
    assert cases.relative_error(pool, updated) <= cases.TOLERANCE[torch.float32]
    others = [1, 2, 3, 5]
    assert torch.equal(pool[others], before[others]) and not torch.equal(pool[slots], before[slots])


@pytest.mark.parametrize("sizes", [(0, 1, 2, 2, 4, 3), (2, 1, 0, 0, 4, 3), (2, 1, 2, 1, 4, 0)])
def test_a_step_of_nothing(sizes):
    B, _, H, Hkv, K, V = sizes
    new = lambda *shape: torch.randn(shape, device=runtime.device)  # noqa: E731
    o = recurrent_attention_step(new(B, H, K), new(B, Hkv, K), new(B, Hkv, V), new(B, H, K, V))
    assert o.shape == (B, H, V)


def test_inputs_are_never_modified():
    for mode in MODES:
        x, packing = values(1, None, 2, 1, 6, 5, gates=GATES[mode], initial=True, cu_seqlens=[0, 3, 9])
        before = {name: y.clone() for name, y in x.items()}
        leaves = {name: y.requires_grad_() for name, y in x.items()}
        o, final = recurrent_attention(**leaves, **packing, output_final_state=True, mode=mode)
        (o.sum() + final.sum()).backward()
        assert all(torch.equal(y, before[name]) for name, y in x.items())


@pytest.mark.parametrize("mode", MODES)
def test_states_with_the_values_first(mode):
    """As flash-linear-attention's layers keep them: [N, H, V, K], with their gradients, forward and by the token."""
    leaves, _ = cases.problem(2, 21, 2, 1, 6, 5, gates=GATES[mode], initial=True)
    rest = {name: x for name, x in leaves.items() if name != "initial_state"}
    turned = leaves["initial_state"].detach().mT.contiguous().requires_grad_()
    o, last = recurrent_attention(**rest, initial_state=turned, output_final_state=True, mode=mode, state_v_first=True)
    want, wanted_last = recurrent_attention(**leaves, output_final_state=True, mode=mode)
    assert same(o, want) and same(last.mT, wanted_last)
    do, dlast = torch.randn_like(o), torch.randn_like(last)
    got = torch.autograd.grad((o, last), [turned, leaves["q"]], (do, dlast))
    wanted = torch.autograd.grad((want, wanted_last), [leaves["initial_state"], leaves["q"]], (do, dlast.mT))
    assert same(got[0].mT, wanted[0]) and same(got[1], wanted[1])
    assert recurrent_attention(**rest, mode=mode, state_v_first=True)[1] is None


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("view", [False, True])
def test_a_step_on_states_with_the_values_first(view, pool):
    x, _ = values(2, 3, 2, 1, 6, 20, gates=cases.GATES, initial=True)
    state = x.pop("initial_state").float().contiguous()
    slots = torch.tensor([3, 1], device=runtime.device) if pool else None
    turned = torch.randn(5 if pool else 2, 2, 20, 6, device=runtime.device)
    turned[slots if pool else slice(None)] = state.mT
    before = turned.clone()
    given = {"state": turned.mT} if view else {"state": turned, "state_v_first": True}
    for t in range(3):
        token = {name: y if name in WHOLE else y[:, t] for name, y in x.items()}
        want = recurrent_attention_step(**token, state=state)
        got = recurrent_attention_step(**token, **given, slots=slots)
        assert same(got, want)
    assert same(turned[slots if pool else slice(None)].mT, state)
    assert not pool or torch.equal(turned[[0, 2, 4]], before[[0, 2, 4]])
