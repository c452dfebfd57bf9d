#include "comm/library/compressed_allreduce.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/choices.hpp"
#include "base/device/gpus.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/system/launcher.hpp"
#include "comm/compressed_average.hpp"

namespace onebit {
namespace {

const char* const where = "CompressedAllreduce";

/// The backend that the options name.
std::string backend_of(const CompressedAllreduceOptions& options) {
  return options.backend.empty() ? BackendName<HostExec>::value : options.backend;
}

/// 0, 1 for the scales "l1" and "l2"; −1 for a name that is neither.
int index_of_scale(const std::string& name) {
  constexpr auto known = names(Scale{});
  const auto found = std::find(known.begin(), known.end(), name);
  return found == known.end() ? -1 : static_cast<int>(found - known.begin());
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

/// `length` elements at `values` on the host, for copies.
template <class T>
auto host_view(T* values, std::size_t length) {
  return Kokkos::View<T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(values, length);
}

/// What all ranks must have given alike, by name, as numbers.
constexpr const char* shared_names[] = {"length",
                                        "bits",
                                        "group",
                                        "error_feedback",
                                        "message_bytes",
                                        "the number of the backend (0 for one that this build lacks)",
                                        "the checksum of group_begins",
                                        "the checksum of chunk_borders",
                                        "the number of the scale (0 for l1, 1 for l2)",
                                        "grid"};
constexpr std::size_t shared_count = std::size(shared_names);
using Shared = std::array<std::int64_t, shared_count>;

/// 0 for none.
std::int64_t checksum(const std::vector<std::size_t>& places) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < places.size(); ++i) sum += hash_term(places[i], i);
  return static_cast<std::int64_t>(sum);
}

Shared shared(std::size_t length, const CompressedAllreduceOptions& options) {
  return {static_cast<std::int64_t>(length),
          options.bits,
          static_cast<std::int64_t>(options.group),
          options.error_feedback ? 1 : 0,
          static_cast<std::int64_t>(options.message_bytes),
          index_of(backend_of(options)),
          checksum(options.group_begins),
          checksum(options.chunk_borders),
          index_of_scale(options.scale),
          options.grid ? 1 : 0};
}

/// Before any other check: all ranks throw, or none. \param all of all ranks
void check_same(const std::vector<Shared>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (std::size_t i = 0; i < shared_count; ++i)
      if (all[rank][i] != all[0][i])
        throw InputError(where,
                         std::string(shared_names[i]) + " is " + std::to_string(all[0][i]) + " on rank 0 and " +
                             std::to_string(all[rank][i]) + " on rank " + std::to_string(rank),
                         "give all ranks the same");
}

/// What each rank has given. Collective.
std::vector<Shared> gather(const Communicator& communicator, const Shared& own) {
  std::vector<Shared> all(communicator.size());
  MPI_Allgather(own.data(), shared_count, MPI_INT64_T, all.data(), shared_count, MPI_INT64_T, communicator.get());
  return all;
}
/// By messages of a backend's memory.
template <class Exec>
std::vector<Shared> gather(const Exec& exec, comm::Messenger<Exec>& messenger, const Shared& own) {
  constexpr std::size_t words = sizeof(Shared) / sizeof(std::uint32_t);
  std::vector<std::uint32_t> sent(words), received(words * messenger.ranks());
  std::memcpy(sent.data(), own.data(), sizeof own);
  const auto send = copy_to_device<Exec>("OneBit::comm::shared", sent);
  const auto gathered = copy_to_device<Exec>("OneBit::comm::shared_by_all", received);
  Kokkos::fence();
  messenger.all_gather(exec, send, gathered);
  Kokkos::deep_copy(host_view(received.data(), received.size()), gathered);
  std::vector<Shared> all(messenger.ranks());
  std::memcpy(all.data(), received.data(), received.size() * sizeof received[0]);
  return all;
}

/// \param places of the option `name`
void check_places(const char* name, const std::vector<std::size_t>& places, std::size_t length) {
  if (places.empty()) return;
  const auto refuse = [&](const std::string& what) {
    throw InputError(where, name + (" " + what), "give first elements of parts of the vector, ascending from 0");
  };
  if (places[0] != 0) refuse("begins with " + std::to_string(places[0]));
  for (std::size_t i = 1; i < places.size(); ++i)
    if (places[i] <= places[i - 1])
      refuse("has " + std::to_string(places[i]) + " behind " + std::to_string(places[i - 1]));
  if (places.back() >= length)
    refuse("has " + std::to_string(places.back()) + " for a vector of " + std::to_string(length) + " elements");
}

void check(std::size_t length, const CompressedAllreduceOptions& options) {
  // So many that their bytes, and what is added to round them up, are counted without overflow.
  constexpr std::size_t most = std::numeric_limits<std::ptrdiff_t>::max() / 16;
  if (length == 0) throw InputError(where, "the length is 0", "give the number of elements");
  if (length > most)
    throw InputError(where, "a length of " + std::to_string(length) + " is not possible",
                     "give the number of elements; is it the unsigned form of a negative number?");
  if (options.bits < 1 || options.bits > 16)
    throw InputError(where, std::to_string(options.bits) + " bits an element are not possible", "give 1 to 16");
  const int scale = index_of_scale(options.scale);
  if (scale < 0) throw InputError(where, "there is no scale '" + options.scale + "'", "give l1 or l2");
  if (options.bits > 1 && scale != 0)
    throw InputError(where, "a grid has no scale '" + options.scale + "'", "give one bit, or the scale l1");
  if (options.group % compress::bits_per_word != 0 || options.group > most)
    throw InputError(where, "a group of " + std::to_string(options.group) + " elements is not possible",
                     "give a multiple of 32, or 0 for one scale for the vector");
  if (options.group != 0 && !options.group_begins.empty())
    throw InputError(where, "group and group_begins both say which elements share a scale", "give one of them");
  check_places("group_begins", options.group_begins, length);
  check_places("chunk_borders", options.chunk_borders, length);
  if (options.message_bytes > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    throw InputError(where, "messages of " + std::to_string(options.message_bytes) + " bytes are not possible",
                     "give less than 2 GiB, or 0 for MPI's collectives");
  if (options.message_bytes != 0 && options.grid)
    throw InputError(where, "message_bytes and grid both say how ranks exchange", "give one of them");
}

void check(const CallersTransport& transport, const CompressedAllreduceOptions& options) {
  if (transport.rank < 0 || transport.rank >= transport.ranks)
    throw InputError(
        where, "the transport has rank " + std::to_string(transport.rank) + " of " + std::to_string(transport.ranks),
        "number the ranks from 0 on");
  if (!transport.all_to_all || !transport.all_gather)
    throw InputError(where, "the transport lacks a function", "give all_to_all and all_gather");
  if (options.message_bytes != 0 || options.grid)
    throw InputError(where, "messages between pairs and grids of ranks are MPI's, and the caller's transport has none",
                     "leave message_bytes and grid at 0");
}

void check_backend(const CompressedAllreduceOptions& options) {
  if (index_of(backend_of(options)) != 0) return;
  std::string known;
#define ONEBIT_NAME(Exec) known += std::string(known.empty() ? "" : ", ") + BackendName<Exec>::value;
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_NAME)
  throw InputError(where, "this build has no backend '" + excerpt(options.backend) + "'", "use one of " + known);
}

/// A sub-communicator is the caller's choice among the ranks of the world; the world itself must be what was launched.
void check_launch_of(MPI_Comm communicator) {
  int same = MPI_UNEQUAL;
  MPI_Comm_compare(communicator, MPI_COMM_SELF, &same);
  if (same != MPI_IDENT) check_launch();
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

/// Messages that the caller carries, where MPI connects no ranks.
template <class Exec>
class CallersMessenger final : public comm::Messenger<Exec> {
public:
  using typename comm::Messenger<Exec>::Words;

  explicit CallersMessenger(CallersTransport transport)
      : comm::Messenger<Exec>(transport.rank, transport.ranks), m_transport(std::move(transport)) {}

  void all_to_all(const Exec& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_to_all", waits_for_ranks);
    fence(exec, "OneBit::comm::before_exchange");
    m_transport.all_to_all(send.data(), received.data(), send.extent(0) / this->m_ranks * sizeof(std::uint32_t));
    this->count_all_to_all(send.extent(0));
  }
  void all_gather(const Exec& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_gather", waits_for_ranks);
    fence(exec, "OneBit::comm::before_exchange");
    m_transport.all_gather(send.data(), received.data(), send.extent(0) * sizeof(std::uint32_t));
    this->count_all_gather(send.extent(0));
  }

  bool overlaps() const override { return false; }

private:
  CallersTransport m_transport;
};

}  // namespace

struct CompressedAllreduce::Engine {
  virtual ~Engine() = default;
  virtual void operator()(float* x, float residual_factor) = 0;
  virtual void run_served(float* x, const CallersServer& server) = 0;
  virtual Chunk chunk() const = 0;
  virtual std::uint64_t bytes_sent() const = 0;
  virtual ResidualLengths residual_lengths() const = 0;
  virtual void get_residuals(float* worker, float* server) const = 0;
  virtual void set_residuals(const float* worker, const float* server) = 0;
};

template <class Exec>
struct CompressedAllreduce::EngineOn final : Engine {
  /// \param its_own over which `its_own_messenger` sends; nullptr for a caller's transport
  EngineOn(std::unique_ptr<Communicator> its_own, std::unique_ptr<comm::Messenger<Exec>> its_own_messenger,
           std::size_t length, const CompressedAllreduceOptions& options)
      : length(length),
        communicator(std::move(its_own)),
        messenger(std::move(its_own_messenger)),
        allreduce(*messenger, layout(options), compressor(options), options.error_feedback) {}

  void operator()(float* x, float residual_factor) override {
    PhaseTimes times;
    allreduce(exec, Vector<Exec, float>(x, length), times, residual_factor);
    check_finite("");
  }
  void run_served(float* x, const CallersServer& server) override {
    const Vector<Exec, float> all(x, length);
    const std::size_t first = chunk().first;
    std::exception_ptr error;
    const comm::Server<Exec> serve = [&](const Exec& on, const Vector<Exec, float>& chunk, PhaseTimes&) {
      if (chunk.extent(0) == 0) return;
      try {
        server(chunk.data(), first, chunk.extent(0));
      } catch (...) {
        error = std::current_exception();
        // The other ranks wait for this chunk. So they get one that none of them takes for an average.
        Kokkos::deep_copy(on, chunk, std::numeric_limits<float>::quiet_NaN());
      }
    };
    PhaseTimes times;
    allreduce.begin(exec, {all, {}, 1, serve}, times);
    allreduce.serve(exec, times);
    allreduce.finish(exec, times);
    if (error) std::rethrow_exception(error);
    allreduce.decompress_last(exec, all);
    check_finite("; or the caller's server of a rank failed, or made such numbers");
  }
  /// After an average; fences. \param cause that vectors alone do not have
  void check_finite(const std::string& cause) const {
    if (!allreduce.last_is_finite(exec))
      throw InputError(where,
                       "the average is not finite: the vector of a rank, in this call or in an earlier one, held NaN, "
                       "infinity, or numbers so large that float cannot hold their sums" +
                           cause,
                       "check vectors before the call; setting the residuals takes out what has got into them");
  }
  Chunk chunk() const override {
    const auto extents = allreduce.residual_extents();
    return {extents.server_begin, extents.server_end - extents.server_begin};
  }
  std::uint64_t bytes_sent() const override { return messenger->traffic().total(); }

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
    const auto grouping = !options.group_begins.empty() ? compress::Grouping::tensor
                          : options.group != 0          ? compress::Grouping::fixed
                                                        : compress::Grouping::vector;
    return {length, messenger->ranks(), grouping, options.group, options.group_begins, options.chunk_borders};
  }
  static compress::Options compressor(const CompressedAllreduceOptions& options) {
    compress::Options compressor;
    compressor.kind = options.bits == 1 ? CompressorKind::sign : CompressorKind::nbit;
    compressor.bits = options.bits;
    compressor.scale = static_cast<Scale>(index_of_scale(options.scale));
    return compressor;
  }

  Exec exec;
  std::size_t length;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<comm::Messenger<Exec>> messenger;
  comm::CompressedAverage<Exec> allreduce;
};

template <class Make>
void CompressedAllreduce::make_engine(const CompressedAllreduceOptions& options, const Make& make) {
  start_kokkos();
  const std::string backend = backend_of(options);
#define ONEBIT_MAKE_ENGINE(Exec) \
  if (backend == BackendName<Exec>::value) m_engine = make(Exec());
  ONEBIT_FOR_EACH_BACKEND(ONEBIT_MAKE_ENGINE)
}

CompressedAllreduce::CompressedAllreduce(MPI_Comm communicator, std::size_t length,
                                         const CompressedAllreduceOptions& options) {
  check_launch_of(communicator);
  auto its_own = std::make_unique<Communicator>(communicator);
  check_same(gather(*its_own, shared(length, options)));
  check(length, options);
  check_backend(options);
  make_engine(options, [&](const auto& exec) -> std::unique_ptr<Engine> {
    using Exec = std::decay_t<decltype(exec)>;
    auto transport =
        comm::make_transport<Exec>(TransportKind::automatic, *its_own, {options.message_bytes, false, options.grid});
    return std::make_unique<EngineOn<Exec>>(std::move(its_own), std::move(transport), length, options);
  });
}

CompressedAllreduce::CompressedAllreduce(CallersTransport transport, std::size_t length,
                                         const CompressedAllreduceOptions& options) {
  check(transport, options);
  check_backend(options);  // first, because the backend's memory is what the ranks agree in
  make_engine(options, [&](const auto& exec) -> std::unique_ptr<Engine> {
    using Exec = std::decay_t<decltype(exec)>;
    if (transport.ranks > 1) {
      CallersMessenger<Exec> first(transport);  // its bytes are not those of averages
      check_same(gather(exec, first, shared(length, options)));
    }
    check(length, options);
    auto messenger = std::make_unique<CallersMessenger<Exec>>(std::move(transport));
    return std::make_unique<EngineOn<Exec>>(nullptr, std::move(messenger), length, options);
  });
}

CompressedAllreduce::~CompressedAllreduce() = default;

void CompressedAllreduce::operator()(float* x, float residual_factor) {
  if (!std::isfinite(residual_factor))
    throw InputError(where, "the residual factor is not finite", "give the quotient of two learning rates, usually 1");
  (*m_engine)(x, residual_factor);
}

void CompressedAllreduce::run_served(float* x, const CallersServer& server) {
  if (!server) throw InputError(where, "the server is empty", "give a function, or average without one");
  m_engine->run_served(x, server);
}

CompressedAllreduce::Chunk CompressedAllreduce::chunk() const { return m_engine->chunk(); }

std::uint64_t CompressedAllreduce::bytes_sent() const { return m_engine->bytes_sent(); }

CompressedAllreduce::ResidualLengths CompressedAllreduce::residual_lengths() const {
  return m_engine->residual_lengths();
}

void CompressedAllreduce::get_residuals(float* worker, float* server) const { m_engine->get_residuals(worker, server); }

void CompressedAllreduce::set_residuals(const float* worker, const float* server) {
  m_engine->set_residuals(worker, server);
}

}  // namespace onebit
