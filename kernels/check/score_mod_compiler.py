"""The checks of exercise 07: ``emit_value(mod)`` and ``emit_gradient(mod)`` give the text of a Triton function.

``score_mod(score, b, h, q_idx, kv_idx, tables)`` is the mod, ``score_gradient(score, b, h, q_idx, kv_idx, grad, tables)``
its derivative by the score times ``grad``, both [BLOCK, BLOCK]. The check writes mods as Python expressions, has them
emitted, runs the text on tiles that reach past the end, and compares with the mod in float64, and with autograd.
"""

from kernels.check.framework import Cheap, Compiles, Exercise, Property, Tier
from kernels.check.score_mod_cases import (
    COSTED,
    COSTED_SIZES,
    NOT_FINITE,
    case,
    functions,
    gradients,
    steps,
    then,
    values,
)
from kernels.check.score_mod_mistakes import ONE_SHARE, gradient_suspects, value_suspects

UNSEEN = (
    "torch.where((kv_idx - q_idx) % 2 == 0, 8 * torch.tanh(score / 8), score - slopes[h] * (q_idx - kv_idx).abs())",
    "score * torch.sigmoid(score + ring[(kv_idx - q_idx) // 4]) + 1 / (1 + torch.exp(-score))",
    "torch.maximum(score, column[kv_idx]) * torch.log(score * score + 1) - torch.minimum(score, 0.5 * (q_idx % 3))",
)
EVERYTHING = (
    "score + bias[h, q_idx, kv_idx] * pair[speaker[q_idx], mood[kv_idx]]",
    "score * ring[kv_idx - q_idx] + column[kv_idx]",
)
RECORD, EMIT, CHAIN = (f"Lesson 32, step {step}" for step in (1, 2, 4))
BOUNDS, SIGNS = "Lesson 31, step 3", "Lesson 31, step 4"
OUTSIDE = (
    "a captured tensor is read outside its bounds: fold every index into its axis, also where the result is thrown away"
)

TIMES_ZERO = "0 * inf and 0 * NaN are NaN, and"
FILLED = f"{TIMES_ZERO} the score may be either: what fills the tile is tl.zeros(score.shape, tl.float32)"
EMPTY = f"{TIMES_ZERO} score and grad may be either: what fills the tile is tl.zeros(score.shape, tl.float32)"
CHOSEN = f"{TIMES_ZERO} g may be either where the branch is not taken: multiply nothing with 0, choose with tl.where"
CORNER = "abs has a corner at 0, and 0 / 0 is NaN there: choose g or -g with tl.where"
ONE_EXPONENTIAL = "inf / inf is NaN: write tanh(x) as 1 - 2 / (1 + exp(2 x)), which has one exponential"


VALUE = Exercise(
    "emit_value",
    "no text yet. It needs a line for each operation of the graph, and a return.",
    (
        Property(
            "arithmetic",
            1,
            EMIT,
            values("2 * score - 1", "1 - score / 4", "-score * score + 3 / (score * score + 1)"),
            "a line for each operation, with its operands in their order",
        ),
        Property(
            "positions",
            1,
            EMIT,
            values(
                "score + 0.5 * (kv_idx - q_idx)",
                "score * (q_idx / 4) + h",
                "(q_idx >= kv_idx) * score - 0.25 * b",
                "torch.exp(-q_idx) * score",
                B=2,
                BLOCK=16,
            ),
            "operands are cast to their operation's dtype, which the graph knows",
        ),
        Property(
            "rounding down",
            1,
            SIGNS,
            values(
                "score + (kv_idx - q_idx) // 4",
                "score * ((kv_idx - q_idx) % 3)",
                "score + (q_idx - 7) // -3 + (kv_idx - 9) % -4",
                "score + (8388609 * kv_idx + q_idx) % 7",
            ),
            "floor division and remainder are Python's, in integers",
        ),
        Property(
            "choices",
            1,
            EMIT,
            values(
                "torch.where(q_idx >= kv_idx, score, -float('inf'))",
                "torch.where(ids[q_idx] == ids[kv_idx], score, -1.0)",
                "torch.where((q_idx - kv_idx < 5) & ~(kv_idx == 3) | (h == 1), score, 0.5 * score)",
                "torch.maximum(score, 0.1 * q_idx) - torch.minimum(score, 1 - 2 * score)",
                "torch.where(score > 0.5, 1.0, 2 * score)",
                "torch.where((q_idx >= 0.3 * kv_idx) & (0.7 * q_idx <= kv_idx), score, -1.0)",
            ),
            "a comparison takes both sides in the dtype that holds both, where its branches in its own",
        ),
        Property("functions", 1, EMIT, functions, "each function has its line in RULES", not_finite=ONE_EXPONENTIAL),
        Property(
            "captured tensors",
            1,
            EMIT,
            lambda draw: (
                case(draw, text, orders=orders)
                for orders in ({}, {"HMN": "NHM", "SU": "US"})
                for text in (
                    "score + slopes[h] * (kv_idx - q_idx)",
                    "score + bias[h, q_idx, kv_idx]",
                    "score + pair[speaker[q_idx], mood[kv_idx]]",
                    "torch.where(seen[kv_idx], score, -1.0)",
                )
            ),
            "an element lies at the sum of index times stride, with the strides that the graph knows",
        ),
        Property(
            "negative indices",
            1,
            EMIT,
            values("score + ring[kv_idx - q_idx]", "score * column[-1 - kv_idx]"),
            "a negative index counts from the end: -1 is the last",
        ),
        Property(
            "whole tiles",
            1,
            EMIT,
            then(
                values("slopes[h]", "column[kv_idx]", "0.5 * q_idx", "1.5", "score + mood[kv_idx]"),
                values("slopes[h]", odd={"score": NOT_FINITE}),
            ),
            "whatever it depends on, the result fills the tile: add tl.zeros(score.shape, tl.float32)",
            not_finite=FILLED,
        ),
        Property("mods you have not seen", 1, RECORD, values(*UNSEEN), "each operation must be right by itself"),
        Property.stays_inside(BOUNDS, values(*EVERYTHING), otherwise=OUTSIDE),
    ),
    value_suspects,
    {(f"tables[{i}]", axis, "after"): "" for i in range(4) for axis in "HMNLSU"},
    compiles=Compiles(values(*UNSEEN), EMIT),
    cheap=Cheap(
        values(*COSTED, **COSTED_SIZES),
        steps,
        (Tier(3, read=2.6, steps=1.1), Tier(1, read=5.2, steps=3.0)),
        "each line of the graph is written once, with the names of the lines before it: an element is loaded once",
        EMIT,
        sectors=4.0,
    ),
)

GRADIENT = Exercise(
    "emit_gradient",
    "no text yet. It needs the mod's lines, lines that walk back from grad to the score, and a return.",
    (
        Property(
            "sums and products",
            1,
            CHAIN,
            gradients("2 * score - 1", "1 - score", "q_idx - score", "0.5 * -(2 * score + 1)", "score * (q_idx + 1)"),
            "add hands g on, sub -g to its second operand, mul g times the other factor",
        ),
        Property(
            "quotients",
            1,
            CHAIN,
            gradients("score / 4", "1 / (score + 10)", "(q_idx + 1) / (score + 10)"),
            "y = a / b hands g / b to a, and -g * y / b to b",
        ),
        Property(
            "functions",
            1,
            CHAIN,
            then(
                gradients(
                    "torch.exp(score)",
                    "torch.log(score + 10)",
                    "torch.tanh(score)",
                    "torch.sigmoid(score)",
                    "score.abs()",
                ),
                gradients("score.abs()", odd={"score": (0.0,)}),
            ),
            "each function hands back g times its derivative",
            not_finite=CORNER,
        ),
        Property(
            "choices",
            1,
            CHAIN,
            then(
                gradients(
                    "torch.where(q_idx >= kv_idx, 2 * score, 3.0)",
                    "torch.where(score > 0, 1.0, 2 * score)",
                    "torch.maximum(score, 0.1 * q_idx)",
                    "torch.minimum(0.1 * kv_idx, score)",
                ),
                gradients("torch.where(q_idx >= kv_idx, 2 * score, 3.0)", odd={"grad": NOT_FINITE}),
            ),
            "the branch that was taken gets g, the other 0",
            not_finite=CHOSEN,
        ),
        Property(
            "values used twice",
            1,
            CHAIN,
            gradients(
                "score * score", "score * torch.sigmoid(score) + score", "torch.tanh(score) * score - 1 / (score + 10)"
            ),
            ONE_SHARE,
        ),
        Property(
            "positions and tables",
            1,
            CHAIN,
            gradients("score * slopes[h] + bias[h, q_idx, kv_idx]", "(score + column[kv_idx]) * ring[kv_idx - q_idx]"),
            "what does not depend on the score gets no gradient, but stands in the others' shares",
        ),
        Property(
            "without the score",
            1,
            CHAIN,
            then(
                gradients("column[kv_idx]", "0.5 * q_idx", "torch.where(score > 0, 1.0, slopes[h])"),
                gradients("column[kv_idx]", odd={"score": NOT_FINITE, "grad": NOT_FINITE}),
            ),
            "a mod that does not depend on the score has a gradient of 0, a whole tile of it",
            not_finite=EMPTY,
        ),
        Property(
            "large scores",
            1,
            CHAIN,
            gradients("50 * torch.tanh(score / 50)", "100 * torch.sigmoid(score / 100)", magnitude=1e4),
            "far from 0 the slope of tanh and sigmoid is 0",
            not_finite="the slope of tanh and sigmoid comes from the value, which is finite: 1 - y * y, y * (1 - y)",
        ),
        Property("mods you have not seen", 1, CHAIN, gradients(*UNSEEN), "each operation must be right by itself"),
        Property.stays_inside(BOUNDS, gradients(*EVERYTHING), otherwise=OUTSIDE),
    ),
    gradient_suspects,
    {(f"tables[{i}]", axis, "after"): "" for i in range(4) for axis in "HMNLSU"},
    compiles=Compiles(gradients(*UNSEEN), CHAIN),
    cheap=Cheap(
        gradients(*COSTED, **COSTED_SIZES),
        steps,
        (Tier(3, read=2.05, steps=1.1), Tier(1, read=4.1, steps=3.0)),
        "the way back uses the names that the way there has defined: an element is loaded once",
        CHAIN,
        sectors=4.0,
    ),
)
