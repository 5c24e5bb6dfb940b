# LibTorch from the `torch` wheel as hand-made imported targets.
#
# find_package(Torch) would set CMAKE_CUDA_ARCHITECTURES, edit CMAKE_CUDA_FLAGS, pollute RPATH and link CUDA into every
# program. These targets keep a CPU-only program free of CUDA and configure in milliseconds.
#
#   d9d::torch_cpu     headers, libtorch_cpu, libc10
#   d9d::torch_cuda    the above with libtorch_cuda, registered at load time
#
# Input:  D9D_SITE_PACKAGES   the site-packages folder that holds torch/ (default: .venv beside this project)

set(D9D_TORCH_VERSION "2.11.0")

if(NOT D9D_SITE_PACKAGES)
  file(GLOB D9D_SITE_PACKAGES_FOUND "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages")
  list(POP_FRONT D9D_SITE_PACKAGES_FOUND D9D_SITE_PACKAGES_DEFAULT)
  set(D9D_SITE_PACKAGES "${D9D_SITE_PACKAGES_DEFAULT}" CACHE PATH "site-packages folder with the torch wheel" FORCE)
endif()
if(NOT EXISTS "${D9D_SITE_PACKAGES}/torch/version.py")
  message(FATAL_ERROR
    "[cmake::torch] expected the torch wheel in D9D_SITE_PACKAGES, got '${D9D_SITE_PACKAGES}'. Run tools/bootstrap, or pass -DD9D_SITE_PACKAGES=...")
endif()
file(STRINGS "${D9D_SITE_PACKAGES}/torch/version.py" D9D_TORCH_FOUND REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" D9D_TORCH_FOUND "${D9D_TORCH_FOUND}")
if(NOT D9D_TORCH_FOUND STREQUAL D9D_TORCH_VERSION)
  message(FATAL_ERROR
    "[cmake::torch] expected torch ${D9D_TORCH_VERSION} (the one supported line), got ${D9D_TORCH_FOUND} in ${D9D_SITE_PACKAGES}. Install requirements.txt.")
endif()

set(D9D_TORCH_LIB "${D9D_SITE_PACKAGES}/torch/lib")
set(D9D_CUDA_WHEEL_LIB "${D9D_SITE_PACKAGES}/nvidia/cu13/lib")
foreach(name c10 torch_cpu c10_cuda torch_cuda)
  add_library(torchwheel::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(torchwheel::${name} PROPERTIES
    IMPORTED_LOCATION "${D9D_TORCH_LIB}/lib${name}.so" IMPORTED_NO_SONAME TRUE)
endforeach()

add_library(d9d_torch_cpu INTERFACE)
add_library(d9d::torch_cpu ALIAS d9d_torch_cpu)
set_target_properties(d9d_torch_cpu PROPERTIES EXPORT_NAME torch_cpu)
target_include_directories(d9d_torch_cpu SYSTEM INTERFACE
  "$<BUILD_INTERFACE:${D9D_SITE_PACKAGES}/torch/include>"
  "$<BUILD_INTERFACE:${D9D_SITE_PACKAGES}/torch/include/torch/csrc/api/include>")
target_compile_definitions(d9d_torch_cpu INTERFACE USE_DISTRIBUTED USE_RPC USE_TENSORPIPE)  # as the wheel was built
target_link_libraries(d9d_torch_cpu INTERFACE
  "$<BUILD_INTERFACE:${D9D_TORCH_LIB}/libtorch_cpu.so>" "$<BUILD_INTERFACE:${D9D_TORCH_LIB}/libc10.so>" pthread)

list(APPEND CMAKE_BUILD_RPATH "${D9D_TORCH_LIB}" "${D9D_CUDA_WHEEL_LIB}")
