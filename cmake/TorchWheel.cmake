# LibTorch from the `torch` wheel as hand-made imported targets. The build and the installed package both use this file.
#
# find_package(Torch) would set CMAKE_CUDA_ARCHITECTURES, edit CMAKE_CUDA_FLAGS, pollute RPATH and link CUDA into every
# program. These targets keep programs free of CUDA until they ask for it and configure in milliseconds.
#
#   d9d::torch_cpu     headers, libtorch_cpu, libc10
#   d9d::cudart        the CUDA runtime that comes with torch
#
# Input:  D9D_SITE_PACKAGES   the site-packages folder that holds torch/. Default: .venv of this project, else the one
#                             where python3 of PATH finds torch.

set(D9D_TORCH_VERSION "2.11.0")

if(NOT D9D_SITE_PACKAGES)
  file(GLOB D9D_SITE_PACKAGES_FOUND "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages")
  if(NOT D9D_SITE_PACKAGES_FOUND)
    execute_process(COMMAND python3 -c "import importlib.util, pathlib
spec = importlib.util.find_spec('torch')
print(pathlib.Path(spec.origin).parent.parent if spec else '', end='')"
      OUTPUT_VARIABLE D9D_SITE_PACKAGES_FOUND ERROR_QUIET)
  endif()
  list(POP_FRONT D9D_SITE_PACKAGES_FOUND D9D_SITE_PACKAGES_DEFAULT)
  set(D9D_SITE_PACKAGES "${D9D_SITE_PACKAGES_DEFAULT}" CACHE PATH "site-packages folder with the torch wheel" FORCE)
endif()
if(NOT EXISTS "${D9D_SITE_PACKAGES}/torch/version.py")
  message(FATAL_ERROR "[cmake::torch] expected the torch wheel in D9D_SITE_PACKAGES, got '${D9D_SITE_PACKAGES}'. "
    "In d9d.cpp's own tree run tools/bootstrap; elsewhere pass -DD9D_SITE_PACKAGES=<folder that holds torch/>.")
endif()
file(STRINGS "${D9D_SITE_PACKAGES}/torch/version.py" D9D_TORCH_FOUND REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" D9D_TORCH_FOUND "${D9D_TORCH_FOUND}")
if(NOT D9D_TORCH_FOUND STREQUAL D9D_TORCH_VERSION)
  message(FATAL_ERROR "[cmake::torch] expected torch ${D9D_TORCH_VERSION} (the one supported version), got "
    "${D9D_TORCH_FOUND} in ${D9D_SITE_PACKAGES}. Install requirements.txt.")
endif()

set(D9D_TORCH_LIB "${D9D_SITE_PACKAGES}/torch/lib")
set(D9D_CUDA_WHEEL_LIB "${D9D_SITE_PACKAGES}/nvidia/cu13/lib")

add_library(d9d::torch_cpu INTERFACE IMPORTED GLOBAL)
target_include_directories(d9d::torch_cpu SYSTEM INTERFACE
  "${D9D_SITE_PACKAGES}/torch/include" "${D9D_SITE_PACKAGES}/torch/include/torch/csrc/api/include")
target_compile_definitions(d9d::torch_cpu INTERFACE USE_DISTRIBUTED USE_RPC USE_TENSORPIPE)  # as the wheel was built
target_link_libraries(d9d::torch_cpu INTERFACE "${D9D_TORCH_LIB}/libtorch_cpu.so" "${D9D_TORCH_LIB}/libc10.so" pthread)

add_library(d9d::cudart INTERFACE IMPORTED GLOBAL)
target_link_libraries(d9d::cudart INTERFACE "${D9D_CUDA_WHEEL_LIB}/libcudart.so.13")
