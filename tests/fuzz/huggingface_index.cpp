#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors_header.h"

#include "tests/fuzz/targets.h"

namespace d9d::fuzz {
namespace {

namespace fs = std::filesystem;

// A folder in memory, of this process, with one shard that has the tensor "w".
class Folder {
 public:
  Folder() : path_(fs::path("/dev/shm") / ("d9d_fuzz_index_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
    const std::string text = R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   )";
    const std::uint64_t length = text.size();
    std::ofstream file(path_ / "a.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length) << text << 'x';
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

void huggingface_index(Bytes file) {
  static const Folder folder;
  std::ofstream(folder.path() / "model.safetensors.index.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  try {
    const HuggingFaceDirectory directory(folder.path());
    for (const std::string& name : directory.names()) (void)directory.find(name);
  } catch (const IoError&) {
  }
}

}  // namespace d9d::fuzz
