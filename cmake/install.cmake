# SPDX-License-Identifier: MIT
# What `cmake --install` copies: headers, both libraries, the tool, its man page, the documents, and the packages for
# pkg-config and find_package. Both packages find their own place, so an installed tree may be moved.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS pagedkv_static pagedkv_shared EXPORT pagedkvTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/pagedkv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
# Headers name pages of doc/.
install(FILES LICENSE NOTICE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY doc DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
if(TARGET pagedkv)
  install(TARGETS pagedkv RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/doc/pagedkv.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pagedkv)
install(EXPORT pagedkvTargets NAMESPACE pagedkv:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/pagedkvConfig.cmake.in
  ${PROJECT_BINARY_DIR}/pagedkvConfig.cmake INSTALL_DESTINATION ${package_dir})
# Below 1.0 a minor version may break what an older one promised (see version.h).
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
else()
  set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pagedkvConfigVersion.cmake
  COMPATIBILITY ${compatibility})
install(FILES ${PROJECT_BINARY_DIR}/pagedkvConfig.cmake ${PROJECT_BINARY_DIR}/pagedkvConfigVersion.cmake
        DESTINATION ${package_dir})

# The .pc file finds its prefix from its own place; folders outside of the prefix are written out.
set(prefix_from_pc ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH prefix_from_pc /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" prefix_from_pc "\${pcfiledir}/${prefix_from_pc}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
  set(pc_${dir} ${CMAKE_INSTALL_${dir}})
  if(NOT IS_ABSOLUTE "${pc_${dir}}")
    string(PREPEND pc_${dir} "\${prefix}/")
  endif()
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/pagedkv.pc.in ${PROJECT_BINARY_DIR}/pagedkv.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/pagedkv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
