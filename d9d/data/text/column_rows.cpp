#include "d9d/data/text/column_rows.h"

#include "d9d/base/check.h"

namespace d9d {

ColumnRows::ColumnRows(const std::vector<std::filesystem::path>& files, ColumnFormat format,
                       std::vector<std::string> columns, ColumnContent content)
    : paths_(files), columns_(std::move(columns)), content_(content) {
  for (std::size_t file = 0; file < paths_.size(); ++file) {
    files_.push_back(
        open_column_file({.path = paths_[file], .format = format, .columns = columns_, .content = content}));
    if (!files_.back()->problem().empty()) parts_.push_back({file, -1});
    for (std::int64_t part = 0; part < files_.back()->num_parts(); ++part) parts_.push_back({file, part});
  }
}

void ColumnRows::read(std::int64_t part, const std::function<void(const TextRow&)>& each) const {
  const auto [file, part_of_file] = parts_[static_cast<std::size_t>(part)];
  if (part_of_file < 0) return each({.row = -1, .problem = files_[file]->problem()});
  files_[file]->read(part_of_file, each);
}

std::string ColumnRows::place(std::int64_t part, std::int64_t row) const {
  const std::string& path = paths_[parts_[static_cast<std::size_t>(part)].file].string();
  return row < 0 ? cat("'", path, "'") : cat("row ", row, " of '", path, "'");
}

std::string ColumnRows::columns_text() const {
  std::string text = content_ == ColumnContent::kJson ? "columns of JSON\n" : "columns\n";
  for (const std::string& column : columns_) text += "column " + column + "\n";
  return text;
}

}  // namespace d9d
