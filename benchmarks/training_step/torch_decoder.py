"""The dense decoder of our examples in plain torch.nn, for what is compared with torch: parameters are named as in transformers."""

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

REPEATS_KEYS = False  # before attention, whose form over context-parallel ranks takes no groups of heads


def build_decoder(case):
    """Of the sizes `case` (peers.py), with values of torch's own. Its layers may be cut into the stages of a pipeline."""

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    class Norm(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(size))

        def forward(self, x):
            return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-6)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.o_proj = linear(case.hidden, case.heads * case.head_dim), linear(case.heads * case.head_dim, case.hidden)
            self.k_proj, self.v_proj = (linear(case.hidden, case.key_value_heads * case.head_dim) for _ in range(2))
            self.q_norm, self.k_norm = Norm(case.head_dim), Norm(case.head_dim)

        def forward(self, x, cos, sin):
            def turned(heads):
                first, second = heads.chunk(2, -1)
                return heads * cos + torch.cat((-second, first), -1) * sin

            q, k, v = (projection(x).unflatten(-1, (-1, case.head_dim)) for projection in (self.q_proj, self.k_proj, self.v_proj))
            q, k, v = (heads.transpose(1, 2) for heads in (turned(self.q_norm(q)), turned(self.k_norm(k)), v))
            if REPEATS_KEYS:
                k, v = (heads.repeat_interleave(case.heads // case.key_value_heads, 1) for heads in (k, v))
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not REPEATS_KEYS)
            return self.o_proj(out.transpose(1, 2).flatten(-2))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = (linear(case.hidden, case.intermediate) for _ in range(2))
            self.down_proj = linear(case.intermediate, case.hidden)

        def forward(self, x):
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.mlp = Attention(), FeedForward()
            self.input_layernorm, self.post_attention_layernorm = Norm(case.hidden), Norm(case.hidden)

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(case.vocabulary, case.hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(case.layers))
            self.norm = Norm(case.hidden)

    class Model(nn.Module):  # names as those of transformers
        def __init__(self):
            super().__init__()
            self.model = Decoder()
            self.lm_head = linear(case.hidden, case.vocabulary)

        def forward(self, ids, cos, sin):
            x = self.model.embed_tokens(ids)
            for layer in self.model.layers:
                x = layer(x, cos, sin)
            return self.lm_head(self.model.norm(x))

    return Model()


def load_export(model, folder, dtype=torch.float32):
    """The weights that a program of ours exported, of those that the model has."""
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(path))
    model.load_state_dict({name: weights[name].to(dtype) for name in model.state_dict()})


def rotary_tables(case, device, dtype):
    """cos, sin: [S, 1, D] as the decoder takes them."""
    steps = torch.arange(case.sequence, device=device, dtype=torch.float32)
    frequencies = case.rope_base ** (-torch.arange(0, case.head_dim, 2, device=device, dtype=torch.float32) / case.head_dim)
    angles = torch.outer(steps, frequencies).repeat(1, 2).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def read_tokens(folder):
    return torch.frombuffer(bytearray((folder / "tokens.bin").read_bytes()), dtype=torch.int32).long()


def token_rows(tokens, case, first, count):
    """[count, S + 1] int64: samples `first` and on."""
    return torch.stack([tokens[i * case.sequence : (i + 1) * case.sequence + 1] for i in range(first, first + count)])


def mean_loss(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
