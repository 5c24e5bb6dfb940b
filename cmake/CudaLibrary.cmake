# What is opened by the program when a device is there (docs/decisions/0002-load-cuda-late.md):
#
#   libd9d_cuda.so    this library's kernels, and what needs the CUDA half of LibTorch, or cuBLAS
#   libd9d_cudnn.so   what needs cuDNN, and not LibTorch
#
# They stand beside the programs of this build; installed programs find them on the RPATH that d9d::core brings.

if("cuda" IN_LIST D9D_MISSING_FEATURES)
  return()
endif()

if(NOT EXISTS "${D9D_SITE_PACKAGES}/include/cudnn_frontend.h")
  message(FATAL_ERROR "[cmake::cuda] expected the headers of the nvidia-cudnn-frontend wheel in ${D9D_SITE_PACKAGES}/include, "
    "got none. Install requirements.txt, or pass -DD9D_CUDA=OFF.")
endif()

# d9d_opened_library(NAME SOURCES files WHEELS nvidia/...)
function(d9d_opened_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;WHEELS" ${ARGN})
  add_library(${name} SHARED ${ARG_SOURCES})
  list(TRANSFORM ARG_WHEELS PREPEND "${D9D_SITE_PACKAGES}/nvidia/")
  list(TRANSFORM ARG_WHEELS APPEND "/include" OUTPUT_VARIABLE headers)
  list(TRANSFORM ARG_WHEELS APPEND "/lib" OUTPUT_VARIABLE folders)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    INSTALL_RPATH "${D9D_TORCH_LIB};${D9D_CUDA_WHEEL_LIB};${folders}")
  target_include_directories(${name} SYSTEM PRIVATE ${headers} "${D9D_SITE_PACKAGES}/include" ${D9D_CUDA_HEADERS})
  target_link_libraries(${name} PRIVATE d9d_options d9d::cudart)
  # Whoever builds a program gets it, but for a program of this repository on a machine without a GPU: it is compiled when
  # everything is, or asked for.
  if(EXISTS /dev/nvidiactl OR NOT PROJECT_IS_TOP_LEVEL)
    add_dependencies(d9d_core ${name})
  endif()
endfunction()

# Each file beside the header that declares it: *.cu, core/<folder>/cuda_plugin/, kernels/<op>/cuda_plugin/.
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/d9d/core/*.cpp" "${PROJECT_SOURCE_DIR}/d9d/kernels/*.cpp")
list(FILTER cuda_sources INCLUDE REGEX "/cuda_plugin/[^/]+$")
file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/d9d/*.cu")
d9d_opened_library(d9d_cuda SOURCES ${cuda_sources} ${kernel_sources} WHEELS nccl)
target_compile_definitions(d9d_cuda PRIVATE USE_C10D_NCCL)
target_link_libraries(d9d_cuda PRIVATE d9d_base d9d::torch_cpu "${D9D_TORCH_LIB}/libtorch_cuda.so" "${D9D_TORCH_LIB}/libc10_cuda.so"
  "${D9D_CUDA_WHEEL_LIB}/libcublasLt.so.13")

file(GLOB cudnn_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/d9d/kernels/*/cudnn_plugin/*.cpp")
d9d_opened_library(d9d_cudnn SOURCES ${cudnn_sources} WHEELS cudnn)
# Templates of cuDNN's headers: compiled in two thirds of the time of -O2, and each call does microseconds of work.
set_source_files_properties("${PROJECT_SOURCE_DIR}/d9d/kernels/attention/cudnn_plugin/cudnn_graph.cpp" PROPERTIES
  COMPILE_OPTIONS -O1)
target_compile_definitions(d9d_cudnn PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB)
target_link_libraries(d9d_cudnn PRIVATE "${D9D_SITE_PACKAGES}/nvidia/cudnn/lib/libcudnn.so.9")

target_link_options(d9d_core INTERFACE "$<BUILD_INTERFACE:${D9D_RPATH_OF_BUILD}>"
  "$<INSTALL_INTERFACE:LINKER:-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}>")
