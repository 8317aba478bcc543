# SPDX-License-Identifier: Apache-2.0
# make install: library, headers, pkg-config file, CMake package, man pages, documents, examples.
if(NOT TARGET kvcellar)
  return()
endif()
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvcellar")

install(TARGETS kvcellar EXPORT kvcellar-targets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY include/kvcellar DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h")

install(EXPORT kvcellar-targets NAMESPACE kvcellar:: DESTINATION "${package_dir}")
configure_package_config_file(cmake/kvcellar-config.cmake.in
  "${CMAKE_BINARY_DIR}/kvcellar-config.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/kvcellar-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/kvcellar-config.cmake"
  "${CMAKE_BINARY_DIR}/kvcellar-config-version.cmake" DESTINATION "${package_dir}")

# Paths relative to the .pc file, so that the tree can be moved.
file(RELATIVE_PATH KVC_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file(cmake/kvcellar.pc.in "${CMAKE_BINARY_DIR}/kvcellar.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/kvcellar.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

foreach(section 1 3 5)
  file(GLOB pages CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/man/*.${section}")
  if(pages)
    install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}")
  endif()
endforeach()

file(GLOB documents CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/LICENSE" "${CMAKE_SOURCE_DIR}/README.md"
  "${CMAKE_SOURCE_DIR}/CHANGELOG.md" "${CMAKE_SOURCE_DIR}/CONTRIBUTING.md"
  "${CMAKE_SOURCE_DIR}/kvcellar.toml.sample")
install(FILES ${documents} DESTINATION "${CMAKE_INSTALL_DOCDIR}")
# As they lie here, so that the links of the documents lead somewhere.
install(DIRECTORY docs examples traces DESTINATION "${CMAKE_INSTALL_DOCDIR}")
