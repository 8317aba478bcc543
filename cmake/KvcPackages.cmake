# SPDX-License-Identifier: Apache-2.0
# Dependencies, found by pkg-config. A missing one ends the configuration with the name of its
# package and the command that installs it.
find_package(PkgConfig REQUIRED)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

function(kvc_package_missing what package)
  message(FATAL_ERROR
    "${what} was not found.\n"
    "It is in the Debian and Ubuntu package ${package}. Run scripts/setup, or: "
    "apt-get install ${package}")
endfunction()

# kvc_require_package(<prefix> <pkg-config module> <package>): makes PkgConfig::<prefix>.
# Global, since the archive for the tests passes it on to other directories.
function(kvc_require_package prefix module package)
  pkg_check_modules(${prefix} QUIET IMPORTED_TARGET GLOBAL "${module}")
  if(NOT ${prefix}_FOUND)
    kvc_package_missing("${module}" "${package}")
  endif()
endfunction()

# kvc_require_library(<target> <library> <header> <package>): for libraries without a .pc file.
function(kvc_require_library target library header package)
  find_library(${target}_LIBRARY ${library})
  find_path(${target}_INCLUDE ${header})
  mark_as_advanced(${target}_LIBRARY ${target}_INCLUDE)
  if(NOT ${target}_LIBRARY OR NOT ${target}_INCLUDE)
    kvc_package_missing("lib${library} with ${header}" "${package}")
  endif()
  if(NOT TARGET ${target})
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE "${${target}_LIBRARY}")
    target_include_directories(${target} SYSTEM INTERFACE "${${target}_INCLUDE}")
  endif()
endfunction()

# kvc_add_part(<folder> <patterns...>): add_subdirectory when it has a CMakeLists.txt and sources.
function(kvc_add_part folder)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/" OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(sources AND EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt")
    add_subdirectory(${folder})
  else()
    message(STATUS "kvcellar: ${folder}/ has no sources, left out")
  endif()
endfunction()
