#include "d9d/tokenizer/tokenizer.h"

#include <limits>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/io/git_lfs.h"
#include "d9d/base/io/input_file.h"
#include "d9d/tokenizer/encoder.h"
#include "d9d/tokenizer/tokenizer_state.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d {
namespace {

// Returns the working memory of a call to the pool when the call ends or throws.
class BorrowedScratch {
 public:
  explicit BorrowedScratch(detail::ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
  ~BorrowedScratch() { pool_.give_back(std::move(scratch_)); }
  BorrowedScratch(const BorrowedScratch&) = delete;
  BorrowedScratch& operator=(const BorrowedScratch&) = delete;

  [[nodiscard]] detail::EncodeScratch& operator*() const { return *scratch_; }

 private:
  detail::ScratchPool& pool_;
  std::unique_ptr<detail::EncodeScratch> scratch_;
};

void check_text(std::string_view text) {
  D9D_CHECK(text.size() < std::numeric_limits<std::uint32_t>::max(), ConfigError,
            "[tokenizer] expected a text of less than 4 GiB, got ", text.size(), " bytes. Cut it.");
  const auto invalid = invalid_utf8_at(text);
  D9D_CHECK(!invalid, ConfigError, "[tokenizer] expected UTF-8, got an invalid byte at position ", *invalid,
            " of a text of ", text.size(), " bytes. Fix the text, or replace what is invalid (replace_invalid_utf8).");
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<detail::TokenizerState> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_file(const std::filesystem::path& file) {
  return from_json(text_of_file(file), file.string());
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& source) {
  D9D_CHECK(!is_git_lfs_pointer(json), ConfigError, "[tokenizer] ", source, ": expected JSON, ", kGitLfsRemedy);
  nlohmann::json parsed;
  try {
    parsed = nlohmann::json::parse(json);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(
        cat("[tokenizer] ", source, ": expected JSON, got none (", error.what(), "). The file is damaged."));
  }
  auto state = std::make_unique<detail::TokenizerState>(detail::JsonNode(parsed, source));
  state->identity = identity_of_tokenizer(parsed);
  return Tokenizer(std::move(state));
}

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  check_text(text);
  Encoding encoding;
  const BorrowedScratch scratch(state_->scratch);
  detail::Encoder encoder(*state_, *scratch, text, options, encoding.ids);
  encoder.run();
  if (options.with_offsets) encoding.offsets = encoder.offsets();
  return encoding;
}

void Tokenizer::append_ids(std::string_view text, const EncodeOptions& options, std::vector<std::uint32_t>& ids) const {
  check_text(text);
  EncodeOptions without_offsets = options;
  without_offsets.with_offsets = false;
  const BorrowedScratch scratch(state_->scratch);
  detail::Encoder(*state_, *scratch, text, without_offsets, ids).run();
}

std::size_t Tokenizer::next_cut(std::string_view text, std::size_t from, std::size_t to) const {
  return detail::next_line_cut(text, from, to, state_->line_cut);
}

std::span<const std::uint32_t> Tokenizer::tokens_before_text() const { return state_->post_processor.before; }
std::span<const std::uint32_t> Tokenizer::tokens_behind_text() const { return state_->post_processor.after; }

std::string Tokenizer::decode(std::span<const std::uint32_t> ids, const DecodeOptions& options) const {
  std::string bytes;
  for (const std::uint32_t id : ids) {
    if (!options.skip_special_tokens || !is_special(id)) bytes += token_bytes(id);
  }
  return replace_invalid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(std::uint32_t id) const {
  return id < state_->tokens.size() ? std::string_view(state_->tokens[id].bytes) : std::string_view();
}

std::optional<std::uint32_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const auto added = state_->added_ids.find(token); added != state_->added_ids.end()) return added->second;
  const auto& vocabulary = state_->model->vocabulary();
  const auto entry = vocabulary.find(token);
  if (entry == vocabulary.end()) return std::nullopt;
  return entry->second;
}

std::optional<std::string> Tokenizer::id_to_token(std::uint32_t id) const {
  if (id >= state_->tokens.size() || !state_->tokens[id].exists) return std::nullopt;
  return state_->tokens[id].token;
}

bool Tokenizer::is_special(std::uint32_t id) const {
  return id < state_->tokens.size() && state_->tokens[id].is_special;
}
std::size_t Tokenizer::vocabulary_size() const { return state_->num_tokens; }
const TokenizerIdentity& Tokenizer::identity() const { return state_->identity; }
std::uint32_t Tokenizer::highest_id() const { return static_cast<std::uint32_t>(state_->tokens.size() - 1); }

}  // namespace d9d
