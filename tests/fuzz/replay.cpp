// Gives each target the files of its corpus, with the usual compiler: fuzz_replay CORPUS
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (const auto& [name, target] : d9d::fuzz::kTargets) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(argv[1]) / name)) {
      paths.push_back(entry.path());
    }
    std::ranges::sort(paths);
    for (const auto& path : paths) {
      std::ifstream file(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      try {
        target(std::as_bytes(std::span(bytes)));
      } catch (const std::exception& error) {
        std::cerr << "fuzz_replay: " << path.string() << ": " << error.what() << "\n";
        return 1;
      }
    }
    std::cout << name << ": " << paths.size() << " inputs\n";
    if (paths.empty()) return 1;
  }
}
