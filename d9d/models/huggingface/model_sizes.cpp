#include "d9d/models/huggingface/model_sizes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "d9d/base/check.h"
#include "d9d/core/error/error_place.h"
#include "d9d/model_state/io/huggingface_directory.h"

namespace d9d {
namespace {

constexpr std::array<std::string_view, 9> kNotOfCheckpoint = {"max_position_ids",
                                                              "split_vocab_size",
                                                              "split_vocab_order",
                                                              "pipeline_num_virtual_layers_pre",
                                                              "pipeline_num_virtual_layers_post",
                                                              "sdpa_backend",
                                                              "grouped_mm_backend",
                                                              "router_auxiliary_loss_coefficient",
                                                              "router_bias_update_rate"};

void check_same(const nlohmann::json& written, const nlohmann::json& published, const std::filesystem::path& file,
                const ConfigPath& path) {
  D9D_CHECK(written == published, ConfigError, path, "expected ", published.dump(), " as in ", file.string(), ", got ",
            written.dump(), ". Change it, or take all sizes from there: \"model\": \"from_checkpoint\".");
}

void check_record(const nlohmann::json& written, const nlohmann::json& published, const std::filesystem::path& file,
                  const ConfigPath& path) {
  for (const auto& [key, value] : written.items()) {
    if (std::ranges::find(kNotOfCheckpoint, key) != kNotOfCheckpoint.end()) continue;
    const nlohmann::json& there = published.at(key);
    if (key == "layer") {
      check_record(value, there, file, path / key);
    } else {
      check_same(value, there, file, path / key);
    }
  }
}

std::int64_t vocabulary_size(const nlohmann::json& record) {
  std::int64_t rows = 0;
  for (const auto& [split, size] : record.at("split_vocab_size").items()) rows += size.get<std::int64_t>();
  return rows;
}

}  // namespace

bool detail::has_changes(const nlohmann::json& json, const ConfigPath& path) {
  if (!json.is_object() || !json.contains(kFromCheckpoint)) return false;
  D9D_CHECK(json.size() == 1 && json[kFromCheckpoint].is_object(), ConfigError, path, "expected {\"", kFromCheckpoint,
            "\": {...}} with what is changed within, got ", json.dump(), ". Move the other keys into the object.");
  return true;
}

void detail::check_words_of_sizes(const nlohmann::json& json, const ConfigPath& path) {
  D9D_CHECK(!json.is_string(), ConfigError, path, "expected an object of sizes or \"", kFromCheckpoint, "\", got ",
            json.dump(), ". Change the value.");
}

nlohmann::json read_checkpoint_config(const std::optional<std::filesystem::path>& checkpoint, const ConfigPath& path) {
  D9D_CHECK(checkpoint, ConfigError, path, "expected the sizes of a model, got \"", detail::kFromCheckpoint,
            "\" without a checkpoint. Set trainer.model_stage_factory.source_checkpoint.");
  return with_error_place("in trainer.model_stage_factory.source_checkpoint",
                          [&] { return HuggingFaceDirectory(*checkpoint).read_config(); });
}

void check_model_sizes(const nlohmann::json& written, const nlohmann::json& published,
                       const std::filesystem::path& file, const ConfigPath& path) {
  check_record(written, published, file, path);
  check_same(vocabulary_size(written), vocabulary_size(published), file, path / "split_vocab_size");
}

}  // namespace d9d
