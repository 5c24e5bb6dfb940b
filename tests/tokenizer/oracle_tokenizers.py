"""Tokenizers in the forms of published models, as texts of tokenizer.json: Qwen's from its real vocabulary, others trained
on a given text."""

import base64
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{END}"
QWEN35 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{END}"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{END}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
         rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{END}")
# As tiktoken has it, with sets where letter case does not matter; and more of these.
TIKTOKEN = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
ANY_CASE = r"(?i:[k-m]+|[^s-v\s\d]a|[\d_-]+[q]?)"
PUBLISHED = {"gpt2": GPT2, "qwen2": QWEN2, "qwen35": QWEN35, "llama3": LLAMA3, "o200k": O200K}
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + END]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_ADDED = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


def byte_alphabet():
    """The character of each byte (GPT-2's bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


ALPHABET = byte_alphabet()


def in_alphabet(data):
    return "".join(ALPHABET[byte] for byte in data)


def merges_of(ranks):
    """The merge that makes each token of more than a byte: the last one of its own encoding with earlier tokens only."""
    merges = []
    for token, rank in ranks.items():
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pair = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            parts[pair : pair + 2] = [parts[pair] + parts[pair + 1]]
        if len(parts) == 2:
            merges.append([in_alphabet(parts[0]), in_alphabet(parts[1])])
    return merges


def qwen(tiktoken_file):
    """tokenizer.json of Qwen 2.5 and 3, from the vocabulary that the wheel of Qwen's service ships."""
    lines = (line.split() for line in Path(tiktoken_file).read_text().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    added = [{"id": len(ranks) + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": content in QWEN_SPECIAL} for i, content in enumerate(QWEN_SPECIAL + QWEN_ADDED)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {in_alphabet(token): rank for token, rank in ranks.items()}, "merges": merges_of(ranks)},
    }, ensure_ascii=False)


def trained(pre_tokenizer, texts, vocabulary=1500, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False, max_token_length=16)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_only(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def after(*steps):
    return pre_tokenizers.Sequence([*steps, bytes_only()])


def awkward_added_tokens(tokenizer):
    """Every flag, tokens within tokens, white space, and text that normalisation changes."""
    tokenizer.add_special_tokens([AddedToken("<s>", lstrip=True), AddedToken("</s>", rstrip=True), "<s>x"])
    tokenizer.add_tokens([
        AddedToken("word", single_word=True), AddedToken("ord", single_word=True, normalized=False),
        AddedToken("both", lstrip=True, rstrip=True), AddedToken("  ", normalized=False), AddedToken("    ", normalized=True),
        AddedToken("\u00e9\ufb01", normalized=True), AddedToken("\u00e9\ufb01", normalized=True), AddedToken("e\u0301", normalized=False),
        AddedToken("\u1100\u1161", normalized=True), AddedToken("the", normalized=False), "<|x|>", AddedToken("\u0120the", normalized=True),
        AddedToken("\u00e9", normalized=True), AddedToken("   ", normalized=False, lstrip=True)])


LACKING = "".join(chr(code) for code in (4, 6, 19, 20, 22, 29))  # as SmolLM's vocabulary does


def without_bytes(definition, lost):
    """The vocabulary without the tokens of some bytes, numbered anew. It has no added tokens."""
    model = definition["model"]
    left = [token for token in sorted(model["vocab"], key=model["vocab"].get) if token not in {ALPHABET[byte] for byte in lost}]
    return definition | {"model": model | {"vocab": {token: i for i, token in enumerate(left)}}}


def all_tokenizers(texts, tiktoken_file):
    """{name: tokenizer.json}"""
    made = {name: trained(after(split(pattern)), texts) for name, pattern in PUBLISHED.items() if name != "gpt2"}
    made["llama3"] = trained(after(split(LLAMA3)), texts, ignore_merges=True)
    start = ("<|begin_of_text|>", len(made["llama3"].get_vocab()))
    made["llama3"].add_special_tokens([start[0], "<|eot_id|>"])
    made["llama3"].post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single=f"{start[0]} $A", pair=f"{start[0]} $A {start[0]} $B:1", special_tokens=[start])])
    made["qwen35"].normalizer = normalizers.NFC()
    made["o200k_removed"] = trained(after(split(O200K, "removed", True)), texts)
    made["gpt2"] = trained(bytes_only(regex=True), texts)
    made["gpt2"].post_processor = processors.ByteLevel(trim_offsets=True)
    made["prefix"] = trained(bytes_only(prefix=True, regex=True), texts)
    made["prefix"].post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=True, add_prefix_space=True), processors.ByteLevel(trim_offsets=True)])
    awkward_added_tokens(made["prefix"])
    made["digits"] = trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), bytes_only(regex=True)]), texts)
    made["digit_runs"] = trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(False), bytes_only()]), texts)
    made["deepseek"] = trained(after(*map(split, DEEPSEEK)), texts)
    for name in ("NFC", "NFD", "NFKC", "NFKD"):
        made[name] = trained(after(split(QWEN2)), texts)
        made[name].normalizer = getattr(normalizers, name)()
        made[name].post_processor = processors.ByteLevel(trim_offsets=True)
        awkward_added_tokens(made[name])
    made["NFD_NFKC"] = trained(after(split(QWEN2)), texts)
    made["NFD_NFKC"].normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.NFKC()])
    few_bytes = trained(after(split(TIKTOKEN), split(ANY_CASE)), texts).to_str()
    lacking = without_bytes(json.loads(few_bytes), [*map(ord, LACKING), 0xC0, 0xC1, *range(0xF5, 0x100)])
    made["few_bytes"] = Tokenizer.from_str(json.dumps(lacking))
    return {"qwen": qwen(tiktoken_file)} | {name: tokenizer.to_str() for name, tokenizer in made.items()}
