#include "comm/dense_average.hpp"

#include <cmath>
#include <stdexcept>

#include "base/device/parallel.hpp"
#include "base/sixteen_bits.hpp"
#include "compress/layout.hpp"

namespace onebit::comm {
namespace {

/// numbers(i) ← R(values(i)), with zeros as padding.
template <class Type, class Exec>
void round_all(const Exec& exec, const Vector<Exec, float>& values, const Vector<Exec, std::uint16_t>& numbers) {
  const std::size_t length = values.extent(0);
  for_each(
      exec, "OneBit::comm::round", length, KOKKOS_LAMBDA(std::size_t i) { numbers(i) = Type::nearest(values(i)); });
  for_each(
      exec, "OneBit::comm::pad", numbers.extent(0) - length, KOKKOS_LAMBDA(std::size_t i) { numbers(length + i) = 0; });
}

/// mean(j) ← R((1/n) Σ of the j-th elements of n chunks), added in float in their order.
template <class Type, class Exec>
void average_rounded(const Exec& exec, int ranks, const Vector<Exec, std::uint16_t>& chunks,
                     const Vector<Exec, std::uint16_t>& mean) {
  const std::size_t length = mean.extent(0);
  for_each(
      exec, "OneBit::comm::average_rounded", length, KOKKOS_LAMBDA(std::size_t j) {
        float sum = 0;
        for (int rank = 0; rank < ranks; ++rank) sum += Type::widened(chunks(rank * length + j));
        mean(j) = Type::nearest(sum / static_cast<float>(ranks));
      });
}

template <class Type, class Exec>
void widen(const Exec& exec, const Vector<Exec, std::uint16_t>& numbers, const Vector<Exec, float>& values) {
  for_each(
      exec, "OneBit::comm::widen", values.extent(0),
      KOKKOS_LAMBDA(std::size_t i) { values(i) = Type::widened(numbers(i)); });
}

/// Elements of a chunk with its padding.
std::size_t chunk_length(std::size_t length, int ranks) {
  return compress::words_of_chunk(length, ranks) * compress::bits_per_word;
}

/// The first `length` numbers of a buffer that grows.
template <class Exec>
Vector<Exec, std::uint16_t> reserve(Vector<Exec, std::uint16_t>& numbers, std::size_t length) {
  if (numbers.extent(0) < length) numbers = make_uninitialized<Exec, std::uint16_t>("OneBit::comm::rounded", length);
  return Kokkos::subview(numbers, std::make_pair(std::size_t{0}, length));
}

/// The same memory as words, which a transport exchanges.
template <class Exec>
Vector<Exec, std::uint32_t> as_words(const Vector<Exec, std::uint16_t>& numbers) {
  return Vector<Exec, std::uint32_t>(reinterpret_cast<std::uint32_t*>(numbers.data()), numbers.extent(0) / 2);
}

template <class T, class Exec>
Vector<Exec, T> part(const Vector<Exec, T>& values, std::size_t begin, std::size_t end) {
  return Kokkos::subview(values, std::make_pair(begin, end));
}

}  // namespace

float infinite_from(DenseType type) {
  switch (type) {
    case DenseType::fp32:
      return INFINITY;
    case DenseType::bf16:
      return 0x1.FFp127f;
    case DenseType::fp16:
      return 65520;
  }
  throw std::logic_error("a type without numbers");
}

template <class Exec>
void divide(const Exec& exec, int ranks, const Vector<Exec, float>& values) {
  const float n = static_cast<float>(ranks);
  for_each(
      exec, "OneBit::comm::divide", values.extent(0), KOKKOS_LAMBDA(std::size_t i) { values(i) /= n; });
  fence(exec, "OneBit::comm::divide");
}

template <class Exec>
void average(const Exec& exec, Transport<Exec>& transport, const Vector<Exec, float>& values, PhaseTimes& times) {
  if (transport.ranks() == 1) return;
  const Stopwatch watch;
  transport.allreduce(exec, values);
  divide(exec, transport.ranks(), values);
  times.add(Phase::allreduce, watch.seconds());
}

template <class Exec>
void DenseAverage<Exec>::operator()(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times) {
  if (m_type == DenseType::fp32) return average(exec, m_transport, values, times);
  const Region region("OneBit::comm::average_in_16_bits");
  const Stopwatch watch;
  if (m_type == DenseType::bf16)
    average_in_16_bits<Bfloat16>(exec, values);
  else
    average_in_16_bits<Float16>(exec, values);
  times.add(Phase::allreduce, watch.seconds());
}

template <class Exec>
template <class Type>
void DenseAverage<Exec>::average_in_16_bits(const Exec& exec, const Vector<Exec, float>& values) {
  const Hosts<Exec>* const hosts = m_transport.hosts();
  if (hosts == nullptr) {
    exchange<Type>(exec, m_transport, values);
    widen<Type>(exec, m_sent, values);
  } else {
    const int local = hosts->local.ranks(), own = hosts->local.rank(), across = hosts->across.ranks();
    const std::vector<std::size_t> begins = compress::equal_chunks(values.extent(0), local);
    const Vector<Exec, float> shard = part(values, begins[own], begins[own + 1]);
    hosts->local.reduce_scatter(exec, values, begins);
    divide(exec, local, shard);
    const std::size_t longest = across * chunk_length(begins[1], across);  // shard 0 is the longest
    const Numbers sent = reserve<Exec>(m_sent, longest), shards = reserve<Exec>(m_shards, local * longest);
    exchange<Type>(exec, hosts->across, shard);
    hosts->local.all_gather(exec, as_words<Exec>(sent), as_words<Exec>(shards));
    for (int number = 0; number < local; ++number)
      widen<Type>(exec, part(shards, number * longest, (number + 1) * longest),
                  part(values, begins[number], begins[number + 1]));
  }
  fence(exec, "OneBit::comm::widened");
}

template <class Exec>
template <class Type>
void DenseAverage<Exec>::exchange(const Exec& exec, Transport<Exec>& across, const Vector<Exec, float>& values) {
  const int ranks = across.ranks();
  const std::size_t chunk = chunk_length(values.extent(0), ranks);
  if (chunk == 0) return;
  const bool alone = ranks == 1;
  const Numbers sent = reserve<Exec>(m_sent, ranks * chunk), mean = reserve<Exec>(m_average, chunk);
  const Numbers received = alone ? sent : reserve<Exec>(m_received, ranks * chunk);
  round_all<Type>(exec, values, sent);
  if (!alone) across.all_to_all(exec, as_words<Exec>(sent), as_words<Exec>(received));
  average_rounded<Type>(exec, ranks, received, mean);
  if (alone)
    Kokkos::deep_copy(exec, sent, mean);
  else
    across.all_gather(exec, as_words<Exec>(mean), as_words<Exec>(sent));
}

#define ONEBIT_INSTANTIATE(Exec)                                                                 \
  template void divide(const Exec&, int, const Vector<Exec, float>&);                            \
  template void average(const Exec&, Transport<Exec>&, const Vector<Exec, float>&, PhaseTimes&); \
  template class DenseAverage<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
