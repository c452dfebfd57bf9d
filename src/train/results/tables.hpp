#pragma once
/// \file tables.hpp
/// The CSV files of a run: each table has the columns that are written.

#include "io/csv_table.hpp"

namespace onebit::train {

extern const CsvTable steps_table, groups_table, profile_table, run_table;
/// All of them.
extern const std::vector<const CsvTable*> tables;

}  // namespace onebit::train
