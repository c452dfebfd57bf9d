#include "comm/compressed_allreduce.hpp"

#include <limits>
#include <vector>

#include "base/error.hpp"
#include "base/gpus.hpp"
#include "comm/allreduce.hpp"

namespace onebit {
namespace {

const char* const where = "CompressedAllreduce";

/// The backend that the options name.
std::string backend_of(const CompressedAllreduceOptions& options) {
  return options.backend.empty() ? BackendName<HostExec>::value : options.backend;
}

/// 1, 2, … for the backends of this build; 0 for a name that is none of them.
int index_of(const std::string& backend) {
  int index = 0, found = 0;
#define ONEBIT_FIND(Exec) \
  ++index;                \
  if (backend == BackendName<Exec>::value) found = index;
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_FIND)
  return found;
}

/// Collective, and before any other check: all ranks throw, or none.
void check_same(const Communicator& communicator, std::size_t length, const CompressedAllreduceOptions& options) {
  const char* const names[] = {"length",        "bits",
                               "group",         "error_feedback",
                               "message_bytes", "the number of the backend (0 for one that this build lacks)"};
  const double own[] = {static_cast<double>(length),
                        static_cast<double>(options.bits),
                        static_cast<double>(options.group),
                        options.error_feedback ? 1.0 : 0.0,
                        static_cast<double>(options.message_bytes),
                        static_cast<double>(index_of(backend_of(options)))};
  constexpr std::size_t count = std::size(own);
  const std::vector<double> all = communicator.gather(own, count);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto number = [&](std::size_t k) { return std::to_string(static_cast<long long>(all[k])); };
    if (all[i] != all[i % count])
      throw InputError(where,
                       std::string(names[i % count]) + " is " + number(i % count) + " on rank 0 and " + number(i) +
                           " on rank " + std::to_string(i / count),
                       "give all ranks the same");
  }
}

void check(std::size_t length, const CompressedAllreduceOptions& options) {
  if (length == 0) throw InputError(where, "the length is 0", "give the number of elements");
  if (options.bits < 1 || options.bits > 16)
    throw InputError(where, std::to_string(options.bits) + " bits an element are not possible", "give 1 to 16");
  if (options.group % compress::bits_per_word != 0)
    throw InputError(where, "a group of " + std::to_string(options.group) + " elements is not possible",
                     "give a multiple of 32, or 0 for one scale for the vector");
  if (options.message_bytes > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw InputError(where, "messages of " + std::to_string(options.message_bytes) + " bytes are not possible",
                     "give less than 2 GiB, or 0 for MPI's collectives");
}

/// `length` elements at `values` on the host, for copies.
template <class T>
auto host_view(T* values, std::size_t length) {
  return Kokkos::View<T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(values, length);
}

template <class Exec>
Vector<Exec, const float> copy_of(const float* values, std::size_t length) {
  const auto copy = make_uninitialized<Exec, float>("OneBit::comm::residual", length);
  Kokkos::deep_copy(copy, host_view(values, length));
  return copy;
}

void start_kokkos() {
  if (Kokkos::is_initialized()) return;
  static const KokkosSession session(0, current_gpu());  // where the caller's device memory is
}

}  // namespace

struct CompressedAllreduce::Engine {
  virtual ~Engine() = default;
  virtual void operator()(float* x, float residual_factor) = 0;
  virtual std::uint64_t bytes_sent() const = 0;
  virtual ResidualLengths residual_lengths() const = 0;
  virtual void get_residuals(float* worker, float* server) const = 0;
  virtual void set_residuals(const float* worker, const float* server) = 0;
};

template <class Exec>
struct CompressedAllreduce::EngineOn final : Engine {
  EngineOn(std::unique_ptr<Communicator> its_own, std::size_t length, const CompressedAllreduceOptions& options)
      : length(length),
        communicator(std::move(its_own)),
        transport(comm::make_transport<Exec>(TransportKind::automatic, *communicator, std::numeric_limits<int>::max(),
                                             {options.message_bytes})),
        allreduce(*transport, layout(options), compressor(options), options.error_feedback) {}

  void operator()(float* x, float residual_factor) override {
    PhaseTimes times;
    allreduce(exec, Vector<Exec, float>(x, length), times, residual_factor);
  }
  std::uint64_t bytes_sent() const override { return transport->traffic().total(); }

  ResidualLengths residual_lengths() const override {
    return {length, allreduce.compressor()->layout().chunk_length()};
  }
  void get_residuals(float* worker, float* server) const override {
    Kokkos::deep_copy(host_view(worker, residual_lengths().worker), allreduce.worker_residual(exec));
    Kokkos::deep_copy(host_view(server, residual_lengths().server), allreduce.server_residual(exec));
  }
  void set_residuals(const float* worker, const float* server) override {
    allreduce.set_residuals(exec, copy_of<Exec>(worker, residual_lengths().worker),
                            copy_of<Exec>(server, residual_lengths().server));
  }

  compress::Layout layout(const CompressedAllreduceOptions& options) const {
    const auto grouping = options.group == 0 ? compress::Grouping::vector : compress::Grouping::fixed;
    return {length, communicator->size(), grouping, options.group};
  }
  static compress::Options compressor(const CompressedAllreduceOptions& options) {
    compress::Options compressor;
    compressor.kind = options.bits == 1 ? CompressorKind::sign : CompressorKind::nbit;
    compressor.bits = options.bits;
    return compressor;
  }

  Exec exec;
  std::size_t length;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<comm::Transport<Exec>> transport;
  comm::CompressedAllreduce<Exec> allreduce;
};

CompressedAllreduce::CompressedAllreduce(MPI_Comm communicator, std::size_t length,
                                         const CompressedAllreduceOptions& options) {
  auto its_own = std::make_unique<Communicator>(communicator);
  check_same(*its_own, length, options);
  check(length, options);
  start_kokkos();
  const std::string backend = backend_of(options);
  std::string known;
#define ONEBIT_MAKE_ENGINE(Exec)                                                      \
  if (backend == BackendName<Exec>::value)                                            \
    m_engine = std::make_unique<EngineOn<Exec>>(std::move(its_own), length, options); \
  known += std::string(known.empty() ? "" : ", ") + BackendName<Exec>::value;
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_MAKE_ENGINE)
  if (!m_engine) throw InputError(where, "this build has no backend '" + excerpt(backend) + "'", "use one of " + known);
}

CompressedAllreduce::~CompressedAllreduce() = default;

void CompressedAllreduce::operator()(float* x, float residual_factor) { (*m_engine)(x, residual_factor); }

std::uint64_t CompressedAllreduce::bytes_sent() const { return m_engine->bytes_sent(); }

CompressedAllreduce::ResidualLengths CompressedAllreduce::residual_lengths() const {
  return m_engine->residual_lengths();
}

void CompressedAllreduce::get_residuals(float* worker, float* server) const { m_engine->get_residuals(worker, server); }

void CompressedAllreduce::set_residuals(const float* worker, const float* server) {
  m_engine->set_residuals(worker, server);
}

}  // namespace onebit
