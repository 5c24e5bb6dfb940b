"""Counts the parameters that transformers builds from each config.json: prints "<file stem> <count>" a line."""

import json
import sys
from pathlib import Path

import torch
import transformers

for path in sorted(Path(sys.argv[1]).glob("*.json")):
    values = json.loads(path.read_text())
    config = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        model = getattr(transformers, values["architectures"][0])(config)
    model.tie_weights()
    print(path.stem, sum(parameter.numel() for parameter in model.parameters()))
