"""Lesson 11's "Your turn" cells: the bytes of a scheme, a word from four numbers, a window that walks back."""

import torch

from kernels.check.steps import step


@step("11-bytes", "what the published scheme requests")
def requested(answer):
    """e B T D (2 W + 1): weights once, each input W times, outputs once."""
    for B, T, D, W, e in ((1, 24, 128, 4, 2), (3, 10, 32, 8, 4), (2, 7, 16, 1, 2)):
        outputs = B * T * D
        got, wanted = answer(B, T, D, W, e), e * outputs * (2 * W + 1)
        if got == wanted:
            continue
        if W == 1 and got == e * outputs * (W + 2):
            continue
        case = f"For B = {B}, T = {T}, D = {D}, W = {W}, e = {e} you say {got:,} bytes, and it is {wanted:,}"
        if got == e * outputs * (W + 2):
            return f"{case}. That is the floor, each element once; but every token's program loads its whole window"
        if got == outputs * (2 * W + 1):
            return f"{case}. Those are numbers: each has e bytes"
        if got == e * outputs * 2 * W:
            return f"{case}. The outputs are missing"
        if got == e * outputs * (W + 1) and W > 1:
            return f"{case}. Weights and outputs, or inputs and outputs: each output needs W of both"
        return f"{case}. For each output: W weights, the W inputs of its window, itself"
    return ""


def _shown(words) -> list[list[float]]:
    """The four bfloat16 values of each word."""
    return words.to(torch.int64).reshape(-1, 1).view(torch.bfloat16).float().tolist()


@step("11-pack", "the word, whatever the signs")
def pack_four(answer):
    """Positive numbers first, then a negative one in each place, then -0, whose only bit is the sign."""
    for numbers in ([1, 2, 3, 0.5], [-2, 1, 3, 0.5], [1, -2, 3, 0.5], [1, 3, -2, 0.5], [1, 3, 0.5, -2], [-0.0, 1, 2, 3]):
        values = torch.tensor(numbers, dtype=torch.bfloat16)
        bits = values.view(torch.int16).reshape(4, 1)
        got = torch.as_tensor(answer(bits.repeat(1, 3)))
        wanted = values.view(torch.int64)
        if got.dtype != torch.int64 or tuple(got.shape) != (3,):
            return f"From [4, 3] bits it must make 3 words, an int64 tensor [3], not {got.dtype} {list(got.shape)}"
        if torch.equal(got, wanted.expand(3)):
            continue
        back = _shown(got[:1])[0]
        case = f"{numbers} comes back as [{', '.join(f'{value:.3g}' for value in back)}]"
        if back == numbers[::-1]:
            return f"{case}: place 0, the first number in memory, stands at the low end"
        at = next((i for i, v in enumerate(numbers) if v < 0 or str(v) == "-0.0"), None)
        right_below = at is not None and back[: at + 1] == numbers[: at + 1]
        if numbers == [-2, 1, 3, 0.5] and back[0] == 2:
            return f"{case}: the sign, the top bit of the 16, is lost; keep all 16, with & 0xFFFF"
        if right_below:
            return f"{case}: what is wrong stands above a negative number, whose widening filled it up with ones"
        return f"{case}: place i belongs 16 * i bits up (and << binds less tightly than +)"
    return ""


@step("11-back", "the window that walks back")
def walk_back(answer):
    """The windows of a run for several W, and how often each input is asked for."""
    for first, last, W in ((8, 12, 4), (5, 5, 3), (2, 6, 1)):
        asked = []

        def X(j, asked=asked):
            asked.append(j)
            return j

        wanted = [list(range(t - W + 1, t + 1)) for t in range(last, first - 1, -1)]
        run = f"Walking from token {last} to {first} with W = {W}"
        pairs = list(answer(X, first, last, W))
        if [t for t, _ in pairs] != list(range(last, first - 1, -1)):
            return f"{run}, it yields the tokens {[t for t, _ in pairs]}"
        got = [list(window) for _, window in pairs]
        for t, (mine, right) in zip(range(last, first - 1, -1), zip(got, wanted)):
            if mine == right:
                continue
            if sorted(mine) == right:
                return f"{run}, token {t}'s window is {mine}: the oldest input stands first"
            if len(mine) != W:
                return f"{run}, token {t}'s window {mine} has {len(mine)} inputs, not {W}"
            if t == last and mine[0] == right[0]:
                return f"{run}, token {t}'s window is {mine}: before the walk it must hold the inputs {right[1:]}"
            return f"{run}, token {t}'s window is {mine}, not {right}; walking back, its oldest input is the new one"
        twice = sorted({j for j in asked if asked.count(j) > 1})
        if twice:
            return (
                f"{run}, the windows are right, but the inputs {twice} were asked for more than once: keep what the next "
                "token needs, too"
            )
        if len(asked) > last - first + W:
            enough = last - first + W
            return f"{run}, the windows are right, but {len(asked)} inputs were asked for, and R + W - 1 are {enough}"
    return ""
