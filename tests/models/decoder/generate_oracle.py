#!/usr/bin/env python3
"""What transformers generates from texts with a small random model and a tokenizer that is trained here.

    generate_oracle.py FOLDER     model/ as save_pretrained writes it, in float64; tokenizer.json; cases.json, a list of
        {"prompt", "is_chat", "num_tokens", "stop", "text"}: a text, or what a user says; an id that ends the text, or null
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|im_start|>", "<|im_end|>"]
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
PROMPTS = ["The quick brown fox", "日本語の", "naïve café 🙂", " "]
TRAINED_ON = ["the quick brown fox jumps over the lazy dog ", "日本語の文章 ", "naïve café ", "🙂🚀 "]


def train_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TRAINED_ON * 4, trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL, show_progress=False))
    return tokenizer


def make_model(vocab_size):
    torch.manual_seed(5)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        vocab_size=vocab_size, max_position_embeddings=256, pad_token_id=0, attn_implementation="eager"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.8 if parameter.ndim == 1 else 0.0, 0.5)
    return model.double().eval()


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    trained = train_tokenizer()
    trained.save(str(folder / "tokenizer.json"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, chat_template=CHATML, clean_up_tokenization_spaces=False)
    model = make_model(len(tokenizer) + 3)  # the last ids have no token
    model.save_pretrained(folder / "model")
    cases = []

    def add(prompt, is_chat, num_tokens, stop):
        if is_chat:
            message = {"role": "user", "content": prompt}
            ids = tokenizer.apply_chat_template([message], add_generation_prompt=True, return_tensors="pt", return_dict=True)
        else:
            ids = tokenizer(prompt, return_tensors="pt")
        ids = ids["input_ids"]
        with torch.no_grad():
            generated = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False,
                                       eos_token_id=stop)[0, ids.shape[1] :].tolist()
        text = tokenizer.decode(generated, skip_special_tokens=True)
        cases.append({"prompt": prompt, "is_chat": is_chat, "num_tokens": num_tokens, "stop": stop, "text": text})
        return generated

    for prompt in PROMPTS:
        for is_chat in (False, True):
            generated = add(prompt, is_chat, 40, None)
            add(prompt, is_chat, 40, generated[7])
    (folder / "cases.json").write_text(json.dumps(cases))


if __name__ == "__main__":
    main()
