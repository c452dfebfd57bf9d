/// \file data_images.cpp
/// Labelled images: what their files hold, which are drawn and what becomes of their pixels, and every way in which a
/// file can be unusable.

#include "data/images/image_samples.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "data_fixture.hpp"

namespace onebit::data {
namespace {

/// An IDX file of bytes.
std::string idx(const std::vector<std::uint32_t>& extents, const std::string& bytes) {
  std::string file = std::string("\0\0\x08", 3) + static_cast<char>(extents.size());
  for (const std::uint32_t extent : extents)
    for (const int shift : {24, 16, 8, 0}) file += static_cast<char>(extent >> shift & 0xFF);
  return file + bytes;
}

std::string idx_labels(const std::vector<int>& labels) {
  return idx({static_cast<std::uint32_t>(labels.size())}, std::string(labels.begin(), labels.end()));
}

std::string random_bytes(std::size_t count, std::uint64_t seed) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(philox(seed, i, 0).word[0] % 256);
  return bytes;
}

int byte(const std::string& bytes, std::size_t place) { return static_cast<unsigned char>(bytes[place]); }

using Files = std::vector<std::string>;

class DataImages : public DataTest {
protected:
  /// Writes a set of one IDX file of images and one of labels.
  Files idx_set(const std::string& name, const std::string& images, const std::string& labels) const {
    write(name + "_labels.idx", labels);
    return {write(name + "_images.idx", images)};
  }
  /// `count` random images of 5 x 7 pixels and 3 channels, with labels 2, 3, 4, 2, 3, …
  Files random_set(const std::string& name, std::uint32_t count, std::uint64_t seed) const {
    std::vector<int> labels(count);
    for (std::size_t i = 0; i < count; ++i) labels[i] = 2 + static_cast<int>(i % 3);
    return idx_set(name, idx({count, 5, 7, 3}, random_bytes(count * 105, seed)), idx_labels(labels));
  }
  ImageOptions random_options(bool crop, bool flip, PixelScaling scaling) const {
    return {random_set("train", 40, 1), random_set("validation", 21, 2), crop, flip, scaling};
  }
  static std::string small_images() { return idx({2, 2, 2}, "abcdefgh"); }
  /// Two grey images of 2 x 2 pixels, with the labels 0 and 1.
  Files small_set(const std::string& name = "small") const { return idx_set(name, small_images(), idx_labels({0, 1})); }
  /// Expects that a training set is refused.
  void refused(const Files& files, const std::string& where, const std::vector<std::string>& parts) const {
    expect_input_error([&] { ImageSamples({files, small_set("other")}, 1); }, where, parts);
  }
  /// The same of a file in place of that of the images, or of that of the labels.
  void images_refused(const std::string& content, const std::vector<std::string>& parts) const {
    refused(idx_set("refused", content, idx_labels({0, 1})), path("refused_images.idx"), parts);
  }
  void labels_refused(const std::string& content, const std::vector<std::string>& parts) const {
    refused(idx_set("refused", small_images(), content), path("refused_labels.idx"), parts);
  }
  void file_refused(const std::string& content, const std::vector<std::string>& of_images,
                    const std::vector<std::string>& of_labels) const {
    images_refused(content, of_images);
    labels_refused(content, of_labels);
  }
};

TEST_F(DataImages, idx_files_hold_grey_images_and_images_with_channels) {
  const LabelledImages grey = read_images(idx_set("grey", idx({2, 2, 3}, "abcdefghijkl"), idx_labels({7, 255})));
  EXPECT_EQ(grey.extents, (ImageExtents{2, 3, 1}));
  EXPECT_EQ(std::string(grey.pixels.begin(), grey.pixels.end()), "abcdefghijkl");
  EXPECT_EQ(grey.labels, (std::vector<std::uint8_t>{7, 255}));
  EXPECT_EQ(grey.extents.words(), "2 x 3 pixels of 1 channel");
  const LabelledImages colour = read_images(idx_set("colour", idx({1, 2, 1, 4}, "rgbaRGBA"), idx_labels({3})));
  EXPECT_EQ(colour.extents, (ImageExtents{2, 1, 4}));
  EXPECT_EQ(std::string(colour.pixels.begin(), colour.pixels.end()), "rgbaRGBA");
  EXPECT_EQ(colour.extents.words(), "2 x 1 pixels of 4 channels");

  const Files one = idx_set("one", idx({1, 2, 3}, "ABCDEF"), idx_labels({9}));
  const LabelledImages both = read_images({path("grey_images.idx"), one[0]});
  EXPECT_EQ(std::string(both.pixels.begin(), both.pixels.end()), "abcdefghijklABCDEF");
  EXPECT_EQ(both.labels, (std::vector<std::uint8_t>{7, 255, 9}));
  EXPECT_EQ(both.ends, (std::vector<std::size_t>{2, 3}));
}

TEST_F(DataImages, files_of_cifar_are_planes_of_red_green_and_blue) {
  const std::string first = random_bytes(3 * 1024, 1), second = random_bytes(3 * 1024, 2);
  const Files files{write("batch_1.bin", "\x03" + first + "\x09" + second), write("images_2.bin", "\x04" + first)};
  const LabelledImages set = read_images(files);
  EXPECT_EQ(set.extents, (ImageExtents{32, 32, 3}));
  EXPECT_EQ(set.labels, (std::vector<std::uint8_t>{3, 9, 4}));
  ASSERT_EQ(set.pixels.size(), 3u * 3072);
  for (std::size_t place = 0; place < 1024; ++place)
    for (std::size_t c = 0; c < 3; ++c) {
      ASSERT_EQ(set.pixels[3 * place + c], byte(first, 1024 * c + place));
      ASSERT_EQ(set.pixels[3072 + 3 * place + c], byte(second, 1024 * c + place));
      ASSERT_EQ(set.pixels[6144 + 3 * place + c], byte(first, 1024 * c + place));
    }
  const ImageSamples samples({files, {path("images_2.bin")}}, 1);
  EXPECT_EQ(samples.classes(), (std::vector<int>{3, 4, 9}));
  EXPECT_EQ(samples.summary(), "3 classes; 3 images of 32 x 32 pixels of 3 channels to train on, 1 to validate with");
}

TEST_F(DataImages, images_are_the_same_whoever_draws_them) {
  const ImageSamples drawn(random_options(true, true, PixelScaling::standardize), 1);
  const std::size_t size = drawn.extents().size();
  ImageBatch all, part, again;
  drawn.draw(3, 0, 12, all);
  ASSERT_EQ(all.pixels.size(), 12 * size);
  for (const int share : {1, 2, 3, 4, 6})  // samples a rank
    for (int first = 0; first < 12; first += share) {
      drawn.draw(3, static_cast<std::uint64_t>(first), share, part);
      ASSERT_EQ(part.pixels.size(), static_cast<std::size_t>(share) * size);
      EXPECT_TRUE(std::equal(part.pixels.begin(), part.pixels.end(),
                             all.pixels.begin() + first * static_cast<std::ptrdiff_t>(size)));
      EXPECT_TRUE(std::equal(part.labels.begin(), part.labels.end(), all.labels.begin() + first));
    }
  drawn.draw(4, 0, 12, again);
  EXPECT_NE(again.pixels, all.pixels);
  ImageSamples(random_options(true, true, PixelScaling::standardize), 2).draw(3, 0, 12, again);
  EXPECT_NE(again.pixels, all.pixels);
}

TEST_F(DataImages, a_validation_draws_each_image_at_most_once_and_as_it_is) {
  const ImageSamples plain(random_options(false, false, PixelScaling::symmetric), 1),
      changed(random_options(true, true, PixelScaling::symmetric), 1);
  std::set<std::vector<float>> trained, validated;
  ImageBatch batch, same;
  for (std::uint64_t step = 1; step <= 100; ++step)
    for (std::uint64_t sample = 0; sample < 4; ++sample) {
      plain.draw(step, sample, 1, batch);
      trained.insert(batch.pixels);
    }
  EXPECT_EQ(trained.size(), 40u);
  std::vector<int> classes(3);
  for (std::uint64_t sample = 0; sample < 21; ++sample) {
    plain.draw_validation(sample, 1, batch);
    changed.draw_validation(sample, 1, same);
    EXPECT_EQ(batch.pixels, same.pixels);
    validated.insert(batch.pixels);
    ++classes[static_cast<std::size_t>(batch.labels[0])];
  }
  EXPECT_EQ(validated.size(), 21u);
  EXPECT_EQ(classes, (std::vector<int>{7, 7, 7}));
  expect_input_error([&] { plain.draw_validation(18, 4, batch); }, path("validation_images.idx"),
                     {"21 samples", "22", "train.validation_batch"});
}

/// What a drawn image must be: the image, in a frame of zeros, cut out and mirrored by loops over its pixels.
std::vector<float> changed_image(const std::string& image, int down, int right, bool is_flipped) {
  constexpr int height = 5, width = 7, channels = 3, pad = 4, wide = width + 2 * pad;
  std::vector<int> framed((height + 2 * pad) * wide * channels, 0);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        framed[static_cast<std::size_t>(((y + pad) * wide + x + pad) * channels + c)] =
            byte(image, static_cast<std::size_t>((y * width + x) * channels + c));
  std::vector<float> pixels(static_cast<std::size_t>(height * width * channels));
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) {
        const int value = framed[static_cast<std::size_t>(((y + down) * wide + x + right) * channels + c)];
        pixels[static_cast<std::size_t>((y * width + (is_flipped ? width - 1 - x : x)) * channels + c)] =
            static_cast<float>((value - 127.5) / 127.5);
      }
  return pixels;
}

TEST_F(DataImages, crop_and_flip_are_those_of_loops_over_the_pixels) {
  const std::string training = random_bytes(40 * 105, 1);
  for (const bool crop : {false, true})
    for (const bool flip : {false, true}) {
      const ImageSamples samples(random_options(crop, flip, PixelScaling::symmetric), 5);
      ImageBatch batch;
      std::set<int> places;
      int flipped = 0;
      constexpr int count = 1200;
      samples.draw(1, 0, count, batch);
      for (std::size_t sample = 0; sample < count; ++sample) {
        const Philox4 random = philox(stream_key(5, Stream::data), 1, sample);
        const std::uint64_t image = (random.word[0] | std::uint64_t{random.word[1]} << 32) % 40;
        const int place = crop ? static_cast<int>(random.word[2] % 81) : 40;
        const bool is_flipped = flip && random.word[3] % 2 == 1;
        const std::vector<float> expected =
            changed_image(training.substr(image * 105, 105), place / 9, place % 9, is_flipped);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                               batch.pixels.begin() + static_cast<std::ptrdiff_t>(sample * 105)));
        EXPECT_EQ(batch.labels[sample], static_cast<int>(image % 3));
        places.insert(place);
        flipped += is_flipped;
      }
      EXPECT_EQ(places.size(), crop ? 81u : 1u);
      EXPECT_NEAR(flipped, flip ? count / 2 : 0, flip ? 80 : 0);
    }
}

TEST_F(DataImages, standardized_training_pixels_have_mean_0_and_deviation_1) {
  // Channels of other ranges; the last is 9 in every pixel.
  std::string bytes;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const Philox4 random = philox(3, i, 0);
    bytes += static_cast<char>(random.word[0] % 256);
    bytes += static_cast<char>(100 + random.word[1] % 7);
    bytes += static_cast<char>(random.word[2] % 2);
    bytes += static_cast<char>(9);
  }
  const Files set = idx_set("train", idx({10, 2, 2, 4}, bytes), idx_labels({0, 1, 0, 1, 0, 1, 0, 1, 0, 1}));
  const ImageSamples samples({set, set}, 1);  // a validation draws each image once
  ImageBatch batch;
  samples.draw_validation(0, 10, batch);
  for (std::size_t c = 0; c < 4; ++c) {
    double sum = 0, squares = 0;
    for (std::size_t i = c; i < batch.pixels.size(); i += 4) {
      sum += batch.pixels[i];
      squares += batch.pixels[i] * batch.pixels[i];
    }
    EXPECT_NEAR(sum / 40, 0, 1e-6);
    EXPECT_NEAR(squares / 40, c < 3 ? 1 : 0, 1e-6);
  }
  // (p / 255 - mean) / deviation, where half of the pixels are 0 and the others 255.
  const Files half = idx_set("half", idx({2, 1, 1}, std::string("\0\xFF", 2)), idx_labels({0, 1}));
  ImageSamples({half, half, true}, 1).draw_validation(0, 2, batch);
  EXPECT_EQ(batch.pixels, (std::vector<float>{-1, 1}));
  // The frame of a crop has pixels 0 before they are scaled.
  ImageSamples({half, half, true}, 1).draw(1, 0, 500, batch);
  EXPECT_EQ(std::set<float>(batch.pixels.begin(), batch.pixels.end()), (std::set<float>{-1, 1}));
  EXPECT_LT(std::count(batch.pixels.begin(), batch.pixels.end(), 1.0f), 20);
}

TEST_F(DataImages, files_that_hold_no_images_are_refused) {
  refused({}, "images", {"no file"});
  refused({path("none")}, path("none"), {"No such file"});
  refused({path("")}, path(""), {"is a directory"});
  refused({write("alone_images", small_images())}, path("alone_labels"), {"No such file"});
  file_refused("", {"is empty", "images"}, {"is empty", "labels"});
  file_refused("\x1F\x8B\x08 and more", {"gzip", "gunzip"}, {"gzip", "gunzip"});
  file_refused("text", {"74 65 78 74", "00 00 08 03", "CIFAR-10"}, {"74 65 78 74", "00 00 08 01"});
  file_refused("x", {"bytes 78,"}, {"bytes 78,"});
  file_refused(std::string("\0\0\x0D\x03", 4), {"00 00 0D 03"}, {"00 00 0D 03"});
  file_refused(idx({2, 2}, "abcd"), {"00 00 08 02"}, {"00 00 08 02"});
  const std::string labels = write("labels", idx_labels({0, 1}));
  refused({labels}, labels, {"IDX file of labels", "where labels are named"});
}

TEST_F(DataImages, extents_that_do_not_fit_the_file_are_refused) {
  for (const std::size_t size : {5, 15, 16, 23})
    images_refused(small_images().substr(0, size), {"is truncated", "copy or download it again"});
  for (const std::size_t size : {4, 7, 8, 9}) labels_refused(idx_labels({0, 1}).substr(0, size), {"is truncated"});
  images_refused(small_images() + "i", {"longer", "2 x 2 x 2 bytes", "9 follow"});
  images_refused(idx({2, 0, 2}, ""), {"holds nothing", "2 x 0 x 2"});
  images_refused(idx({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, "abc"),
                 {"is truncated", "4294967295 x 4294967295"});
  images_refused(idx({1, 3, 5, 5}, std::string(75, 'a')),
                 {"5 channels", "at most 4", "order of images, rows, columns"});
  // 8 TiB in a file without blocks are more than this machine's memory.
  const std::string large = write("large_images", idx({1u << 29, 1 << 7, 1 << 7}, ""));
  std::filesystem::resize_file(large, 16 + (std::uintmax_t{1} << 43));
  refused({large}, large, {"536870912 times 128 x 128", "this machine's memory"});
}

TEST_F(DataImages, labels_that_do_not_belong_to_the_images_are_refused) {
  const std::string none = write("none", small_images());
  refused({none}, none, {"has no labels", "put 'images' into its name"});
  refused({small_set()[0], none}, none, {"has no labels", "put 'images' into its name"});
  labels_refused(small_images(), {"no IDX file of labels", "where images are named"});
  labels_refused(idx_labels({0, 1, 1}), {"has 3 labels", path("refused_images.idx") + " has 2 images"});
  refused(idx_set("same", idx({2, 2, 2}, "abcdefgh"), idx_labels({5, 5})), path("same_labels.idx"),
          {"all images have the label 5", "two classes"});

  // A generator takes them.
  const Files one = idx_set("one", small_images(), idx_labels({5, 5}));
  EXPECT_EQ(ImageSamples({one, one, false, false, PixelScaling::symmetric}, 1).summary(),
            "1 class; 2 images of 2 x 2 pixels of 1 channel to train on, 2 to validate with");

  const std::string cifar = write("cifar.bin", std::string("\0", 1) + std::string(3072, 'x'));
  refused({cifar}, cifar, {"all images have the label 0"});
  const std::string cut = write("cut.bin", std::string(5000, '\x01'));
  refused({cut}, cut, {"01 01 01 01", "5000 bytes", "3073", "truncated"});
  const std::string other = write("other.bin", std::string(3073, '\x01') + std::string(3073, '\x0A'));
  refused({other}, other, {"image 2 has the label 10", "0 to 9"});
}

TEST_F(DataImages, files_that_do_not_belong_together_are_refused) {
  const Files small = small_set(), wide = idx_set("wide", idx({2, 1, 4}, "abcdefgh"), idx_labels({0, 1}));
  refused({small[0], wide[0]}, wide[0], {"1 x 4 pixels of 1 channel", small[0], "2 x 2 pixels"});
  expect_input_error([&] { ImageSamples({small, wide}, 1); }, wide[0], {"1 x 4 pixels", "to train on"});
  const Files unknown = idx_set("unknown", idx({2, 2, 2}, "abcdefgh"), idx_labels({1, 2}));
  expect_input_error([&] { ImageSamples({small, unknown}, 1); }, path("unknown_labels.idx"), {"has the label 2"});
  // It names the file with the label among several.
  expect_input_error(
      [&] {
        ImageSamples({small, {small[0], unknown[0]}}, 1);
      },
      path("unknown_labels.idx"), {"has the label 2"});
  const std::string blank(3072, 'x');
  const std::string training = write("training.bin", "\x01" + blank + "\x02" + blank),
                    validation = write("validation.bin", "\x03" + blank);
  expect_input_error([&] { ImageSamples({{training}, {validation}}, 1); }, validation, {"has the label 3"});
}

/// Only names count: no file is opened.
TEST(LabelFile, the_last_images_of_a_name_becomes_labels) {
  EXPECT_EQ(label_file("images/train-images-idx3-ubyte"), "images/train-labels-idx1-ubyte");
  EXPECT_EQ(label_file("b/images.idx4"), "b/labels.idx1");
  EXPECT_EQ(label_file("animals_train_images.idx"), "animals_train_labels.idx");
  EXPECT_EQ(label_file("data_batch_1.bin"), "");
}

}  // namespace
}  // namespace onebit::data
