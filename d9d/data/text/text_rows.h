// The interface of rows of text from files, which a tokenizer turns into documents. Rows come in parts that are read
// independently of each other.
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
  std::int64_t row = 0;                        // identifies the row in its part for TextRows::place()
  std::vector<std::string_view> columns = {};  // one for each requested column; valid during the call
  std::string problem = {};                    // what is wrong with the row; it then has no columns
  bool begins = true;                          // whether the text begins at the start of the row; see read_piece()
  bool ends = true;                            // whether the text ends at the end of the row; see read_piece()
  std::int64_t num_rows = 1;                   // more than 1 if this TextRow reports several damaged rows
};

// The content of columns, and how a TextRow represents it.
enum class ColumnContent {
  kText,  // strings
  kJson,  // any value, as JSON; strings must be JSON already; fields of structs that are null are left out
};

// Returns the first position in [from, to) at which `text` can be split for tokenising, or `to`:
// TextEncoder::next_cut().
using NextCut = std::function<std::size_t(std::string_view text, std::size_t from, std::size_t to)>;

// Rows of text in parts. Reading is thread-safe, and equal calls give equal rows. A problem of a whole file is not
// reported as a row: constructors throw IoError for a file that is damaged, has another format or lacks a column. A
// file without rows is no error.
class TextRows {
 public:
  TextRows() = default;
  TextRows(const TextRows&) = delete;
  TextRows& operator=(const TextRows&) = delete;
  virtual ~TextRows() = default;

  [[nodiscard]] virtual std::int64_t num_parts() const = 0;

  // Calls each(row) for the rows of a part, in order; 0 <= part < num_parts(). Bad rows are passed with their problem,
  // so that one policy (BadRows) decides what happens to them.
  virtual void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const = 0;

  // num_pieces() returns the number of pieces of a part. read_piece() reads one of them, independently of the others,
  // for callers that can process a long row piece by piece. The texts of a row's pieces, concatenated, are the text of
  // the row; each piece but the last ends at a position that `next_cut` returns. A piece may be empty: each() is then
  // not called.
  [[nodiscard]] virtual std::int64_t num_pieces(std::int64_t /*part*/) const { return 1; }
  virtual void read_piece(std::int64_t part, std::int64_t /*piece*/, const NextCut& /*next_cut*/,
                          const std::function<void(const TextRow&)>& each) const {
    read(part, each);
  }

  // For messages: place() names one row ("row 17 of 'a.parquet'"), and name() all ("rows of 'a.parquet'").
  [[nodiscard]] virtual std::string place(std::int64_t part, std::int64_t row) const = 0;
  [[nodiscard]] virtual std::string name() const = 0;

  // Returns a text that changes when files are replaced, edited or added, or when other columns are requested.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  // Returns a text like fingerprint() that does not depend on the places and times of the files, so that copies have
  // the same text. It identifies the rows to which a saved position belongs.
  [[nodiscard]] virtual std::string content_fingerprint() const = 0;
};

}  // namespace d9d
