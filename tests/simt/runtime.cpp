#include "simt/runtime.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "simt/faults.hpp"
#include "simt/team.hpp"

namespace onebit::simt {

/// Work in the order of the stream. A piece has a number, so that an event can name the work before it.
class StreamWork {
public:
  std::deque<std::function<void()>> waiting;
  std::uint64_t done = 0, total = 0;  ///< pieces
  bool runs = false;                  ///< a piece of it
};

/// What a stream had got when the event was recorded.
class EventPlace {
public:
  std::shared_ptr<StreamWork> stream;
  std::uint64_t total = 0;
};

namespace {

/// Everything here is used by one thread of the host at a time; a kernel's work may come back here.
std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

std::vector<std::shared_ptr<StreamWork>>& streams() {
  static std::vector<std::shared_ptr<StreamWork>> all = {std::make_shared<StreamWork>()};  // the default stream first
  return all;
}

std::shared_ptr<StreamWork> shared(StreamWork* stream) {
  for (const auto& one : streams())
    if (one.get() == stream || !stream) return one;
  fail("a stream is used that was not created");
}

void run_one(StreamWork& stream) {
  if (stream.runs || stream.waiting.empty()) return;
  stream.runs = true;
  const std::function<void()> work = std::move(stream.waiting.front());
  stream.waiting.pop_front();
  work();
  ++stream.done;
  stream.runs = false;
}

void run_until(StreamWork& stream, std::uint64_t total) {
  while (stream.done < total) {
    if (stream.runs) fail("a stream waits for work behind its own");
    run_one(stream);
  }
}

/// Some work of other streams, because nobody knows how far they are.
void run_some() {
  const auto all = streams();
  for (const auto& one : all)
    for (std::uint32_t pieces = random()() % 4; pieces > 0; --pieces) run_one(*one);
}

simtError_t last_error = simtSuccess;

constexpr std::size_t guard = 256, alignment = 256;
constexpr unsigned char guard_byte = 0x7f;
constexpr std::uint32_t poison = 0x7fc0dead;  // a NaN
std::map<char*, std::size_t>& allocations() {
  static std::map<char*, std::size_t> all;
  return all;
}

void check_guard(const char* memory, std::size_t bytes) {
  for (std::size_t i = 0; i < guard; ++i)
    if (memory[bytes + i] != guard_byte || *(memory - 1 - i) != guard_byte)
      fail("a kernel wrote beside an allocation of %zu bytes", bytes);
}

}  // namespace

void set_last_error(simtError_t error) { last_error = error; }

void enqueue(StreamWork* stream, std::function<void()> work) {
  const Lock lock(mutex);
  StreamWork& to = *shared(stream);
  to.waiting.push_back(std::move(work));
  ++to.total;
}

void finish(StreamWork* stream) {
  const Lock lock(mutex);
  const auto own = shared(stream);
  if (random()() % 2 == 0) run_some();
  run_until(*own, own->total);
}

void finish_all() {
  const Lock lock(mutex);
  auto all = streams();
  std::shuffle(all.begin(), all.end(), random());
  for (const auto& one : all) run_until(*one, one->total);
}

void* allocate(std::size_t bytes) {
  const Lock lock(mutex);
  const std::size_t all = (bytes + 2 * guard + alignment - 1) / alignment * alignment;
  char* const memory = static_cast<char*>(std::aligned_alloc(alignment, all));
  if (!memory) return nullptr;
  std::memset(memory, guard_byte, all);
  for (std::size_t i = 0; i + sizeof poison <= bytes; i += sizeof poison)
    std::memcpy(memory + guard + i, &poison, sizeof poison);
  allocations()[memory + guard] = bytes;
  return memory + guard;
}

void release(void* pointer) {
  finish_all();
  const Lock lock(mutex);
  char* const memory = static_cast<char*>(pointer);
  check_guard(memory, allocations().at(memory));
  allocations().erase(memory);
  std::free(memory - guard);
}

void check_guards() {
  const Lock lock(mutex);
  for (const auto& [memory, bytes] : allocations()) check_guard(memory, bytes);
}

}  // namespace onebit::simt

using onebit::simt::mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

const char* simtGetErrorString(simtError_t error) {
  return error == simtSuccess ? "no error" : error == simtErrorNotReady ? "not ready" : "invalid configuration";
}
simtError_t simtPeekAtLastError() { return onebit::simt::last_error; }
simtError_t simtGetDeviceCount(int* count) {
  *count = 1;
  return simtSuccess;
}
simtError_t simtGetDevice(int* device) {
  *device = 0;
  return simtSuccess;
}
simtError_t simtSetDevice(int) { return simtSuccess; }
simtError_t simtGetDeviceProperties(simtDeviceProp* properties, int) {
  *properties = {};
  return simtSuccess;
}
simtError_t simtMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 32;
  return simtSuccess;
}

simtError_t simtStreamCreateWithFlags(simtStream_t* stream, unsigned) {
  const Lock lock(mutex);
  onebit::simt::streams().push_back(std::make_shared<onebit::simt::StreamWork>());
  *stream = onebit::simt::streams().back().get();
  return simtSuccess;
}
simtError_t simtStreamDestroy(simtStream_t stream) {
  const Lock lock(mutex);
  onebit::simt::finish(stream);
  auto& all = onebit::simt::streams();
  all.erase(std::find(all.begin(), all.end(), onebit::simt::shared(stream)));
  return simtSuccess;
}
simtError_t simtStreamQuery(simtStream_t stream) {
  const Lock lock(mutex);
  const auto own = onebit::simt::shared(stream);
  onebit::simt::run_some();
  return own->done == own->total ? simtSuccess : simtErrorNotReady;
}
simtError_t simtStreamWaitEvent(simtStream_t stream, simtEvent_t event, unsigned) {
  const Lock lock(mutex);
  if (!event->stream) return simtSuccess;
  onebit::simt::enqueue(stream, [place = *event] { onebit::simt::run_until(*place.stream, place.total); });
  return simtSuccess;
}

simtError_t simtEventCreateWithFlags(simtEvent_t* event, unsigned) {
  *event = new onebit::simt::EventPlace;
  return simtSuccess;
}
simtError_t simtEventDestroy(simtEvent_t event) {
  delete event;
  return simtSuccess;
}
simtError_t simtEventRecord(simtEvent_t event, simtStream_t stream) {
  const Lock lock(mutex);
  event->stream = onebit::simt::shared(stream);
  event->total = event->stream->total;
  return simtSuccess;
}
simtError_t simtEventQuery(simtEvent_t event) {
  const Lock lock(mutex);
  if (!event->stream) return simtSuccess;
  onebit::simt::run_some();
  return event->stream->done >= event->total ? simtSuccess : simtErrorNotReady;
}
simtError_t simtEventSynchronize(simtEvent_t event) {
  const Lock lock(mutex);
  if (event->stream) onebit::simt::run_until(*event->stream, event->total);
  return simtSuccess;
}
