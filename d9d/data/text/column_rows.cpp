#include "d9d/data/text/column_rows.h"

#include "d9d/base/check.h"
#include "d9d/data/description/data_description.h"
#include "d9d/data/text/file_form.h"

namespace d9d {

namespace {

// Throws IoError for a file with a problem. If its first bytes show that it has another format, the error says which.
void refuse_file(const std::filesystem::path& path, ColumnFormat format, const std::string& problem) {
  const std::string begin = first_bytes(path);
  const bool is_own = begin.starts_with(format == ColumnFormat::kParquet ? "PAR1" : "ARROW1");
  const auto form = is_own ? std::nullopt : foreign_format(begin);
  throw IoError(cat("[data::ColumnRows] expected rows with the columns that are asked for, got ", problem, " in '",
                    path.string(), "'", form ? cat(", which is ", form->is) : "", ". ",
                    form ? form->remedy : "Correct the file, or change what is read of it", "."));
}

}  // namespace

ColumnRows::ColumnRows(const std::vector<std::filesystem::path>& files, ColumnFormat format,
                       std::vector<std::string> columns, ColumnContent content)
    : paths_(files), columns_(std::move(columns)), content_(content) {
  for (std::size_t file = 0; file < paths_.size(); ++file) {
    files_.push_back(
        open_column_file({.path = paths_[file], .format = format, .columns = columns_, .content = content}));
    if (!files_.back()->problem().empty()) {
      refuse_file(paths_[file], format, files_.back()->problem());
    }
    for (std::int64_t part = 0; part < files_.back()->num_parts(); ++part) parts_.push_back({file, part});
  }
}

void ColumnRows::read(std::int64_t part, const std::function<void(const TextRow&)>& each) const {
  const auto [file, part_of_file] = parts_[static_cast<std::size_t>(part)];
  files_[file]->read(part_of_file, each);
}

std::string ColumnRows::place(std::int64_t part, std::int64_t row) const {
  return cat("row ", row, " of '", paths_[parts_[static_cast<std::size_t>(part)].file].string(), "'");
}

std::string ColumnRows::name() const { return "rows of " + name_of_files(paths_); }

std::string ColumnRows::columns_text() const {
  std::string text = content_ == ColumnContent::kJson ? "columns of JSON\n" : "columns\n";
  for (const std::string& column : columns_) text += "column " + column + "\n";
  return text;
}

}  // namespace d9d
