#include "d9d/core/device/cuda_runtime.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/gpu_test.h"

namespace d9d::cuda_runtime_test {
namespace {

std::string mapped_files() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/maps").rdbuf();
  return text.str();
}

// The libraries that the dynamic linker loads before main.
std::string libraries_at_start() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").string();
  FILE* pipe = popen(("LD_TRACE_LOADED_OBJECTS=1 '" + program + "'").c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text.push_back(static_cast<char>(c));
  pclose(pipe);
  return text;
}

TEST(CudaRuntime, A_program_starts_without_the_CUDA_half_of_LibTorch) {
  const std::string libraries = libraries_at_start();
  EXPECT_NE(libraries.find("libtorch_cpu.so"), std::string::npos) << libraries;
  EXPECT_EQ(libraries.find("libtorch_cuda.so"), std::string::npos);
  EXPECT_EQ(libraries.find("libcuda.so"), std::string::npos);
}

TEST(CudaRuntime, Without_a_device_is_false_and_loads_nothing) {
  if (test::has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_FALSE(load_cuda());
  EXPECT_EQ(mapped_files().find("libtorch_cuda.so"), std::string::npos);
}

class LoadCuda : public test::GpuTest {};

TEST_F(LoadCuda, Gives_LibTorch_tensors_and_backward_on_a_device) {
  EXPECT_TRUE(load_cuda());
  const auto x = at::full({3}, 2, at::device(at::kCUDA).dtype(at::kDouble)).requires_grad_();
  (x * x).sum().backward();
  EXPECT_EQ(x.grad().sum().item<double>(), 12);
}

}  // namespace
}  // namespace d9d::cuda_runtime_test
