"""Writes what Hugging Face peft computes with DoRA on the models of transformers_oracle.py.

    dora_oracle.py FOLDER CASE...        as of peft_oracle.py

CASE/dora.safetensors has the names of d9d:

    begin.<name>     magnitudes as peft begins
    lora.<name>      every A, B and magnitude, drawn at random
    output, loss     with adapters; grad.<name> of every A, B and magnitude
    merged           output of merge_and_unload()
    dropout.<name>   of one linear [out, in] with bias: weight, bias, x, kept (what dropout leaves of x) and output

CASE/dora is what save_pretrained() writes of the adapters.
"""

import torch
import transformers_oracle as oracle
from peft import LoraConfig, get_peft_model
from peft_oracle import in_our_names, write_cases
from safetensors.torch import load_file, save_file

OPTIONS = {"r": 4, "lora_alpha": 6.0, "use_dora": True}


def randomise(adapters):
    for name, parameter in adapters.items():
        values = torch.randn(parameter.shape, dtype=torch.float64) * 0.2
        parameter.data = values + 1.5 if "magnitude" in name else values


def adapters_of(model):
    return {name: parameter for name, parameter in model.named_parameters() if "lora_" in name}


def dropout_case():
    """In training: peft multiplies the magnitudes into the product with what dropout leaves."""
    torch.manual_seed(15)
    base = torch.nn.Sequential(torch.nn.Linear(6, 5, dtype=torch.float64))
    weight, bias = (tensor.detach().clone() for tensor in base.parameters())
    model = get_peft_model(base, LoraConfig(target_modules=["0"], lora_dropout=0.5, **OPTIONS))
    adapters = adapters_of(model)
    randomise(adapters)
    x = torch.randn(7, 6, dtype=torch.float64)
    kept = []
    model.base_model.model[0].lora_dropout["default"].register_forward_hook(lambda module, inputs, output: kept.append(output))
    output = model.train()(x)
    tensors = {"weight": weight, "bias": bias, "x": x, "kept": kept[0], "output": output}
    for part, name in (("A", "lora_A"), ("B", "lora_B"), ("magnitude", "lora_magnitude_vector")):
        tensors[part] = next(tensor for key, tensor in adapters.items() if name in key)
    return {f"dropout.{name}": tensor for name, tensor in tensors.items()}


def write_case(folder, **options):
    inputs = load_file(folder / "expected.safetensors")
    base = oracle.load(folder, "causal_lm", torch.float64)
    model = get_peft_model(base, LoraConfig(target_modules=r".*self_attn\..*_proj|.*mlp\.[a-z]*_proj", **OPTIONS, **options))
    adapters = adapters_of(model)
    begin = {name: parameter.detach().clone() for name, parameter in adapters.items() if "magnitude" in name}
    torch.manual_seed(13)
    randomise(adapters)
    model.save_pretrained(folder / "dora")
    output, loss = oracle.CausalLM.compute(model, inputs)
    loss.backward()
    tensors = {"output": output, "loss": loss} | dropout_case()
    groups = {"begin": begin, "lora": adapters, "grad": {name: parameter.grad for name, parameter in adapters.items()}}
    for group, values in groups.items():
        values = {name: tensor.detach().clone() for name, tensor in values.items()}
        tensors |= {f"{group}.{name}": tensor for name, tensor in in_our_names(values, None).items()}
    tensors["merged"], _ = oracle.CausalLM.compute(model.merge_and_unload(), inputs)
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, folder / "dora.safetensors")


if __name__ == "__main__":
    write_cases(write_case)
