# SPDX-License-Identifier: Apache-2.0
# kvc_options: warnings, hardening, sanitizers and definitions that every target of ours links.
add_library(kvc_options INTERFACE)
target_compile_definitions(kvc_options INTERFACE _GNU_SOURCE _FILE_OFFSET_BITS=64)
target_compile_options(kvc_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wformat=2 -Wpointer-arith -Wundef -Wvla
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
  $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>
  # gcc warns of an ignored result even under a (void) cast, which here says "on purpose"; clang
  # honours the cast, and its build finds the results that are ignored by mistake.
  $<$<C_COMPILER_ID:GNU>:-Wno-unused-result>
  $<$<BOOL:${KVC_WERROR}>:-Werror>
  -fstack-protector-strong
  -fno-common
  -fvisibility=hidden
  # The same source gives the same binary wherever it lies.
  "-ffile-prefix-map=${CMAKE_SOURCE_DIR}/="
  "-ffile-prefix-map=${CMAKE_BINARY_DIR}/=build/")
target_link_options(kvc_options INTERFACE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
target_link_libraries(kvc_options INTERFACE Threads::Threads)

if(KVC_SANITIZE)
  target_compile_options(kvc_options INTERFACE "-fsanitize=${KVC_SANITIZE}"
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(kvc_options INTERFACE "-fsanitize=${KVC_SANITIZE}")
else()
  # Fortified only where optimised (glibc needs it) and not beside a sanitizer's interceptors.
  target_compile_options(kvc_options INTERFACE
    $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-U_FORTIFY_SOURCE>
    $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-D_FORTIFY_SOURCE=3>)
endif()
if(KVC_COVERAGE)
  target_compile_options(kvc_options INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(kvc_options INTERFACE --coverage)
endif()
