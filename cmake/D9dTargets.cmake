# One library, one test binary an area. Folders decide what is built; a file that exists is a file that is compiled.
#
#   d9d_library(kernels TORCH DEPENDS core)      d9d/kernels/**/*.cpp -> libd9d_kernels.a, target d9d::kernels
#   d9d_test(kernels LABELS unit)                tests/kernels/**/*_test.cpp -> kernels_test, one ctest entry a test case
#   d9d_tool(plan TORCH DEPENDS loop)            tools/plan/*.cpp -> d9d_plan, installed; tests/tools/plan_test.py
#
# TORCH: the area sees tensors; it links LibTorch and shares the one precompiled header.
# EXCLUDE models: d9d/<area>/models/ (a regular expression) is a library of its own, which may depend on more than the area.
# no_<feature>.cpp is a stub: it is compiled only when <feature> is listed in D9D_MISSING_FEATURES, instead of the files in
# folders named <feature>. The .cu files of the library are in libd9d_cuda.so (cmake/CudaLibrary.cmake); those of an example are
# left out where `cuda` is missing.

include(GoogleTest)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# Libraries and programs alike: they share one precompiled header.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC>)

add_library(d9d_options INTERFACE)
target_compile_options(d9d_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual;-Winvalid-pch>
  # Warnings are errors for the compiler that the tests run with. Newer ones report false positives in LibTorch's headers.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Werror>
  # Designated initialisers leave members out on purpose.
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>
  # GCC 12 reports false positives in std::optional and std::variant at -Og and -O1.
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Dev>>:-Wno-maybe-uninitialized>
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno>  # nobody reads errno after sqrt, and without it loops with sqrt vectorise
  # Collecting garbage early costs the compiler a tenth of its time, since LibTorch's headers are never garbage.
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-expand=100 --param ggc-min-heapsize=1500000>"
  # constexpr functions (Philox) run on the device too.
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra;-Werror=all-warnings>)
target_include_directories(d9d_options INTERFACE "${PROJECT_SOURCE_DIR}")
if(D9D_SANITIZE)
  target_compile_options(d9d_options INTERFACE -fsanitize=${D9D_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(d9d_options INTERFACE -fsanitize=${D9D_SANITIZE})
endif()

# Files of a target share unnamed namespaces then: names in them are unique in an area. A test file's namespace is its own,
# `d9d::<its name>` (tools/check_tests.py).
function(d9d_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${D9D_UNITY} UNITY_BUILD_BATCH_SIZE 24)
  get_target_property(sources ${target} SOURCES)
  # CUDA files are compiled one by one; CMake before 3.31 does so by itself.
  list(FILTER sources INCLUDE REGEX "\\.cu$")
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# NDEBUG: without it LibTorch's headers declare members (of RecordFunction) that its library does not have.
set(CMAKE_CXX_FLAGS_DEV "-Og -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CUDA_FLAGS_DEV "-O2 -DNDEBUG")
set(CMAKE_CUDA_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(D9D_CCACHE ccache)
if(D9D_CCACHE)  # the sloppiness is what ccache asks for to cache units that use a precompiled header
  set(D9D_CCACHE_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${D9D_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${D9D_CCACHE_LAUNCHER}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${D9D_CCACHE}")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
find_program(D9D_MOLD mold)
if(D9D_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# For programs elsewhere that open libraries of this build by name. Tools stand beside them, and must not look for them
# here when they are installed.
set(D9D_RPATH_OF_BUILD
  "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:D9D_IS_TOOL>>>:LINKER:-rpath,${CMAKE_RUNTIME_OUTPUT_DIRECTORY}>")

# The one precompiled header: std and the ATen and autograd headers. Every TORCH area and test reuses it.
function(d9d_precompiled_header)
  file(WRITE "${PROJECT_BINARY_DIR}/pch/d9d_pch.cpp" "// Compiles the precompiled header that all areas share.\n")
  add_library(d9d_pch STATIC "${PROJECT_BINARY_DIR}/pch/d9d_pch.cpp")
  target_link_libraries(d9d_pch PRIVATE d9d_options d9d::torch_cpu)
  target_precompile_headers(d9d_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch.h")
endfunction()

function(d9d_sources result folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cpp" "${folder}/*.cu")
  foreach(feature IN LISTS D9D_MISSING_FEATURES)
    list(FILTER sources EXCLUDE REGEX "/${feature}/[^/]*$")
  endforeach()
  if("cuda" IN_LIST D9D_MISSING_FEATURES)
    list(FILTER sources EXCLUDE REGEX "\\.cu$")
  endif()
  foreach(source IN LISTS sources)
    if(source MATCHES "/no_([a-z_]+)\\.cpp$" AND NOT CMAKE_MATCH_1 IN_LIST D9D_MISSING_FEATURES)
      list(REMOVE_ITEM sources "${source}")
    endif()
  endforeach()
  set(${result} "${sources}" PARENT_SCOPE)
endfunction()

function(d9d_library area)
  cmake_parse_arguments(ARG "TORCH" "EXCLUDE" "DEPENDS" ${ARGN})
  d9d_sources(sources "${PROJECT_SOURCE_DIR}/d9d/${area}")
  list(FILTER sources EXCLUDE REGEX "\\.cu$")  # in libd9d_cuda.so (cmake/CudaLibrary.cmake)
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "/d9d/${area}/${ARG_EXCLUDE}/")
  endif()
  string(REPLACE "/" "_" name "${area}")
  if(NOT sources)
    return()
  endif()
  add_library(d9d_${name} STATIC ${sources})
  add_library(d9d::${name} ALIAS d9d_${name})
  set_target_properties(d9d_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(d9d_${name} PUBLIC cxx_std_20)
  target_link_libraries(d9d_${name} PRIVATE $<BUILD_INTERFACE:d9d_options>)
  target_include_directories(d9d_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  foreach(dependency IN LISTS ARG_DEPENDS)
    string(REPLACE "/" "_" dependency "${dependency}")
    if(TARGET d9d_${dependency})
      target_link_libraries(d9d_${name} PUBLIC d9d_${dependency})
    endif()
  endforeach()
  if(ARG_TORCH)
    target_link_libraries(d9d_${name} PUBLIC d9d::torch_cpu)
    target_precompile_headers(d9d_${name} REUSE_FROM d9d_pch)
  endif()
  d9d_unity(d9d_${name})
  set_property(GLOBAL APPEND PROPERTY D9D_LIBRARIES d9d_${name})
endfunction()

# Installed, a program finds this library's files beside its prefix's lib, so that the prefix may be moved, and those of the
# wheels where they are now.
function(d9d_tool name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "DEPENDS" ${ARGN})
  d9d_sources(sources "${PROJECT_SOURCE_DIR}/tools/${name}")
  add_executable(d9d_${name} ${sources})
  list(TRANSFORM ARG_DEPENDS PREPEND d9d_)
  target_link_libraries(d9d_${name} PRIVATE d9d_options ${ARG_DEPENDS})
  if(ARG_TORCH)
    target_precompile_headers(d9d_${name} REUSE_FROM d9d_pch)
    set_target_properties(d9d_${name} PROPERTIES D9D_IS_TOOL ON
      INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${D9D_TORCH_LIB};${D9D_CUDA_WHEEL_LIB}")
  endif()
  d9d_unity(d9d_${name})
  if(D9D_INSTALL)
    install(TARGETS d9d_${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
    add_dependencies(d9d_installed d9d_${name})
  endif()
  set(test "${PROJECT_SOURCE_DIR}/tests/tools/${name}_test.py")
  if(D9D_BUILD_TESTS AND EXISTS "${test}")
    if(NOT ARG_TIMEOUT)
      set(ARG_TIMEOUT 300)
    endif()
    add_test(NAME tools.${name} COMMAND "${PROJECT_SOURCE_DIR}/.venv/bin/python" "${test}" "$<TARGET_FILE:d9d_${name}>")
    set_tests_properties(tools.${name} PROPERTIES LABELS unit TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()

# tests/<area>/**/*_test.cpp -> one binary, without the folders that the regular expression EXCLUDE matches. ORACLE: Python from .venv is handed over as D9D_TEST_PYTHON.
function(d9d_test area)
  cmake_parse_arguments(ARG "TORCH;ONE_PROCESS" "TIMEOUT;EXCLUDE" "DEPENDS;LABELS" ${ARGN})
  if(NOT D9D_BUILD_TESTS)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${area}/*.cpp")
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "/tests/${area}/${ARG_EXCLUDE}/")
  endif()
  if(NOT sources)
    return()
  endif()
  string(REPLACE "/" "_" name "${area}")
  add_executable(${name}_test ${sources})
  target_link_libraries(${name}_test PRIVATE d9d_options d9d_test_support GTest::gmock GTest::gtest)
  foreach(dependency IN LISTS ARG_DEPENDS)
    string(REPLACE "/" "_" dependency "${dependency}")
    if(TARGET d9d_${dependency})
      target_link_libraries(${name}_test PRIVATE d9d_${dependency})
    endif()
  endforeach()
  if(ARG_TORCH)
    target_sources(${name}_test PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/choose_vector_math.cpp")
    target_link_libraries(${name}_test PRIVATE d9d_test_ranks)
    target_precompile_headers(${name}_test REUSE_FROM d9d_pch)
  endif()
  d9d_unity(${name}_test)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/tmp")
  set(environment "TEST_TMPDIR=${PROJECT_BINARY_DIR}/tmp/")  # testing::TempDir(): two builds share no files
  set(discovery DISCOVERY_TIMEOUT 60 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" TEST_PREFIX "${name}.")
  set(properties TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${environment}")
  if(ARG_ONE_PROCESS)  # one ctest entry for what needs no GPU: a start costs as much as ten cases, and oracles are asked once
    add_test(NAME ${name} COMMAND ${name}_test "--gtest_filter=-*Cuda.*:Nccl/*" WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" ${properties})
  elseif(ARG_TORCH)
    gtest_discover_tests(${name}_test ${discovery} TEST_FILTER "-*Cuda.*:Nccl/*" PROPERTIES LABELS "${ARG_LABELS}"
      ${properties})
  endif()
  if(ARG_TORCH)  # suites whose name ends in Cuda need a GPU, one at a time; those that begin with Nccl/ several
    gtest_discover_tests(${name}_test ${discovery} TEST_FILTER "Nccl/*" TEST_LIST ${name}_nccl_tests
      PROPERTIES LABELS gpuN RESOURCE_LOCK gpu ${properties})
    gtest_discover_tests(${name}_test ${discovery} TEST_FILTER "*Cuda.*" TEST_LIST ${name}_gpu_tests
      PROPERTIES LABELS gpu1 RESOURCE_LOCK gpu ${properties})
  elseif(NOT ARG_ONE_PROCESS)
    gtest_discover_tests(${name}_test ${discovery} PROPERTIES LABELS "${ARG_LABELS}" ${properties})
  endif()
endfunction()
