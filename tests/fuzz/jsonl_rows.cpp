#include "d9d/data/text/jsonl_rows.h"

#include <string>

#include "d9d/base/check.h"

#include "tests/fuzz/scratch_folder.h"

namespace d9d::fuzz {

// Cut into parts of any size, the rows of a file are the same.
void jsonl_rows(Bytes file) {
  static const ScratchFolder folder;
  const std::filesystem::path path = folder.write("a.jsonl", file);
  for (const ColumnContent content : {ColumnContent::kText, ColumnContent::kJson}) {
    std::string whole, cut;
    try {
      for (std::string* const found : {&whole, &cut}) {
        const JsonlRows rows({path}, {"text"}, found == &whole ? JsonlRows::kPartBytes : 7, content);
        for (std::int64_t part = 0; part < rows.num_parts(); ++part) {
          rows.read(part, [&](const TextRow& row) {
            *found += row.problem.empty() ? cat(row.row, ' ', row.columns.at(0), '\n') : row.problem;
          });
        }
      }
    } catch (const IoError&) {
    }
    D9D_ASSERT(whole == cut, "rows that depend on parts");
  }
}

}  // namespace d9d::fuzz
