#include "comm/transport/probe.hpp"

#include <algorithm>
#include <vector>

namespace onebit::comm {
namespace {

std::string first_error;

void keep_first(MPI_Comm*, int* code, ...) {
  if (!first_error.empty()) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(*code, text, &length);
  first_error.assign(text, static_cast<std::size_t>(length));
}

template <class Exec, class T>
bool equals(const Vector<Exec, T>& values, const std::vector<T>& expected) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), values);
  return std::equal(expected.begin(), expected.end(), host.data());
}

/// Word j of the message that rank `from` has for rank `to`.
std::uint32_t word(int from, int to, std::size_t j) {
  return static_cast<std::uint32_t>(from * 65537 + to * 257 + 1) + static_cast<std::uint32_t>(j);
}

}  // namespace

MpiErrors::MpiErrors(const Communicator& communicator) : m_comm(communicator.get()) {
  first_error.clear();
  MPI_Comm_get_errhandler(m_comm, &m_before);
  MPI_Comm_create_errhandler(&keep_first, &m_handler);
  MPI_Comm_set_errhandler(m_comm, m_handler);
}

MpiErrors::~MpiErrors() {
  MPI_Comm_set_errhandler(m_comm, m_before);
  MPI_Errhandler_free(&m_handler);
  MPI_Errhandler_free(&m_before);
}

const std::string& MpiErrors::first() const { return first_error; }

template <class Exec>
std::string fault_of(const Exec& exec, const Communicator& communicator, Transport<Exec>& transport,
                     const MpiErrors& errors) {
  using Words = Vector<Exec, std::uint32_t>;
  const int ranks = transport.ranks(), rank = transport.rank();
  std::string fault;
  // A rank with a fault goes on, because the others wait for it.
  const auto expect = [&](bool right, const char* what, std::size_t length) {
    if (!fault.empty() || (right && errors.first().empty())) return;
    fault = std::string(what) + " of " + std::to_string(length) + " elements " +
            (errors.first().empty() ? "gave wrong values" : "failed (" + errors.first() + ")");
  };

  // MPI libraries send short and long messages in different ways. Long ones have at most 128 KiB, and 4 MiB in all.
  for (const std::size_t length :
       {std::size_t{64}, std::clamp<std::size_t>((std::size_t{1} << 20) / ranks, 64, 1 << 15)}) {
    std::vector<std::uint32_t> sent, exchanged, gathered;
    for (int other = 0; other < ranks; ++other)
      for (std::size_t j = 0; j < length; ++j) {
        sent.push_back(word(rank, other, j));
        exchanged.push_back(word(other, rank, j));
        gathered.push_back(word(other, 0, j));
      }
    const Words send = copy_to_device<Exec>("OneBit::comm::probe", sent);
    const Words received("OneBit::comm::probe_received", sent.size());
    const auto message = [&](int number) {
      return Words(Kokkos::subview(send, std::make_pair(number * length, (number + 1) * length)));
    };
    transport.all_to_all(exec, send, received);
    expect(equals<Exec>(received, exchanged), "an all-to-all", length);
    transport.all_gather(exec, message(0), received);
    expect(equals<Exec>(received, gathered), "an all-gather", length);

    // Rank r has ones in the elements j ≡ r modulo `places`, so sums are exact in any order of addition.
    constexpr int places = 64;
    std::vector<float> ones(length), sums(length);
    for (std::size_t j = 0; j < length; ++j) {
      const int place = static_cast<int>(j % places);
      ones[j] = place == rank % places ? 1.0f : 0.0f;
      sums[j] = static_cast<float>((ranks + places - 1 - place) / places);
    }
    const auto reduced = copy_to_device<Exec>("OneBit::comm::probe", ones);
    const auto scattered = copy_to_device<Exec>("OneBit::comm::probe", ones);
    transport.allreduce(exec, reduced);
    expect(equals<Exec>(reduced, sums), "an allreduce", length);
    std::vector<std::size_t> begins;
    for (int other = 0; other <= ranks; ++other) begins.push_back(length * other / ranks);
    transport.reduce_scatter(exec, scattered, begins);
    transport.all_gather(exec, scattered, begins);
    expect(equals<Exec>(scattered, sums), "a reduce-scatter and all-gather", length);
    // All elements go from their ranks to the last one, and what is gathered from there is as it was.
    std::vector<std::size_t> of_last(begins.size(), 0);
    of_last.back() = length;
    transport.redistribute(exec, scattered, begins, of_last);
    transport.all_gather(exec, scattered, of_last);
    expect(equals<Exec>(scattered, sums), "a redistribution", length);

    if (!transport.overlaps()) continue;
    std::vector<std::uint32_t> nothing(sent.size(), 0);
    const Words in_ranges = copy_to_device<Exec>("OneBit::comm::probe", nothing);
    const std::vector<Range> ranges = {{0, length / 2}, {length / 2, length}};
    const auto transfer = transport.begin_transfer(in_ranges, ranges, &Traffic::all_to_all);
    for (int other = 0; other < ranks; ++other)
      for (std::size_t range = 0; other != rank && range < ranges.size(); ++range)
        transfer->send(exec, other, message(other));
    for (int other = 0; other < ranks; ++other)
      if (other != rank) transfer->receive(exec, other);
    transfer->finish();
    std::fill_n(exchanged.begin() + static_cast<std::ptrdiff_t>(rank * length), length, 0u);
    expect(equals<Exec>(in_ranges, exchanged), "an overlapped exchange", length);
  }

  // All ranks report the fault of the lowest rank that has one.
  const double mine = fault.empty() ? 0 : 1;
  const std::vector<double> all = communicator.gather(&mine, 1);
  const auto at_fault = std::find(all.begin(), all.end(), 1.0);
  if (at_fault == all.end()) return "";
  const int first = static_cast<int>(at_fault - all.begin());
  return communicator.broadcast(fault, first) + " on rank " + std::to_string(first);
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::string fault_of(const Exec&, const Communicator&, Transport<Exec>&, const MpiErrors&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
