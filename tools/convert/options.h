// The command line of d9d_convert.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/dtype.h"
#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"
#include "d9d/peft/export_config.h"

namespace d9d::convert {

enum class Naming { kHuggingFace, kD9d };
constexpr auto enum_names(Naming) {
  return std::to_array<EnumName<Naming>>({{Naming::kHuggingFace, "huggingface"}, {Naming::kD9d, "d9d"}});
}

enum class Experts { kModuleList, kFused };
constexpr auto enum_names(Experts) {
  return std::to_array<EnumName<Experts>>({{Experts::kModuleList, "module_list"}, {Experts::kFused, "fused"}});
}

enum class Qkv { kSeparate, kPacked };
constexpr auto enum_names(Qkv) {
  return std::to_array<EnumName<Qkv>>({{Qkv::kSeparate, "separate"}, {Qkv::kPacked, "packed"}});
}

enum class Weights { kAveraged, kTrained };
constexpr auto enum_names(Weights) {
  return std::to_array<EnumName<Weights>>({{Weights::kAveraged, "averaged"}, {Weights::kTrained, "trained"}});
}

// Each field is a flag of the same name: `max_shard_size` is --max-shard-size.
struct Options {
  std::optional<Naming> to = {};
  std::optional<Experts> experts = {};
  std::optional<Qkv> qkv = {};
  std::optional<Dtype> dtype = {};
  std::optional<Weights> weights = {};            // of a checkpoint; none: those that its job exports
  std::optional<ExportedAdapters> adapters = {};  // of a checkpoint with adapters; none: as its job exports them
  std::vector<std::string> rename = {};           // PATTERN=>REPLACEMENT
  std::string vocabulary = {};                    // regular=151643,special=293
  std::filesystem::path files = {};               // a folder whose files beside the weights are copied; empty: none
  std::string max_shard_size = "4GiB";
  std::int64_t workers = 1;
  bool overwrite = false;
  bool dry_run = false;
  std::filesystem::path source = {};  // without a flag
  std::filesystem::path target = {};

  static constexpr auto fields() {
    return record<Options>(defaulted("to", &Options::to), defaulted("experts", &Options::experts),
                           defaulted("qkv", &Options::qkv), defaulted("dtype", &Options::dtype),
                           defaulted("weights", &Options::weights), defaulted("adapters", &Options::adapters),
                           defaulted("rename", &Options::rename), defaulted("vocabulary", &Options::vocabulary),
                           defaulted("files", &Options::files), defaulted("max_shard_size", &Options::max_shard_size),
                           defaulted("workers", &Options::workers, between(1, 256)),
                           defaulted("overwrite", &Options::overwrite), defaulted("dry_run", &Options::dry_run),
                           defaulted("source", &Options::source), defaulted("target", &Options::target));
  }
};

// Throws UsageError, HelpRequested for --help, and ConfigError for a value that a flag cannot have.
[[nodiscard]] Options parse_options(int argc, const char* const* argv);

// "5GB", "512MiB", "1000000". Throws UsageError.
[[nodiscard]] std::int64_t parse_bytes(const std::string& text);

// "regular=50,special=14": splits in order with their rows. Throws UsageError.
[[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> parse_vocabulary(const std::string& text);

// "PATTERN=>REPLACEMENT". Throws UsageError.
[[nodiscard]] std::pair<std::string, std::string> parse_rename(const std::string& text);

}  // namespace d9d::convert
