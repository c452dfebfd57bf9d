#pragma once
/// \file archive.hpp
/// How the state of a run gets into a checkpoint and back: whoever has state hands it, piece by piece, to an archive,
/// which either saves it or overwrites it with what was saved. So both directions are the same few lines.

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/kokkos.hpp"

namespace onebit::optim {

/// Pieces are known by their names, and those that are restored must be asked for in a way that does not depend on
/// anything that was not restored before.
class NumberArchive {
public:
  virtual ~NumberArchive() = default;

  /// True when state is restored: what is handed over is overwritten.
  virtual bool restores() const = 0;
  /// The file, for messages.
  virtual const std::string& file() const = 0;
  /// A list of numbers; when restored it has the length that was saved.
  /// \param differs the ranks' numbers differ: each saves its own. On another number of ranks than saved them, each gets
  ///                their mean over the ranks that did
  virtual void numbers(const std::string& name, std::vector<double>& values, bool differs = false) = 0;

  /// One number; integers up to 2⁵³. \throws InputError for a saved one that is none of T's
  template <class T>
  void number(const std::string& name, T& value) {
    std::vector<double> values = {static_cast<double>(value)};
    numbers(name, values);
    if (!restores()) return;
    check_length(name, values, 1);
    if constexpr (std::is_integral_v<T>) {
      const double limit = std::is_same_v<T, bool> ? 1 : 9007199254740992.0;
      if (!(values[0] >= 0 && values[0] <= limit && std::floor(values[0]) == values[0])) throw unusable(name);
    }
    value = static_cast<T>(values[0]);
  }

  void check_length(const std::string& name, const std::vector<double>& values, std::size_t length) const {
    if (values.size() != length) throw unusable(name);
  }
  InputError unusable(const std::string& name) const {
    return {file(), "what it holds of '" + name + "' is not what this run needs",
            "check it with `onebit checkpoint info`; a checkpoint is read by the version of OneBit that wrote it"};
  }
};

/// Elements [begin, end) of one row of several.
struct Part {
  std::size_t begin, end;
  std::size_t row = 0, rows = 1;
};

/// \tparam Exec whose memory holds the vectors
template <class Exec>
class Archive : public NumberArchive {
public:
  explicit Archive(const Exec& exec) : m_exec(exec) {}
  const Exec& exec() const { return m_exec; }

  /// A vector of all parameters' length d.
  /// \param differs as in `numbers`; else every rank has the same bits
  virtual void vector(const std::string& name, const Vector<Exec, float>& values, bool differs = false) = 0;
  /// A part of a vector of length d, or of a matrix (rows, d) whose rows differ; the ranks have all of it among them.
  /// With another number of rows than were saved, each is the mean of those.
  /// \param values the part comes first; what follows it is left alone
  virtual void part(const std::string& name, const Vector<Exec, float>& values, Part part) = 0;

private:
  Exec m_exec;
};

}  // namespace onebit::optim
