"""chat_oracle.py TEMPLATES COUNT FILE: random conversations as transformers renders them, COUNT of each template, as JSON lines.

TEMPLATES has published templates, FAMILY.jinja or FAMILY__REVISION.jinja: those in the folder beside this file, or those
under the key "chat_template" of models' tokenizer_config.json on https://huggingface.co, for chatml (HuggingFaceTB's or
any plain one), qwen2 (Qwen2-7B-Instruct), qwen2.5 (Qwen2.5-7B-Instruct), qwen3 (Qwen3-8B), llama3
(Meta-Llama-3-8B-Instruct), llama3.2 (Llama-3.2-3B-Instruct). tests/tokenizer/chat/renderings.jsonl was written with these
six and COUNT = 12.
"""
import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

PIECES = ("Hi", " ", "\n", "\n\n", "\t", "what is 2 + 2?", "Ü", "π≈3", "日本語", "🙂", '"quoted"', "\\n", "'", "<b>&amp;",
          "\u00a0", "\u3000", "\x1c", "\x7f", "</think>", "<think>", "<think>\nhm\n</think>\n\n", "<tool_response>",
          "</tool_response>", "{{ x }}", "{% y %}", "a", "b c")  # fmt: skip


def content():
    return "".join(random.choice(PIECES) for _ in range(random.randrange(6)))


def conversation():
    messages = [{"role": "system", "content": content()}] if random.random() < 0.5 else []
    for _ in range(random.randrange(1, 4)):
        text = content()
        messages.append({"role": "user", "content": f"<tool_response>{text}</tool_response>" if random.random() < 0.1 else text})
        for _ in range(random.choice((1, 1, 1, 2))):
            messages.append({"role": "assistant", "content": content()})
            if random.random() < 0.3:
                messages[-1]["reasoning_content"] = content()
            if random.random() < 0.2:
                messages += [{"role": "tool", "content": content()} for _ in range(random.randrange(1, 3))]
    if random.random() < 0.3:
        messages.append({"role": "user", "content": content()})
    return messages


def main():
    templates, count, file = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    random.seed(0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), bos_token="<|begin_of_text|>")

    def render(template, messages, **options):
        return tokenizer.apply_chat_template(messages, tokenize=False, date_string="26 Jul 2024", chat_template=template, **options)

    order = ("chatml", "qwen2", "qwen2.5", "qwen3", "llama3", "llama3.2")  # in which random numbers are drawn
    paths = {path: path.name.removesuffix(".jinja").split("__")[0] for path in sorted(templates.glob("*.jinja"))}
    with open(file, "w", encoding="utf-8") as out:
        for path, family in sorted(paths.items(), key=lambda item: order.index(item[1])):
            template = path.read_text()
            for _ in range(count):
                messages = conversation()
                options = {"add_generation_prompt": random.random() < 0.5, "enable_thinking": random.random() < 0.5}
                text = render(template, messages, **options)
                # Where the assistant begins to speak: a model that is asked for message i sees the text before it.
                heads = [render(template, messages[:i], add_generation_prompt=True) for i, message in enumerate(messages)
                         if i > 0 and message["role"] == "assistant"]
                begins = [len(head.encode()) for head in heads if text.startswith(head)]
                assert len(begins) == len(heads) or family == "qwen3", (family, messages)
                out.write(json.dumps({"family": family, "messages": messages, **options, "text": text, "begins": begins},
                                     ensure_ascii=False) + "\n")


main()
