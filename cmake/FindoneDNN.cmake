# Finds oneDNN 2 or newer: oneDNN_FOUND and the target DNNL::dnnl. Not by the library's own package file: Debian's asks for
# the development files of OpenCL, which neither its package nor OneBit needs.
find_path(oneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp) # not in version 1
find_library(oneDNN_LIBRARY dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR)
if(oneDNN_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${oneDNN_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${oneDNN_INCLUDE_DIR})
endif()
