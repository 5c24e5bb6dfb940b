#include "tools/plan/options.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/byte_size.h"

namespace d9d::plan {
namespace {

std::int64_t parse_count(const std::string& option, std::string_view digits, const std::string& text) {
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  D9D_CHECK(error == std::errc{} && end == digits.data() + digits.size() && count >= 1, UsageError, "[plan] expected ",
            option, ", got '", text, "'. See --help.");
  return count;
}

std::int64_t parse_size(const std::string& text) {
  constexpr const char* kSize = "--memory SIZE such as 80GiB, at least 1MiB";
  const auto bytes = parse_byte_size(text);
  D9D_CHECK(bytes && *bytes >= 1, UsageError, "[plan] expected ", kSize, ", got '", text, "'. See --help.");
  D9D_CHECK(*bytes >= 1 << 20, UsageError, "[plan] expected ", kSize, ", got '", text, "', which is ", *bytes,
            " bytes. Add the unit, as in ", text, "GiB.");
  return *bytes;
}

Options::Microbatch parse_microbatch(const std::string& text) {
  constexpr const char* kForm = "--microbatch BxS such as 1x4096";
  const std::size_t cross = text.find('x');
  D9D_CHECK(cross != std::string::npos, UsageError, "[plan] expected ", kForm, ", got '", text, "'. See --help.");
  const std::string_view all = text;
  return {.num_sequences = parse_count(kForm, all.substr(0, cross), text),
          .sequence_length = parse_count(kForm, all.substr(cross + 1), text)};
}

// NAME,key=value,... as overrides of the record at `place`, whose tag is `tag`; a place without one has keys alone.
void add_record(const std::string& option, const std::string& place, const std::string& tag, const std::string& text,
                std::vector<std::string>& overrides) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const bool is_key = item.find('=') != std::string::npos;
    D9D_CHECK(!item.empty() && (is_key || (begin == 0 && !tag.empty())), UsageError, "[plan] expected ",
              tag.empty() ? "" : "a name and ", "keys as in a=1,b=2 after ", option, ", got '", text, "'. See --help.");
    if (!is_key) overrides.push_back(place + "={\"" + tag + "\": \"" + item + "\"}");
    if (is_key) overrides.push_back(place + "." + item);
    begin = end + 1;
  }
}

}  // namespace

Options parse_options(const std::vector<std::string>& words) {
  Options options;
  std::size_t next = 0;
  const auto value_of = [&](const std::string& option) {
    D9D_CHECK(next < words.size(), UsageError, "[plan] expected a value after ", option, ", got none. See --help.");
    return words[next++];
  };
  while (next < words.size()) {
    const std::string word = words[next++];
    if (word == "--help" || word == "-h") {
      options.wants_help = true;
    } else if (word == "--family") {
      options.family = value_of(word);
    } else if (word == "--mesh") {
      add_record(word, "mesh", "", value_of(word), options.overrides);
    } else if (word == "--schedule") {
      add_record(word, "trainer.pipelining.schedule", "schedule", value_of(word), options.overrides);
    } else if (word == "--optimizer") {
      add_record(word, "optimizer", "name", value_of(word), options.overrides);
    } else if (word == "--microbatch") {
      options.microbatch = parse_microbatch(value_of(word));
    } else if (word == "--microbatches") {
      const std::string text = value_of(word);
      options.num_microbatches = parse_count("a number of microbatches from 1 on", text, text);
    } else if (word == "--memory") {
      options.memory = parse_size(value_of(word));
    } else if (word == "--ranks") {
      const std::string text = value_of(word);
      options.num_ranks = parse_count("a number of ranks from 1 on", text, text);
    } else if (word.starts_with('-')) {
      throw UsageError(cat("[plan] unknown option '", word, "'. See --help."));
    } else if (options.file.empty()) {
      options.file = word;
    } else {
      options.overrides.push_back(word);
    }
  }
  D9D_CHECK(options.wants_help || !options.file.empty(), UsageError,
            "[plan] expected a file of a job or of a model, got none. See --help.");
  const bool has_mesh =
      std::ranges::any_of(options.overrides, [](const std::string& each) { return each.starts_with("mesh"); });
  D9D_CHECK(!options.num_ranks || !has_mesh, UsageError,
            "[plan] expected --ranks, which lists every mesh of that many ranks, or a mesh, got both. See --help.");
  return options;
}

}  // namespace d9d::plan
