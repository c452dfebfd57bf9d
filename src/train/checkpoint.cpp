/// \file checkpoint.cpp
/// See checkpoint.hpp.

#include "train/checkpoint.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "base/activity.hpp"
#include "base/build_info.hpp"
#include "base/error.hpp"
#include "io/hdf5.hpp"
#include "io/seal.hpp"
#include "io/sealed_writer.hpp"
#include "base/timer.hpp"

namespace onebit::train {
namespace {

namespace fs = std::filesystem;

/// Elements that are read at once, and of the host buffer that they go through.
constexpr std::size_t block_length = SealedWriter::block_bytes / sizeof(float);

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "vectors are written as they are, and are little-endian in the file");

/// Calls work(first, count) for [0, length) in blocks.
template <class Work>
void for_each_block(std::size_t length, const Work& work) {
  for (std::size_t first = 0; first < length; first += block_length) {
    Activity::goes_on();
    work(first, std::min(block_length, length - first));
  }
}

template <class View>
auto block(const View& values, std::size_t first, std::size_t count) {
  return Kokkos::subview(values, std::make_pair(first, first + count));
}

/// Host memory for one block of a vector of `length` elements.
template <class Exec>
auto staging(std::size_t length) {
  return Kokkos::View<float*, Kokkos::LayoutRight, StagingSpace<Exec>>(
      Kokkos::view_alloc("OneBit::train::checkpoint", Kokkos::WithoutInitializing), std::min(length, block_length));
}

/// Saves: what is the same on every rank is written in shares, and what differs has one row for each rank. Numbers are
/// written at once; vectors get their places in the file, and are `pieces` for a SealedWriter.
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
      part(name, block(values, begin, end - begin), {begin, end});
    }
  }

  void part(const std::string& name, const Vector<Exec, float>& values, optim::Part part) override {
    const bool is_matrix = part.rows > 1;
    m_file.dataset(name, ArrayWriter::Type::real32,
                   is_matrix ? std::vector<std::size_t>{part.rows, m_length} : std::vector<std::size_t>{m_length});
    const std::size_t first = (is_matrix ? part.row * m_length : 0) + part.begin;
    m_parts.push_back({m_file.place() + first * sizeof(float), block(values, 0, part.end - part.begin)});
  }

  /// What the rank has to write, once all state is handed over. \param waits the run does, so that vectors do not change
  std::vector<SealedWriter::Piece> pieces(bool waits) const {
    std::vector<SealedWriter::Piece> all;
    for (const auto& [place, values] : m_parts) {
      // What was made for the archive is nobody else's by now.
      const bool stays = waits || values.use_count() == 1;
      SealedWriter::Piece piece = {place, values.extent(0) * sizeof(float), Copy{this->exec(), values}};
      if (is_host<Exec> && stays) piece.memory = {values.data(), [kept = values](const void*) {}};
      all.push_back(std::move(piece));
    }
    return all;
  }

private:
  /// Bytes, because blocks end where words of the file do, and these are not where its floats are.
  struct Copy {
    Exec exec;
    Vector<Exec, float> values;
    void operator()(std::size_t first, std::size_t count, void* to) const {
      const Vector<Exec, char> from(reinterpret_cast<char*>(values.data()) + first, count);
      Kokkos::deep_copy(exec, HostVector<char>(static_cast<char*>(to), count), from);
      fence(exec, "OneBit::train::checkpoint");
    }
  };

  std::size_t m_rank, m_ranks, m_length;
  std::string m_path;
  ArrayWriter& m_file;
  std::vector<std::pair<std::uint64_t, Vector<Exec, float>>> m_parts;  ///< with their places in the file
};

/// Memory of a block that copies fast from an execution space.
template <class Exec>
std::shared_ptr<void> allocate_block(std::size_t bytes) {
  const Kokkos::View<char*, Kokkos::LayoutRight, StagingSpace<Exec>> memory(
      Kokkos::view_alloc("OneBit::train::checkpoint", Kokkos::WithoutInitializing), bytes);
  return {memory.data(), [memory](void*) {}};
}

/// Restores on rank `rank` of `ranks`, whichever number of ranks saved.
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
    const auto [first, last] = rows(shape[0], m_rank, m_ranks);
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

  void part(const std::string& name, const Vector<Exec, float>& values, optim::Part part) override {
    const std::vector<std::size_t> shape = m_file.stored_shape(name);
    const Vector<Exec, float> target = block(values, 0, part.end - part.begin);
    if (shape.empty() || shape.size() > 2 || shape[0] == 0 || shape.back() < part.end)
      throw wrong_length(name, part.end);
    if (shape.size() == 1) return read(name, target, part.begin);
    const auto [first, last] = rows(shape[0], part.row, part.rows);
    read(name, target, part.begin, first, last);
  }

  const ArrayReader& reader() const { return m_file; }

private:
  /// The rows [first, last) of `saved` ones that row `row` of `rows` is the mean of: itself, or all.
  static std::pair<std::size_t, std::size_t> rows(std::size_t saved, std::size_t row, std::size_t rows) {
    return saved == rows ? std::make_pair(row, row + 1) : std::make_pair(std::size_t{0}, saved);
  }
  InputError wrong_length(const std::string& name, std::size_t length) const {
    return {m_path, "dataset '" + name + "' is not that of a model of " + std::to_string(length) + " parameters",
            "name a checkpoint of the same model"};
  }

  /// values ← elements from `begin` on of a dataset with one row.
  void read(const std::string& name, const Vector<Exec, float>& values, std::size_t begin) {
    const auto host = staging<Exec>(values.extent(0));
    for_each_block(values.extent(0), [&](std::size_t first, std::size_t count) {
      m_file.read(name, {begin + first}, {count}, host.data());
      to_device(host, values, first, count);
    });
  }
  /// values ← mean of the elements from `begin` on of rows [first_row, last_row): exact for one row, added up in double
  /// otherwise.
  void read(const std::string& name, const Vector<Exec, float>& values, std::size_t begin, std::size_t first_row,
            std::size_t last_row) {
    const auto host = staging<Exec>(values.extent(0));
    std::vector<double> sums(last_row - first_row > 1 ? host.extent(0) : 0);
    for_each_block(values.extent(0), [&](std::size_t first, std::size_t count) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::size_t row = first_row; row < last_row; ++row) {
        m_file.read(name, {row, begin + first}, {1, count}, host.data());
        for (std::size_t i = 0; i < std::min(count, sums.size()); ++i) sums[i] += static_cast<double>(host(i));
      }
      for (std::size_t i = 0; i < std::min(count, sums.size()); ++i)
        host(i) = static_cast<float>(sums[i] / static_cast<double>(last_row - first_row));
      to_device(host, values, first, count);
    });
  }
  template <class Host>
  void to_device(const Host& host, const Vector<Exec, float>& values, std::size_t first, std::size_t count) {
    Kokkos::deep_copy(this->exec(), block(values, first, count), block(host, 0, count));
    fence(this->exec(), "OneBit::train::checkpoint");
  }

  std::size_t m_rank, m_ranks;
  std::string m_path;
  ArrayReader m_file;
};

/// All that a run is between two steps, in either direction.
template <class Exec>
void archive(optim::Archive<Exec>& archive, Run<Exec>& run) {
  archive.number("step", run.step);
  archive.number("last/compressed", run.last.compressed);
  archive.number("last/synchronised", run.last.synchronised);
  archive.number("last/variance_l1", run.last.variance_l1);
  archive.number("last/variance_ratio", run.last.variance_ratio);
  archive.number("last/worker_residual_l2", run.last.worker_residual_l2);
  archive.number("last/server_residual_l2", run.last.server_residual_l2);
  archive.number("last/frozen_at", run.last.frozen_at);
  archive.vector("parameters", run.x, !run.last.synchronised);
  run.algorithm.state(archive);
  run.results.state(archive, run.traffic, run.traffic_within_host);
}

/// A dataset that is one whole number.
long whole_number(const ArrayReader& file, const std::string& path, const std::string& name) {
  const std::vector<double> values = file.reals(name);
  if (values.size() != 1 || !(values[0] >= 0 && values[0] <= 9007199254740992.0))
    throw InputError(path, "dataset '" + name + "' is not a whole number", "use another checkpoint");
  return static_cast<long>(values[0]);
}

/// One line for each tensor: its name and its extents.
std::string tensors_text(const TensorTable& tensors) {
  std::string text;
  for (const Tensor& tensor : tensors.tensors()) {
    text += tensor.name;
    for (const std::size_t extent : tensor.shape) text += " " + std::to_string(extent);
    text += "\n";
  }
  return text;
}

/// The tensors of a checkpoint's parameters, by name. \throws InputError where they do not make up its parameters
std::map<std::string, Tensor> tensors_of(const ArrayReader& file, const std::string& path) {
  const std::vector<std::size_t> shape = file.stored_shape("parameters");
  const std::size_t length = shape.empty() ? 0 : shape.back();
  const InputError unusable(path, "dataset 'tensors' does not describe dataset 'parameters'", "use another checkpoint");
  std::map<std::string, Tensor> tensors;
  std::size_t offset = 0;
  std::istringstream lines(file.text("tensors"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Tensor tensor;
    words >> tensor.name;
    std::size_t left = length - offset;  // of which the tensor takes the product of its extents
    for (std::size_t extent = 0; words >> extent; left /= extent) {
      if (extent == 0 || extent > left) throw unusable;
      tensor.shape.push_back(extent);
    }
    if (!words.eof() || tensor.shape.empty()) throw unusable;
    tensor.offset = offset;
    offset += tensor.size();
    if (!tensors.emplace(tensor.name, tensor).second) throw unusable;
  }
  if (offset != length) throw unusable;
  return tensors;
}

/// "encoder" of "encoder.0.attention.qkv.weight".
std::string component(const std::string& name) { return name.substr(0, name.find('.')); }

/// "(2, 3)"
std::string shape_text(const Tensor& tensor) {
  std::string text;
  for (const std::size_t extent : tensor.shape) text += (text.empty() ? "(" : ", ") + std::to_string(extent);
  return text + ")";
}

/// Whether tensor `to` can begin with values of `from`: all, or of the position embeddings the first rows of both.
bool fits(const Tensor& from, const Tensor& to) {
  if (from.shape == to.shape) return true;
  return to.name == "embeddings.position.weight" && from.shape.size() == 2 && from.shape[1] == to.shape[1];
}

/// Refuses to go on from a checkpoint, which is whole, with an input that it does not belong to.
/// \returns its input and its step
std::pair<config::Input, long> check_input(const std::string& path, const config::Input& input) {
  const ArrayReader file(path);
  const config::Input saved = config::parse(file.text("input"), path + ", its input", {});
  config::Input wanted = input;
  // `auto` averages as the checkpoint's run did, for which dense averages may have been faster.
  if (input.comm.collective == Collective::automatic && saved.compression.compressor == CompressorKind::none)
    wanted.compression.compressor = CompressorKind::none;
  std::string different;
  for (const std::string& difference : config::differences(saved, wanted)) different += "\n    " + difference;
  if (!different.empty())
    throw InputError(path, "it belongs to a run whose input differs from this one's (there, here):" + different,
                     "give these keys the values of that run, or set checkpoint.restart to none");
  const long step = whole_number(file, path, "step");
  if (step > input.train.steps)
    throw InputError(
        path,
        "it is of step " + std::to_string(step) + ", behind train.steps (" + std::to_string(input.train.steps) + ")",
        "raise train.steps");
  return {saved, step};
}

/// Makes the file of a checkpoint, complete but for the seal and the vectors, and begins to write these.
/// \param completed called on rank 0 when the file has its name, by another thread
template <class Exec>
void begin_checkpoint(const Exec& exec, const Communicator& communicator, const std::string& path, Run<Exec>& run,
                      SealedWriter& writer, std::function<void()> completed) {
  const Region region("OneBit::train::checkpoint");
  const std::string partial = path + ".partial";
  std::string steps_text;
  communicator.collectively([&] { steps_text = run.results.steps_text(); });
  try {
    ArrayWriter file(communicator, partial, seal_bytes);
    file.text("build", std::string("OneBit ") + build_version + " " + build_git + " " + build_compiler);
    file.text("input", config::resolved(run.input));
    file.text("steps.csv", steps_text);
    file.text("tensors", tensors_text(run.tensors));
    Saver<Exec> saver(exec, communicator, partial, file, run.x.extent(0));
    int ranks = communicator.size();
    saver.number("ranks", ranks);
    archive(saver, run);
    // HDF5 1.10 does not survive a disk that fills up beneath it, so it is through before vectors are written.
    file.close();
    writer.begin(path, saver.pieces(!writer.is_background()), allocate_block<Exec>, std::move(completed), run.label);
  } catch (const AgreedError&) {
    if (communicator.rank() == 0) std::remove(partial.c_str());
    throw;
  }
}

}  // namespace

template <class Exec>
void write_checkpoint(const Exec& exec, const Communicator& communicator, const std::string& path, Run<Exec>& run) {
  SealedWriter writer(communicator, false);
  begin_checkpoint(exec, communicator, path, run, writer, {});
}

Checkpoints::Checkpoints(const config::Input& input, const Communicator& communicator)
    : m_communicator(communicator),
      m_every(input.checkpoint.every),
      m_writer(communicator, input.checkpoint.background) {
  const bool root = communicator.rank() == 0, is_auto = input.checkpoint.restart == "auto";
  const fs::path directory = fs::path(input.run.output) / input.checkpoint.directory;
  if (root) m_lines = LineDirectory(directory, static_cast<std::size_t>(input.checkpoint.keep));
  if (input.checkpoint.restart != "none") find_restart(input);
  long step = 0;
  communicator.collectively([&] {
    if (restarts())
      std::tie(m_saved, step) =
          located(input.where("checkpoint.restart"), [&] { return check_input(m_restart, input); });
    if (!root) return;
    if (restarts())
      m_lines.go_on(m_restart, step, is_auto);
    else
      m_lines.begin();
    // Refused now rather than after hours of training.
    if (m_every > 0 && !m_lines.open())
      throw InputError(input.where("checkpoint.directory"),
                       "directory '" + m_lines.directory().string() + "' cannot be written",
                       "name one that you may write");
  });
  if (!root) return;
  if (restarts())
    std::printf("restart: from %s\n", m_restart.c_str());
  else if (is_auto)
    std::printf("restart: no checkpoint in %s, beginning at step 1\n", m_lines.directory().c_str());
}

void Checkpoints::find_restart(const config::Input& input) {
  const Region region("OneBit::train::verify");
  const bool root = m_communicator.rank() == 0, is_auto = input.checkpoint.restart == "auto";
  // One path a line: the input holds no control characters.
  std::string paths = input.checkpoint.restart;
  if (is_auto) {
    paths.clear();
    if (root)
      for (const auto& [step, path] : checkpoints_in(m_lines.newest())) paths += path.string() + "\n";
    paths = m_communicator.broadcast(paths, 0);
  }
  std::istringstream lines(paths);
  for (std::string path; m_restart.empty() && std::getline(lines, path);) {
    try {
      verify_seal(m_communicator, path);
      m_restart = path;
    } catch (const AgreedError& error) {
      if (!is_auto) throw AgreedError(error.status(), input.where("checkpoint.restart") + ": " + error.what());
      if (root) std::printf("warning: %s\n  going back to the checkpoint before it\n", error.what());
    }
  }
  if (restarts() || paths.empty()) return;
  const std::string directory = fs::path(paths.substr(0, paths.find('\n'))).parent_path().string();
  throw AgreedError(ExitStatus::bad_input,
                    input.where("checkpoint.restart") + ": every checkpoint in " + directory +
                        " is damaged\n  remedy: check the disk; remove them, or set checkpoint.restart to none, to "
                        "begin at step 1");
}

template <class Exec>
void Checkpoints::restore(const Exec& exec, Run<Exec>& run) const {
  const Region region("OneBit::train::restore");
  m_communicator.collectively([&] {
    Restorer<Exec> restorer(exec, m_restart, m_communicator.rank(), m_communicator.size());
    archive(restorer, run);
    if (!run.results.go_on_from(restorer.reader().text("steps.csv"))) throw restorer.unusable("steps.csv");
  });
}

template <class Exec>
std::string Checkpoints::begin(const Exec& exec, Run<Exec>& run) {
  complete(run.results);
  const Stopwatch watch;
  m_since_begin.restart();
  std::string path;
  m_communicator.collectively([&] {
    if (m_communicator.rank() == 0) path = m_lines.path(run.step);
  });
  path = m_communicator.broadcast(path, 0);
  run.label = label();
  run.results.count_checkpoint();
  begin_checkpoint(exec, m_communicator, path, run, m_writer,
                   [this, path, step = run.step] { m_lines.completed(step, path); });
  waited(watch.seconds(), run.results);
  return path;
}

void Checkpoints::advance(Results& results) {
  const Region region("OneBit::train::checkpoint");
  const Stopwatch watch;
  m_writer.advance();
  waited(watch.seconds(), results);
}

void Checkpoints::complete(Results& results) {
  while (m_writer.is_under_way()) advance(results);
}

void Checkpoints::complete() { m_writer.complete(); }

void Checkpoints::waited(double seconds, Results& results) const {
  results.add_checkpoint_wait(seconds);
  if (!m_writer.is_under_way()) results.add_checkpoint_writing(m_since_begin.seconds());
}

template <class Exec>
std::string read_parameters(const Exec& exec, const std::string& path, const TensorTable& tensors,
                            const Vector<Exec, float>& x) {
  const Region region("OneBit::train::read_parameters");
  if (is_sealed(path)) verify_seal(path);
  Restorer<Exec> restorer(exec, path, 0, 1);
  if (!restorer.reader().has("tensors")) {  // nothing is known of them
    restorer.vector("parameters", x, false);
    return "parameters: of " + path;
  }
  std::map<std::string, Tensor> saved = tensors_of(restorer.reader(), path);
  std::set<std::string> theirs, ours;
  for (const auto& [name, tensor] : saved) theirs.insert(component(name));
  for (const Tensor& tensor : tensors.tensors()) ours.insert(component(tensor.name));

  const std::string remedy =
      "name a checkpoint of the same architecture, model.layers, hidden and feed_forward and of "
      "the same tokeniser, or give this model those of the checkpoint's input";
  std::set<std::string> taken, anew, left;
  for (const Tensor& tensor : tensors.tensors()) {
    if (theirs.count(component(tensor.name)) == 0) {
      anew.insert(component(tensor.name));
      continue;
    }
    const auto found = saved.find(tensor.name);
    if (found == saved.end())
      throw InputError(path, "its model has no tensor '" + tensor.name + "', which this one has", remedy);
    const Tensor& from = found->second;
    if (!fits(from, tensor))
      throw InputError(path,
                       "its model's tensor '" + tensor.name + "' is " + shape_text(from) + ", but this one's is " +
                           shape_text(tensor),
                       remedy);
    const std::size_t count = std::min(from.size(), tensor.size());
    restorer.part("parameters", block(x, tensor.offset, count), {from.offset, from.offset + count});
    taken.insert(component(tensor.name));
    saved.erase(found);
  }
  for (const auto& [name, tensor] : saved) {
    if (ours.count(component(name)) > 0)
      throw InputError(path, "this model has no tensor '" + name + "', which the checkpoint's has", remedy);
    left.insert(component(name));
  }
  if (taken.empty()) throw InputError(path, "it has no tensor of this model", remedy);
  const auto list = [](const std::string& what, const std::set<std::string>& components) {
    std::string text;
    for (const std::string& name : components) text += (text.empty() ? what : ", ") + name;
    return text;
  };
  return "parameters: of " + path + list(": ", taken) + list("; begin anew: ", anew) + list("; left out: ", left);
}

std::string describe_checkpoint(const std::string& path) {
  verify_seal(path);
  const ArrayReader file(path);
  const config::Input input = config::parse(file.text("input"), path + ", its input", {});
  std::ostringstream text;
  text << path << ": whole, " << fs::file_size(path) << " bytes\n"
       << "step:       " << whole_number(file, path, "step") << " of " << input.train.steps << "\n"
       << "ranks:      " << whole_number(file, path, "ranks") << "\n"
       << "algorithm:  " << input.optimizer.algorithm << "\n"
       << "workload:   " << to_string(input.workload.kind) << "\n"
       << "line:       " << Line::of(path).text() << "\n"
       << "written by: " << file.text("build") << "\n"
       << "datasets:\n";
  for (const std::string& name : file.datasets()) {
    const std::vector<std::size_t> shape = file.shape(name);
    if (shape.empty()) {
      text << "  " << name << ": text\n";
      continue;
    }
    text << "  " << name << ": (";
    for (std::size_t i = 0; i < shape.size(); ++i) text << (i > 0 ? ", " : "") << shape[i];
    text << ")\n";
  }
  return text.str();
}

#define ONEBIT_INSTANTIATE(Exec)                                                                    \
  template void write_checkpoint(const Exec&, const Communicator&, const std::string&, Run<Exec>&); \
  template void Checkpoints::restore(const Exec&, Run<Exec>&) const;                                \
  template std::string Checkpoints::begin(const Exec&, Run<Exec>&);                                 \
  template std::string read_parameters(const Exec&, const std::string&, const TensorTable&, const Vector<Exec, float>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::train
