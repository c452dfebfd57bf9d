#include "comm/compressed_allreduce.hpp"

#include "base/error.hpp"
#include "base/gpus.hpp"
#include "comm/allreduce.hpp"

namespace onebit {
namespace {

void check(const CompressedAllreduceOptions& options) {
  const std::string where = "CompressedAllreduce";
  if (options.bits < 1 || options.bits > 16)
    throw InputError(where, std::to_string(options.bits) + " bits an element are not possible", "give 1 to 16");
  if (options.group % compress::bits_per_word != 0)
    throw InputError(where, "a group of " + std::to_string(options.group) + " elements is not possible",
                     "give a multiple of 32, or 0 for one scale for the vector");
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
};

template <class Exec>
struct CompressedAllreduce::EngineOn final : Engine {
  EngineOn(MPI_Comm parent, std::size_t length, const CompressedAllreduceOptions& options)
      : length(length),
        communicator(parent),
        transport(comm::make_transport<Exec>(TransportKind::automatic, communicator, std::numeric_limits<int>::max(),
                                             {options.message_bytes})),
        allreduce(*transport, layout(options), compressor(options), options.error_feedback) {}

  void operator()(float* x, float residual_factor) override {
    PhaseTimes times;
    allreduce(exec, Vector<Exec, float>(x, length), times, residual_factor);
  }
  std::uint64_t bytes_sent() const override { return transport->traffic().total(); }

  compress::Layout layout(const CompressedAllreduceOptions& options) const {
    const auto grouping = options.group == 0 ? compress::Grouping::vector : compress::Grouping::fixed;
    return {length, communicator.size(), grouping, options.group};
  }
  static compress::Options compressor(const CompressedAllreduceOptions& options) {
    compress::Options compressor;
    compressor.kind = options.bits == 1 ? CompressorKind::sign : CompressorKind::nbit;
    compressor.bits = options.bits;
    return compressor;
  }

  Exec exec;
  std::size_t length;
  Communicator communicator;
  std::unique_ptr<comm::Transport<Exec>> transport;
  comm::CompressedAllreduce<Exec> allreduce;
};

CompressedAllreduce::CompressedAllreduce(MPI_Comm communicator, std::size_t length,
                                         const CompressedAllreduceOptions& options) {
  check(options);
  start_kokkos();
  const std::string backend = options.backend.empty() ? BackendName<HostExec>::value : options.backend;
  std::string known;
#define ONEBIT_MAKE_ENGINE(Exec)                                                                                       \
  if (backend == BackendName<Exec>::value) m_engine = std::make_unique<EngineOn<Exec>>(communicator, length, options); \
  known += std::string(known.empty() ? "" : ", ") + BackendName<Exec>::value;
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_MAKE_ENGINE)
  if (!m_engine)
    throw InputError("CompressedAllreduce", "this build has no backend '" + excerpt(backend) + "'",
                     "use one of " + known);
}

CompressedAllreduce::~CompressedAllreduce() = default;

void CompressedAllreduce::operator()(float* x, float residual_factor) { (*m_engine)(x, residual_factor); }

std::uint64_t CompressedAllreduce::bytes_sent() const { return m_engine->bytes_sent(); }

}  // namespace onebit
