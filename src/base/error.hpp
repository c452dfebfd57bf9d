#pragma once
/// \file error.hpp
/// The errors that a user may see. Each says where it is, what is wrong and what to do about it. `main` catches them,
/// and their type decides the exit status.

#include <new>
#include <stdexcept>
#include <string>

namespace onebit {

/// Exit statuses of the program; every rank ends with the same one. `stopped` is EX_TEMPFAIL of sysexits.h: a signal
/// asked the run to stop, a checkpoint is written, and the same command continues the run.
enum class ExitStatus : int { success = 0, failed_run = 1, bad_input = 2, stopped = 75 };

/// Base of all errors: "<where>: <what>\n  remedy: <remedy>".
class Error : public std::runtime_error {
public:
  /// \param status exit status of the program
  /// \param where  file, file:line:column, or the phase in which it happened
  /// \param what   what is wrong, in one sentence
  /// \param remedy what the user can do, in one sentence
  Error(ExitStatus status, const std::string& where, const std::string& what, const std::string& remedy)
      : std::runtime_error(where + ": " + what + "\n  remedy: " + remedy), m_status(status) {}

  /// \param message complete, with its remedy
  Error(ExitStatus status, const std::string& message) : std::runtime_error(message), m_status(status) {}

  ExitStatus status() const { return m_status; }

private:
  ExitStatus m_status;
};

/// The user's input (YAML, command line, corpus, HDF5, environment) cannot be used: exit status 2.
struct InputError : Error {
  InputError(const std::string& where, const std::string& what, const std::string& remedy)
      : Error(ExitStatus::bad_input, where, what, remedy) {}
};

/// The input was fine but the run failed: exit status 1.
struct RunError : Error {
  RunError(const std::string& where, const std::string& what, const std::string& remedy)
      : Error(ExitStatus::failed_run, where, what, remedy) {}
};

/// Runs `work`, which reads a file that the input names. Puts `where` in front of an InputError, so that its message
/// names both the line of the input and the faulty file.
template <class Work>
auto located(const std::string& where, const Work& work) {
  try {
    return work();
  } catch (const InputError& error) {
    throw Error(error.status(), where + ": " + error.what());
  }
}

/// A user's text as messages show it: at most 60 bytes, on one line, without control characters.
inline std::string excerpt(const std::string& text) {
  constexpr std::size_t longest = 60;
  std::size_t length = text.size() <= longest ? text.size() : longest;
  // Do not cut a UTF-8 character.
  while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0u) == 0x80u) --length;
  std::string shown = text.substr(0, length) + (length < text.size() ? "…" : "");
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return shown;
}

/// Exit status and message of any exception, as `main` prints it.
inline Error describe(const std::exception& error) {
  if (const auto* const known = dynamic_cast<const Error*>(&error)) return *known;
  const std::string message = error.what();
  // Kokkos throws a std::runtime_error that names the View and its bytes. All versions of it use these words.
  const bool is_view = message.find("failed to allocate") != std::string::npos;
  if (is_view || dynamic_cast<const std::bad_alloc*>(&error))
    return RunError("memory", is_view ? message.substr(0, message.find('\n')) : "an allocation failed",
                    "use a smaller model, train.batch or model.sequence, more train.accumulation, or fewer ranks on a "
                    "host; or raise the limit (ulimit -v, the batch system's)");
  return {ExitStatus::failed_run, error.what()};
}

/// An error that every rank throws with the same message, so that all ranks end normally. Any other error is known to
/// one rank only, which must call MPI_Abort, or the others would wait for ever.
struct AgreedError : Error {
  using Error::Error;
};

/// What a command computed is wrong, as every rank knows: exit status 1.
struct WrongResult : AgreedError {
  /// \param message complete, with its remedy
  explicit WrongResult(const std::string& message) : AgreedError(ExitStatus::failed_run, message) {}
};

}  // namespace onebit
