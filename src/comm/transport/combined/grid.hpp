#pragma once
/// \file grid.hpp
/// A transport for many ranks, which stand on a grid. A message goes along a row and along a column, in one bundle with
/// all others on its way (Kalé, Kumar and Varadarajan, IPDPS 2003, "2-D mesh"). Among n ranks, a rank sends about
/// 2√n bundles instead of n messages. In return an all-to-all sends most bytes twice.

#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// The grid of n ranks has as many columns as the greatest divisor of n that is at most √n, so one if n is prime. Rank
/// i stands in row ⌊i / columns⌋, so that the ranks of a row are neighbours.
int columns_of_grid(int ranks);

/// A transport whose exchanges of words go along rows and columns, by MPI's collectives. It moves the same words as any
/// other. Floats go between all ranks. Collective over `world`. \throws InputError as make_transport
template <class Exec>
std::unique_ptr<Transport<Exec>> make_grid_transport(TransportKind kind, const Communicator& world, Exchange exchange);

}  // namespace onebit::comm
