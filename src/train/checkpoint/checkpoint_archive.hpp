#pragma once
/// \file checkpoint_archive.hpp
/// The two archives of a checkpoint: one saves the state of a run, the other restores it on any number of ranks.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/system/activity.hpp"
#include "io/hdf5.hpp"
#include "io/sealed/write_sealed.hpp"
#include "optim/archive.hpp"

namespace onebit::train {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "vectors are written as they are in memory, and are little-endian in the file");

/// Host memory that copies fast to and from an execution space.
template <class Exec>
std::shared_ptr<void> allocate_block(std::size_t bytes) {
  const Kokkos::View<char*, Kokkos::LayoutRight, StagingSpace<Exec>> memory(
      Kokkos::view_alloc("OneBit::train::checkpoint", Kokkos::WithoutInitializing), bytes);
  return {memory.data(), [memory](void*) {}};
}

/// "(2, 3)"
inline std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text;
  for (const std::size_t extent : shape) text += (text.empty() ? "(" : ", ") + std::to_string(extent);
  return text + ")";
}

/// Elements [first, first + count).
template <class View>
auto range(const View& values, std::size_t first, std::size_t count) {
  return Kokkos::subview(values, std::make_pair(first, first + count));
}

/// Saves. The ranks divide among them what is the same on every rank; what differs has one row for each rank. Numbers
/// are written at once. Vectors only get their places in the file: `write_sealed` writes them.
template <class Exec>
class Saver final : public optim::Archive<Exec> {
public:
  /// \param length d
  Saver(const Exec& exec, const Communicator& communicator, const std::string& path, ArrayWriter& file,
        std::size_t length)
      : optim::Archive<Exec>(exec),
        m_rank(communicator.rank()),
        m_ranks(communicator.size()),
        m_length(length),
        m_path(path),
        m_file(file) {}

  bool restores() const override { return false; }
  const std::string& file() const override { return m_path; }

  void numbers(const std::string& name, std::vector<double>& values, bool differs) override {
    const std::size_t count = values.size();
    if (differs && m_ranks > 1) {
      m_file.dataset(name, ArrayWriter::Type::real64, {m_ranks, count});
      m_file.write({m_rank, 0}, {1, count}, values.data());
    } else {
      m_file.dataset(name, ArrayWriter::Type::real64, {count});
      if (m_rank == 0) m_file.write({0}, {count}, values.data());
    }
  }

  void vector(const std::string& name, const Vector<Exec, float>& values, bool differs) override {
    if (differs) {
      part(name, values, {0, m_length, m_rank, m_ranks});
    } else {
      const std::size_t begin = m_length * m_rank / m_ranks, end = m_length * (m_rank + 1) / m_ranks;
      part(name, range(values, begin, end - begin), {begin, end});
    }
  }

  void part(const std::string& name, const Vector<Exec, float>& values, optim::Part part) override {
    const bool is_matrix = part.rows > 1;
    const auto [place, is_first] = m_places.emplace(name, 0);
    if (is_first) {
      m_file.dataset(name, ArrayWriter::Type::real32,
                     is_matrix ? std::vector<std::size_t>{part.rows, m_length} : std::vector<std::size_t>{m_length});
      place->second = m_file.place();
    }
    const std::size_t first = (is_matrix ? part.row * m_length : 0) + part.begin;
    m_vectors.push_back({place->second + first * sizeof(float), range(values, 0, part.end - part.begin)});
  }

  /// What this rank has to write, once all state is saved.
  std::vector<SealedRange> ranges() const {
    const std::shared_ptr<void> block = is_host<Exec> ? nullptr : allocate_block<Exec>(sealed_block_bytes);
    std::vector<SealedRange> all;
    for (const auto& [place, values] : m_vectors)
      all.push_back({place, values.extent(0) * sizeof(float), Read{this->exec(), values, block}});
    return all;
  }

private:
  /// Reads bytes and not floats: the writer cuts the file at its own blocks, which may begin within a float.
  struct Read {
    Exec exec;
    Vector<Exec, float> values;
    std::shared_ptr<void> block;  ///< where device memory is copied to
    const char* operator()(std::size_t first, std::size_t count) const {
      char* const from = reinterpret_cast<char*>(values.data()) + first;
      if constexpr (is_host<Exec>) return from;
      Kokkos::deep_copy(exec, HostVector<char>(static_cast<char*>(block.get()), count),
                        Vector<Exec, char>(from, count));
      fence(exec, "OneBit::train::checkpoint");
      return static_cast<const char*>(block.get());
    }
  };

  std::size_t m_rank, m_ranks, m_length;
  std::string m_path;
  ArrayWriter& m_file;
  std::map<std::string, std::uint64_t> m_places;                         ///< of the datasets of vectors in the file
  std::vector<std::pair<std::uint64_t, Vector<Exec, float>>> m_vectors;  ///< with their places in the file
};

/// Restores on rank `rank` of `ranks`, whatever number of ranks saved.
template <class Exec>
class Restorer final : public optim::Archive<Exec> {
public:
  Restorer(const Exec& exec, const std::string& path, int rank, int ranks)
      : optim::Archive<Exec>(exec), m_rank(rank), m_ranks(ranks), m_path(path), m_file(path) {}

  bool restores() const override { return true; }
  const std::string& file() const override { return m_path; }

  void numbers(const std::string& name, std::vector<double>& values, bool) override {
    const std::vector<std::size_t> shape = m_file.stored_shape(name);
    const std::vector<double> all = m_file.reals(name);
    if (shape.size() == 1) {
      values = all;
      return;
    }
    if (shape.size() != 2 || shape[0] == 0) throw this->unusable(name);
    const auto [first, last] = saved_rows(shape[0], m_rank, m_ranks);
    values.assign(shape[1], 0.0);
    for (std::size_t i = 0; i < shape[1]; ++i) {
      for (std::size_t row = first; row < last; ++row) values[i] += all[row * shape[1] + i];
      if (last - first > 1) values[i] /= static_cast<double>(last - first);
    }
  }

  void vector(const std::string& name, const Vector<Exec, float>& values, bool) override {
    const std::size_t length = values.extent(0);
    const std::vector<std::size_t> shape = m_file.stored_shape(name);
    if (shape.empty() || shape.back() != length) throw wrong_length(name, length);
    part(name, values, {0, length, m_rank, m_ranks});
  }

  /// Reads one row as it is; the mean of several rows is added up in double and rounded once.
  void part(const std::string& name, const Vector<Exec, float>& values, optim::Part part) override {
    const std::vector<std::size_t> shape = m_file.stored_shape(name);
    if (shape.empty() || shape.size() > 2 || shape[0] == 0 || shape.back() < part.end)
      throw wrong_length(name, part.end);
    const bool is_matrix = shape.size() == 2;
    const Rows rows = is_matrix ? saved_rows(shape[0], part.row, part.rows) : Rows{0, 1};
    const std::size_t row_count = rows.second - rows.first, length = part.end - part.begin;
    const std::shared_ptr<void> memory = allocate_block<Exec>(std::min(length, read_length) * sizeof(float));
    float* const host = static_cast<float*>(memory.get());
    std::vector<double> sums(row_count > 1 ? std::min(length, read_length) : 0);
    for (std::size_t first = 0; first < length; first += read_length) {
      Activity::goes_on();
      const std::size_t count = std::min(read_length, length - first), begin = part.begin + first;
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::size_t row = rows.first; row < rows.second; ++row) {
        if (is_matrix)
          m_file.read(name, {row, begin}, {1, count}, host);
        else
          m_file.read(name, {begin}, {count}, host);
        for (std::size_t i = 0; i < std::min(count, sums.size()); ++i) sums[i] += static_cast<double>(host[i]);
      }
      for (std::size_t i = 0; i < std::min(count, sums.size()); ++i)
        host[i] = static_cast<float>(sums[i] / static_cast<double>(row_count));
      Kokkos::deep_copy(this->exec(), range(values, first, count), HostVector<float>(host, count));
      fence(this->exec(), "OneBit::train::checkpoint");
    }
  }

  const ArrayReader& reader() const { return m_file; }

private:
  using Rows = std::pair<std::size_t, std::size_t>;  ///< [first, last)
  /// Elements that are read at once.
  static constexpr std::size_t read_length = sealed_block_bytes / sizeof(float);

  /// The rows of a dataset with `saved` rows whose mean is row `row` of `rows`: the same row, or all.
  static Rows saved_rows(std::size_t saved, std::size_t row, std::size_t rows) {
    return saved == rows ? Rows{row, row + 1} : Rows{0, saved};
  }
  InputError wrong_length(const std::string& name, std::size_t length) const {
    return {m_path, "dataset '" + name + "' does not fit a model of " + std::to_string(length) + " parameters",
            "name a checkpoint of the same model"};
  }

  std::size_t m_rank, m_ranks;
  std::string m_path;
  ArrayReader m_file;
};

}  // namespace onebit::train
