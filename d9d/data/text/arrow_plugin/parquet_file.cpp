#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "d9d/data/text/arrow_plugin/column_files.h"
#include "d9d/data/text/arrow_plugin/text_columns.h"

namespace d9d::arrow_plugin {

namespace {

constexpr std::int64_t kRowsAtOnce = 1024;

class ParquetFile final : public ColumnFile {
 public:
  explicit ParquetFile(const ColumnRequest& request) : request_(request) {
    const arrow::Status status = open();
    if (!status.ok()) problem_ = "no whole Parquet file: " + status.message();
  }

  [[nodiscard]] const std::string& problem() const override { return problem_; }
  [[nodiscard]] std::int64_t num_parts() const override {
    const bool has_rows = problem_.empty() && first_rows_.back() > 0;
    return has_rows ? static_cast<std::int64_t>(first_rows_.size()) - 1 : 0;
  }

  void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const override {
    std::int64_t row = first_rows_[static_cast<std::size_t>(part)];
    const arrow::Status status = read_group(static_cast<int>(part), row, each);
    if (status.ok()) return;
    const std::int64_t num_left = first_rows_[static_cast<std::size_t>(part) + 1] - row;
    each({.row = row, .problem = "damaged rows: " + status.message(), .num_rows = std::max<std::int64_t>(num_left, 1)});
  }

 private:
  // A reader can be used by one thread only, so each read of a part opens a new one, with the metadata that open() has
  // read.
  arrow::Result<std::unique_ptr<parquet::arrow::FileReader>> new_reader() const {
    ARROW_ASSIGN_OR_RAISE(const auto file, arrow::io::ReadableFile::Open(request_.path.string()));
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(file, parquet::default_reader_properties(), metadata_));
    parquet::ArrowReaderProperties properties(/*use_threads=*/false);
    properties.set_batch_size(kRowsAtOnce);
    properties.set_pre_buffer(false);
    std::unique_ptr<parquet::arrow::FileReader> reader;
    ARROW_RETURN_NOT_OK(builder.properties(properties)->Build(&reader));
    return reader;
  }

  arrow::Status open() {
    ARROW_ASSIGN_OR_RAISE(const auto reader, new_reader());
    metadata_ = reader->parquet_reader()->metadata();
    for (int group = 0; group < metadata_->num_row_groups(); ++group) {
      first_rows_.push_back(first_rows_.back() + metadata_->RowGroup(group)->num_rows());
    }
    if (first_rows_.back() == 0) return arrow::Status::OK();
    std::shared_ptr<arrow::Schema> schema;
    ARROW_RETURN_NOT_OK(reader->GetSchema(&schema));
    const FoundColumns found = find_columns(*schema, request_);
    problem_ = found.problem;
    for (const int field : found.indices) add_leaves(reader->manifest().schema_fields[static_cast<std::size_t>(field)]);
    return arrow::Status::OK();
  }

  // Adds the leaf columns of a field: Parquet stores a nested column as its leaves.
  void add_leaves(const parquet::arrow::SchemaField& field) {
    if (field.is_leaf()) leaves_.push_back(field.column_index);
    for (const auto& child : field.children) add_leaves(child);
  }

  arrow::Status read_group(int group, std::int64_t& row, const std::function<void(const TextRow&)>& each) const {
    std::unique_ptr<parquet::arrow::FileReader> reader;
    std::unique_ptr<arrow::RecordBatchReader> batches;
    try {
      ARROW_ASSIGN_OR_RAISE(reader, new_reader());
      ARROW_ASSIGN_OR_RAISE(batches, reader->GetRecordBatchReader({group}, leaves_));
    } catch (const parquet::ParquetException& error) {
      return arrow::Status::IOError(error.what());
    }
    const std::int64_t end = first_rows_[static_cast<std::size_t>(group) + 1];
    while (true) {
      std::shared_ptr<arrow::RecordBatch> batch;
      try {
        ARROW_RETURN_NOT_OK(batches->ReadNext(&batch));
      } catch (const parquet::ParquetException& error) {
        return arrow::Status::IOError(error.what());
      }
      if (!batch) break;
      arrow::ArrayVector columns;
      for (const std::string& name : request_.columns) columns.push_back(batch->GetColumnByName(name));
      read_rows(columns, request_, row, each);
      row += batch->num_rows();
    }
    return row == end ? arrow::Status::OK()
                      : arrow::Status::IOError("a row group ends after row ", row, " instead of ", end);
  }

  ColumnRequest request_;
  std::string problem_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<std::int64_t> first_rows_{0};  // first row of each row group; then the number of rows
  std::vector<int> leaves_;
};

}  // namespace

std::unique_ptr<ColumnFile> open_parquet(const ColumnRequest& request) {
  return std::make_unique<ParquetFile>(request);
}

}  // namespace d9d::arrow_plugin
