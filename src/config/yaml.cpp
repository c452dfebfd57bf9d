/// \file yaml.cpp
/// The only code that reads YAML: from text to the keys of keys.cpp, with the place of every mistake.

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "base/error.hpp"
#include "config/keys.hpp"
#include "config/names.hpp"

namespace onebit::config {
namespace {

std::string place(const std::string& file, const YAML::Mark& mark) {
  if (mark.is_null()) return file;
  return file + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1);
}

/// \param place_of (mark) the place of what stands there
template <class PlaceOf>
RawMap raw_map(const YAML::Node& node, const PlaceOf& place_of) {
  RawMap map{place_of(node.Mark()), {}};
  for (const auto& pair : node)
    map.entries.push_back({pair.first.IsScalar() ? pair.first.Scalar() : "",
                           pair.second.IsScalar() ? pair.second.Scalar() : "", pair.second.IsScalar(),
                           place_of(pair.first.Mark())});
  return map;
}

/// \param where the place of the key
template <class PlaceOf>
RawValue raw_value(const YAML::Node& node, const std::string& path, const std::string& where, const PlaceOf& place_of) {
  RawValue raw;
  raw.where = where;
  raw.is_list = node.IsSequence();
  const auto take = [&](const YAML::Node& one, const char* wrong, const char* remedy) {
    if (one.IsScalar())
      raw.items.push_back(one.Scalar());
    else if (one.IsMap())
      raw.maps.push_back(raw_map(one, place_of));
    else
      throw InputError(where, path + wrong, remedy);
  };
  if (!raw.is_list) take(node, " has no value", "give a value or leave out the key");
  if (raw.is_list)
    for (const YAML::Node& item : node)
      take(item, " holds something that is not a single value", "give a list of single values");
  return raw;
}

/// Names of earlier versions, and what to write today.
constexpr struct {
  const char *name, *what, *remedy;
} retired[] = {{"warmup", "renamed", "name it 'freeze'; its key 'steps' is 'step' there, all others are the same"},
               {"comm.collective: dense", "renamed", "write compression.compressor: none"},
               {"checkpoint.background", "removed", "leave it out: a run waits for its checkpoints"}};

void refuse_retired(const std::string& name, const std::string& where) {
  for (const auto& one : retired)
    if (name == one.name) throw InputError(where, "'" + name + "' was " + one.what, one.remedy);
}

/// Sections and keys by name, and messages for names that are unknown.
class KnownKeys {
public:
  explicit KnownKeys(Input& input) : m_sections(keys(input)) {}

  const Section& section(const std::string& name, const std::string& where) const {
    std::vector<std::string> known;
    for (const Section& section : m_sections) {
      if (section.name == name) return section;
      known.push_back(section.name);
    }
    refuse_retired(name, where);
    throw InputError(where, "unknown section '" + excerpt(name) + "'", remedy_for_unknown(meant(name, known), known));
  }

  const Key& key(const Section& section, const std::string& name, const std::string& where) const {
    std::vector<std::string> known;
    for (const Key& key : section.keys) {
      if (key.name == name) return key;
      known.push_back(key.name);
    }
    refuse_retired(section.name + "." + name, where);
    // A key of another section is a likelier mistake than one that is far from every key of this section.
    std::string path = meant(name, known);
    if (!path.empty()) path = section.name + "." + path;
    for (const Section& other : m_sections)
      for (const Key& key : other.keys)
        if (key.name == name) path = key.path();
    throw InputError(where, "unknown key '" + section.name + "." + excerpt(name) + "'",
                     remedy_for_unknown(path, known));
  }

private:
  std::vector<Section> m_sections;
};

/// Refuses texts that yaml-cpp handles wrongly. It builds nodes by recursion, before 0.7 without limit. It also takes a
/// stray bracket or comma for the end of a document, and then makes no progress or drops the rest of the text.
class Guard : public YAML::EventHandler {
public:
  explicit Guard(const std::string& where) : m_where(where) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++m_documents > 1)
      throw InputError(place(m_where, mark), "more than one YAML document begins here",
                       "remove the '---', bracket or comma that ends the first one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    begin(mark);
  }
  void OnSequenceEnd() override { --m_depth; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    begin(mark);
  }
  void OnMapEnd() override { --m_depth; }

private:
  void begin(const YAML::Mark& mark) {
    constexpr int deepest = 16;  // sections, keys and lists are 3; between, other messages are better
    if (++m_depth > deepest)
      throw InputError(place(m_where, mark), "this is nested too deeply", "give sections, keys and their values alone");
  }

  std::string m_where;
  int m_documents = 0;
  int m_depth = 0;
};

/// The one document of the text. \param where the name of the text in messages
YAML::Node load(std::string text, const std::string& where) {
  // Where the text ends with a line end, yaml-cpp 0.7 takes all that follows an unclosed quote for the value.
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Guard guard(where);
  while (parser.HandleNextDocument(guard)) {
  }
  return YAML::Load(text);
}

YAML::Node load_input(const std::string& text, const std::string& name) {
  if (const std::size_t nul = text.find('\0'); nul != std::string::npos)
    throw InputError(name + ":" + std::to_string(1 + std::count(text.begin(), text.begin() + nul, '\n')),
                     "the input holds a NUL byte", "write it as UTF-8 text");
  try {
    const YAML::Node document = load(text, name);
    if (document.IsNull())
      throw InputError(name, "the input is empty",
                       "write at least one section, e.g. 'train:' (docs/reference/input.md)");
    return document;
  } catch (const YAML::Exception& error) {
    throw InputError(place(name, error.mark), "this is not YAML: " + excerpt(error.msg),
                     "check indentation (spaces only), colons and quotes on this line");
  }
}

}  // namespace

Input parse(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  Input input;
  input.file = name;
  const KnownKeys known(input);
  const auto set = [&](const Key& key, const RawValue& raw) {
    if (!raw.is_list && !raw.items.empty()) refuse_retired(key.path() + ": " + raw.items.front(), raw.where);
    key.parse(raw);
    input.given[key.path()] = raw.where;
  };

  const YAML::Node root = load_input(text, name);
  if (!root.IsMap())
    throw InputError(place(name, root.Mark()), "the input is not a map of sections", "begin with e.g. 'train:'");
  std::map<std::string, std::string> sections;  // the place of each section so far
  for (const auto& entry : root) {
    const std::string where = place(name, entry.first.Mark());
    const Section& section = known.section(entry.first.IsScalar() ? entry.first.Scalar() : "", where);
    if (const auto [first, added] = sections.emplace(section.name, where); !added)
      throw InputError(where, "section '" + section.name + "' is given twice, first at " + first->second,
                       "put all its keys into one of them");
    if (entry.second.IsNull()) continue;
    if (!entry.second.IsMap())
      throw InputError(where, "section '" + section.name + "' is not a map of keys",
                       "indent 'key: value' lines below it");
    for (const auto& pair : entry.second) {
      const std::string key_where = place(name, pair.first.Mark());
      const Key& key = known.key(section, pair.first.IsScalar() ? pair.first.Scalar() : "", key_where);
      if (input.given.count(key.path()))
        throw InputError(key_where, "key '" + key.path() + "' is given twice, first at " + input.given[key.path()],
                         "remove one of them");
      set(key,
          raw_value(pair.second, key.path(), key_where, [&](const YAML::Mark& mark) { return place(name, mark); }));
    }
  }

  for (const std::string& text_override : overrides) {
    const std::string where = "--set " + excerpt(text_override);
    const std::size_t equals = text_override.find('='), dot = text_override.find('.');
    if (equals == std::string::npos || dot == std::string::npos || dot > equals)
      throw InputError(where, "this is not of the form section.key=value", "write e.g. --set train.steps=100");
    const Section& section = known.section(text_override.substr(0, dot), where);
    const Key& key = known.key(section, text_override.substr(dot + 1, equals - dot - 1), where);
    try {
      const auto place_of = [&](const YAML::Mark&) { return where; };
      set(key, raw_value(load(text_override.substr(equals + 1), where), key.path(), where, place_of));
    } catch (const YAML::Exception& error) {
      throw InputError(where, "the value is not YAML: " + excerpt(error.msg), "quote the value for the shell");
    }
  }
  apply_preset(input);
  return input;
}

}  // namespace onebit::config
