# libd9d_cuda.so: what needs the CUDA half of LibTorch, opened by the program when a device is there (docs/decisions/0002).
# It stands beside the programs of this build; installed programs find it on the RPATH that d9d::core brings.

if("cuda" IN_LIST D9D_MISSING_FEATURES)
  return()
endif()

if(NOT EXISTS "${D9D_SITE_PACKAGES}/include/cudnn_frontend.h")
  message(FATAL_ERROR "[cmake::cuda] expected the headers of the nvidia-cudnn-frontend wheel in ${D9D_SITE_PACKAGES}/include, "
    "got none. Install requirements.txt, or pass -DD9D_CUDA=OFF.")
endif()

file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/d9d/core/cuda_library/*.cpp"
  "${PROJECT_SOURCE_DIR}/d9d/kernels/*/cuda_library/*.cpp")
add_library(d9d_cuda SHARED ${sources})
# Templates of cuDNN's headers: compiled in two thirds of the time of -O2, and each call does microseconds of work.
set_source_files_properties("${PROJECT_SOURCE_DIR}/d9d/kernels/attention/cuda_library/cudnn_graph.cpp" PROPERTIES
  COMPILE_OPTIONS -O1)
set_target_properties(d9d_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
  INSTALL_RPATH "${D9D_TORCH_LIB};${D9D_CUDA_WHEEL_LIB};${D9D_SITE_PACKAGES}/nvidia/nccl/lib;${D9D_SITE_PACKAGES}/nvidia/cudnn/lib")
target_compile_definitions(d9d_cuda PRIVATE USE_C10D_NCCL CUDNN_FRONTEND_SKIP_JSON_LIB)
target_include_directories(d9d_cuda SYSTEM PRIVATE "${D9D_SITE_PACKAGES}/nvidia/cu13/include"
  "${D9D_SITE_PACKAGES}/nvidia/nccl/include" "${D9D_SITE_PACKAGES}/nvidia/cudnn/include" "${D9D_SITE_PACKAGES}/include")
target_link_libraries(d9d_cuda PRIVATE d9d_options d9d::torch_cpu d9d::cudart "${D9D_TORCH_LIB}/libtorch_cuda.so"
  "${D9D_TORCH_LIB}/libc10_cuda.so" "${D9D_SITE_PACKAGES}/nvidia/cudnn/lib/libcudnn.so.9")
add_dependencies(d9d_core d9d_cuda)  # whoever builds a program gets it
target_link_options(d9d_core INTERFACE "$<BUILD_INTERFACE:LINKER:-rpath,${CMAKE_RUNTIME_OUTPUT_DIRECTORY}>"
  "$<INSTALL_INTERFACE:LINKER:-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}>")
