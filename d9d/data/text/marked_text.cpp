#include "d9d/data/text/marked_text.h"

#include <algorithm>
#include <vector>

namespace d9d {

std::string marked_text(std::span<const std::int64_t> tokens, std::span<const TokenRange> targets,
                        const TextEncoder& encoder) {
  const auto text = [&](std::int64_t begin, std::int64_t end) {
    return encoder.decode(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  };
  std::string marked;
  std::int64_t at = 0;
  for (const TokenRange& range : targets) {
    marked += text(at, range.begin) + "⟦" + text(range.begin, range.end) + "⟧";
    at = range.end;
  }
  return marked + text(at, std::ssize(tokens));
}

std::string marked_line(const TokenDocuments& documents, std::int64_t document, std::int64_t max_tokens,
                        const TextEncoder& encoder) {
  const std::int64_t length = std::min(documents.length(document), max_tokens);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(length));
  documents.read(document, /*start=*/0, tokens);
  std::vector<TokenRange> targets;
  for (const TokenRange& range : documents.targets(document)) {
    if (range.begin < length) targets.push_back({.begin = range.begin, .end = std::min(range.end, length)});
  }
  std::string line;
  for (const char c : marked_text(tokens, targets, encoder)) line += c == '\n' ? "\\n" : std::string(1, c);
  return line + (length < documents.length(document) ? " ..." : "");
}

}  // namespace d9d
