#include "comm/overlap/overlapped_average.hpp"

#include <algorithm>
#include <utility>

#include "base/system/activity.hpp"
#include "base/system/affinity.hpp"

namespace onebit::comm {

template <class Exec>
OverlappedAverage<Exec>::OverlappedAverage() : m_thread([this] { run(); }) {}

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
void OverlappedAverage<Exec>::start(const Exec& exec, BucketAverage<Exec>& average, const Vector<Exec, float>& values,
                                    BeforeBucket before) {
  m_exec = exec;
  m_values = values;
  m_before = std::move(before);
  m_bucket_length = average.bucket_length();
  const std::size_t buckets = (values.extent(0) + m_bucket_length - 1) / m_bucket_length;
  if (m_complete.size() < buckets) m_complete = std::vector<Event<Exec>>(buckets);
  m_thread_times.clear();
  m_pipeline = BucketPipeline<Exec>(average);
  const std::lock_guard<std::mutex> lock(m_mutex);
  m_buckets = buckets;
  m_ready_from = values.extent(0);
  m_begun = m_averaged = 0;
}

template <class Exec>
void OverlappedAverage<Exec>::ready_from(std::size_t b) {
  // Only this thread writes m_ready_from.
  while (m_ready_from > 0) {
    const std::size_t bucket = (m_ready_from - 1) / m_bucket_length, begin = begin_of(bucket);
    if (begin < b) return;
    m_before(begin, m_ready_from);  // gives kernels that read the bucket, so the event comes after them
    m_complete[bucket].record(m_exec);
    {
      const std::lock_guard<std::mutex> lock(m_mutex);
      m_ready_from = begin;
    }
    m_changed.notify_all();
  }
}

template <class Exec>
double OverlappedAverage<Exec>::finish(PhaseTimes& times) {
  ready_from(0);
  const Stopwatch watch;
  const Activity activity("OneBit::comm::buckets", waits_for_ranks);
  {
    std::unique_lock<std::mutex> lock(m_mutex);
    m_changed.wait(lock, [&] { return m_averaged == m_buckets || m_error; });
    if (m_error) std::rethrow_exception(m_error);
  }
  const double waited = watch.seconds();
  times.add(Phase::allreduce, waited);
  return std::max(0.0, m_thread_times[Phase::allreduce] - waited);
}

template <class Exec>
void OverlappedAverage<Exec>::run() {
  leave_first_place();    // where the caller computes
  Activity::help();       // for the watchdog, the caller's wait goes on as long as buckets do
  use_device_of(Exec());  // start() may write m_exec now
  std::unique_lock<std::mutex> lock(m_mutex);
  for (;;) {
    // The thread never sleeps while messages are under way: MPI may need its calls to send the rest of them.
    m_changed.wait(lock, [&] { return m_ends || may_begin() || m_averaged < m_begun; });
    if (m_ends && m_averaged == m_begun) return;
    try {
      take_turn(lock);
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      m_error = std::current_exception();
      m_changed.notify_all();
      return;
    }
  }
}

template <class Exec>
void OverlappedAverage<Exec>::take_turn(std::unique_lock<std::mutex>& lock) {
  const bool begins = !m_ends && may_begin();
  const std::size_t place = m_begun;
  if (begins) ++m_begun;
  lock.unlock();
  const std::size_t averaged = begins ? begin(bucket_at(place)) : m_pipeline.advance(m_thread_times) ? 1 : 0;
  lock.lock();
  m_averaged += averaged;
  if (averaged > 0) m_changed.notify_all();
}

template <class Exec>
std::size_t OverlappedAverage<Exec>::begin(std::size_t bucket) {
  const Region region("OneBit::comm::bucket");
  std::size_t averaged = 0;
  // On a GPU, kernels of the backward pass may be left to run before the bucket is complete.
  const Event<Exec>& is_complete = m_complete[bucket];
  while (!m_pipeline.empty() && !is_complete.has_happened())
    if (m_pipeline.advance(m_thread_times)) ++averaged;
  is_complete.wait();
  const std::size_t first = begin_of(bucket), end = std::min(first + m_bucket_length, m_values.extent(0));
  if (m_pipeline.begin(Kokkos::subview(m_values, std::make_pair(first, end)), first, m_thread_times)) ++averaged;
  return averaged;
}

#define ONEBIT_INSTANTIATE(Exec) template class OverlappedAverage<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
