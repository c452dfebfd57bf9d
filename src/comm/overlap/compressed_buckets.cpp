#include "comm/overlap/compressed_buckets.hpp"

#include <cmath>
#include <type_traits>
#include <utility>

namespace onebit::comm {
namespace {

/// The same memory, seen by another execution space of the host.
template <class To, class T, class View>
Vector<To, T> seen_by(const View& view) {
  return Vector<To, T>(view.data(), view.extent(0));
}

/// A copy that belongs to another execution space of the host; the same vector where there is none.
template <class To, class From>
Vector<To, float> held_by(const From& vector) {
  if constexpr (std::is_same_v<From, Vector<To, float>>) {
    return vector;
  } else {
    const auto held = make_uninitialized<To, float>("OneBit::comm::residual", vector.extent(0));
    Kokkos::deep_copy(held, vector);
    return held;
  }
}

/// Counts all of a call as `Phase::allreduce`. \param call gets times of its phases, which do not count
template <class Call>
void count_as_allreduce(PhaseTimes& times, const Call& call) {
  const Stopwatch watch;
  PhaseTimes phases;
  call(phases);
  times.add(Phase::allreduce, watch.seconds());
}

template <class Exec, class On>
class BucketsOn final : public CompressedBuckets<Exec> {
public:
  explicit BucketsOn(BucketsOptions<Exec, On> options) : m_options(std::move(options)) {}

  std::size_t size() const override { return m_options.begins.size() - 1; }
  std::size_t bucket_length() const override { return m_options.begins[1]; }
  bool allocated() const override { return !m_averages.empty(); }
  void allocate() override {
    if (allocated()) return;
    for (std::size_t k = 0; k < size(); ++k) {
      m_averages.push_back(m_options.make(k));
      if (m_options.make_decoder) m_decoders.push_back(m_options.make_decoder(k));
    }
  }

  void begin_step(const std::optional<compress::MomentumShares>& momentum, float residual_factor) override {
    m_momentum = momentum;
    m_residual_factor = residual_factor;
  }

  void begin(const Vector<Exec, float>& values, std::size_t first, PhaseTimes& times) override {
    count_as_allreduce(times, [&](PhaseTimes& phases) { begin_bucket(m_instance.get(), at(first), values, phases); });
  }
  void serve(std::size_t first, PhaseTimes& times) override {
    count_as_allreduce(times, [&](PhaseTimes& phases) { m_averages[at(first)]->serve(m_instance.get(), phases); });
  }
  void finish(std::size_t first, PhaseTimes& times) override {
    count_as_allreduce(times, [&](PhaseTimes& phases) { m_averages[at(first)]->finish(m_instance.get(), phases); });
  }

  void average(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times) override {
    const Region region("OneBit::comm::compressed_average");
    On on = m_instance.get();
    if constexpr (std::is_same_v<On, Exec>)
      on = exec;
    else
      onebit::fence(exec, "OneBit::comm::compressed_buckets");  // the buckets are read on another instance
    // The same turns as BucketPipeline's.
    for (std::size_t turn = 0, last = size() - 1; turn <= last + 2; ++turn) {
      if (turn <= last) begin_bucket(on, last - turn, bucket(values, last - turn), times);
      if (turn >= 1 && turn <= last + 1) m_averages[last + 1 - turn]->serve(on, times);
      if (turn >= 2) m_averages[last + 2 - turn]->finish(on, times);
    }
  }

  void roll_back() override {
    for (const auto& average : m_averages) average->roll_back(m_instance.get());
    onebit::fence(m_instance.get(), "OneBit::comm::roll_back");
  }

  std::vector<typename CompressedAverage<Exec>::Piece> last() const override {
    std::vector<typename CompressedAverage<Exec>::Piece> pieces;
    for (std::size_t k = 0; k < size(); ++k) {
      const std::size_t begin = m_options.begins[k];
      if constexpr (std::is_same_v<On, Exec>) {
        for (auto& piece : m_averages[k]->last())
          pieces.push_back({{begin + piece.elements.begin, begin + piece.elements.end}, piece.decoder});
      } else {
        const auto words = seen_by<Exec, const std::uint32_t>(m_averages[k]->last_messages());
        pieces.push_back({{begin, m_options.begins[k + 1]}, m_decoders[k]->decoder(words)});
      }
    }
    return pieces;
  }

  void decompress(const Exec& exec, const Vector<Exec, float>& m) const override {
    onebit::fence(exec, "OneBit::comm::decompressed_buckets");
    for (std::size_t k = 0; k < size(); ++k)
      m_averages[k]->decompress_last(m_instance.get(), seen_by<On, float>(bucket(m, k)));
    onebit::fence(m_instance.get(), "OneBit::comm::decompressed_buckets");
  }

  typename CompressedBuckets<Exec>::Residuals residuals(std::size_t k) const override {
    const CompressedAverage<On>& average = *m_averages[k];
    auto extents = average.residual_extents();
    for (std::size_t* const place : {&extents.begin, &extents.end, &extents.server_begin, &extents.server_end})
      *place += m_options.begins[k];
    return {held_by<Exec>(average.worker_residual(m_instance.get())),
            held_by<Exec>(average.server_residual(m_instance.get())),
            {extents.row, extents.rows, extents.begin, extents.end, extents.server_begin, extents.server_end}};
  }
  void set_residuals(std::size_t k, const typename CompressedBuckets<Exec>::Residuals& residuals) override {
    m_averages[k]->set_residuals(m_instance.get(), seen_by<On, const float>(residuals.worker),
                                 seen_by<On, const float>(residuals.server));
  }
  double worker_residual_l2() const override {
    return norm([&](const CompressedAverage<On>& average) { return average.worker_residual_l2(m_instance.get()); });
  }
  double server_residual_l2() const override {
    return norm([&](const CompressedAverage<On>& average) { return average.server_residual_l2(m_instance.get()); });
  }

  Traffic traffic() const override { return m_options.transport ? m_options.transport->traffic() : Traffic{}; }
  Traffic traffic_within_host() const override {
    return m_options.transport ? m_options.transport->traffic_within_host() : Traffic{};
  }

private:
  /// The bucket whose first element is `first`.
  std::size_t at(std::size_t first) const { return first / bucket_length(); }
  Vector<Exec, float> bucket(const Vector<Exec, float>& values, std::size_t k) const {
    return Kokkos::subview(values, std::make_pair(m_options.begins[k], m_options.begins[k + 1]));
  }
  void begin_bucket(const On& on, std::size_t k, const Vector<Exec, float>& values, PhaseTimes& times) {
    if (m_options.undoable) m_averages[k]->save_residuals(on);
    m_averages[k]->begin(on, {seen_by<On, float>(values), m_momentum, m_residual_factor, {}}, times);
  }
  /// √(Σ_k norm(k)²), and of one bucket its norm as it is.
  template <class Norm>
  double norm(const Norm& of) const {
    if (size() == 1) return of(*m_averages.front());
    double squares = 0;
    for (const auto& average : m_averages) squares += std::pow(of(*average), 2);
    return std::sqrt(squares);
  }

  BucketsOptions<Exec, On> m_options;
  InstanceOfItsOwn<On> m_instance;
  std::vector<std::unique_ptr<CompressedAverage<On>>> m_averages;             ///< (buckets)
  std::vector<std::unique_ptr<const compress::Compressor<Exec>>> m_decoders;  ///< (buckets)

  // The step under way.
  std::optional<compress::MomentumShares> m_momentum;
  float m_residual_factor = 1;
};

}  // namespace

template <class Exec, class On>
std::unique_ptr<CompressedBuckets<Exec>> make_buckets(BucketsOptions<Exec, On> options) {
  return std::make_unique<BucketsOn<Exec, On>>(std::move(options));
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::unique_ptr<CompressedBuckets<Exec>> make_buckets(BucketsOptions<Exec, Exec>);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)
#ifdef KOKKOS_ENABLE_OPENMP
template std::unique_ptr<CompressedBuckets<Kokkos::OpenMP>> make_buckets(
    BucketsOptions<Kokkos::OpenMP, Kokkos::Serial>);
#endif

}  // namespace onebit::comm
