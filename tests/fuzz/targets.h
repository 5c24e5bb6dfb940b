// Parsers of files that come from elsewhere, fed with any bytes. Each target returns for what it refuses with IoError,
// of tokenizer.json and adapter_config.json ConfigError; every other exception, and what the sanitizers find, is a
// fault. tools/fuzz runs them under libFuzzer, fuzz_replay gives them what was found before (corpus/<name>/).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace d9d::fuzz {

using Bytes = std::span<const std::byte>;

void safetensors_header(Bytes file);
void huggingface_index(Bytes file);
void manifest(Bytes file);
void tokenizer_json(Bytes file);
void megatron_index(Bytes file);
void jsonl_rows(Bytes file);
void adapter_config(Bytes file);

inline constexpr std::pair<std::string_view, void (*)(Bytes)> kTargets[] = {
    {"safetensors_header", safetensors_header}, {"huggingface_index", huggingface_index}, {"manifest", manifest},
    {"tokenizer_json", tokenizer_json},         {"megatron_index", megatron_index},       {"jsonl_rows", jsonl_rows},
    {"adapter_config", adapter_config}};

}  // namespace d9d::fuzz
