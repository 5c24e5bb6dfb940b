#include "d9d/tracker/helper/spool.h"

#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"

namespace d9d {

Spool::Spool(std::filesystem::path path, std::string header) : path_(std::move(path)), header_(std::move(header)) {}

void Spool::add(std::string_view line) {
  if (file_ == nullptr) {
    detail::make_writable_folder(path_.parent_path());
    lock_ = std::make_unique<FolderLock>(path_, path_.string() + ".lock");
    const bool is_new = !std::filesystem::exists(path_);
    file_ = std::make_unique<AppendFile>(path_);
    if (is_new) file_->write(header_ + '\n');
  }
  file_->write(cat(line, '\n'));
}

void Spool::close() {
  file_.reset();
  lock_.reset();
}

}  // namespace d9d
