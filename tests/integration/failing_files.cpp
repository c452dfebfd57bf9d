/// \file failing_files.cpp
/// A library to preload: system calls that fail for sound files, as on a network file system that is ill just now.
///
/// FAIL_CALL   open, read or flock
/// FAIL_ERRNO  what they fail with
/// FAIL_NAME   of which files: those whose path holds this text

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

bool fails(const char* call, const char* path) {
  const char* const which = std::getenv("FAIL_CALL");
  const char* const name = std::getenv("FAIL_NAME");
  const char* const error = std::getenv("FAIL_ERRNO");
  if (which == nullptr || name == nullptr || error == nullptr || std::strcmp(which, call) != 0) return false;
  if (std::strstr(path, name) == nullptr) return false;
  errno = std::atoi(error);
  return true;
}

bool fails(const char* call, int file) {
  char path[PATH_MAX] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  if (::readlink(link.c_str(), path, sizeof path - 1) < 0) return false;
  return fails(call, path);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, std::va_list arguments) { return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0; }

}  // namespace

extern "C" {

// The 64-bit names are the same functions on Linux, and programs call either.
int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return fails("open", path) ? -1 : next<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return fails("open", path) ? -1 : next<int (*)(const char*, int, ...)>("open64")(path, flags, mode);
}
ssize_t read(int file, void* bytes, size_t count) {
  return fails("read", file) ? -1 : next<ssize_t (*)(int, void*, size_t)>("read")(file, bytes, count);
}
ssize_t pread(int file, void* bytes, size_t count, off_t place) {
  return fails("read", file) ? -1 : next<ssize_t (*)(int, void*, size_t, off_t)>("pread")(file, bytes, count, place);
}
ssize_t pread64(int file, void* bytes, size_t count, off64_t place) {
  return fails("read", file) ? -1
                             : next<ssize_t (*)(int, void*, size_t, off64_t)>("pread64")(file, bytes, count, place);
}
int flock(int file, int operation) {
  return fails("flock", file) ? -1 : next<int (*)(int, int)>("flock")(file, operation);
}

}  // extern "C"
