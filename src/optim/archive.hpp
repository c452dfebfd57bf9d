#pragma once
/// \file archive.hpp
/// Saving and restoring the state of a run. A class that has state hands each of its members to an archive, which
/// either saves it or overwrites it with what was saved. So one function serves both directions.

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/kokkos.hpp"

namespace onebit::optim {

/// State is known by names. Which names are asked for may depend only on what was restored before.
class NumberArchive {
public:
  virtual ~NumberArchive() = default;

  /// True when state is restored: what is handed over is overwritten.
  virtual bool restores() const = 0;
  /// The file, for messages.
  virtual const std::string& file() const = 0;
  /// A list of numbers; a restored one has the length that was saved.
  /// \param differs the ranks' numbers differ, and each rank saves its own. On another number of ranks each rank gets
  ///          the mean of all that were saved
  virtual void numbers(const std::string& name, std::vector<double>& values, bool differs = false) = 0;

  /// One number; integers up to 2⁵³. \throws InputError for a saved number that is not a value of T
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

/// Elements [begin, end) of row `row` of `rows`.
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
  /// \param differs as for `numbers`; else every rank has the same bits
  virtual void vector(const std::string& name, const Vector<Exec, float>& values, bool differs = false) = 0;
  /// A range of a vector of length d, or of a row of a matrix (rows, d). The ranks together have all of it, and a rank
  /// may have several ranges, each by a call of its own; all ranks make the same number of calls. Where
  /// another number of rows was saved, each row is restored as the mean of all.
  /// \param values (at least end − begin) the range is its first elements
  virtual void part(const std::string& name, const Vector<Exec, float>& values, Part part) = 0;

private:
  Exec m_exec;
};

/// A vector of another length, with the same numbers on every rank, e.g. one for each tensor.
template <class Exec, class T>
void archive_numbers(Archive<Exec>& archive, const char* name, const Vector<Exec, T>& values) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), values);
  std::vector<double> numbers(host.data(), host.data() + host.extent(0));
  archive.numbers(name, numbers);
  archive.check_length(name, numbers, host.extent(0));
  std::copy(numbers.begin(), numbers.end(), host.data());
  if (archive.restores()) Kokkos::deep_copy(values, host);
}

}  // namespace onebit::optim
