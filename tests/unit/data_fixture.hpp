#pragma once
/// \file data_fixture.hpp
/// What the tests of `data` share: generated text, a directory of their own, and checks of error messages.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"

namespace onebit::data {

/// Lines of made-up words, frequent ones being short, with some characters of two, three and four bytes.
inline std::string generated_text(std::size_t lines, std::uint64_t seed = 1) {
  constexpr std::array<const char*, 16> syllables = {"ba", "den", "ki", "lo", "mer", "na", "or", "pel",
                                                     "ra", "sto", "ti", "un", "vé",  "wü", "的", "🙂"};
  std::string text;
  for (std::size_t line = 0; line < lines; ++line) {
    const std::uint32_t words = 3 + philox(seed, line, 0).word[0] % 12;
    for (std::uint32_t word = 1; word <= words; ++word) {
      // The word's rank in the vocabulary, log-uniform in [1, 4096): Zipf's law; its base-16 digits are its syllables.
      const Philox4 random = philox(seed, line, word);
      for (std::uint32_t rank = 1 + (random.word[0] & ((2u << random.word[1] % 12) - 1)); rank > 0; rank /= 16) {
        text += syllables[rank % 16];
      }
      text += word < words ? (random.word[2] % 9 == 0 ? ", " : " ") : ".\n";
    }
  }
  return text;
}

/// A test with a directory that is removed at its end.
class DataTest : public testing::Test {
protected:
  DataTest() {
    std::string name = (std::filesystem::temp_directory_path() / "onebit-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    ::chmod(name.c_str(), 0755);  // for `unprivileged`
    m_directory = name;
  }
  ~DataTest() override { std::filesystem::remove_all(m_directory); }

  std::string path(const std::string& name) const { return (m_directory / name).string(); }

  /// Writes a file into the directory and returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

private:
  std::filesystem::path m_directory;
};

/// Takes away root's right to ignore permissions for its scope.
class Unprivileged {
public:
  Unprivileged() : m_user(::geteuid()) {
    constexpr uid_t nobody = 65534;
    if (m_user == 0 && ::seteuid(nobody) != 0) throw std::runtime_error("seteuid");
  }
  ~Unprivileged() {
    if (m_user == 0 && ::seteuid(m_user) != 0) std::abort();
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

private:
  uid_t m_user;
};

/// Expects an InputError "<where>: …<part>…" with a remedy.
template <class F>
void expect_input_error(const F& f, const std::string& where, const std::vector<std::string>& parts) {
  try {
    f();
    FAIL() << "no error for " << where;
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.status(), ExitStatus::bad_input);
    EXPECT_EQ(message.compare(0, where.size() + 2, where + ": "), 0) << message;
    EXPECT_NE(message.find("\n  remedy: "), std::string::npos) << message;
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\n" << part;
  }
}

}  // namespace onebit::data
