/// \file figures_test.cpp
/// Figures of merit as text and as JSON, the file that JSON goes to, tables, locks and what is kept of earlier runs.

#include "io/figures.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "base/error.hpp"
#include "base/system/build_info.hpp"
#include "io/csv.hpp"
#include "io/run_lock.hpp"
#include "io/text_file.hpp"

namespace onebit {
namespace {

namespace fs = std::filesystem;

FiguresOfMerit two_figures() {
  FiguresOfMerit figures;
  figures.set("step_s", 0.0123456789, "s");
  figures.set("bytes_sent", 1234567890, "B");
  return figures;
}

TEST(FiguresOfMerit, are_lines_with_six_digits_and_a_verdict) {
  FiguresOfMerit figures = two_figures();
  figures.confirm("the loss is finite");
  figures.confirm("replicas\nare equal");
  EXPECT_TRUE(figures.passed());
  EXPECT_EQ(figures.text(),
            "FOM step_s 0.0123457 s\n"
            "FOM bytes_sent 1.23457e+09 B\n"
            "VALIDATION PASSED the loss is finite, replicas are equal\n");
}

TEST(FiguresOfMerit, do_not_pass_with_one_wrong_result) {
  FiguresOfMerit figures = two_figures();
  figures.confirm("the loss is finite");
  figures.reject("the loss 3 is above 2", "train longer");
  figures.confirm("replicas are equal");
  EXPECT_FALSE(figures.passed());
  EXPECT_EQ(figures.verdict(), "the loss 3 is above 2");
  figures.reject("a fit misses its rows", "train longer");  // a remedy is named once
  figures.reject("the time is 0", "measure again");
  EXPECT_EQ(figures.remedy(), "train longer; measure again");
  EXPECT_NE(figures.text().find("\nVALIDATION FAILED the loss 3 is above 2, a fit misses its rows, the time is 0\n"),
            std::string::npos);
}

TEST(FiguresOfMerit, do_not_pass_if_nothing_was_checked) {
  EXPECT_FALSE(two_figures().passed());
  EXPECT_EQ(FiguresOfMerit().text(), "VALIDATION FAILED nothing was checked\n");
}

TEST(FiguresOfMerit, keep_the_last_value_of_a_name_at_its_place) {
  FiguresOfMerit figures = two_figures();
  figures.set("step_s", 2, "s");
  ASSERT_EQ(figures.figures().size(), 2u);
  EXPECT_EQ(figures.figures()[0].name, "step_s");
  EXPECT_EQ(figures.figures()[0].value, 2);
}

TEST(FiguresOfMerit, refuse_names_and_units_that_would_break_a_line) {
  FiguresOfMerit figures;
  for (const char* const name : {"", "a b", "Step", "1_step", "_step", "a-b", "a\n", "größe"})
    EXPECT_THROW(figures.set(name, 1, "s"), std::invalid_argument) << name;
  for (const char* const unit : {"", " ", "B / s", "s\n"})
    EXPECT_THROW(figures.set("a", 1, unit), std::invalid_argument) << unit;
  EXPECT_TRUE(figures.figures().empty());
  EXPECT_NO_THROW(figures.set("mpi_allreduce_algbw_B_per_s", 1, "B/s"));
}

TEST(FiguresOfMerit, are_one_json_object) {
  FiguresOfMerit figures = two_figures();
  figures.reject("a name of \"bytes\": \xff", "");
  const auto read = nlohmann::json::parse(figures.json("bench kernels", 4));
  EXPECT_EQ(read.at("version"), build_version);
  EXPECT_EQ(read.at("git"), build_git);
  EXPECT_EQ(read.at("command"), "bench kernels");
  EXPECT_EQ(read.at("ranks"), 4);
  EXPECT_EQ(read.at("figures_of_merit").size(), 2u);
  EXPECT_EQ(read.at("figures_of_merit").at("step_s").at("value").get<double>(), 0.0123456789);
  EXPECT_EQ(read.at("figures_of_merit").at("step_s").at("unit"), "s");
  EXPECT_EQ(read.at("validation").at("passed"), false);
  EXPECT_EQ(read.at("validation").at("text"), "a name of \"bytes\": \xef\xbf\xbd");
}

TEST(FiguresOfMerit, are_null_in_json_if_they_are_not_finite) {
  FiguresOfMerit figures;
  figures.set("a", std::numeric_limits<double>::quiet_NaN(), "1");
  figures.set("b", std::numeric_limits<double>::infinity(), "1");
  EXPECT_EQ(figures.text().substr(0, 22), "FOM a nan 1\nFOM b inf ");
  const auto read = nlohmann::json::parse(figures.json("predict", 1)).at("figures_of_merit");
  EXPECT_TRUE(read.at("a").at("value").is_null());
  EXPECT_TRUE(read.at("b").at("value").is_null());
}

/// A directory for a test's files.
class TextFileTest : public ::testing::Test {
protected:
  TextFileTest() {
    std::string pattern = (fs::temp_directory_path() / "onebit-test.XXXXXX").string();
    m_directory = ::mkdtemp(pattern.data());
  }
  ~TextFileTest() override { fs::remove_all(m_directory); }

  static std::string contents(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  fs::path m_directory;
};

TEST_F(TextFileTest, gets_its_name_when_it_is_complete) {
  const fs::path path = m_directory / "made/a.json";
  TextFile(path.string(), "--json").finish("earlier");
  {
    TextFile file(path.string(), "--json");
    EXPECT_EQ(contents(path), "earlier") << "until the new text is complete";
    file.finish("later");
  }
  EXPECT_EQ(contents(path), "later");
  { const TextFile unfinished(path.string(), "--json"); }
  EXPECT_EQ(contents(path), "later");
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), fs::directory_iterator()), 1);
}

TEST_F(TextFileTest, is_refused_where_it_cannot_be_written) {
  TextFile((m_directory / "file").string(), "--json").finish("");
  for (const fs::path& path : {m_directory, m_directory / "file/a.json"}) {
    try {
      const TextFile file(path.string(), "--json");
      ADD_FAILURE() << path;
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("--json: file '" + path.string() + "'", 0), 0u) << error.what();
    }
  }
}

class CsvFileTest : public TextFileTest {};

TEST_F(CsvFileTest, changes_cells_of_its_last_row) {
  const std::string path = (m_directory / "a.csv").string();
  CsvFile file(path, {"a", "b", "c", "d"});
  file.row_of(1, "one, \"two\"", 3, 4);
  file.row_of(5, "six, seven", "", 8);
  file.change_last_row(0, {50});
  file.change_last_row(2, {70});
  EXPECT_EQ(file.text(), "a,b,c,d\n1,\"one, \"\"two\"\"\",3,4\n50,\"six, seven\",70,8\n");
  file.change_last_row(3, {""});
  file.row_of(9, 10, 11, 12);
  file.change_last_row(2, {11, 13});
  file.finish();
  EXPECT_EQ(contents(path), "a,b,c,d\n1,\"one, \"\"two\"\"\",3,4\n50,\"six, seven\",70,\n9,10,11,13\n");
}

TEST_F(CsvFileTest, leaves_nothing_without_rows) {
  const fs::path path = m_directory / "a.csv";
  { const CsvFile file(path.string(), {"a"}); }
  EXPECT_TRUE(fs::is_empty(m_directory));
  { CsvFile(path.string(), {"a"}).row_of(1); }
  EXPECT_TRUE(fs::exists(path.string() + ".partial")) << "the rows of a run that failed";
}

TEST_F(CsvFileTest, keeps_earlier_files_together) {
  for (const char* const name : {"a.csv", "b.csv"}) std::ofstream(m_directory / name) << name;
  for (const char* const name : {"a.csv", "b.csv", "none.csv"}) keep_earlier(m_directory / name);
  EXPECT_FALSE(fs::exists(m_directory / "a.csv"));
  const fs::path place = fs::directory_iterator(m_directory / "earlier")->path();
  EXPECT_EQ(contents(place / "a.csv"), "a.csv");
  EXPECT_EQ(contents(place / "b.csv"), "b.csv");
}

TEST_F(TextFileTest, is_refused_while_another_run_writes_it) {
  const std::string path = (m_directory / "a.json").string();
  const TextFile file(path, "--json");
  try {
    const TextFile other(path, "--json");
    ADD_FAILURE();
  } catch (const InputError& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("another run writes to file '" + path + "' (process " + std::to_string(::getpid())),
              std::string::npos)
        << said;
  }
}

TEST_F(TextFileTest, is_locked_again_after_the_other_run) {
  const std::string path = (m_directory / "run.lock").string();
  for (int run = 0; run < 3; ++run) {
    const RunLock lock(path, "run.output", "a directory");
    EXPECT_NE(contents(path).find("process " + std::to_string(::getpid()) + " on "), std::string::npos);
  }
  EXPECT_TRUE(fs::is_empty(m_directory));
  std::ofstream(path) << "process 1 on here since ever\n";  // of a process that was killed: nobody holds the lock
  const RunLock lock(path, "run.output", "a directory");
}

}  // namespace
}  // namespace onebit
