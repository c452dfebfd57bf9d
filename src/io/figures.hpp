#pragma once
/// \file figures.hpp
/// Figures of merit: what a command measured, and whether its results are right, for the frameworks of computing
/// centres (docs/reference/output/figures_of_merit.md).

#include <string>
#include <utility>
#include <vector>

#include "io/csv.hpp"

namespace onebit {

/// A number with a name and a unit.
struct Figure {
  std::string name;
  double value;
  std::string unit;
};

/// The figures of a command and its verdict, as text and as JSON.
class FiguresOfMerit {
public:
  /// Sets a figure. A later value of the same name takes the place of the earlier one.
  /// \param name of letters, digits and underscores, a lower-case letter first
  /// \param unit without spaces, a word for what is counted; "1" for a plain number
  /// \throws std::invalid_argument for another name or unit
  void set(const std::string& name, double value, const std::string& unit);

  /// Says under what circumstances the figures were measured, for the JSON form. A later value of the same name takes
  /// the place of the earlier one. \param value a text that is a number becomes one
  void note(const std::string& name, const Cell& value) { m_notes.emplace_back(name, value.text()); }

  /// Adds to the verdict what was checked and is right.
  void confirm(const std::string& what) { m_right.push_back(what); }
  /// Adds to the verdict what is wrong. \param remedy what the user can do, in one sentence
  void reject(const std::string& what, const std::string& remedy);

  /// Whether something was checked and all of it is right.
  bool passed() const { return m_wrong.empty() && !m_right.empty(); }
  /// What is right if it passed, else what is wrong; on one line.
  std::string verdict() const;
  /// What the user can do; empty if it passed.
  std::string remedy() const;
  const std::vector<Figure>& figures() const { return m_figures; }

  /// The last lines of a command's standard output: "FOM <name> <value> <unit>" for each figure, and
  /// "VALIDATION PASSED <verdict>" or "VALIDATION FAILED <verdict>".
  std::string text() const;
  /// The same as one JSON object, with the notes and the version of this build. A value that is not finite is null.
  /// \param command its words, e.g. "bench kernels"
  std::string json(const std::string& command, int ranks) const;

private:
  std::vector<Figure> m_figures;
  std::vector<std::pair<std::string, std::string>> m_notes;  ///< a later one of the same name counts
  std::vector<std::string> m_right, m_wrong, m_remedies;
};

}  // namespace onebit
