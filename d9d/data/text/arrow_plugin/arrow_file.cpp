#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>

#include <utility>

#include "d9d/data/text/arrow_plugin/column_files.h"
#include "d9d/data/text/arrow_plugin/text_columns.h"

namespace d9d::arrow_plugin {

namespace {

constexpr std::string_view kFileMagic = "ARROW1";

// Batches point into the mapped file; compressed buffers are decompressed, but only for the requested columns.
class ArrowFile final : public ColumnFile {
 public:
  explicit ArrowFile(const ColumnRequest& request) : request_(request) {
    const arrow::Status status = open();
    if (!status.ok()) problem_ = "no whole Arrow file: " + status.message();
  }

  [[nodiscard]] const std::string& problem() const override { return problem_; }
  [[nodiscard]] std::int64_t num_parts() const override { return static_cast<std::int64_t>(batches_.size()); }

  void read(std::int64_t part, const std::function<void(const TextRow&)>& each) const override {
    arrow::ArrayVector columns;
    for (const std::string& name : request_.columns) {
      columns.push_back(batches_[static_cast<std::size_t>(part)]->GetColumnByName(name));
    }
    read_rows(columns, request_, first_rows_[static_cast<std::size_t>(part)], each);
  }

 private:
  arrow::Status open() {
    ARROW_ASSIGN_OR_RAISE(const auto file,
                          arrow::io::MemoryMappedFile::Open(request_.path.string(), arrow::io::FileMode::READ));
    ARROW_ASSIGN_OR_RAISE(const auto size, file->GetSize());
    if (size == 0) return arrow::Status::IOError("no bytes");
    ARROW_ASSIGN_OR_RAISE(const auto begin, file->ReadAt(0, static_cast<std::int64_t>(kFileMagic.size())));
    if (begin->size() < static_cast<std::int64_t>(kFileMagic.size()) || std::string_view(*begin) != kFileMagic) {
      return open_stream(file);
    }
    return open_file(file);
  }

  arrow::Status open_stream(const std::shared_ptr<arrow::io::MemoryMappedFile>& file) {
    ARROW_ASSIGN_OR_RAISE(auto reader, arrow::ipc::RecordBatchStreamReader::Open(file));
    std::shared_ptr<arrow::RecordBatch> batch;
    if (!find_columns(*reader->schema())) {  // a file without rows may lack the columns
      do {
        ARROW_RETURN_NOT_OK(reader->ReadNext(&batch));
      } while (batch && batch->num_rows() == 0);
      if (!batch) problem_.clear();
      return arrow::Status::OK();
    }
    ARROW_RETURN_NOT_OK(file->Seek(0));
    ARROW_ASSIGN_OR_RAISE(reader, arrow::ipc::RecordBatchStreamReader::Open(file, options_));
    while (true) {
      ARROW_RETURN_NOT_OK(reader->ReadNext(&batch));
      if (!batch) return arrow::Status::OK();
      add(std::move(batch));
    }
  }

  arrow::Status open_file(const std::shared_ptr<arrow::io::MemoryMappedFile>& file) {
    ARROW_ASSIGN_OR_RAISE(auto reader, arrow::ipc::RecordBatchFileReader::Open(file));
    if (!find_columns(*reader->schema())) {
      ARROW_ASSIGN_OR_RAISE(const auto num_rows, reader->CountRows());
      if (num_rows == 0) problem_.clear();
      return arrow::Status::OK();
    }
    ARROW_ASSIGN_OR_RAISE(reader, arrow::ipc::RecordBatchFileReader::Open(file, options_));
    for (int i = 0; i < reader->num_record_batches(); ++i) {
      ARROW_ASSIGN_OR_RAISE(auto batch, reader->ReadRecordBatch(i));
      add(std::move(batch));
    }
    return arrow::Status::OK();
  }

  bool find_columns(const arrow::Schema& schema) {
    FoundColumns found = arrow_plugin::find_columns(schema, request_);
    problem_ = std::move(found.problem);
    options_.included_fields = std::move(found.indices);
    options_.use_threads = false;
    return problem_.empty();
  }

  void add(std::shared_ptr<arrow::RecordBatch> batch) {
    if (batch->num_rows() == 0) return;
    first_rows_.push_back(first_rows_.back() + batch->num_rows());
    batches_.push_back(std::move(batch));
  }

  ColumnRequest request_;
  std::string problem_;
  arrow::ipc::IpcReadOptions options_ = arrow::ipc::IpcReadOptions::Defaults();
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches_;
  std::vector<std::int64_t> first_rows_{0};  // first row of each batch; then the number of rows
};

}  // namespace

std::unique_ptr<ColumnFile> open_arrow(const ColumnRequest& request) { return std::make_unique<ArrowFile>(request); }

}  // namespace d9d::arrow_plugin

extern "C" __attribute__((visibility("default"))) std::unique_ptr<d9d::ColumnFile> d9d_open_column_file(
    const d9d::ColumnRequest& request) {
  return request.format == d9d::ColumnFormat::kParquet ? d9d::arrow_plugin::open_parquet(request)
                                                       : d9d::arrow_plugin::open_arrow(request);
}
