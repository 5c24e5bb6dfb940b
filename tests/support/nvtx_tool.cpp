// A tool that reads NVTX, as Nsight Systems is one: NVTX loads it where NVTX_INJECTION64_PATH names it. Writes each
// range to the file D9D_NVTX_FILE, indented by the ranges around it on its thread.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

thread_local int depth = 0;

int push(const char* name) {
  static std::FILE* const file = std::fopen(std::getenv("D9D_NVTX_FILE"), "w");
  std::fprintf(file, "%*s%s\n", 2 * depth, "", name);
  std::fflush(file);
  return depth++;
}

int pop() { return --depth; }

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size) == 0) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}
