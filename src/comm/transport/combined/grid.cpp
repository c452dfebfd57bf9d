#include "comm/transport/combined/grid.hpp"

#include <utility>

#include "base/device/parallel.hpp"
#include "comm/transport/combined/forwarding.hpp"

namespace onebit::comm {
namespace {

/// to ← the transpose of `from`, a matrix of messages.
/// \param from (rows, columns, words) \param to (columns, rows, words)
template <class Exec>
void transpose(const Exec& exec, std::size_t rows, std::size_t columns, const Vector<Exec, std::uint32_t>& from,
               const Vector<Exec, std::uint32_t>& to) {
  const std::size_t words = from.extent(0) / (rows * columns);
  for_each(
      exec, "OneBit::comm::transpose", from.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        const std::size_t word = i % words, message = i / words;
        const std::size_t row = message / columns, column = message % columns;
        to((column * rows + row) * words + word) = from(i);
      });
}

template <class Exec>
class GridTransport final : public ForwardingTransport<Exec> {
public:
  using typename Transport<Exec>::Words;

  GridTransport(TransportKind kind, const Communicator& world, Exchange exchange)
      : ForwardingTransport<Exec>(world, make_transport<Exec>(kind, world, exchange)),
        m_columns(columns_of_grid(world.size())),
        m_rows(world.size() / m_columns),
        m_row_ranks(world, world.rank() / static_cast<int>(m_columns), world.rank()),
        m_column_ranks(world, world.rank() % static_cast<int>(m_columns), world.rank()) {
    // All ranks learn of a fault that only some of them have, so that none waits for them.
    world.collectively([&] { m_row = make_transport<Exec>(kind, m_row_ranks, exchange); });
    world.collectively([&] { m_column = make_transport<Exec>(kind, m_column_ranks, exchange); });
  }

  /// A row moves each message to the column of its receiver, and a column to its row.
  void all_to_all(const Exec& exec, const Words& send, const Words& received) override {
    const Words bundles = this->bundles(send.extent(0));
    transpose(exec, m_rows, m_columns, send, bundles);      // by column of the receiver, then by its row
    m_row->all_to_all(exec, bundles, received);             // by column of the sender, then by row of the receiver
    transpose(exec, m_columns, m_rows, received, bundles);  // by row of the receiver, then by column of the sender
    m_column->all_to_all(exec, bundles, received);          // by row of the sender, then by its column
  }

  /// A column gathers first, so that a message travels far only once: the ranks of a row are neighbours.
  void all_gather(const Exec& exec, const Words& send, const Words& received) override {
    const Words column = Kokkos::subview(received, std::make_pair(std::size_t{0}, send.extent(0) * m_rows));
    const Words bundles = this->bundles(received.extent(0));
    m_column->all_gather(exec, send, column);
    m_row->all_gather(exec, column, bundles);  // by column of the sender, then by its row
    transpose(exec, m_columns, m_rows, bundles, received);
  }

  Traffic traffic() const override {
    Traffic sum = this->m_world->traffic();
    sum += m_row->traffic();
    return sum += m_column->traffic();
  }

private:
  Words bundles(std::size_t words) {
    if (m_bundles.extent(0) < words)
      m_bundles = make_uninitialized<Exec, std::uint32_t>("OneBit::comm::bundles", words);
    return Kokkos::subview(m_bundles, std::make_pair(std::size_t{0}, words));
  }

  std::size_t m_columns, m_rows;
  Communicator m_row_ranks, m_column_ranks;
  std::unique_ptr<Transport<Exec>> m_row, m_column;
  Words m_bundles;  ///< as long as the longest exchange
};

}  // namespace

int columns_of_grid(int ranks) {
  int columns = 1;
  for (int divisor = 2; divisor * divisor <= ranks; ++divisor)
    if (ranks % divisor == 0) columns = divisor;
  return columns;
}

template <class Exec>
std::unique_ptr<Transport<Exec>> make_grid_transport(TransportKind kind, const Communicator& world, Exchange exchange) {
  exchange.grid = false;
  return std::make_unique<GridTransport<Exec>>(kind, world, exchange);
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::unique_ptr<Transport<Exec>> make_grid_transport(TransportKind, const Communicator&, Exchange);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
