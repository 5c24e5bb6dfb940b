// Rows of text from files, in parts that are read independently of each other: what a tokenizer turns into documents.
//
// Example
//   for (std::int64_t part = 0; part < rows.num_parts(); ++part) {
//     rows.read(part, [&](const TextRow& row) { encode(row.columns[0]); });
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace d9d {

struct TextRow {
  std::int64_t row = 0;                        // within its part, as TextRows::place() takes it
  std::vector<std::string_view> columns = {};  // of each name that was asked for; valid during the call
  std::string problem = {};                    // what is wrong with the row; then no columns
  bool begins = true;                          // whether the text is the row's from its begin, and up to its end:
  bool ends = true;                            // read_piece()
  std::int64_t num_rows = 1;                   // that have the problem: rows that are damaged together are one here
};

// What columns hold, and how a row has them.
enum class ColumnContent {
  kText,  // texts
  kJson,  // any value, as JSON; texts are JSON already
};

// TextEncoder::next_cut().
using NextCut = std::function<std::size_t(std::string_view text, std::size_t from, std::size_t to)>;

// Reading is thread-safe, and equal calls give equal rows. What is wrong with a whole file is no row: constructors
// throw IoError for a file that is damaged, of another format or without a column. A file without rows has none.
class TextRows {
 public:
  TextRows() = default;
  TextRows(const TextRows&) = delete;
  TextRows& operator=(const TextRows&) = delete;
  virtual ~TextRows() = default;

  [[nodiscard]] virtual std::int64_t num_parts() const = 0;

  // Calls each(row) for the rows of a part, in order; 0 <= part < num_parts(). Bad rows are handed out with their
  // problem, so that one policy decides what happens to them.
  virtual void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const = 0;

  // A part in pieces that are read independently of each other, for who can take a long row in several. The texts of a
  // row's pieces, in order, are the row's; each but the last ends where `next_cut` says. A piece may have none.
  [[nodiscard]] virtual std::int64_t num_pieces(std::int64_t /*part*/) const { return 1; }
  virtual void read_piece(std::int64_t part, std::int64_t /*piece*/, const NextCut& /*next_cut*/,
                          const std::function<void(const TextRow&)>& each) const {
    read(part, each);
  }

  // For messages: "row 17 of 'a.parquet'".
  [[nodiscard]] virtual std::string place(std::int64_t part, std::int64_t row) const = 0;

  // Changes when files are replaced, edited or added, or when other columns are asked for.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  // The same for copies of the files elsewhere, whatever their times: what rows a position in them belongs to.
  [[nodiscard]] virtual std::string content_fingerprint() const = 0;
};

}  // namespace d9d
