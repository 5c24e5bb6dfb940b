"""Writes random models with transformers and their results: tiny models, or one layer of a published one.

    transformers_oracle.py FOLDER
    transformers_oracle.py FOLDER layers      causal_lm in float32 only, without training: the models are not tiny

FOLDER/architectures.json is {name: config.json of a decoder}. For each of them, each task (TASKS) and each dtype (float64,
float32, bfloat16) one folder `<architecture>.<task>.<dtype>` with a Hugging Face model, and `expected.safetensors` in it:

    input_ids, labels    the input, and the targets of the task's loss
    pooling_mask         for tasks that use one position of a sequence: 1 at that position
    output, loss         results of the task
    grad.<name>          for every parameter
    loss.<step>, param.<name>     of causal_lm, not in bfloat16: of four AdamW steps, and after them
    routing.<layer>      in bfloat16: the experts [tokens, k] that each token chose

In bfloat16 `exact.safetensors` holds output, loss and grad.<name> of the same weights in float64 with that routing.
"""

import importlib
import json
import sys
import types
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.utils import logging

IGNORED = -100
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
SEQUENCE = 11
NUM_LABELS = 3


def wide(tensor):
    """Losses are computed in at least float32, as those of transformers."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


# A task draws what its loss needs beside the ids, and computes output and loss ------------------------------------------
class CausalLM:
    auto_model = AutoModelForCausalLM
    config = {}
    batch = 2

    @staticmethod
    def draw(ids, config):
        labels = torch.randint(0, config.vocab_size, ids.shape)
        labels[0, :3] = IGNORED
        return {"labels": labels}

    @staticmethod
    def compute(model, inputs):
        logits = model(inputs["input_ids"]).logits
        labels = inputs["labels"].flatten()
        return logits, F.cross_entropy(wide(logits).flatten(0, 1), labels, ignore_index=IGNORED)


class Classification:
    """Classifies the last token that is not padding."""

    auto_model = AutoModelForSequenceClassification
    config = {"num_labels": NUM_LABELS}
    batch = 16  # one position in each sequence: in bfloat16 fewer would be noise

    @staticmethod
    def draw(ids, config):
        pad(ids)
        return {"labels": torch.randint(0, NUM_LABELS, ids.shape[:1]), "pooling_mask": last_token(ids)}

    @staticmethod
    def compute(model, inputs):
        model.config.pad_token_id = 0
        scores = model(inputs["input_ids"]).logits
        return scores, F.cross_entropy(wide(scores), inputs["labels"])


class Embedding:
    """The hidden state of the last token that is not padding, normalised to unit length."""

    auto_model = AutoModel
    config = {}
    batch = 16

    @staticmethod
    def draw(ids, config):
        pad(ids)
        labels = F.normalize(torch.randn(len(ids), config.hidden_size, dtype=torch.float64), dim=-1)
        return {"labels": labels, "pooling_mask": last_token(ids)}

    @staticmethod
    def compute(model, inputs):
        hidden_states = model(inputs["input_ids"]).last_hidden_state
        embeddings = F.normalize(wide(hidden_states[inputs["pooling_mask"].bool()]), dim=-1)
        return embeddings, F.mse_loss(embeddings, inputs["labels"].to(embeddings.dtype))


def pad(ids):
    ids[0, 7:] = 0
    ids[1, 1:] = 0


def last_token(ids):
    return F.one_hot(ids.ne(0).sum(1) - 1, ids.shape[1])


TASKS = {"causal_lm": CausalLM, "classification": Classification, "embedding": Embedding}


def load(folder, task, dtype):
    """Loads what save_pretrained wrote; no tensor may be missing or unused."""
    model, report = TASKS[task].auto_model.from_pretrained(folder, dtype=dtype, output_loading_info=True, **EAGER)
    assert not report["missing_keys"] and not report["unexpected_keys"], (folder, report)
    return model


# float64 -----------------------------------------------------------------------------------------------------------------
class Float64Torch:
    """`torch`, with float64 where a function asks for float32."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def compute_in_float64(model_types):
    """transformers computes norms, softmax and routing in float32 whatever the model's dtype. For comparisons at 1e-9 these
    functions run in float64; the rotary tables stay float32, as in d9d."""

    def widened(function):
        scope = dict(function.__globals__, torch=Float64Torch())
        return types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)

    for model_type in model_types:
        module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
        module.eager_attention_forward = widened(module.eager_attention_forward)
        for name, member in list(vars(module).items()):
            if name.endswith(("RMSNorm", "TopKRouter")):
                member.forward = widened(member.forward)


# Routing -----------------------------------------------------------------------------------------------------------------
def routers_of(model):
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def record_routing(model):
    """A list to which each layer appends its chosen experts when it runs."""
    chosen = []
    for router in routers_of(model):
        router.register_forward_hook(lambda module, inputs, output: chosen.append(output[2]))
    return chosen


def replay_routing(model, routing):
    """Makes each layer use the experts in `routing`, with the probabilities that follow from its own logits."""

    def replay(indices):
        def hook(module, inputs, output):
            probs = output[0].softmax(-1).gather(-1, indices)
            if module.norm_topk_prob:
                probs = probs / probs.sum(-1, keepdim=True)
            return output[0], probs, indices

        return hook

    for router, indices in zip(routers_of(model), routing, strict=True):
        router.register_forward_hook(replay(indices))


# Cases -------------------------------------------------------------------------------------------------------------------
def per_expert_names(name, tensor):
    """transformers 5 holds experts stacked, while checkpoints have separate names for them."""
    if ".mlp.experts.gate_up_proj" in name:
        for expert, rows in enumerate(tensor):
            gate, up = rows.chunk(2)
            yield name.replace("gate_up_proj", f"{expert}.gate_proj.weight"), gate
            yield name.replace("gate_up_proj", f"{expert}.up_proj.weight"), up
    elif ".mlp.experts.down_proj" in name:
        for expert, rows in enumerate(tensor):
            yield name.replace("down_proj", f"{expert}.down_proj.weight"), rows
    else:
        yield name, tensor


def named(kind, model, tensor_of):
    return {
        kind + name: tensor.clone().contiguous()
        for full_name, parameter in model.named_parameters()
        for name, tensor in per_expert_names(full_name, tensor_of(parameter))
    }


def forward_backward(model, task, inputs):
    output, loss = TASKS[task].compute(model, inputs)
    loss.backward()
    gradients = named("grad.", model, lambda parameter: parameter.grad)
    return {"output": output.detach(), "loss": loss.detach()} | gradients


def train(model, task, inputs):
    results = {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(4):
        optimizer.zero_grad()
        _, loss = TASKS[task].compute(model, inputs)
        loss.backward()
        optimizer.step()
        results[f"loss.{step}"] = loss.detach()
    return results | named("param.", model, lambda parameter: parameter.detach())


def write_case(folder, config, task, dtype, trains):
    torch.manual_seed(7)
    config = AutoConfig.for_model(**config, **TASKS[task].config, **EAGER)
    model = TASKS[task].auto_model.from_config(config).to(dtype)
    for name, parameter in model.named_parameters():  # norms different from one, so that their gradients matter
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
        elif name.endswith("bias"):  # and biases from zero
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    model.save_pretrained(folder)
    ids = torch.randint(1, config.vocab_size, (TASKS[task].batch, SEQUENCE))
    inputs = TASKS[task].draw(ids, config) | {"input_ids": ids}
    routing = record_routing(model) if dtype == torch.bfloat16 else []
    expected = inputs | forward_backward(model, task, inputs)
    expected |= {f"routing.{layer}": indices for layer, indices in enumerate(routing)}
    if trains:
        expected |= train(model, task, inputs)
    save_file(expected, folder / "expected.safetensors")


def write_exact(folder, task):
    """The bfloat16 case of `folder` computed without rounding."""
    expected = load_file(folder / "expected.safetensors")
    model = load(folder, task, torch.float64)
    replay_routing(model, [expected[f"routing.{layer}"] for layer in range(len(routers_of(model)))])
    save_file(forward_backward(model, task, expected), folder / "exact.safetensors")


def write_tiny_models(root, architectures):
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        name = str(dtype).removeprefix("torch.")
        if dtype == torch.float64:
            compute_in_float64({config["model_type"] for config in architectures.values()})
        for architecture, config in architectures.items():
            for task in TASKS:
                trains = task == "causal_lm" and dtype != torch.bfloat16
                write_case(root / f"{architecture}.{task}.{name}", config, task, dtype, trains)
                if dtype == torch.float64:
                    write_exact(root / f"{architecture}.{task}.bfloat16", task)


def write_layers(root, architectures):
    for architecture, config in architectures.items():
        write_case(root / f"{architecture}.causal_lm.float32", config, "causal_lm", torch.float32, trains=False)


def main():
    root = Path(sys.argv[1])
    logging.disable_progress_bar()
    architectures = json.loads((root / "architectures.json").read_text())
    write = write_layers if "layers" in sys.argv[2:] else write_tiny_models
    write(root, architectures)


if __name__ == "__main__":
    main()
