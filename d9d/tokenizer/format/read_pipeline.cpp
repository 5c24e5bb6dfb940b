#include <utility>

#include "d9d/base/check.h"
#include "d9d/tokenizer/format/tokenizer_json.h"
#include "d9d/tokenizer/split/pattern_splitter.h"
#include "d9d/tokenizer/split/published_patterns.h"

namespace d9d::detail {
namespace {

constexpr int kMostNesting = 8;

// Appends the steps of a Sequence, and of nested Sequences, in order. Any other node is a single step.
void flatten(const JsonNode& node, std::string_view list, std::vector<JsonNode>& steps, int depth = 0) {
  if (node.at("type").string() != "Sequence") return steps.push_back(node);
  node.expect_keys({"type", list});
  if (depth == kMostNesting) node.refuse("a Sequence in at most eight others", "Flatten it.");
  for (const JsonNode& step : node.at(list).elements()) flatten(step, list, steps, depth + 1);
}

bool flag(const JsonNode& node, std::string_view key, bool otherwise) {
  const auto value = node.find(key);
  return value ? value->boolean() : otherwise;
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string& name = node.string();
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  node.refuse("Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext", "There is no other.");
}

// The regular expression of a Split whose words are the matches of the pattern; nullopt for any other Split.
std::optional<std::string> pattern_of_words(const JsonNode& split) {
  const auto regex = split.at("pattern").find("Regex");
  if (!regex) return std::nullopt;
  const SplitBehavior behavior = read_behavior(split.at("behavior"));
  const bool invert = flag(split, "invert", false);
  if (behavior != (invert ? SplitBehavior::kRemoved : SplitBehavior::kIsolated)) return std::nullopt;
  return regex->string();
}

std::unique_ptr<Splitter> read_split(const JsonNode& node) {
  node.expect_keys({"type", "pattern", "behavior", "invert"});
  const JsonNode pattern = node.at("pattern");
  pattern.expect_keys({"Regex", "String"});
  const SplitBehavior behavior = read_behavior(node.at("behavior"));
  const bool invert = flag(node, "invert", false);
  const auto literal = pattern.find("String");
  if (literal) return literal_splitter(literal->string(), behavior, invert);
  const JsonNode regex = pattern.at("Regex");
  // Matches of published patterns cover the whole text, so it does not matter what happens to text between matches.
  if (const auto words = pattern_of_words(node)) {
    if (auto splitter = published_splitter(*words)) return splitter;
  }
  return regex_splitter(regex.string(), behavior, invert, regex.place());
}

void expect_byte_level_keys(const JsonNode& node) {
  node.expect_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

std::vector<TokenId> ids_of_template_token(const JsonNode& tokens, const std::string& name) {
  const JsonNode token = tokens.at(name);
  token.expect_keys({"id", "ids", "tokens"});
  std::vector<TokenId> ids;
  for (const JsonNode& id : token.at("ids").elements()) ids.push_back(id.unsigned_integer());
  return ids;
}

void read_template(const JsonNode& node, PostProcessor& result) {
  node.expect_keys({"type", "single", "pair", "special_tokens"});  // "pair" is ignored: pairs of texts are not encoded
  bool is_behind_text = false;
  for (const JsonNode& piece : node.at("single").elements()) {
    piece.expect_keys({"Sequence", "SpecialToken"});
    if (const auto special = piece.find("SpecialToken")) {
      const auto ids = ids_of_template_token(node.at("special_tokens"), special->at("id").string());
      auto& side = is_behind_text ? result.after : result.before;
      side.insert(side.end(), ids.begin(), ids.end());
      continue;
    }
    const JsonNode id = piece.at("Sequence").at("id");
    if (id.string() != "A" || is_behind_text) id.refuse("the text once", "A template that repeats it is not built.");
    is_behind_text = true;
  }
  if (!is_behind_text) node.at("single").refuse("the text", "A template without it is not built.");
}

// The first Split or ByteLevel step decides where a text can be divided. A Digits step before it separates only digits,
// which does not affect a line break that a letter follows; later steps split the words one by one.
LineCut line_cut_of_steps(const std::vector<JsonNode>& steps) {
  for (const JsonNode& step : steps) {
    const std::string& name = step.at("type").string();
    if (name == "ByteLevel" && flag(step, "use_regex", true)) return line_cut_of(kGpt2Pattern);
    if (name == "Split") return line_cut_of(pattern_of_words(step).value_or(""));
  }
  return LineCut::kNone;
}

}  // namespace

std::vector<NormalForm> read_normalizer(const std::optional<JsonNode>& normalizer) {
  std::vector<NormalForm> forms;
  if (!normalizer) return forms;
  std::vector<JsonNode> steps;
  flatten(*normalizer, "normalizers", steps);
  for (const JsonNode& step : steps) {
    step.expect_keys({"type"});
    const JsonNode type = step.at("type");
    const std::string& name = type.string();
    if (name == "NFC") {
      forms.push_back(NormalForm::kNfc);
    } else if (name == "NFD") {
      forms.push_back(NormalForm::kNfd);
    } else if (name == "NFKC") {
      forms.push_back(NormalForm::kNfkc);
    } else if (name == "NFKD") {
      forms.push_back(NormalForm::kNfkd);
    } else {
      type.refuse("NFC, NFD, NFKC or NFKD", "Other normalizers are not built.");
    }
  }
  return forms;
}

PreTokenizer read_pre_tokenizer(const JsonNode& node) {
  PreTokenizer result;
  std::vector<JsonNode> steps;
  flatten(node, "pretokenizers", steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const JsonNode& step = steps[i];
    const JsonNode type = step.at("type");
    const std::string& name = type.string();
    const bool is_last = i + 1 == steps.size();
    if ((name == "ByteLevel") != is_last) {
      type.refuse(is_last ? "ByteLevel as the last step" : "ByteLevel only as the last step",
                  "Only byte-level tokenizers are read.");
    } else if (name == "ByteLevel") {
      expect_byte_level_keys(step);
      result.add_prefix_space = flag(step, "add_prefix_space", true);
      if (result.add_prefix_space && i > 0) {
        step.at("add_prefix_space")
            .refuse("false behind other steps", "A space before each of their words is not built.");
      }
      if (flag(step, "use_regex", true)) result.splitters.add(published_splitter(kGpt2Pattern));
    } else if (name == "Split") {
      result.splitters.add(read_split(step));
    } else if (name == "Digits") {
      step.expect_keys({"type", "individual_digits"});
      const bool is_individual = step.at("individual_digits").boolean();
      result.splitters.add(digits_splitter(is_individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
    } else {
      type.refuse("ByteLevel, Split, Digits or Sequence", "Other pre-tokenizers are not built.");
    }
  }
  if (steps.empty()) node.refuse("ByteLevel", "Only byte-level tokenizers are read.");
  result.line_cut = line_cut_of_steps(steps);
  return result;
}

PostProcessor read_post_processor(const std::optional<JsonNode>& node) {
  PostProcessor result;
  if (!node) return result;
  std::vector<JsonNode> steps;
  flatten(*node, "processors", steps);
  bool has_template = false;
  for (const JsonNode& step : steps) {
    const JsonNode type = step.at("type");
    if (type.string() == "ByteLevel") {
      expect_byte_level_keys(step);
      if (flag(step, "trim_offsets", true)) result.trims.push_back(flag(step, "add_prefix_space", true));
    } else if (type.string() == "TemplateProcessing" && !has_template) {
      has_template = true;
      read_template(step, result);
    } else {
      type.refuse("ByteLevel, TemplateProcessing once, or Sequence", "Other post-processors are not built.");
    }
  }
  return result;
}

void check_decoder(const JsonNode& node) {
  std::vector<JsonNode> steps;
  flatten(node, "decoders", steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const JsonNode type = steps[i].at("type");
    const bool is_known = i == 0 ? type.string() == "ByteLevel" : type.string() == "Fuse";
    if (!is_known) type.refuse("ByteLevel, and Fuse behind it", "Other decoders are not built.");
    if (i == 0) expect_byte_level_keys(steps[i]);
  }
  if (steps.empty()) node.refuse("ByteLevel", "Only byte-level tokenizers are read.");
}

}  // namespace d9d::detail
