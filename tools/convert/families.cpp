#include "tools/convert/families.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/error/error_place.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/models/families.h"
#include "d9d/models/huggingface/packed_qkv.h"
#include "d9d/models/legacy_names.h"

namespace d9d::convert {
namespace {

using Names = std::vector<std::string>;
using ShapeOf = std::function<std::vector<std::int64_t>(const std::string& name)>;

constexpr std::string_view kSplitEmbedding = "embed_tokens.token_embedding.";

bool any_ends_with(const Names& names, std::string_view end) {
  return std::ranges::any_of(names, [&](const std::string& name) { return name.ends_with(end); });
}
bool any_starts_with(const Names& names, std::string_view begin) {
  return std::ranges::any_of(names, [&](const std::string& name) { return name.starts_with(begin); });
}

Naming naming_of(const Names& names) {
  const bool is_own = std::ranges::any_of(
      names, [](const std::string& name) { return name.find(kSplitEmbedding) != std::string::npos; });
  return is_own ? Naming::kD9d : Naming::kHuggingFace;
}

// What the folder has. A backbone whose names begin with "model." and that has no head lacks one.
HeadConfig head_of(const Names& names, Naming naming, const ShapeOf& shape_of) {
  const std::string projection = "head.projection.weight";
  if (std::ranges::find(names, projection) != names.end()) {
    return EmbeddingHeadConfig{.embedding_dim = shape_of(projection).at(0)};
  }
  if (any_ends_with(names, "score.weight")) return ClassificationHeadConfig{};
  const bool is_bare = naming == Naming::kD9d ? !any_starts_with(names, "head.") : !any_starts_with(names, "model.");
  if (is_bare) return EmbeddingHeadConfig{};
  return CausalLMHeadConfig{};
}

using Splits = std::map<std::string, std::int64_t>;  // rows by name

std::string text_of(const Splits& splits) {
  std::string text;
  for (const auto& [split, rows] : splits) text += cat(text.empty() ? "" : ",", split, "=", rows);
  return text;
}

// Those of the folder; none with names of Hugging Face. `present`: the names, without those of 0.16.
Splits splits_of_folder(const Names& folder_names, const Names& present, const ShapeOf& shape_of) {
  Splits found;
  for (std::size_t i = 0; i < present.size(); ++i) {
    const std::size_t at = present[i].find(kSplitEmbedding);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + kSplitEmbedding.size();
    const std::vector<std::int64_t> shape = shape_of(folder_names[i]);
    found[present[i].substr(begin, present[i].rfind('.') - begin)] = shape.empty() ? 0 : shape[0];
  }
  return found;
}

// The splits of the vocabulary: as the user says, or the only one.
template <class Parameters>
void set_vocabulary(Parameters& parameters, const Options& options, const Splits& found) {
  const std::int64_t rows = parameters.split_vocab_size.begin()->second;
  std::vector<std::pair<std::string, std::int64_t>> splits = parse_vocabulary(options.vocabulary);
  D9D_CHECK(!splits.empty() || found.size() < 2, UsageError, "[convert] expected --vocabulary with the order of the ",
            "splits ", text_of(found), ", got none. See --help.");
  if (splits.empty()) splits = {{found.empty() ? "regular" : found.begin()->first, rows}};
  const Splits given(splits.begin(), splits.end());
  D9D_CHECK(found.empty() || (given == found && given.size() == splits.size()), UsageError,
            "[convert] expected --vocabulary with the splits of the folder, ", text_of(found), ", got '",
            text_of(given), "'. See --help.");
  parameters.split_vocab_size.clear();
  parameters.split_vocab_order.clear();
  for (const auto& [split, size] : splits) {
    parameters.split_vocab_size[split] = size;
    parameters.split_vocab_order.push_back(split);
  }
}

// The names after unpacking.
Names separate_names(const Names& names) {
  Names result;
  for (const std::string& name : names) {
    const std::size_t at = name.find(kPackedQkv);
    if (at == std::string::npos) {
      result.push_back(name);
      continue;
    }
    const std::string parameter = name.substr(name.rfind('.'));
    for (const char* const matrix : {"q", "k", "v"}) {
      result.push_back(cat(name.substr(0, at), "self_attn.", matrix, "_proj", parameter));
    }
  }
  return result;
}

template <class Parameters>
StateMapper mapper_of(const ModelFamily<Parameters>& family, Parameters parameters, const Options& options,
                      const Names& folder_names, const ShapeOf& shape_of, const std::optional<HeadConfig>& known_head) {
  const Naming naming = naming_of(folder_names);
  const Naming to = options.to.value_or(options.experts ? Naming::kHuggingFace : naming);
  D9D_CHECK(!options.experts || to == Naming::kHuggingFace, UsageError,
            "[convert] expected --experts with names of Hugging Face, got --to d9d: there all experts are one matrix.");
  Names present;  // without the names of 0.16
  for (const std::string& name : folder_names) {
    present.push_back(naming == Naming::kD9d ? present_name(name) : name);
  }
  set_vocabulary(parameters, options, splits_of_folder(folder_names, present, shape_of));
  const DecoderSizes sizes = decoder_sizes(parameters);
  const Names names = separate_names(present);
  const HeadConfig head = known_head.value_or(head_of(present, naming, shape_of));
  const ExpertsFormat format = options.experts == Experts::kFused ? ExpertsFormat::kFused : ExpertsFormat::kModuleList;

  std::vector<StateMapper> chain;
  const bool has_biases = any_ends_with(names, "self_attn.q_proj.bias");
  if (names != present) chain.push_back(unpack_qkv(sizes, huggingface_backbone_prefix(present), has_biases));
  if (naming == Naming::kHuggingFace && to == Naming::kD9d) {
    chain.push_back(family.from_huggingface(parameters, head, names));
  } else if (naming == Naming::kHuggingFace && options.experts) {
    // A tied head would be made and used by nobody.
    const bool is_tied = sizes.tie_word_embeddings && std::holds_alternative<CausalLMHeadConfig>(head);
    chain.push_back(family.from_huggingface(parameters, is_tied ? std::nullopt : std::optional(head), names));
    chain.push_back(family.to_huggingface(parameters, head, format));
  } else if (naming == Naming::kD9d && to == Naming::kHuggingFace) {
    chain.push_back(family.to_huggingface(parameters, head, format));
  } else {
    chain.push_back(mapper::identities({names.begin(), names.end()}));
  }
  if (options.qkv == Qkv::kPacked) {
    const std::set<std::string> made = chain.back().outputs();
    chain.push_back(pack_qkv(sizes, huggingface_backbone_prefix({made.begin(), made.end()}), has_biases));
  }
  const StateMapper mapper = mapper::sequential(chain);
  const std::set<std::string> wanted = mapper.inputs();
  std::vector<StateMapper> former;
  for (std::size_t i = 0; i < present.size(); ++i) {
    if (present[i] != folder_names[i] && wanted.contains(present[i])) {
      former.push_back(mapper::rename(folder_names[i], present[i]));
    }
  }
  return former.empty() ? mapper : mapper::sequential({mapper::parallel(std::move(former)), mapper});
}

}  // namespace

StateMapper family_mapper(const Options& options, const nlohmann::json& config, const Names& names,
                          const ShapeOf& shape_of, const std::optional<HeadConfig>& head) {
  std::optional<StateMapper> mapper;
  with_error_place("for --to, --experts and --qkv", [&] {
    visit_family_of(config, [&](const auto& family) {
      mapper = mapper_of(family, family.parameters_from_huggingface(config), options, names, shape_of, head);
    });
  });
  return *std::move(mapper);
}

}  // namespace d9d::convert
