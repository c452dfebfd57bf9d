#include "comm/overlap/overlapped_average.hpp"

#include <utility>

#include "base/system/activity.hpp"
#include "base/system/affinity.hpp"

namespace onebit::comm {

template <class Exec>
OverlappedAverage<Exec>::OverlappedAverage(std::shared_ptr<BucketAverage<Exec>> average, std::size_t length,
                                           std::size_t bucket_bytes)
    : m_average(std::move(average)),
      m_length(length),
      m_bucket_length(bucket_length(bucket_bytes)),
      m_final((length + m_bucket_length - 1) / m_bucket_length),
      m_pipeline(*m_average),
      m_early(m_final.size()),
      m_begun(m_final.size()),
      m_averaged(m_final.size()),
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
  m_exposed = 0;
  const std::lock_guard<std::mutex> lock(m_mutex);
  m_final_begin = m_length;
  m_begun = m_averaged = 0;
}

template <class Exec>
void OverlappedAverage<Exec>::final_from(std::size_t b) {
  // Only this thread writes m_final_begin.
  while (m_final_begin > 0) {
    const std::size_t bucket = (m_final_begin - 1) / m_bucket_length, begin = begin_of(bucket);
    if (begin < b) return;
    m_before(begin, m_final_begin);  // gives kernels that read the bucket, so the event comes after them
    m_final[bucket].record(m_exec);
    {
      const std::lock_guard<std::mutex> lock(m_mutex);
      m_final_begin = begin;
      if (begin == 0) m_averaged_early = m_averaged;
    }
    m_changed.notify_all();
  }
}

template <class Exec>
void OverlappedAverage<Exec>::when_final(const std::function<bool()>& work) {
  final_from(0);
  const Activity activity("OneBit::comm::when_final", waits_for_ranks);
  std::unique_lock<std::mutex> lock(m_mutex);
  m_work = &work;
  m_changed.notify_all();
  m_changed.wait(lock, [&] { return m_work == nullptr || m_error; });
  if (m_error) std::rethrow_exception(m_error);
}

template <class Exec>
void OverlappedAverage<Exec>::wait_until(std::size_t e, PhaseTimes& times) {
  final_from(0);
  const Stopwatch watch;
  const Activity activity("OneBit::comm::buckets", waits_for_ranks);
  {
    const std::size_t places = places_for(e);
    std::unique_lock<std::mutex> lock(m_mutex);
    m_changed.wait(lock, [&] { return m_averaged >= places || m_error; });
    if (m_error) std::rethrow_exception(m_error);
  }
  const double waited = watch.seconds();
  m_exposed += waited;
  times.add(Phase::allreduce, waited);
}

template <class Exec>
double OverlappedAverage<Exec>::wait(PhaseTimes& times) {
  wait_until(m_length, times);
  return std::max(0.0, m_thread_times[Phase::allreduce] - m_exposed);
}

template <class Exec>
std::size_t OverlappedAverage<Exec>::places_for(std::size_t e) const {
  const std::size_t first_buckets = (e + m_bucket_length - 1) / m_bucket_length;
  return first_buckets + m_early <= size() ? m_early + first_buckets : size();
}

template <class Exec>
bool OverlappedAverage<Exec>::may_begin() const {
  if (m_begun == size()) return false;
  return m_begun < m_early ? m_final_begin <= begin_of(bucket_at(m_begun)) : m_final_begin == 0;
}

template <class Exec>
void OverlappedAverage<Exec>::run() {
  leave_first_place();    // where the caller computes
  Activity::help();       // for the watchdog, the caller's wait goes on as long as buckets do
  use_device_of(Exec());  // start() may write m_exec now
  std::unique_lock<std::mutex> lock(m_mutex);
  for (;;) {
    // The thread never sleeps while messages are under way: MPI may need its calls to send the rest of them.
    m_changed.wait(lock, [&] { return m_ends || m_work != nullptr || may_begin() || !m_pipeline.empty(); });
    if (m_ends && m_pipeline.empty()) return;
    try {
      if (m_work != nullptr) do_work(lock);
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
void OverlappedAverage<Exec>::do_work(std::unique_lock<std::mutex>& lock) {
  const std::function<bool()>& work = *m_work;
  lock.unlock();
  const bool is_done = work();
  lock.lock();
  if (!is_done) return;
  m_work = nullptr;
  m_changed.notify_all();
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
  // On a GPU, kernels of the backward pass may be left to run before the bucket is final.
  const Event<Exec>& is_final = m_final[bucket];
  while (!m_pipeline.empty() && !is_final.has_happened())
    if (m_pipeline.advance(m_thread_times)) ++averaged;
  is_final.wait();
  const std::size_t first = begin_of(bucket);
  const auto values = Kokkos::subview(m_values, std::make_pair(first, end_of(bucket)));
  if (m_pipeline.begin(values, m_step, first, m_thread_times)) ++averaged;
  return averaged;
}

#define ONEBIT_INSTANTIATE(Exec) template class OverlappedAverage<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
