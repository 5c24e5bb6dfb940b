#include "d9d/data/sequences/filtered_documents.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {

namespace {

// Sets the labels outside of `targets` to kIgnoreIndex. Label i is token i + 1 of the item, which begins at token
// `start` of its document.
void ignore_labels_outside(const std::vector<TokenRange>& targets, std::int64_t start, std::span<std::int64_t> labels) {
  std::int64_t done = 0;
  for (const TokenRange& range : targets) {
    const auto begin = std::clamp<std::int64_t>(range.begin - start - 1, done, std::ssize(labels));
    const auto end = std::clamp<std::int64_t>(range.end - start - 1, begin, std::ssize(labels));
    std::ranges::fill(labels.subspan(done, begin - done), kIgnoreIndex);
    done = end;
  }
  std::ranges::fill(labels.subspan(done), kIgnoreIndex);
}

}  // namespace

FilteredDocuments::FilteredDocuments(std::shared_ptr<const TokenDocuments> documents, DocumentRules rules)
    : documents_(std::move(documents)), rules_(rules), has_targets_(documents_->has_targets()) {
  D9D_CHECK(rules.max_positions >= 1, ConfigError, "[data::FilteredDocuments] expected max_positions >= 1, got ",
            rules.max_positions, ". Set the number of tokens of a training sequence.");
  for (std::int64_t document = 0; document < documents_->size(); ++document) add_items_of(document);
}

void FilteredDocuments::add_items_of(std::int64_t document) {
  const std::int64_t num_positions = documents_->length(document) - 1;
  const bool is_short = num_positions<1, is_long = num_positions> rules_.max_positions;
  if (is_short) ++counts_.too_short;
  if (is_long) ++counts_.too_long;
  D9D_CHECK(!is_long || rules_.too_long != LongDocuments::kRefuse, IoError,
            "[data::FilteredDocuments] expected documents of at most ", rules_.max_positions,
            " positions and their last label, got ", num_positions + 1, " tokens in ", documents_->place(document),
            ". Lengthen the sequences, or truncate, split or skip such documents.");
  const bool is_left_out =
      (is_short && rules_.too_short == ShortDocuments::kSkip) || (is_long && rules_.too_long == LongDocuments::kSkip);
  const bool is_split = is_long && rules_.too_long == LongDocuments::kSplit;
  if (items_.empty() && (is_left_out || is_split)) {  // from here on items_ lists every item
    for (std::int64_t item = 0; item < size_; ++item) items_.push_back({item, 0});
  }
  if (is_left_out) return;
  const std::int64_t num_items = is_split ? (num_positions + rules_.max_positions - 1) / rules_.max_positions : 1;
  const bool is_listed = is_split || !items_.empty() || size_ != document;
  const std::vector<TokenRange> targets = has_targets_ ? documents_->targets(document) : std::vector<TokenRange>();
  for (std::int64_t i = 0; i < num_items; ++i) {
    if (is_listed) items_.push_back({document, i * rules_.max_positions});
    ++size_;
    if (!has_targets_) continue;
    const std::int64_t first = i * rules_.max_positions + 1;  // first predicted token; `end` is after the last one
    const std::int64_t end = std::min(first + rules_.max_positions, num_positions + 1);
    const bool predicts = std::ranges::any_of(
        targets, [&](const TokenRange& range) { return std::max(range.begin, first) < std::min(range.end, end); });
    if (!predicts) ++counts_.without_targets;
  }
}

DataDescription FilteredDocuments::describe() const {
  const bool is_split = rules_.too_long == LongDocuments::kSplit && counts_.too_long > 0;
  std::string line =
      cat(counted(size_, is_split ? "piece" : "document"), " of at most ", counted(rules_.max_positions, "position"));
  const auto add = [&line](std::int64_t count, std::string_view what) {
    if (count > 0) line += cat(", ", count, " ", what);
  };
  add(counts_.too_short, rules_.too_short == ShortDocuments::kSkip ? "too short: skip" : "too short: keep");
  add(counts_.too_long, cat("too long: ", enum_name(rules_.too_long)));
  add(counts_.without_targets, "without anything to predict");
  return {.line = std::move(line), .inputs = {documents_->describe()}};
}

FilteredDocuments::Item FilteredDocuments::item_at(std::int64_t item) const {
  return items_.empty() ? Item{item, 0} : items_[static_cast<std::size_t>(item)];
}

std::int64_t FilteredDocuments::num_positions(std::int64_t item) const {
  const auto [document, start] = item_at(item);
  return std::clamp<std::int64_t>(documents_->length(document) - 1 - start, 0, rules_.max_positions);
}

TokenSample FilteredDocuments::sample(std::int64_t item) const {
  const std::int64_t count = num_positions(item);
  const auto positions = [count] { return at::empty({count}, at::kLong); };
  TokenSample sample{.input_ids = positions(), .labels = positions(), .position_ids = positions()};
  const auto span_of = [count](const at::Tensor& tensor) {
    return std::span(tensor.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(count));
  };
  read(item, {.input_ids = span_of(sample.input_ids),
              .labels = span_of(sample.labels),
              .position_ids = span_of(sample.position_ids)});
  return sample;
}

void FilteredDocuments::read(std::int64_t item, const SampleSpans& sample) const {
  const std::span<std::int64_t> inputs = sample.input_ids, labels = sample.labels;
  if (inputs.empty()) return;
  const auto [document, start] = item_at(item);
  documents_->read(document, start, inputs);
  std::ranges::copy(inputs.subspan(1), labels.begin());
  documents_->read(document, start + std::ssize(inputs), labels.last(1));
  std::iota(sample.position_ids.begin(), sample.position_ids.end(), 0);
  const std::vector<TokenRange> targets = documents_->targets(document);
  const bool has_prompt =
      targets.size() != 1 || targets.front().begin > 0 || targets.front().end < documents_->length(document);
  if (has_prompt) ignore_labels_outside(targets, start, labels);
}

}  // namespace d9d
