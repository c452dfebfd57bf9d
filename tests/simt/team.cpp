#include "simt/team.hpp"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "simt/fiber.hpp"

namespace onebit::simt {
namespace {

constexpr const char* names[] = {"runs", "barrier", "warp", "shuffle", "across", "down", "vote", "tensor", "bits"};

struct Thread {
  Fiber fiber;
  Place place;
  Meeting meeting = Meeting::none;
  Operand operand{};  ///< brought to the meeting, and then taken from it
};

/// The team that runs. One thread of the host at a time runs one (runtime.cpp).
struct Team {
  std::vector<std::unique_ptr<Thread>> threads;
  int count = 0;
};
Team team;
thread_local Thread* running = nullptr;
thread_local int kernels = 0;

using Brought = std::array<Operand, warp_size>;
using Taken = std::array<Operand*, warp_size>;

template <class T>
T part(const Operand& operand, int i) {
  T value;
  std::memcpy(&value, operand.bytes + i * sizeof value, sizeof value);
  return value;
}

/// The fragments of a (16, 8 words), b (8 words, 8) and c (16, 8) that lanes hold (PTX ISA, m16n8k8 and m16n8k256).
/// \param add c + the product of a word of a and one of b
template <class Sum, class Word, class Add>
void multiply(const Brought& brought, const Taken& taken, const Add& add) {
  Word a[16][8], b[8][8];  // b: (column, word)
  for (int lane = 0; lane < warp_size; ++lane) {
    const int row = lane / 4, word = lane % 4;
    const Operand& of = brought[lane];
    a[row][word] = part<Word>(of, 4);
    a[row + 8][word] = part<Word>(of, 5);
    a[row][word + 4] = part<Word>(of, 6);
    a[row + 8][word + 4] = part<Word>(of, 7);
    b[row][word] = part<Word>(of, 8);
    b[row][word + 4] = part<Word>(of, 9);
  }
  for (int lane = 0; lane < warp_size; ++lane)
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
      Sum sum = part<Sum>(brought[lane], e);
      for (int word = 0; word < 8; ++word) sum = add(sum, a[row][word], b[column][word]);
      std::memcpy(taken[lane]->bytes + e * sizeof sum, &sum, sizeof sum);
    }
}

/// The lane whose operand a lane takes from a shuffle.
int source(Meeting meeting, int lane, int number, int vector) {
  const int first = lane / vector * vector, own = lane - first;
  if (meeting == Meeting::shuffle_across) {
    if (number < 0 || (own ^ number) >= vector) fail("lane %d of %d shuffles across %d", own, vector, number);
    return first + (own ^ number);
  }
  if (meeting == Meeting::shuffle_down) return own + number < vector ? lane + number : lane;
  if (number < 0 || number >= vector) fail("lane %d of %d shuffles from lane %d", own, vector, number);
  return first + number;
}

void exchange_in_warp(Meeting meeting, int vector, const Brought& brought, const Taken& taken) {
  switch (meeting) {
    case Meeting::shuffle:
    case Meeting::shuffle_across:
    case Meeting::shuffle_down:
      for (int lane = 0; lane < warp_size; ++lane)
        *taken[lane] = brought[source(meeting, lane, brought[lane].number, vector)];
      break;
    case Meeting::vote: {
      std::uint32_t votes = 0;
      for (int lane = 0; lane < warp_size; ++lane) votes |= std::uint32_t{brought[lane].number != 0} << lane;
      for (Operand* const operand : taken) std::memcpy(operand->bytes, &votes, sizeof votes);
      break;
    }
    case Meeting::tf32_product:
      multiply<float, float>(brought, taken, [](float sum, float a, float b) { return sum + a * b; });
      break;
    case Meeting::bit_product:
      multiply<int, std::uint32_t>(
          brought, taken, [](int sum, std::uint32_t a, std::uint32_t b) { return sum + __builtin_popcount(a & b); });
      break;
    default:
      break;
  }
}

/// Runs the lanes of a warp that wait for nothing, each to its next meeting or to its end, in a random order.
void run_lanes(int first, int count) {
  std::array<int, warp_size> order;
  int ready = 0;
  for (int i = first; i < first + count; ++i)
    if (!team.threads[i]->fiber.has_ended() && team.threads[i]->meeting == Meeting::none) order[ready++] = i;
  std::shuffle(order.begin(), order.begin() + ready, random());
  for (int i = 0; i < ready; ++i) {
    running = team.threads[order[i]].get();
    running->fiber.enter();
  }
  running = nullptr;
}

/// Lets a warp go on whose threads have all come to one meeting of the warp.
bool meet_in_warp(int first, int count) {
  const Meeting meeting = team.threads[first]->meeting;
  if (meeting == Meeting::none || meeting == Meeting::barrier || count < warp_size) return false;
  for (int i = first; i < first + count; ++i)
    if (team.threads[i]->fiber.has_ended() || team.threads[i]->meeting != meeting) return false;
  Brought brought;
  Taken taken;
  for (int lane = 0; lane < warp_size; ++lane) {
    Thread& thread = *team.threads[first + lane];
    brought[lane] = thread.operand;
    taken[lane] = &thread.operand;
    thread.meeting = Meeting::none;
  }
  exchange_in_warp(meeting, team.threads[first]->place.vector, brought, taken);
  return true;
}

/// Lets the team go on if all of its threads have come to a barrier.
bool meet_at_barrier() {
  for (int i = 0; i < team.count; ++i)
    if (team.threads[i]->fiber.has_ended() || team.threads[i]->meeting != Meeting::barrier) return false;
  for (int i = 0; i < team.count; ++i) team.threads[i]->meeting = Meeting::none;
  return true;
}

bool has_ended(int first, int count) {
  for (int i = first; i < first + count; ++i)
    if (!team.threads[i]->fiber.has_ended()) return false;
  return true;
}

Thread& calling_thread(Meeting meeting) {
  if (!running) fail("a thread of a range calls '%s', which takes a team", names[int(meeting)]);
  return *running;
}

[[noreturn]] void print_map() {
  std::fprintf(stderr, "simulated device: threads of a team wait at different places, a warp a line:\n");
  for (int i = 0; i < team.count; ++i)
    std::fprintf(stderr, "%s%c", team.threads[i]->fiber.has_ended() ? "ended" : names[int(team.threads[i]->meeting)],
                 i % warp_size == warp_size - 1 || i + 1 == team.count ? '\n' : ' ');
  std::abort();
}

/// Runs warps in random order, each as far as it comes in a random number of meetings.
void run_warps() {
  std::vector<int> warps;
  for (int first = 0; first < team.count; first += warp_size) warps.push_back(first);
  constexpr int paces[] = {1, 5, 100};
  while (!warps.empty()) {
    std::shuffle(warps.begin(), warps.end(), random());
    bool moved = false;
    for (const int first : warps) {
      const int count = std::min(warp_size, team.count - first);
      for (int meetings = paces[random()() % 3]; meetings > 0; --meetings) {
        run_lanes(first, count);
        if (!meet_in_warp(first, count)) break;
        moved = true;
      }
    }
    const auto ended = [](int first) { return has_ended(first, std::min(warp_size, team.count - first)); };
    const std::size_t before = warps.size();
    warps.erase(std::remove_if(warps.begin(), warps.end(), ended), warps.end());
    if (!moved && warps.size() == before && !meet_at_barrier()) print_map();
  }
}

}  // namespace

void fail(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "simulated device: ");
  std::vfprintf(stderr, format, arguments);
  std::fprintf(stderr, "\n");
  va_end(arguments);
  std::abort();
}

std::mt19937& random() {
  static std::mt19937 numbers(std::getenv("ONEBIT_SIMT_SEED") ? std::atoi(std::getenv("ONEBIT_SIMT_SEED")) : 1);
  return numbers;
}

bool in_kernel() { return kernels > 0; }
bool in_team() { return running != nullptr; }
KernelScope::KernelScope() { ++kernels; }
KernelScope::~KernelScope() { --kernels; }

const Place& place() {
  static const Place alone;
  return running ? running->place : alone;
}

Operand& operand(Meeting meeting) { return calling_thread(meeting).operand; }

void meet(Meeting meeting) {
  Thread& own = calling_thread(meeting);
  own.meeting = meeting;
  own.fiber.leave();
}

void tf32_product(float* c, const float (&a)[4], float b0, float b1) {
  unsigned char* const bytes = operand(Meeting::tf32_product).bytes;
  std::memcpy(bytes, c, 4 * sizeof *c);
  std::memcpy(bytes + 16, a, sizeof a);
  std::memcpy(bytes + 32, &b0, sizeof b0);
  std::memcpy(bytes + 36, &b1, sizeof b1);
  meet(Meeting::tf32_product);
  std::memcpy(c, bytes, 4 * sizeof *c);
}

void bit_product(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  unsigned char* const bytes = operand(Meeting::bit_product).bytes;
  std::memcpy(bytes, c, sizeof c);
  std::memcpy(bytes + 16, a, sizeof a);
  std::memcpy(bytes + 32, b, sizeof b);
  meet(Meeting::bit_product);
  std::memcpy(c, bytes, sizeof c);
}

void run_team(int size, int vector, const std::function<void()>& body) {
  team.count = size * vector;
  while (static_cast<int>(team.threads.size()) < team.count) team.threads.push_back(std::make_unique<Thread>());
  for (int i = 0; i < team.count; ++i) {
    Thread& thread = *team.threads[i];
    thread.place = {i % vector, vector, i / vector, size};
    thread.meeting = Meeting::none;
    thread.fiber.begin(body);
  }
  run_warps();
}

}  // namespace onebit::simt
