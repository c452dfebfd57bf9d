#pragma once
/// \file tables.hpp
/// The CSV files of the benchmarks: each table has the columns that are written.

#include "io/csv_table.hpp"

namespace onebit::bench {

extern const CsvTable collective_table, repetitions_table, kernels_table, layers_table, passes_table;
/// All of them.
extern const std::vector<const CsvTable*> tables;

}  // namespace onebit::bench
