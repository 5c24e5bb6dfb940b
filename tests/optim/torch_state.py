"""The snippet of docs/optimizers.md: the state of an optimiser of torch.optim as this library reads it."""

import torch


def state_of(optimizer, named_parameters):
    """Tensors by "<parameter>.<slot>", for safetensors.torch.save_file."""
    tensors = {}
    for name, parameter in named_parameters:
        slots = dict(optimizer.state[parameter])
        slots = {slot: value for slot, value in slots.items() if value is not None}
        if "momentum_buffer" in slots:  # torch.optim.SGD does not count its steps
            slots["step"] = 1
        for slot, value in slots.items():
            value = torch.as_tensor(value)
            tensors[f"{name}.{slot}"] = value.to(torch.int64) if slot == "step" else value.contiguous()
    return tensors
