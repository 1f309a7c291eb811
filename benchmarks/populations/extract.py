"""Read the populations out of the libraries that hold the models: ``python -m benchmarks.populations.extract``.

Needs what the course does not: ``pip install timm diffusers transformers flash-linear-attention``. Nothing is downloaded, and
no weights are made: models run on torch's meta device, and configurations are their classes' defaults.
"""

import argparse
import datetime
import importlib
import importlib.metadata
from pathlib import Path

from benchmarks import harness
from benchmarks.populations import halves, population

OPERATORS = {
    "conv_wgrad": ("extract_convolutions", "models", ("timm", "diffusers")),
    "flex_attention": ("extract_sequences", "attention", ("transformers", "diffusers")),
    "dynamic_conv": ("extract_sequences", "short_convolutions", ("transformers", "flash-linear-attention")),
    "recurrent_attention": ("extract_sequences", "recurrences", ("transformers", "flash-linear-attention")),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", default=[], help=f"of {', '.join(OPERATORS)}; all if none is given")
    parser.add_argument("--out", default=population.DATA, type=Path)
    given = parser.parse_args()
    for operator in given.operators or OPERATORS:
        module, function, libraries = OPERATORS[operator]
        models = getattr(importlib.import_module(f"benchmarks.populations.{module}"), function)()
        layers, half = halves.deal(models), halves.halves(model["name"] for model in models)
        record = {
            "made_by": "python -m benchmarks.populations.extract",
            "date": datetime.date.today().isoformat(),
            "versions": {name: importlib.metadata.version(name) for name in ("torch", *libraries)},
            "rule": halves.RULE,
            "models": [
                {"name": model["name"], "half": half[model["name"]], "source": model["source"]} for model in models
            ],
            "layers": layers,
        }
        path = harness.write(operator, record, given.out)
        share = {part: sum(row["half"] == part for row in layers) for part in ("tuning", "held_out")}
        print(f"{path}: {len(models)} models, {share}")


if __name__ == "__main__":
    main()
