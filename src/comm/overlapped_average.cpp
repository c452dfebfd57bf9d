#include "comm/overlapped_average.hpp"

#include <utility>

#include "base/activity.hpp"

namespace onebit::comm {

template <class Exec>
OverlappedAverage<Exec>::OverlappedAverage(std::shared_ptr<BucketAverage<Exec>> average, std::size_t length,
                                           std::size_t bucket_bytes)
    : m_average(std::move(average)),
      m_length(length),
      m_bucket_length(bucket_length(bucket_bytes)),
      m_final((length + m_bucket_length - 1) / m_bucket_length),
      m_pipeline(*m_average),
      m_thread([this] { run(); }) {}

template <class Exec>
OverlappedAverage<Exec>::~OverlappedAverage() {
  {
    const std::lock_guard<std::mutex> lock(m_mutex);
    m_ends = true;
  }
  m_changed.notify_all();
  m_thread.join();
}

template <class Exec>
void OverlappedAverage<Exec>::start(const Exec& exec, const Vector<Exec, float>& values, long step,
                                    BeforeBucket before) {
  // The thread is idle and reads none of these.
  m_exec = exec;
  m_values = values;
  m_step = step;
  m_before = std::move(before);
  m_thread_times.clear();
  const std::lock_guard<std::mutex> lock(m_mutex);
  m_final_begin = m_begun_begin = m_averaged_begin = m_length;
}

template <class Exec>
void OverlappedAverage<Exec>::final_from(std::size_t b) {
  // Only this thread writes m_final_begin.
  for (std::size_t end = m_final_begin; end > 0; end = m_final_begin) {
    const std::size_t begin = begin_of(end);
    if (begin < b) return;
    m_before(begin, end);  // gives kernels that read the bucket, so the event comes after them
    m_final[begin / m_bucket_length].record(m_exec);
    {
      const std::lock_guard<std::mutex> lock(m_mutex);
      m_final_begin = begin;
    }
    m_changed.notify_all();
  }
}

template <class Exec>
double OverlappedAverage<Exec>::wait(PhaseTimes& times) {
  const Stopwatch watch;
  final_from(0);
  const Activity activity("OneBit::comm::buckets", waits_for_ranks);
  {
    std::unique_lock<std::mutex> lock(m_mutex);
    m_changed.wait(lock, [&] { return m_averaged_begin == 0 || m_error; });
    if (m_error) std::rethrow_exception(m_error);
  }
  const double exposed = watch.seconds();
  times.add(Phase::allreduce, exposed);
  return std::max(0.0, m_thread_times[Phase::allreduce] - exposed);
}

template <class Exec>
void OverlappedAverage<Exec>::run() {
  Activity::help();  // for the watchdog, `wait` goes on as long as buckets do
  use_device_of(m_exec);
  std::unique_lock<std::mutex> lock(m_mutex);
  for (;;) {
    // The thread never sleeps while messages are under way: MPI may need its calls to send the rest of them.
    m_changed.wait(lock, [&] { return m_ends || m_final_begin < m_begun_begin || !m_pipeline.empty(); });
    if (m_ends && m_pipeline.empty()) return;
    const std::size_t final_begin = m_ends ? m_begun_begin : m_final_begin;
    lock.unlock();
    std::optional<std::size_t> averaged;
    std::exception_ptr error;
    try {
      averaged = take_turn(final_begin);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    m_error = error;
    if (averaged) m_averaged_begin = *averaged;
    if (averaged || error) m_changed.notify_all();
    if (error) return;
  }
}

template <class Exec>
std::optional<std::size_t> OverlappedAverage<Exec>::take_turn(std::size_t final_begin) {
  const Region region("OneBit::comm::bucket");
  if (final_begin < m_begun_begin) {
    const std::size_t end = m_begun_begin, begin = begin_of(end);
    const Event<Exec>& is_final = m_final[begin / m_bucket_length];
    if (m_pipeline.empty() || is_final.has_happened()) {
      is_final.wait();
      m_begun_begin = begin;
      return m_pipeline.begin(Kokkos::subview(m_values, std::make_pair(begin, end)), m_step, begin, m_thread_times);
    }
  }
  return m_pipeline.advance(m_thread_times);
}

#define ONEBIT_INSTANTIATE(Exec) template class OverlappedAverage<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
