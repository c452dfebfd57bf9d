#pragma once
/// \file keys.hpp
/// The declaration of every key, for the YAML reader, the resolved input and docs/reference/input.md; and the types of
/// their values: which texts they take, and how they are printed (types.cpp).

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "config/input.hpp"

namespace onebit::config {

/// One value in the text of an input.
struct Item {
  std::string text;
  std::string where;  ///< "file:line:column"
  std::string path;   ///< of its key
};

template <class T>
struct Type {
  std::string name;
  std::string allowed;                         ///< range or words, as people read it
  std::function<T(const Item&)> read;          ///< throws InputError
  std::function<std::string(const T&)> print;  ///< as YAML
};

inline constexpr std::int64_t unbounded = std::numeric_limits<std::int32_t>::max();
inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Integers in [low, high].
Type<std::int64_t> integer(std::int64_t low, std::int64_t high = unbounded);
/// Finite numbers in [low, high], or without `low` where that is not allowed, that single precision can hold.
Type<double> real(double low, double high = infinity, bool low_allowed = true);
inline Type<double> real_above(double low, double high = infinity) { return real(low, high, false); }
/// One of some words.
Type<std::string> word(const std::vector<std::string>& words);
/// \param multiple of which an integer must be one
Type<NumberOrWord> integer_or_word(std::int64_t low, const std::vector<std::string>& words, std::int64_t multiple = 1);
/// The name of a file or directory. A leading `~` and `$NAME` are refused.
Type<std::string> path_type();

/// The types that have all values of a C++ type: text, true or false, and the choices of base/choices.hpp.
Type<std::string> type_of(const std::string&);
Type<bool> type_of(bool);
template <class Choice, class = decltype(names(Choice()))>
Type<Choice> type_of(Choice) {
  const auto all = names(Choice());
  const Type<std::string> one = word({all.begin(), all.end()});
  const auto read = [=](const Item& item) {
    return static_cast<Choice>(std::find(all.begin(), all.end(), one.read(item)) - all.begin());
  };
  return {one.name, one.allowed, read, [](const Choice& choice) { return to_string(choice); }};
}

/// What to do about a name that is unknown. \param meant the likeliest one; empty where none is near
std::string remedy_for_unknown(const std::string& meant, const std::vector<std::string>& known);

/// What the reader found of `name: text` in a map.
struct RawEntry {
  std::string name;
  std::string text;  ///< empty where the value is not a scalar
  bool is_scalar;
  std::string where;
};
struct RawMap {
  std::string where;
  std::vector<RawEntry> entries;
};

/// What the reader hands to a key: one scalar or map, or a list of them, and its place.
struct RawValue {
  std::vector<std::string> items;
  std::vector<RawMap> maps;
  bool is_list = false;
  std::string where;
};

/// One declared key, bound to its member of an Input.
struct Key {
  std::string section;
  std::string name;
  std::string type;     ///< "integer", "list of text", …
  std::string allowed;  ///< range or words, as people read it
  std::string meaning;
  std::function<void(const RawValue&)> parse;  ///< throws InputError
  std::function<std::string()> print;          ///< as YAML; empty for a key of a map that is not given

  std::string path() const { return section + "." + name; }
};

/// A section of the input and its purpose.
struct Section {
  std::string name;
  std::string meaning;
  std::vector<Key> keys;
};

/// All sections and keys, bound to `input`.
std::vector<Section> keys(Input& input);

/// Takes the shape's keys that are 0 from `model.preset`.
void apply_preset(Input& input);

}  // namespace onebit::config
