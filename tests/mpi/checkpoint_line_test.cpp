/// \file checkpoint_line_test.cpp
/// No run removes or overwrites a checkpoint that another run finished: whole runs that share an output directory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "../support.hpp"
#include "base/error.hpp"
#include "io/sealed/seal.hpp"
#include "scratch.hpp"
#include "train/checkpoint/checkpoint.hpp"
#include "train/trainer.hpp"

namespace onebit {
namespace {

namespace fs = std::filesystem;
using test::Scratch;
/// Which backend trains does not matter to the files.
using Exec = Kokkos::DefaultHostExecutionSpace;
/// Paths of files in the output directory, with what they hold.
using Files = std::map<std::string, std::string>;

std::string name_of(int step) {
  char name[32];
  std::snprintf(name, sizeof name, "step_%08d.h5", step);
  return name;
}

/// Runs that share the checkpoints of one output directory.
class CheckpointLine : public ::testing::Test {
protected:
  /// Trains, and returns what rank 0 printed, on every rank.
  std::string train(const std::vector<std::string>& keys) {
    std::vector<std::string> all = {"run.output=" + output};
    all.insert(all.end(), keys.begin(), keys.end());
    const config::Input input = config::parse(
        "workload: {kind: quadratic}\n"
        "quadratic: {dimension: 40}\n"
        "train: {steps: 40, batch: 4, validate_every: 0}\n"
        "optimizer: {algorithm: adam, lr: 0.01}\n"
        "checkpoint: {every: 10, keep: 4}\n"
        "run: {progress_interval_s: 0, check_replicas_every: 0}\n",
        "checkpoint_line_test", all);
    ::testing::internal::CaptureStdout();
    message.clear();
    try {
      train::train(Exec(), input, world);
    } catch (const Error& error) {
      message = error.what();
    }
    std::fflush(stdout);
    const std::string said = ::testing::internal::GetCapturedStdout();
    return world.broadcast(said, 0);
  }

  /// What `checkpoint.directory` holds now.
  Files files() const {
    world.barrier();
    Files found;
    if (fs::exists(directory))
      for (const auto& entry : fs::recursive_directory_iterator(directory))
        if (entry.is_regular_file()) {
          std::ostringstream text;
          text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
          found[fs::relative(entry.path(), directory).string()] = text.str();
        }
    world.barrier();
    return found;
  }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& [name, bytes] : files()) found.insert(name);
    return found;
  }
  std::string path(const std::string& name) const { return (directory / name).string(); }

  void write(const std::string& name, const std::string& bytes) const {
    world.barrier();
    if (world.rank() == 0) {
      fs::create_directories((directory / name).parent_path());
      std::ofstream(directory / name, std::ios::binary | std::ios::trunc) << bytes;
    }
    world.barrier();
  }
  /// Makes a checkpoint one of an earlier version, which did not write of which line it was.
  void make_older(const std::string& name) const {
    world.barrier();
    if (world.rank() == 0) write_seal(path(name), checksum_rest(path(name), {}));
    world.barrier();
  }

  /// Every one of `before` is there with the same bytes.
  static void expect_kept(const Files& before, const Files& after) {
    for (const auto& [name, bytes] : before) {
      const auto found = after.find(name);
      if (found == after.end())
        ADD_FAILURE() << name << " is gone";
      else
        EXPECT_TRUE(found->second == bytes) << name << " has other bytes";
    }
  }

  const Communicator world;
  const Scratch scratch{fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()};
  const std::string output = scratch / "out";
  const fs::path directory = fs::path(output) / "checkpoints";
  std::string message;  ///< with which the last run failed; empty where it did not
};

TEST_F(CheckpointLine, a_restart_does_not_go_on_with_a_run_before_the_last) {
  train({});
  const Files before = files();
  train({"checkpoint.every=0", "train.steps=5"});  // it ends without a checkpoint, as if its node had failed
  const std::string said = train({"checkpoint.every=0", "checkpoint.restart=auto"});
  EXPECT_NE(said.find("beginning at step 1"), std::string::npos) << said;
  EXPECT_TRUE(files() == before);
}

TEST_F(CheckpointLine, a_branch_keeps_the_later_checkpoints) {
  train({});
  const Files before = files();
  ASSERT_EQ(before.size(), 4u);
  const std::string said = train({"checkpoint.restart=" + path(name_of(10)), "train.steps=25"});
  EXPECT_EQ(message, "");
  const Files after = files();
  expect_kept(before, after);
  EXPECT_EQ(names(),
            (std::set<std::string>{name_of(10), name_of(20), name_of(30), name_of(40), "line_2/" + name_of(20)}));
  EXPECT_NE(said.find("steps 10 to 40"), std::string::npos) << said;
  EXPECT_NE(said.find(path("line_2")), std::string::npos) << said;
  const std::string ours = train::describe_checkpoint(path("line_2/" + name_of(20))),
                    theirs = train::describe_checkpoint(path(name_of(20)));
  const auto line = [](const std::string& text) {
    const std::size_t begin = text.find("line:       ") + 12;
    return text.substr(begin, 16);
  };
  EXPECT_NE(ours.find("line:       " + line(ours) + ", branched from line " + line(theirs) + " at step 10\n"),
            std::string::npos)
      << ours;
  EXPECT_NE(theirs.find("line:       " + line(theirs) + ", from step 1\n"), std::string::npos) << theirs;
  EXPECT_NE(line(ours), line(theirs));

  // auto goes on in the newest line, also where an older one is longer.
  EXPECT_NE(train({"checkpoint.restart=auto"}).find("restart: from " + path("line_2/" + name_of(20))),
            std::string::npos);
  expect_kept(after, files());
  EXPECT_EQ(names().count("line_2/" + name_of(40)), 1u);
}

TEST_F(CheckpointLine, a_run_from_step_1_keeps_another_runs_checkpoints) {
  train({});
  const Files before = files();
  train({"optimizer.lr=0.02", "train.steps=20"});
  expect_kept(before, files());
  EXPECT_EQ(names().count("line_2/" + name_of(20)), 1u);
  // Its variance and momentum begin anew, so it is no restart.
  train({"checkpoint.initialize_from=" + path(name_of(40)), "train.steps=10"});
  expect_kept(before, files());
  EXPECT_EQ(names().count("line_3/" + name_of(10)), 1u);
}

TEST_F(CheckpointLine, what_is_no_checkpoint_of_the_line_stays) {
  const Files mine = {{"step_notes.txt", "lr 0.01 diverged"},
                      {"step_00000005.h5.bak", "a copy"},
                      {"step_5.h5.partial", "seven digits are missing"},
                      {"step_00000005.h5.partial.txt", "why it stopped"},
                      {"step_00000005.h5.partial-notes.lock", "none of Open MPI's"},
                      {"best.h5", "not a step"}};
  const Files left = {{"step_00000005.h5.partial", "half"},
                      {"step_00000007.h5.partial.reserve", "room"},
                      {"step_00000007.h5.partial-1874198529-844.lock", "a lock of Open MPI"},
                      {"step_00000007.h5.partial.locktest.1", "another"},
                      {"step_1234567890.h5.partial", "half"}};
  for (const auto& [name, bytes] : mine) write(name, bytes);
  for (const auto& [name, bytes] : left) write(name, bytes);
  write("line_2_notes.txt", "a file");
  train({"checkpoint.keep=1"});
  expect_kept(mine, files());
  EXPECT_EQ(names().count(name_of(40)), 1u) << "an unused directory is the first line's";
  for (const auto& [name, bytes] : left) EXPECT_EQ(names().count(name), 0u) << name;
  EXPECT_EQ(names().size(), mine.size() + 2);
}

TEST_F(CheckpointLine, the_newest_checkpoint_by_name_is_gone_on_from_in_place) {
  train({"train.steps=20", "checkpoint.keep=2"});
  train({"checkpoint.restart=" + path("../checkpoints/" + name_of(20)), "checkpoint.keep=2"});
  EXPECT_EQ(names(), (std::set<std::string>{name_of(30), name_of(40)}));
}

TEST_F(CheckpointLine, checkpoints_of_elsewhere_begin_a_line) {
  train({"train.steps=20"});
  if (world.rank() == 0) fs::rename(directory, scratch / "elsewhere");
  world.barrier();
  const std::string restart = "checkpoint.restart=" + scratch / "elsewhere" + "/" + name_of(20);
  for (const char* line : {"", "line_2/"}) {
    train({restart, "train.steps=30"});
    EXPECT_EQ(names().count(line + name_of(30)), 1u) << message;
  }
  EXPECT_TRUE(fs::exists(scratch / "elsewhere/" + name_of(10)));
}

TEST_F(CheckpointLine, checkpoints_of_an_earlier_version_are_never_removed) {
  train({"train.steps=20"});
  for (const int step : {10, 20}) make_older(name_of(step));
  EXPECT_NE(train::describe_checkpoint(path(name_of(20))).find("line:       unknown"), std::string::npos);
  const Files before = files();
  const std::string said = train({"checkpoint.restart=auto", "checkpoint.keep=1"});
  EXPECT_NE(said.find("restart: from " + path(name_of(20))), std::string::npos) << said;
  expect_kept(before, files());
  EXPECT_EQ(names(), (std::set<std::string>{name_of(10), name_of(20), name_of(40)}));
  train({"checkpoint.restart=" + path(name_of(10)), "checkpoint.keep=1"});
  expect_kept(before, files());
  EXPECT_EQ(names().count("line_2/" + name_of(40)), 1u);
}

/// An algorithm without a state.
struct Idle final : optim::Algorithm<Exec> {
  optim::StepState step(const Exec&, const Vector<Exec, float>&, const Vector<Exec, float>&, const optim::StepContext&,
                        PhaseTimes&) override {
    return {};
  }
  void state(optim::Archive<Exec>&) override {}
};

// Two runs that were begun at once took the same unused directory.
TEST_F(CheckpointLine, a_file_that_came_meanwhile_is_not_overwritten) {
  train({"train.steps=10"});
  const std::string theirs = files().at(name_of(10));
  if (world.rank() == 0) fs::remove(directory / name_of(10));
  world.barrier();
  const config::Input input = config::parse("workload: {kind: quadratic}\ncheckpoint: {every: 5}\n",
                                            "checkpoint_line_test", {"run.output=" + output});
  train::Checkpoints checkpoints(input, world);  // which finds the directory unused
  write(name_of(10), theirs);
  TensorTable tensors;
  tensors.add("x", {40}, true);
  const Vector<Exec, float> x("x", 40);
  Idle idle;
  train::Results results(world, output);
  train::Run<Exec> run{input, tensors, x, idle, results, 10};
  checkpoints.write(Exec(), run);
  EXPECT_TRUE(files().at(name_of(10)) == theirs);
  EXPECT_EQ(names().count("line_2/" + name_of(10)), 1u);
}

/// What an output directory should hold after one action and another, drawn at random.
class RandomActions {
public:
  explicit RandomActions(unsigned seed) : m_random(seed) {}

  struct File {
    int step, line;  ///< line −1: the file does not say
    bool is_whole;
    double lr;
    std::string bytes = {};
  };
  /// A run: where it begins, what it is told, and what it should leave.
  struct Action {
    std::string restart;  ///< none, auto, or the name of a file
    double lr;
    int every, keep, steps, fails_at;  ///< fails_at 0: it does not
    std::string from;                  ///< name of the checkpoint that it should go on from
    bool is_refused = false;
  };

  int draw(int first, int last) { return first + static_cast<int>(m_random() % (last - first + 1)); }

  Action next() {
    Action run;
    run.restart = std::vector<std::string>{"none", "auto", "auto", "FILE"}[draw(0, 3)];
    run.lr = 0.01 * draw(1, 3);
    run.every = draw(1, 3);
    run.keep = draw(1, 3);
    const auto whole = [&](const auto& among) {
      std::vector<std::string> names;
      for (const std::string& name : among)
        if (m_files.at(name).is_whole) names.push_back(name);
      return names;
    };
    if (run.restart == "auto") {
      const std::vector<std::string> names = whole(newest_line());
      if (!names.empty()) run.from = names.back();
    } else if (run.restart == "FILE") {
      std::vector<std::string> all;
      for (const auto& [name, file] : m_files) all.push_back(name);
      const std::vector<std::string> names = whole(all);
      run.restart = "none";
      if (!names.empty()) run.from = run.restart = names[draw(0, static_cast<int>(names.size()) - 1)];
    }
    const int first = run.from.empty() ? 0 : m_files.at(run.from).step;
    run.steps = first + draw(1, 6);
    run.fails_at = draw(0, 2) == 0 ? draw(first + 1, run.steps) : 0;
    if (!run.from.empty()) {
      if (draw(0, 4) > 0) run.lr = m_files.at(run.from).lr;  // else another one, perhaps
      run.is_refused = run.lr != m_files.at(run.from).lr;
    }
    return run;
  }

  /// Takes note of what a run should do. \returns the names of the files that it should write, and keep
  std::set<std::string> expect(const Action& run) {
    if (run.is_refused) return {};
    const std::vector<std::string> line = newest_line();
    const bool goes_on = !run.from.empty() && (run.restart == "auto" || (!line.empty() && run.from == line.back()));
    if (!goes_on && !line.empty()) m_directory = "line_" + std::to_string(++m_lines) + "/";
    const int first = run.from.empty() ? 0 : m_files.at(run.from).step;
    const int last = run.fails_at > 0 ? run.fails_at - 1 : run.steps;
    const int id = goes_on && m_files.at(run.from).line >= 0 ? m_files.at(run.from).line : m_ids++;
    std::map<int, std::string> own;
    if (goes_on)
      for (const std::string& name : line)
        if (m_files.at(name).line == id && m_files.at(name).step <= first) own[m_files.at(name).step] = name;
    std::set<std::string> written;
    for (int step = first + 1; step <= last; ++step) {
      if (step % run.every != 0) continue;
      own[step] = m_directory + name_of(step);
      m_files[own[step]] = {step, id, true, run.lr};
      written.insert(own[step]);
      while (own.size() > static_cast<std::size_t>(run.keep)) {
        m_files.erase(own.begin()->second);
        written.erase(own.begin()->second);
        own.erase(own.begin());
      }
    }
    return written;
  }

  /// Names of the checkpoints in the newest line's directory, the newest at the end.
  std::vector<std::string> newest_line() const {
    std::vector<std::string> names;
    for (const auto& [name, file] : m_files)
      if (name == m_directory + name_of(file.step)) names.push_back(name);
    return names;
  }
  std::map<std::string, File>& files() { return m_files; }
  const std::string& directory() const { return m_directory; }

private:
  std::mt19937 m_random;
  std::map<std::string, File> m_files;
  std::string m_directory;  ///< of the newest line: "", or "line_2/"
  int m_lines = 1, m_ids = 0;
};

TEST_F(CheckpointLine, random_sequences_of_runs_lose_nothing) {
  // Fewer where ranks share cores, which makes collective calls slow; the ranks differ in nothing that lines depend on.
  const unsigned sequences = world.size() == 1 ? 100 : 20;
  for (unsigned seed = 1; seed <= sequences; ++seed) {
    if (world.rank() == 0) fs::remove_all(output);
    world.barrier();
    RandomActions model(seed);
    write("step_notes.txt", "notes");
    std::set<std::string> halves;  // that killed runs have left
    std::string context = "seed " + std::to_string(seed);
    for (int number = 0; number < 6; ++number) {
      const std::vector<std::string> line = model.newest_line();
      // What happens between runs: the newest file is damaged, or all of the line are of an earlier version.
      const int event = model.draw(0, 5);
      if (event <= 1 && line.size() > 1 && model.files().at(line[line.size() - 2]).is_whole &&
          model.files().at(line.back()).is_whole) {
        RandomActions::File& file = model.files().at(line.back());
        std::string bytes = file.bytes;
        bytes[event == 0 ? 0 : bytes.size() / 2] ^= 1;
        write(line.back(), bytes);
        file = {file.step, event == 0 ? -1 : file.line, false, file.lr, bytes};
        context += "; damaged " + line.back();
      } else if (event == 2) {
        for (const std::string& name : line) {
          RandomActions::File& file = model.files().at(name);
          if (!file.is_whole) continue;
          make_older(name);
          file.line = -1;
          file.bytes = files().at(name);
          context += "; older " + name;
        }
      }
      const RandomActions::Action run = model.next();
      context += "; " + run.restart + " from '" + run.from + "' to " + std::to_string(run.steps) + " every " +
                 std::to_string(run.every) + " keep " + std::to_string(run.keep) + " lr " + std::to_string(run.lr) +
                 (run.fails_at > 0 ? " fails at " + std::to_string(run.fails_at) : "");
      SCOPED_TRACE(context);
      const std::set<std::string> written = model.expect(run);
      const bool is_file = run.restart != "none" && run.restart != "auto";
      std::vector<std::string> keys = {
          "checkpoint.restart=" + (is_file ? path(run.restart) : run.restart), "optimizer.lr=" + std::to_string(run.lr),
          "checkpoint.every=" + std::to_string(run.every), "checkpoint.keep=" + std::to_string(run.keep),
          "train.steps=" + std::to_string(run.steps)};
      if (run.fails_at > 0)
        keys.insert(keys.end(), {"faults.kind=nan", "faults.rank=0", "faults.step=" + std::to_string(run.fails_at)});
      const std::string said = train(keys);
      EXPECT_EQ(message.find("optimizer.lr (") != std::string::npos, run.is_refused) << message;
      if (!run.is_refused) {
        EXPECT_EQ(message.empty(), run.fails_at == 0) << message;
        EXPECT_EQ(said.find("restart: from ") != std::string::npos, !run.from.empty()) << said;
        if (run.restart == "auto" && !run.from.empty()) {
          EXPECT_NE(said.find("restart: from " + path(run.from) + "\n"), std::string::npos) << said;
        }
      }

      Files found = files();
      EXPECT_EQ(found.erase("step_notes.txt"), 1u);
      if (!run.is_refused)
        for (auto half = halves.begin(); half != halves.end();)
          half = half->rfind(model.directory() + "step_", 0) == 0 ? halves.erase(half) : std::next(half);
      for (const std::string& name : halves) EXPECT_EQ(found.erase(name), 1u) << name << " is gone";
      for (auto& [name, file] : model.files()) {
        const auto there = found.find(name);
        if (there == found.end()) {
          ADD_FAILURE() << name << " is gone";
          continue;
        }
        if (written.count(name) > 0)
          file.bytes = there->second;
        else
          EXPECT_TRUE(there->second == file.bytes) << name << " has other bytes";
        found.erase(there);
      }
      for (const auto& [name, bytes] : found) ADD_FAILURE() << name << " should not be there";
      if (HasFailure()) return;
      if (run.fails_at > 0 && !run.is_refused)
        for (const char* behind : {".partial", ".partial.reserve"}) {
          write(*halves.insert(model.directory() + name_of(run.fails_at) + behind).first, "half");
        }
    }
  }
}

TEST_F(CheckpointLine, a_run_without_checkpoints_makes_a_directory_only_beside_another_run) {
  train({"checkpoint.every=0"});
  EXPECT_FALSE(fs::exists(directory));
  train({});
  for (int run = 0; run < 2; ++run) train({"checkpoint.every=0"});
  EXPECT_TRUE(fs::is_empty(directory / "line_2"));
  EXPECT_FALSE(fs::exists(directory / "line_3"));
}

}  // namespace
}  // namespace onebit
