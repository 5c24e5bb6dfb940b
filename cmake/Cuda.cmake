# CUDA kernels, where nvcc of the wheel's CUDA line is found; a CPU-only build elsewhere.
#
# Programs link the CPU half of LibTorch only (start-up 0.25 s instead of 0.38 s); d9d::load_cuda() brings the other half in
# when a device is asked for. Kernels (d9d/**/*_kernel.cu) are in a library that is opened then (cmake/CudaLibrary.cmake).
#
# Input:   D9D_CUDA               ON, OFF (default: ON where a suitable nvcc is found)
# Output:  d9d::cudart            the wheel's CUDA runtime, for programs with .cu files
#          D9D_CUDA_HEADERS       the wheel's headers of CUDA and, after them, the toolkit's: no wheel has crt/
#          D9D_MISSING_FEATURES   gets `cuda` in a CPU-only build

set(D9D_CUDA_MAJOR 13)  # of the torch wheel

find_program(D9D_NVCC nvcc PATHS /usr/local/cuda/bin DOC "CUDA compiler")
set(D9D_NVCC_FOUND "none")
if(D9D_NVCC)
  execute_process(COMMAND "${D9D_NVCC}" --version OUTPUT_VARIABLE D9D_NVCC_TEXT ERROR_QUIET)
  string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" D9D_NVCC_FOUND "${D9D_NVCC_TEXT}")
endif()
if(D9D_NVCC_FOUND MATCHES "^${D9D_CUDA_MAJOR}\\." AND NOT D9D_SANITIZE)
  set(D9D_NVCC_FITS ON)
else()
  set(D9D_NVCC_FITS OFF)
endif()
option(D9D_CUDA "Compile the CUDA kernels" ${D9D_NVCC_FITS})

if(NOT D9D_CUDA)
  message(STATUS "CUDA kernels: off (nvcc: ${D9D_NVCC_FOUND}, supported: ${D9D_CUDA_MAJOR}.x)")
  list(APPEND D9D_MISSING_FEATURES cuda)
  return()
endif()
if(NOT D9D_NVCC_FITS)
  message(FATAL_ERROR "[cmake::cuda] expected nvcc ${D9D_CUDA_MAJOR}.x and no sanitizer for D9D_CUDA=ON, got nvcc "
    "${D9D_NVCC_FOUND}, D9D_SANITIZE='${D9D_SANITIZE}'. Put nvcc on PATH, or pass -DD9D_CUDA=OFF.")
endif()

set(CMAKE_CUDA_COMPILER "${D9D_NVCC}")
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # d9d::cudart instead: the toolkit's would be a second one beside the wheel's
enable_language(CUDA)
set(D9D_CUDA_HEADERS "${D9D_SITE_PACKAGES}/nvidia/cu13/include" ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
set(CMAKE_CUDA_STANDARD 20)
foreach(kind STANDARD EXTENSION)  # CMake 3.25 does not know that nvcc 12 and later compile C++20
  if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
  endif()
endforeach()
