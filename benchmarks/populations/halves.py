"""Which models a choice may be fitted to, and which are only measured."""

import hashlib

RULE = (
    "the models of an operator, in the order of their names' SHA-256, are dealt in turn: the first for tuning, the second "
    "held out; a layer that both halves have is for tuning"
)


def halves(names):
    """``{name: "tuning" or "held_out"}``: nobody's decision, since nobody chooses a hash."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return {name: ("tuning", "held_out")[i % 2] for i, name in enumerate(ordered)}


def deal(models):
    """The distinct layers of a list of models, each with its half and every model that has it.

    Args:
        models: ``[{"name": ..., "layers": [layer, ...]}]``; a layer is a dict of what tells it from others.

    Returns:
        ``[{"layer": dict, "half": ..., "models": [names]}]``: one of each model first, then a second of each, and so on,
        each model's in the order of their hashes. The first few of a half are a sample in which no model has more than
        another.
    """
    seen, half = {}, halves(model["name"] for model in models)
    for model in models:
        for rank, layer in enumerate(sorted(model["layers"], key=_hash)):
            row = seen.setdefault(_hash(layer), {"layer": layer, "half": "held_out", "models": [], "rank": rank})
            row["models"].append(model["name"])
            row["rank"] = min(row["rank"], rank)
            if half[model["name"]] == "tuning":
                row["half"] = "tuning"
    ordered = sorted(seen, key=lambda key: (seen[key]["rank"], key))
    return [{name: value for name, value in seen[key].items() if name != "rank"} for key in ordered]


def _hash(layer):
    return hashlib.sha256(repr(sorted(layer.items())).encode()).hexdigest()
