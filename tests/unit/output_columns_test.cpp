/// \file output_columns_test.cpp
/// The pages of docs/reference/output about the program's CSV files are the program's own words.

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "../source_directory.hpp"
#include "bench/tables.hpp"
#include "train/results/tables.hpp"

namespace onebit {
namespace {

std::vector<const CsvTable*> all_tables() {
  std::vector<const CsvTable*> all = train::tables;
  all.insert(all.end(), bench::tables.begin(), bench::tables.end());
  return all;
}

TEST(OutputColumns, have_current_pages) {
  for (const CsvTable* const table : all_tables()) {
    const std::string name = table->file;
    const std::string page = "docs/reference/output/" + name.substr(0, name.find('.')) + ".md";
    std::ifstream file(test::source_directory() + "/" + page);
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_EQ(text.str(), table->page()) << "make it again: onebit list --output-columns " << name << " > " << page;
  }
}

TEST(OutputColumns, are_each_described_once) {
  for (const CsvTable* const table : all_tables()) {
    const std::vector<std::string> names = table->names();
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size()) << table->file;
    for (const CsvColumns& group : table->columns) {
      EXPECT_NE(*group.meaning, '\0') << table->file << ": " << group.names[0];
      EXPECT_EQ(std::string(group.meaning).find('|'), std::string::npos) << table->file << ": " << group.names[0];
    }
  }
}

}  // namespace
}  // namespace onebit
