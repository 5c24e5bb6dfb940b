# make install: headers, static libraries and a CMake package, so that find_package(d9d) works elsewhere.
