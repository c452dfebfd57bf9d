#pragma once
/// \file reference.hpp
/// The 1-bit compressor in plain loops over elements: the definition that the kernels of sign.hpp are tested against,
/// bit for bit. It does not use the tables of `Layout`, which are tested against it too.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/reference.hpp"
#include "compress/layout.hpp"
#include "compress/sign.hpp"

namespace onebit::compress {

/// The cut of a vector, element by element.
struct LayoutRef {
  std::size_t length;
  int chunks;
  Grouping grouping;
  std::size_t words;              ///< W = ⌈⌈length/32⌉ / chunks⌉
  std::size_t slots;              ///< S: most slots of a chunk
  std::vector<std::size_t> slot;  ///< (length) each element's slot, counted from its chunk's first

  LayoutRef(std::size_t length, int chunks, Grouping grouping, std::size_t block = 0,
            const std::vector<std::size_t>& tensor_offsets = {})
      : length(length), chunks(chunks), grouping(grouping), slots(1), slot(length, 0) {
    const std::size_t all_words = (length + bits_per_word - 1) / bits_per_word;
    words = (all_words + chunks - 1) / chunks;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (std::size_t j = begin(chunk) + 1; j < begin(chunk + 1); ++j) {
        bool opens_slot = false;
        if (grouping == Grouping::block) opens_slot = (j - begin(chunk)) % block == 0;
        if (grouping == Grouping::tensor)
          opens_slot = std::binary_search(tensor_offsets.begin(), tensor_offsets.end(), j);
        slot[j] = slot[j - 1] + (opens_slot ? 1 : 0);
        slots = std::max(slots, slot[j] + 1);
      }
    }
  }

  /// First element of a chunk; `length` for one that is all padding.
  std::size_t begin(int chunk) const { return std::min(length, chunk * words * bits_per_word); }
  /// A chunk's message: S scales, then W sign words.
  std::size_t message_words() const { return slots + words; }
};

/// Scale of a group of c: mean of absolute values, or root mean square; `norm` is the group's Σ|c| or Σc².
inline float scale_ref(Scale scale, double norm, std::size_t count) {
  if (count == 0) return 0;
  const double mean = norm / static_cast<double>(count);
  return static_cast<float>(scale == Scale::l1 ? mean : std::sqrt(mean));
}

/// Σ|c| or Σc² of c[begin, end) in the fixed tree; absolute values are added in float, squares in double.
inline double norm_ref(Scale scale, const std::vector<float>& c, std::size_t begin, std::size_t end) {
  if (scale == Scale::l1) {
    std::vector<float> magnitudes;
    for (std::size_t j = begin; j < end; ++j) magnitudes.push_back(std::fabs(c[j]));
    return ordered_sum_ref(magnitudes);
  }
  std::vector<double> squares;
  for (std::size_t j = begin; j < end; ++j) squares.push_back(static_cast<double>(c[j]) * static_cast<double>(c[j]));
  return ordered_sum_ref(squares);
}

/// c = x + residual; returns the messages of C(c), (chunks * message_words); residual ← c − C(c).
/// \param x, residual elements of chunks [first_chunk, first_chunk + chunks)
inline std::vector<std::uint32_t> compress_ref(const LayoutRef& layout, Scale scale, int first_chunk, int chunks,
                                               const std::vector<float>& x, std::vector<float>& residual) {
  const std::size_t base = layout.begin(first_chunk), length = layout.begin(first_chunk + chunks) - base;
  std::vector<float> c(length);
  for (std::size_t j = 0; j < length; ++j) c[j] = x[j] + residual[j];

  // Scales by (chunk, slot); a slot is a run of elements.
  std::vector<float> scales(chunks * layout.slots, 0.0f);
  std::vector<double> chunk_norms(chunks, 0.0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t end = layout.begin(first_chunk + chunk + 1) - base;
    std::size_t begin = layout.begin(first_chunk + chunk) - base;
    while (begin < end) {
      const std::size_t slot = layout.slot[base + begin];
      std::size_t slot_end = begin;
      while (slot_end < end && layout.slot[base + slot_end] == slot) ++slot_end;
      const double norm = norm_ref(scale, c, begin, slot_end);
      scales[chunk * layout.slots + slot] = scale_ref(scale, norm, slot_end - begin);
      chunk_norms[chunk] = norm;
      begin = slot_end;
    }
  }
  // A worker's vector has one scale; its chunks, which are one slot each, are the tree's last level.
  if (layout.grouping == Grouping::vector && chunks == layout.chunks)
    std::fill(scales.begin(), scales.end(), scale_ref(scale, piece_sum_ref(chunk_norms), length));

  std::vector<std::uint32_t> messages(chunks * layout.message_words(), 0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::uint32_t* const message = messages.data() + chunk * layout.message_words();
    std::memcpy(message, scales.data() + chunk * layout.slots, layout.slots * sizeof(float));
    const std::size_t begin = layout.begin(first_chunk + chunk), end = layout.begin(first_chunk + chunk + 1);
    for (std::size_t j = begin; j < end; ++j) {
      const float s = scales[chunk * layout.slots + layout.slot[j]];
      const bool positive = c[j - base] >= 0;
      if (positive) message[layout.slots + (j - begin) / bits_per_word] |= 1u << (j - begin) % bits_per_word;
      residual[j - base] = c[j - base] - (positive ? s : -s);
    }
  }
  return messages;
}

/// C(c)_j of one element: `message` is its chunk's, and j counts from the first element of the vector.
inline float element_ref(const LayoutRef& layout, const std::uint32_t* message, int chunk, std::size_t j) {
  float scale = 0;
  std::memcpy(&scale, message + layout.slot[j], sizeof scale);
  const std::size_t in_chunk = j - layout.begin(chunk);
  const std::uint32_t word = message[layout.slots + in_chunk / bits_per_word];
  return word >> in_chunk % bits_per_word & 1u ? scale : -scale;
}

/// (1/senders) Σ_i C(c_i) of one chunk's elements, in the order of the senders.
/// \param messages (senders * message_words)
inline std::vector<float> average_ref(const LayoutRef& layout, int chunk, int senders,
                                      const std::vector<std::uint32_t>& messages) {
  std::vector<float> mean;
  for (std::size_t j = layout.begin(chunk); j < layout.begin(chunk + 1); ++j) {
    float sum = 0;
    for (int sender = 0; sender < senders; ++sender)
      sum += element_ref(layout, messages.data() + sender * layout.message_words(), chunk, j);
    mean.push_back(sum / static_cast<float>(senders));
  }
  return mean;
}

/// The vector that the messages of all chunks stand for. \param messages (chunks * message_words)
inline std::vector<float> decompress_ref(const LayoutRef& layout, const std::vector<std::uint32_t>& messages) {
  std::vector<float> x;
  for (int chunk = 0; chunk < layout.chunks; ++chunk)
    for (std::size_t j = layout.begin(chunk); j < layout.begin(chunk + 1); ++j)
      x.push_back(element_ref(layout, messages.data() + chunk * layout.message_words(), chunk, j));
  return x;
}

}  // namespace onebit::compress
