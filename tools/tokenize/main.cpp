// Tokenises text into a file of token ids.
//
//   d9d_tokenize corpus_tokens 'corpus/*.jsonl' --tokenizer tokenizer.json --end-of-document '<|endoftext|>' --num-proc 8
//   d9d_tokenize --help
#include <filesystem>
#include <iostream>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/base/progress/progress_bar.h"
#include "d9d/core/launch/launch.h"
#include "d9d/data/build/build_documents.h"
#include "d9d/data/text/encode_row.h"
#include "d9d/data/text/marked_text.h"
#include "d9d/data/text/tokenize_rows.h"

#include "tools/tokenize/options.h"

namespace {

// Prints the first rows that are documents.
void show(const d9d::TokenisableRows& rows, std::int64_t num_shown) {
  for (std::int64_t part = 0; part < rows.rows->num_parts() && num_shown > 0; ++part) {
    rows.rows->read(part, [&](const d9d::TextRow& row) {
      if (num_shown <= 0) return;
      std::string problem;
      const auto document = d9d::encode_row(*rows.rows, part, row, *rows.encoder, rows.options, problem);
      if (!document) return;
      const std::vector<d9d::TokenRange> all = {{.begin = 0, .end = std::ssize(document->tokens)}};
      std::cout << "--- " << rows.rows->place(part, row.row) << ", what is learned between ⟦ and ⟧\n"
                << d9d::marked_text(document->tokens, document->targets.value_or(all), *rows.encoder) << "\n";
      --num_shown;
    });
  }
}

void run(int argc, const char* const* argv) {
  const d9d::tokenize::Options options = d9d::tokenize::parse_options(argc, argv);
  const std::filesystem::path& target = options.target;
  D9D_CHECK(!std::filesystem::exists(target), d9d::UsageError, "[tokenize] expected '", target.string(),
            "' not to exist, got a file or a folder. Choose another TARGET, or delete it.");
  const d9d::TokenisableRows rows = d9d::build_rows(options.source, std::numeric_limits<std::int64_t>::max());
  show(rows, options.num_shown);
  const d9d::InterruptScope interrupt;
  d9d::ProgressBar bar({.label = "tokenize", .total = rows.rows->num_parts()});
  d9d::TokenizeOptions tokenize = rows.options;
  tokenize.on_progress = [&](std::int64_t num_parts, std::int64_t num_tokens) {
    bar.update(num_parts, {d9d::short_number(static_cast<double>(num_tokens)) + " tokens"});
    D9D_CHECK(!interrupt.requested(), d9d::IoError, "[tokenize] expected to write '", target.string(),
              "', got interrupted. Nothing was left there.");
  };
  const d9d::TokenizedManifest made = d9d::tokenize_rows(*rows.rows, *rows.encoder, tokenize, target);
  bar.finish();
  if (const std::string remark = rows.encoder->remark(); !remark.empty()) std::cerr << "tokenize: " << remark << "\n";
  if (made.num_skipped > 0) {
    std::cerr << "tokenize: skipped " << made.num_skipped << " bad rows, the first: " << made.first_skipped << "\n";
  }
  nlohmann::ordered_json data = {{"kind", "tokens"}};
  if (made.num_targets) {  // which the file of tokens does not say
    data.update({{"path", target.string()}, {"view", {{"kind", "packed"}}}});
  } else {
    data.update({{"path", (target / d9d::kTokensFile).string()}, {"dtype", d9d::enum_name(made.dtype)}});
    if (tokenize.end_of_document) data["end_of_document"] = *tokenize.end_of_document;
  }
  std::cout << "tokenize: wrote " << made.num_documents << " documents, " << made.num_tokens
            << " tokens. In a job: \"data\": " << data.dump() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  return d9d::run_reporting_errors([&] { run(argc, argv); });
}
