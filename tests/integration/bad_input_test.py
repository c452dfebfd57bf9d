#!/usr/bin/env python3
"""Gives the program bad input and failing machines, and checks that it says what is wrong and ends well.

Usage: bad_input_test.py PROGRAM MPIEXEC MAKE_REPLAY [PATTERN]

PATTERN (a regular expression) selects cases by name. ONEBIT_BINARY, where set, takes the place of PROGRAM: point it to
a build with sanitizers (preset asan) to look for more than what shows from outside.

Every case must end all ranks with the expected exit status (2, bad input, where it says nothing else) and one message
that holds the expected fragments and a remedy; nothing may crash, hang or abort, files of an earlier run must be left
alone, and nothing may be written outside run.output.
"""

import concurrent.futures
import contextlib
import csv
import ctypes
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from support import Skip, mounted

LIMIT_S = 60  # for one case; a sanitizer build needs most of it
WORKERS = 4  # most of a case is waiting for MPI to start
NOBODY = 65534
FORBIDDEN = ("Segmentation", "terminate called", "MPI_ABORT", "Signal:", "Assertion", "AddressSanitizer",
             "runtime error:", "what():", "HDF5-DIAG", "\0")
EARLIER = ("steps.csv", "run.csv", "profile.csv", "input.resolved.yaml")

ENVIRONMENT = {
    **support.ENVIRONMENT, "OMP_PROC_BIND": "false", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    # Open MPI and its plugins do not free everything before they are unloaded.
    "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1",
}


@dataclasses.dataclass
class Case:
    name: str
    text: "str | bytes | None"      # of input.yaml; None: there is none
    fragments: tuple = ()           # of standard error, or of standard output where the status is 0
    ranks: int = 1
    status: int = 2
    command: tuple = ("train", "input.yaml")
    arguments: tuple = ()           # behind the command
    output: "str | None" = "out"    # set as run.output; None leaves it to the input
    prepare: "callable" = None      # (directory) before the run
    check: "callable" = None        # (directory) after it
    environment: dict = dataclasses.field(default_factory=dict)
    user: "int | None" = None
    tmpfs: "str | None" = None      # size of a file system of its own that `out` is
    stdout: "str | None" = None     # where standard output goes instead
    completes: bool = False         # the files of an earlier run are replaced


CASES = []


def case(name, text, *fragments, **options):
    CASES.append(Case(name, text, fragments, **options))


# --- YAML -------------------------------------------------------------------------------------------------------------

case("empty_file", "", "input.yaml: the input is empty")
case("comment_only", "# nothing\n", "input.yaml: the input is empty")
case("binary", bytes((i * i * 167 + 13 * i) % 256 for i in range(4096)), "input.yaml:1:")
case("zeros", b"\0" * 4096, "input.yaml:1: ", "NUL byte")
case("nul_in_text", b"train:\n  steps: 5\0\n", "input.yaml:2: ", "NUL byte")
case("scalar_root", "train\n", "input.yaml:1:1", "not a map of sections")
case("list_root", "- train\n", "input.yaml:1:1", "not a map of sections", ranks=2)
case("two_documents", "train:\n  steps: 5\n---\ntrain:\n  steps: 6\n", "input.yaml:3:1",
     "more than one YAML document")
case("stray_brace", "train: {steps: 5}}\noptimizer: {lr: 0.1}\n", "input.yaml:1:18")
case("stray_bracket", "train:\n  steps: 5\n]\noptimizer:\n  lr: 0.1\n", "input.yaml:3:1")
case("stray_comma", "# A comma at the start\n, of a sentence: yaml-cpp alone never returns\n", "input.yaml:2:1",
     ranks=2)
case("tab", "train:\n\tsteps: 5\n", "input.yaml:2:", "spaces only", ranks=3)
case("unclosed_quote", "run:\n  output: \"out\ntrain:\n  steps: 5\n\n", "input.yaml:4:", "this is not YAML")
case("unclosed_single_quote", "run:\n  output: 'out\n# a comment\n", "input.yaml:3:", "this is not YAML")
case("unclosed_bracket", "data:\n  corpus: [a, b\n", "input.yaml:", "this is not YAML")
case("indentation", "train:\n  steps: 5\n batch: 4\n", "input.yaml:3:", "this is not YAML")
case("no_colon", "train:\n  steps 5\n", "input.yaml:1:1", "section 'train' is not a map")
case("unknown_alias", "train:\n  steps: *n\n", "input.yaml:2:", "this is not YAML")
case("endless_alias", "train: &all\n  steps: *all\n", "input.yaml:2:3", "train.steps is a map")
case("merge_key", "train: &all\n  steps: 5\nmodel:\n  <<: *all\n", "input.yaml:4:3", "unknown key 'model.<<'")
case("deep_brackets", "train: " + "[" * 10000, "input.yaml:1:", "nested too deeply")
case("deep_braces", "{a: " * 10000, "input.yaml:1:")
case("deep_list", "- " * 10000, "input.yaml:1:", "nested too deeply")
case("deep_keys", "? " * 10000, "input.yaml:1:", "nested too deeply")
case("huge_key", "train:\n  ? " + "k" * 1000000 + "\n  : 1\n", "input.yaml:2:5", "unknown key 'train.kkkk", "k…'")
case("huge_value", "train:\n  steps: " + "7" * 1000000 + "\n", "input.yaml:2:3", "out of range", "7…',")
case("huge_file", "# " + "x" * (2 << 20) + "\ntrain: {steps: 5}\n", "longer than 1 MiB")

# --- sections and keys ------------------------------------------------------------------------------------------------

case("unknown_section", "trian:\n  steps: 5\n", "input.yaml:1:1", "unknown section 'trian'", "did you mean 'train'?")
case("strange_section", "train:\n  steps: 5\nwibble:\n  x: 1\n", "input.yaml:3:1", "unknown section 'wibble'",
     "use one of run, train, optimizer", ranks=2)
case("unknown_key", "train:\n  steps: 5\n  bacth: 4\n", "input.yaml:3:3", "unknown key 'train.bacth'",
     "did you mean 'train.batch'?", ranks=3)
case("strange_key", "comm:\n  wibble: 5\n", "input.yaml:2:3", "unknown key 'comm.wibble'", "use one of transport")
case("key_of_other_section", "train:\n  lr: 0.1\n", "input.yaml:2:3", "unknown key 'train.lr'",
     "did you mean 'optimizer.lr'?")
case("key_at_root", "steps: 5\n", "input.yaml:1:1", "unknown section 'steps'")
case("key_that_is_a_list", "train:\n  ? [a, b]\n  : 1\n", "input.yaml:2:5", "unknown key")
case("key_twice", "train:\n  steps: 5\n  steps: 6\n", "input.yaml:3:3", "'train.steps' is given twice",
     "first at input.yaml:2:3")
case("section_twice", "train:\n  steps: 5\nrun:\n  seed: 1\ntrain:\n  steps: 6\n", "input.yaml:5:1",
     "section 'train' is given twice", "first at input.yaml:1:1", ranks=2)
case("section_in_wrong_place", "model.quantization:\n  kind: fqt\n", "input.yaml:1:1", "inside of section 'model'",
     "below 'model:'")
case("bits_between", "model:\n  quantization: {kind: fqt, bits: 3}\n", "input.yaml:2:29", "3 bits", "1, 2, 4 or 8",
     ranks=2)
case("layer_bits_between", "model:\n  quantization: {kind: psq, layer_bits: 4}\n", "input.yaml:2:29", "4 bits",
     "1 or 8")
case("layer_bits_of_signs", "model:\n  quantization: {kind: fqt, layer_bits: 8}\n", "input.yaml:2:29",
     "kind fqt multiplies by signs", "qat or psq, or layer_bits 1", ranks=2)
case("section_is_scalar", "train: 5\n", "input.yaml:1:1", "section 'train' is not a map")
case("section_is_list", "train:\n  - steps: 5\n", "input.yaml:1:1", "section 'train' is not a map")
case("value_is_map", "train:\n  steps: {a: 5}\n", "input.yaml:2:3", "train.steps is a map")
case("value_is_list", "train:\n  steps: [5, 6]\n", "input.yaml:2:3", "train.steps is a list")
case("value_is_missing", "train:\n  steps:\n", "input.yaml:2:3", "train.steps has no value")
case("list_is_empty", "data:\n  corpus: []\n", "input.yaml:2:3", "data.corpus is an empty list")
case("list_of_lists", "data:\n  corpus: [[a]]\n", "input.yaml:2:3", "not a single value")
case("list_of_maps_is_scalar", "optimizer:\n  groups: classifier\n", "input.yaml:2:3", "optimizer.groups", "not a map",
     "[{pattern: …}]")
case("unknown_key_of_map", "optimizer:\n  groups:\n    - {pattern: a, lr_facto: 2}\n", "input.yaml:3:20",
     "unknown key 'lr_facto' in a map of optimizer.groups", "did you mean 'lr_factor'?", ranks=2)
case("map_without_its_key", "optimizer:\n  groups:\n    - {lr_factor: 2}\n", "input.yaml:3:7", "no key 'pattern'")
case("negative_value_of_map", "optimizer:\n  groups:\n    - {pattern: a, lr_factor: -1}\n", "input.yaml:3:20",
     "optimizer.groups.lr_factor is '-1'", "out of range", "≥ 0")
case("pattern_of_no_tensor", "workload:\n  kind: quadratic\noptimizer:\n  groups:\n    - {pattern: 'clasifier.*'}\n",
     "input.yaml:5:7", "pattern 'clasifier.*' of optimizer.groups matches the name of no tensor", "did you mean 'x'?",
     ranks=2)
case("group_behind_another", "workload:\n  kind: quadratic\noptimizer:\n  groups: [{pattern: '*'}, {pattern: x}]\n",
     "input.yaml:4:28", "pattern 'x' of optimizer.groups matches tensors of earlier groups alone", ranks=2)
case("list_of_nothing", "data:\n  corpus: ['']\n", "input.yaml:2:3", "empty text")

# --- values -----------------------------------------------------------------------------------------------------------


def value(name, path, given, *fragments, **options):
    section, key = path.split(".")
    case(name, f"{section}:\n  {key}: {given}\n", "input.yaml:2:3", path, *fragments, **options)


value("integer_letters", "train.steps", "12x", "'12x', which is not an integer")
value("integer_decimals", "train.steps", "1.5", "not an integer")
value("integer_exponent", "train.steps", "15e-1", "not an integer")
value("integer_hexadecimal", "train.steps", "0x10", "not an integer", "write 16")
value("integer_octal", "train.steps", "010", "not an integer", "write 10")
value("integer_separators", "train.steps", "1_000", "not an integer", "write 1000")
value("real_hexadecimal", "optimizer.lr", "0x10", "not a finite number", "write 16")
value("real_comma", "optimizer.lr", "'0,5'", "not a finite number", "write 0.5")
value("seed_beyond_63_bits", "run.seed", "9223372036854775808", "out of range", "9223372036854775807")
value("integer_space", "train.steps", "'5 '", "not an integer")
value("integer_nul", "train.steps", '"5\\0"', "not an integer")
value("integer_overflow", "train.steps", "99999999999999999999", "out of range")
value("integer_beyond_32_bits", "train.batch", "2147483648", "out of range", "give at most 2147483647")
value("integer_negative", "train.batch", "-4", "out of range", "give ≥ 1", ranks=2)
value("integer_zero", "train.accumulation", "0", "out of range")
value("integer_range", "model.layers", "1001", "out of range", "[0, 1000]")
value("threads", "run.threads", "513", "out of range", "[0, 512]")
value("real_text", "optimizer.lr", "fast", "not a finite number")
value("real_nan", "optimizer.beta1", ".nan", "not a finite number")
value("real_nan_of_c", "optimizer.beta1", "nan", "not a finite number")
value("real_inf", "optimizer.clip", "inf", "not a finite number")
value("real_overflow", "optimizer.clip", "1e999", "not a finite number")
value("real_range", "optimizer.beta2", "1", "out of range", "[0, 0.999999]")
value("real_open_end", "optimizer.lr", "0.0", "out of range", "> 0")
value("real_negative", "optimizer.weight_decay", "-0.1", "out of range", ranks=3)
value("real_too_large_for_float", "optimizer.lr", "1e300", "single precision")
value("real_too_small_for_float", "optimizer.epsilon", "1e-60", "single precision")
value("boolean_yes", "optimizer.bias_correction", "yes", "not a boolean", "true or false")
for path, words in {"run.backend": "serial, openmp, cuda, hip", "optimizer.algorithm": "adam, onebit_adam",
                    "optimizer.on_nonfinite": "abort, skip", "schedule.decay": "constant, exponential, linear",
                    "compression.scale": "l1, l2",
                    "compression.compressor": "none, sign, sign_ternary, column, nbit, fp8",
                    "comm.transport": "auto, host, device, nccl", "comm.collective": "flat, hierarchical, auto",
                    "workload.kind": "transformer, classification, spans, images, dcgan, quadratic, replay, synthetic",
                    "images.network": "resnet18, vgg16, mixer", "images.augment": "none, crop, crop_flip",
                    "model.architecture": "bert, gpt", "model.preset": "tiny, small, base, large",
                    "data.tokenizer": "bytes, characters, sentencepiece"}.items():
    value("word_" + path, path, "wibble", "'wibble', which is not one of its values", "give one of " + words)
value("word_case", "optimizer.algorithm", "Adam", "'Adam', which is not one of its values", "did you mean 'adam'?")
value("word_number", "optimizer.algorithm", "1bit_adam", "did you mean 'onebit_adam'?")
value("number_or_word", "freeze.step", "soon", "not an integer", "auto or an integer")
value("number_too_small", "compression.group", "31", "out of range")
value("block_of_48", "compression.group", "48", "not a multiple of 32", "that is a multiple of 32", ranks=2)
value("home_in_path", "run.output", "~/results", "home directory", "write the whole path", output=None)
value("variable_in_path", "run.output", "$SCRATCH/results", "takes for a variable", "write the whole path", output=None)
value("home_in_list", "data.corpus", "[a.txt, ~/b.txt]", "home directory", ranks=2)
value("line_end_in_text", "run.output", '"a\\nb"', "control character", output=None)
value("nul_in_name", "run.output", '"a\\0b"', "control character", output=None)

# --- combinations -----------------------------------------------------------------------------------------------------

case("batch_and_ranks", "train:\n  batch: 32\n", "input.yaml:2:3", "not a multiple of 3 ranks", "a multiple of 3",
     ranks=3)
case("batch_and_accumulation", "train:\n  accumulation: 5\n  batch: 32\n", "input.yaml:3:3",
     "2 ranks × 5 accumulation", "a multiple of 10", ranks=2)
case("batch_of_the_default", "train:\n  accumulation: 2147483647\n", "input.yaml (train.batch has its default)",
     "not a multiple", ranks=2)
case("heads", "model:\n  hidden: 64\n  heads: 5\n", "input.yaml:3:3", "5 heads do not divide")
case("sequence_and_positions", "model:\n  sequence: 129\n", "input.yaml:2:3", "more than 128 positions", ranks=2)
case("warmup_longer_than_run", "train:\n  steps: 5\nschedule:\n  warmup_steps: 6\n", "input.yaml:4:3",
     "longer than the run")
case("frozen_after_run", "train:\n  steps: 5\nfreeze:\n  step: 6\n", "input.yaml:4:3",
     "not be frozen before the run's last step", "lower freeze.step to less than train.steps (5)")
case("frozen_at_last_step", "train:\n  steps: 5\nfreeze:\n  step: 5\n", "input.yaml:4:3",
     "not be frozen before the run's last step", ranks=2)
case("rise_to_last_step", "train:\n  steps: 5\nschedule:\n  warmup_steps: 5\n", "input.yaml:4:3",
     "freeze.step is auto", "lower schedule.warmup_steps to less than train.steps (5)")
case("sgd_with_bias_correction", "optimizer:\n  algorithm: double_squeeze\n  bias_correction: true\n", "input.yaml:3:3",
     "double_squeeze has no bias correction", ranks=2)
case("buckets_of_another_algorithm", "optimizer:\n  algorithm: adam\ncomm:\n  compressed_bucket_bytes: 4096\n",
     "input.yaml:4:3", "algorithm adam does not average its momentum in buckets", "onebit_adam")
case("buckets_of_hosts", "comm:\n  collective: hierarchical\n  compressed_bucket_bytes: 4096\n", "input.yaml:3:3",
     "comm.collective is hierarchical", "set comm.collective to flat", ranks=2)
case("buckets_without_a_compressor", "compression:\n  compressor: none\ncomm:\n  compressed_bucket_bytes: 4096\n",
     "input.yaml:4:3", "compression.compressor is none", "comm.bucket_bytes")
case("nccl_on_the_host", "comm:\n  transport: nccl\n", "input.yaml:2:3", "has none", "run.backend to cuda or hip",
     ranks=2)
case("no_replay_file", "workload:\n  kind: replay\n", "replay.file has its default", "needs a file of gradients")
case("retired_value", "comm:\n  collective: dense\n", "input.yaml:2:3", "'comm.collective: dense' was renamed",
     "write compression.compressor: none", ranks=2)
case("empty_output", "run:\n  output: ''\n", "input.yaml:2:3", "run.output is empty", output=None)

# --- memory -----------------------------------------------------------------------------------------------------------

TEXT = "workload: {kind: transformer}\ndata: {corpus: [corpus.txt]}\n"


def write_corpus(directory):
    (directory / "corpus.txt").write_text("In the beginning was the word, and the word was with rhyme. " * 50)


case("exclusion_of_nothing", TEXT + "model:\n  quantization: {kind: fqt, exclude: [encoder.0.attention.qk]}\n",
     "input.yaml:4:29", "pattern 'encoder.0.attention.qk' matches the name of no dense layer",
     "did you mean 'encoder.0.attention.qkv'?", prepare=write_corpus, ranks=2)
case("memory_layers", TEXT + "model:\n  hidden: 65536\n  layers: 1000\n  heads: 2\n", "input.yaml:5:3",
     "parameters takes", "GiB on each rank", "change model.layers", "optimizer.algorithm",
     prepare=write_corpus, ranks=2)
case("memory_vocabulary", TEXT + "model:\n  vocabulary: 16777216\n  hidden: 65536\n", "input.yaml:5:3", "GiB",
     prepare=write_corpus)
case("memory_sequence", TEXT + "model:\n  positions: 65536\n  sequence: 65536\ntrain:\n  batch: 32768\n",
     "input.yaml:4:3", "GiB", prepare=lambda d: (d / "corpus.txt").write_text("word " * 200000))
case("memory_batch", TEXT + "train:\n  batch: 2147483647\n  validation_batch: 2147483647\n", "input.yaml:4:3", "GiB",
     prepare=write_corpus)
case("memory_quadratic", "workload:\n  kind: quadratic\nquadratic:\n  dimension: 2147483647\n", "input.yaml:4:3",
     "2147483647 parameters takes", "GiB before compression begins", ranks=2,
     arguments=("--set", "optimizer.algorithm=onebit_adam"),
     prepare=lambda d: needs_less_memory_than(32 << 30))

# --- files ------------------------------------------------------------------------------------------------------------

QUADRATIC = "workload: {kind: quadratic}\ntrain: {steps: 5, batch: 12}\n"

case("input_missing", None, "input.yaml: the input file does not exist", ranks=2)
case("input_is_directory", None, "input.yaml: the input file is a directory", ranks=2,
     prepare=lambda d: (d / "input.yaml").mkdir())
case("input_is_endless", None, "/dev/zero: the input file is longer", command=("train", "/dev/zero"))
case("output_is_file", QUADRATIC + "run:\n  output: taken\n", "input.yaml:4:3", "'taken' cannot be written", ranks=2,
     output=None, prepare=lambda d: (d / "taken").write_text("mine"))
case("output_below_file", QUADRATIC + "run:\n  output: taken/a/b\n", "input.yaml:4:3", "cannot be written",
     output=None, prepare=lambda d: (d / "taken").write_text("mine"))
case("output_in_proc", QUADRATIC + "run:\n  output: /proc/onebit\n", "input.yaml:4:3", "cannot be written",
     output=None)
case("output_forbidden", QUADRATIC + "run:\n  output: locked/out\n", "input.yaml:4:3", "cannot be written",
     output=None, prepare=lambda d: (d / "locked").mkdir(0o555), user=NOBODY)
case("output_holds_directory", QUADRATIC, "--set run.output=out", "'out/profile.csv' is a directory", ranks=2,
     prepare=lambda d: ((d / "out/profile.csv").unlink(), (d / "out/profile.csv").mkdir()))
case("dump_in_missing_directory", QUADRATIC + "run:\n  dump_parameters: no/such.h5\n", "input.yaml:4:3",
     "file 'out/no/such.h5' cannot be written", ranks=2)
case("dump_is_directory", QUADRATIC + "run:\n  dump_parameters: taken\n", "input.yaml:4:3", "cannot be written",
     prepare=lambda d: (d / "out/taken").mkdir())
RESTART = QUADRATIC + "checkpoint:\n  restart: earlier.h5\n"
case("restart_from_nothing", RESTART, "input.yaml:4:3: earlier.h5: the file does not exist", ranks=2)
case("restart_from_text", RESTART, "input.yaml:4:3: earlier.h5: this is not a checkpoint", ranks=3,
     prepare=lambda d: (d / "earlier.h5").write_text("parameters " * 100))
case("restart_from_seal_alone", RESTART, "input.yaml:4:3: earlier.h5: this file is damaged", ranks=2,
     prepare=lambda d: (d / "earlier.h5").write_text("OneBit sealed file 1\nsize 00000000000000999999 bytes\n"))
case("restart_from_directory", RESTART, "input.yaml:4:3: earlier.h5: this is not an ordinary file", ranks=2,
     prepare=lambda d: (d / "earlier.h5").mkdir())
case("restart_all_damaged", QUADRATIC + "checkpoint:\n  restart: auto\n", "input.yaml:4:3", "every checkpoint in",
     ranks=2, prepare=lambda d: ((d / "out/checkpoints").mkdir(),
                                 (d / "out/checkpoints/step_00000003.h5").write_text("step")))
case("restart_is_empty", QUADRATIC + "checkpoint:\n  restart: ''\n", "input.yaml:4:3", "checkpoint.restart is empty")
LABELLED = """workload: {kind: classification}
data: {corpus: [corpus.txt], labelled: train.tsv, labelled_validation: held_out.tsv}
model: {layers: 1, hidden: 8, heads: 1, feed_forward: 8, positions: 8, sequence: 8}
train: {steps: 1, batch: 2, validation_batch: 2}
"""


LABELLED_PARAMETERS = "2706"  # with two classes


def labelled(train, held_out="a\tone\nb\ttwo\n"):
    """Prepares the files of LABELLED."""
    def prepare(directory):
        for name, text in (("corpus.txt", "some text " * 20), ("train.tsv", train), ("held_out.tsv", held_out)):
            (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return prepare


case("labelled_missing", LABELLED.replace("labelled: train.tsv, ", ""), "data.labelled", "needs labelled texts")
case("labelled_validation_missing", LABELLED.replace(", labelled_validation: held_out.tsv", ""),
     "data.labelled_validation", "needs labelled texts", ranks=2)
case("labelled_no_file", LABELLED, "input.yaml:2:30", "train.tsv", "cannot be read", ranks=2,
     prepare=lambda directory: (directory / "corpus.txt").write_text("some text " * 20))
case("labelled_no_tab", LABELLED, "input.yaml:2:30", "train.tsv:2", "no tab", ranks=2,
     prepare=labelled("a\tone\nb two\n"))
case("labelled_empty_text", LABELLED, "train.tsv:1", "the text is empty", prepare=labelled("a\t\nb\ttwo\n"))
case("labelled_unknown_label", LABELLED, "held_out.tsv:2", "has the label 'c'",
     prepare=labelled("a\tone\nb\ttwo\n", "a\tone\nc\ttwo\n"))
case("labelled_binary", LABELLED, "train.tsv:",
     prepare=labelled(bytes((i * i * 167 + 13 * i) % 256 for i in range(4096))))
case("labelled_too_many_classes", LABELLED, "train.tsv:1001", "one class more than 1000",
     prepare=labelled("".join(f"{i}\ttext\n" for i in range(5000))))
case("labelled_too_few_to_validate", LABELLED.replace("validation_batch: 2", "validation_batch: 3"), "input.yaml:4:29",
     "held_out.tsv has 2", prepare=labelled("a\tone\nb\ttwo\n"))
case("labelled_letters_that_the_corpus_lacks",
     LABELLED.replace("labelled: train", "tokenizer: characters, labelled: train"), "train.tsv:1",
     "cannot write this text", prepare=labelled("a\tzebra\nb\ttwo\n"), ranks=2)
IMAGES = """workload: {kind: images}
images: {training: [train-images], validation: [held_out-images], norm_samples: 2}
train: {steps: 1, batch: 4, validation_batch: 4}
"""


def images(count, label_count=None, width=4):
    """Prepares the files of IMAGES: images of 4 x `width` pixels and two classes."""
    def prepare(directory):
        for name in ("train", "held_out"):
            extents = b"".join(extent.to_bytes(4, "big") for extent in (count, 4, width))
            (directory / f"{name}-images").write_bytes(bytes([0, 0, 8, 3]) + extents + bytes(range(4 * width)) * count)
            labels = bytes(i % 2 for i in range(count if label_count is None else label_count))
            (directory / f"{name}-labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, len(labels)]) + labels)
    return prepare


case("images_missing", IMAGES.replace("training: [train-images], ", ""), "images.training", "needs images to train on")
case("images_validation_missing", IMAGES.replace("validation: [held_out-images], ", ""), "images.validation",
     "needs images to train on", ranks=2)
case("images_no_file", IMAGES, "input.yaml:2:10", "train-images", "cannot be read", ranks=2)
case("images_fewer_labels", IMAGES, "input.yaml:2:10", "train-labels", "has 3 labels", ranks=2, prepare=images(4, 3))
case("images_too_few_to_validate", IMAGES.replace("validation_batch: 4", "validation_batch: 6"), "input.yaml:3:29",
     "images.validation has 4", prepare=images(4))
case("images_norm_samples", IMAGES, "input.yaml:2:67", "2 samples together, and a round of a rank has 1",
     "a divisor of 1", ranks=4, prepare=images(4))
case("images_layer_bits", IMAGES + "model:\n  quantization: {kind: psq, layer_bits: 8}\n", "input.yaml:5:29",
     "convolutions of 8 bits", "choose layer_bits 1, or kind none", prepare=images(4))
case("images_group", IMAGES + "model:\n  quantization: {kind: psq, group: row}\n", "input.yaml:5:29",
     "'row', which is not one of its values", "image, position", prepare=images(4))
case("images_gradient_bits", IMAGES + "model:\n  quantization: {kind: psq, bits: 3}\n", "input.yaml:5:29",
     "gradients of 3 bits", prepare=images(4), ranks=2)
case("images_exclusion_of_nothing", IMAGES + "model:\n  quantization: {kind: fqt, exclude: [layer1.0.conv3]}\n",
     "input.yaml:5:29", "pattern 'layer1.0.conv3' matches the name of no convolution",
     "did you mean 'layer1.0.conv1'?", prepare=images(4), ranks=2)
DCGAN = IMAGES.replace("kind: images", "kind: dcgan")
case("dcgan_images_missing", DCGAN.replace("training: [train-images], ", ""), "images.training",
     "workload dcgan needs images to train on")
case("dcgan_extents", DCGAN, "input.yaml:2:10", "images have 4 x 6 pixels", "multiples of 4", ranks=2,
     prepare=images(4, width=6))
case("initialize_from_text", QUADRATIC + "checkpoint:\n  initialize_from: earlier.h5\n", "input.yaml:4:3",
     "not an HDF5 file", ranks=2, prepare=lambda d: (d / "earlier.h5").write_text("parameters " * 100))
case("info_of_nothing", None, "none.h5: the file does not exist", command=("checkpoint", "info", "none.h5"),
     output=None, ranks=2)
case("verify_of_text", None, "earlier.h5: this is not a checkpoint", command=("checkpoint", "verify", "earlier.h5"),
     output=None, prepare=lambda d: (d / "earlier.h5").write_text("x" * 5000))
case("variance_of_text", None, "earlier.h5: this is not a checkpoint",
     command=("checkpoint", "variance", "earlier.h5", "later.h5"), output=None, ranks=2,
     prepare=lambda d: (d / "earlier.h5").write_text("x" * 5000))
FROM = QUADRATIC + "optimizer: {algorithm: %s}\nfreeze:\n  from: earlier.h5\n"
case("variance_missing", FROM % "onebit_adam", "input.yaml:5:3", "earlier.h5", ranks=2)
case("variance_is_text", FROM % "onebit_adam", "input.yaml:5:3", "earlier.h5", "not an HDF5 file", ranks=3,
     prepare=lambda d: (d / "earlier.h5").write_text("variance " * 100))
case("variance_for_sgd", FROM % "sgd", "input.yaml:5:3", "algorithm sgd does not start from a variance")
case("corpus_missing", "data:\n  corpus: [nothere.txt]\n", "input.yaml:2:3", "nothere.txt", "cannot be read", ranks=2)
case("corpus_is_directory", "data:\n  corpus: texts\n", "input.yaml:2:3", "texts: is a directory",
     prepare=lambda d: (d / "texts").mkdir())
case("corpus_is_device", "data:\n  corpus: /dev/zero\n", "input.yaml:2:3", "/dev/zero: is not a regular file")
case("corpus_is_empty", "data:\n  corpus: [full.txt, empty.txt]\n", "input.yaml:2:3", "empty.txt: is empty", ranks=2,
     prepare=lambda d: ((d / "full.txt").write_text("words " * 100), (d / "empty.txt").touch()))
case("corpus_forbidden", "data:\n  corpus: secret.txt\n", "input.yaml:2:3", "secret.txt: cannot be", user=NOBODY,
     prepare=lambda d: ((d / "secret.txt").write_text("words " * 100), (d / "secret.txt").chmod(0)))
case("corpus_too_short", TEXT + "model:\n  sequence: 64\n", "input.yaml:4:3", "one sample needs 64", ranks=2,
     prepare=lambda d: (d / "corpus.txt").write_text("words"))
case("corpus_not_utf8", "data:\n  corpus: latin.txt\n  tokenizer: sentencepiece\n", "input.yaml:2:3",
     "latin.txt: is not UTF-8 at byte offset 3", ranks=2,
     prepare=lambda d: (d / "latin.txt").write_bytes("caf\xe9 ".encode("latin-1") * 100))
case("vocabulary_too_large", TEXT, "input.yaml:2:8", "corpus.txt",
     "SentencePiece cannot make the vocabulary", ranks=2, prepare=write_corpus,
     arguments=("--set", "data.tokenizer=sentencepiece", "--set", "data.vocabulary=16000"))
case("vocabulary_of_model", TEXT + "model:\n  vocabulary: 200\n", "input.yaml:4:3", "fewer than the tokeniser's 257",
     prepare=write_corpus)
case("tokenizer_cache_unwritable", TEXT, "input.yaml:2:8", "taken/a", "tokenizer cache", prepare=lambda d: (
    write_corpus(d), (d / "taken").write_text("mine")),
     arguments=("--set", "data.tokenizer=sentencepiece", "--set", "data.vocabulary=300", "--set", "data.cache=taken/a"))
for name in ("cuda", "hip"):
    case(f"{name}_not_built", f"run:\n  backend: {name}\n", "input.yaml:2:3", f"backend {name} was not compiled in",
         "onebit list", ranks=2, prepare=lambda d, name=name: needs_no(name))

# --- replay -----------------------------------------------------------------------------------------------------------

REPLAY = "workload: {kind: replay}\ntrain: {steps: 4, batch: 12}\nreplay:\n  file: gradients.h5\n"


def gradients(variant="complete", ranks=1, steps=4, parameters=100):
    def prepare(directory):
        subprocess.run([MAKE_REPLAY, directory / "gradients.h5", str(steps), str(ranks), str(parameters), "1", variant],
                       check=True)
    return prepare


def truncated(length):
    """Keeps this share of the file, or all but some bytes of it."""
    def prepare(directory):
        gradients()(directory)
        path = directory / "gradients.h5"
        size = path.stat().st_size
        os.truncate(path, int(length * size) if length >= 0 else size + length)
    return prepare


def damaged(parameters=100):
    """Changes a byte of the last rank's gradient of step 3, which its checksum notices when it is read."""
    def prepare(directory):
        gradients("checksums", 2, parameters=parameters)(directory)
        path = directory / "gradients.h5"
        content = bytearray(path.read_bytes())
        place = content.index(replay_chunk(seed=1, first=(2 * 2 + 1) * parameters, count=100))
        content[place + 17] ^= 1
        path.write_bytes(content)
    return prepare


def replay_chunk(seed, first, count):
    """What make_replay.cpp defines, as bytes of float32."""
    chunk = (ctypes.c_float * count)()
    for i in range(count):
        z = (seed * 0x9E3779B97F4A7C15 + first + i) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        chunk[i] = ((z ^ z >> 31) >> 40) / 2**23 - 1
    return bytes(chunk)


def replay(name, prepare, *fragments, **options):
    case("replay_" + name, REPLAY, "input.yaml:4:3", "gradients.h5", *fragments, prepare=prepare, **options)


replay("missing", None, "does not exist", ranks=2)
replay("is_directory", lambda d: (d / "gradients.h5").mkdir(), "directory")
replay("is_text", lambda d: (d / "gradients.h5").write_text("1, 2, 3\n" * 1000), "not an HDF5 file", ranks=2)
replay("empty", truncated(0.0), "not an HDF5 file")
for share in (0.02, 0.3, 0.6, 0.95, -1):
    replay(f"truncated_{share}", truncated(share), "truncated", ranks=2 if share == 0.6 else 1)
replay("other_name", gradients("other_name"), "no dataset 'gradients'")
replay("group", gradients("group"), "no dataset 'gradients'")
replay("scalar", gradients("scalar"), "does not have the shape (steps, ranks, parameters)")
replay("two_dimensions", gradients("two_dimensions"), "does not have the shape (steps, ranks, parameters)", ranks=2)
replay("no_parameters", gradients("no_parameters"), "does not have the shape (steps, ranks, parameters)")
replay("integers", gradients("integers", 2), "'gradients' does not hold floating-point numbers", ranks=2)
case("replay_huge", REPLAY, "input.yaml:4:3", "10000000000000 parameters takes", prepare=gradients("huge"))
replay("rank_count", gradients(ranks=2), "is for 2 ranks, but 3 run", "run with 2 ranks", ranks=3)
replay("few_steps", gradients(steps=3), "holds 3 steps, but train.steps is 4", "lower train.steps")
replay("initial_length", gradients("initial_length"), "'initial' does not have the shape")
replay("initial_integers", gradients("initial_integers"), "'initial' does not hold floating-point numbers")
for variant in ("table_sum", "table_negative", "table_lengths"):
    replay(variant, gradients(variant), "the tensor table does not add up")
replay("table_reals", gradients("table_reals"), "'tensors/sizes' cannot be read as a list of integers")
replay("table_names", gradients("table_names"), "'tensors/names' cannot be read as a list of texts")
replay("table_incomplete", gradients("table_incomplete"), "no dataset 'tensors/sizes'")
replay("damaged_on_one_rank", damaged(), "error: rank 1: ", "'gradients' cannot be read", ranks=2)
# The same while gradients are averaged in buckets, by a thread that waits for the other ranks'.
BUCKETS = ("--set", "comm.bucket_bytes=4096")
replay("damaged_on_one_rank_buckets", damaged(5000), "error: rank 1: ", "'gradients' cannot be read", ranks=2,
       arguments=BUCKETS)

# --- command line and environment -------------------------------------------------------------------------------------

case("no_command", None, "command line", command=(), ranks=2, output=None)
case("unknown_command", None, "command line", command=("trian", "input.yaml"), ranks=2, output=None)
case("no_input", None, "command line: INPUT is required", command=("train",), ranks=3, output=None)
case("unknown_option", QUADRATIC, "command line", "--wibble", arguments=("--wibble",))
case("set_without_value", QUADRATIC, "command line", "--set", arguments=("--set",), output=None)
case("set_without_equals", QUADRATIC, "--set train.steps", "section.key=value", arguments=("--set", "train.steps"))
case("set_without_section", QUADRATIC, "--set steps=0.5", "section.key=value", arguments=("--set", "steps=0.5"))
case("set_unknown_section", QUADRATIC, "--set trian.steps=5", "did you mean 'train'?",
     arguments=("--set", "trian.steps=5"))
case("set_unknown_key", QUADRATIC, "--set train.stesp=5", "did you mean 'train.steps'?", ranks=2,
     arguments=("--set", "train.stesp=5"))
case("set_bad_value", QUADRATIC, "--set train.steps=many", "not an integer", arguments=("--set", "train.steps=many"))
case("set_stray_bracket", QUADRATIC, "--set data.corpus=[a]]", "not YAML",
     arguments=("--set", "data.corpus=[a]]"))
case("set_comment", QUADRATIC, "--set train.steps=5 # five", "not an integer",
     arguments=("--set", "train.steps=5 # five"))
case("set_home", QUADRATIC, "--set run.output=~/a", "home directory", arguments=("--set", "run.output=~/a"))
case("set_several", QUADRATIC, "command line", "--set in front of each", output=None,
     arguments=("--set", "train.steps=5", "train.batch=4"))
case("json_at_home", QUADRATIC, "--json", "home directory", arguments=("--json=~/a.json",))
case("misspelt_command", None, "unknown command 'validat'", "did you mean 'validate'?", command=("validat", "a.yaml"),
     output=None, ranks=2)
case("moved_command", None, "unknown command 'predict'", "scripts/predict.py", command=("predict", "a.yaml"),
     output=None)
case("misspelt_subcommand", None, "unknown command 'kernel'", "did you mean 'kernels'?",
     command=("bench", "kernel", "a.yaml"), output=None)
case("bench_of_no_length", "bench: {smallest: 100, largest: 10}\n", "input.yaml:1:9", "bench.smallest (100)",
     "raise bench.largest", command=("bench", "collective", "input.yaml"), ranks=2)
case("bench_of_no_length_by_set", QUADRATIC, "--set bench.largest=100", "bench.smallest (1024)",
     command=("bench", "kernels", "input.yaml"), arguments=("--set", "bench.largest=100"))
case("set_no_value", QUADRATIC, "--set train.steps=", "has no value", arguments=("--set", "train.steps="))
case("set_not_yaml", QUADRATIC, "--set data.corpus=[a", "not YAML", arguments=("--set", "data.corpus=[a"))
case("set_deep", QUADRATIC, "--set data.corpus=[[[", "nested too deeply",
     arguments=("--set", "data.corpus=" + "[" * 10000))
case("too_many_openmp_threads", QUADRATIC, "OMP_NUM_THREADS", "513 threads", environment={"OMP_NUM_THREADS": "513"},
     prepare=lambda d: needs_openmp())
for name, variable, value, said in (
        ("openmp_threads_zero", "OMP_NUM_THREADS", "0", "'0' is no number of threads"),
        ("openmp_threads_word", "OMP_NUM_THREADS", "many", "'many' is no number of threads"),
        ("openmp_threads_huge", "OMP_NUM_THREADS", "99999999999999999999", "more than Kokkos holds"),
        ("kokkos_threads_zero", "KOKKOS_NUM_THREADS", "0", "'0' is no number of threads"),
        ("kokkos_threads_word", "KOKKOS_NUM_THREADS", "4 or so", "'4 or so' is no number of threads"),
        ("kokkos_threads_600", "KOKKOS_NUM_THREADS", "600", "600 threads, more than Kokkos holds")):
    case(name, QUADRATIC, variable, said, environment={variable: value}, prepare=lambda d: needs_openmp(), ranks=2)
case("thread_limit", QUADRATIC, "run.threads: OpenMP starts 1 thread(s) where 2", "OMP_THREAD_LIMIT",
     environment={"OMP_THREAD_LIMIT": "1"}, arguments=("--set", "run.threads=2"), prepare=lambda d: needs_openmp())
case("validate_checks_ranks", "train:\n  batch: 32\n", "input.yaml:2:3", "3 ranks", ranks=3,
     command=("validate", "input.yaml"))

# --- whether a run could start ----------------------------------------------------------------------------------------


def start(name, text, *fragments, ranks="2", **options):
    case("start_" + name, text, *fragments, command=("validate", "input.yaml"),
         arguments=("--ranks", ranks, *options.pop("arguments", ())), **options)


start("batch", QUADRATIC, "input.yaml:2:19", "not a multiple of 5 ranks", ranks="5")
start("corpus", "data:\n  corpus: nothere.txt\n", "input.yaml:2:3", "nothere.txt", "No such file")
start("corpus_of_subwords", "data:\n  corpus: nothere.txt\n  tokenizer: sentencepiece\n", "input.yaml:2:3",
      "nothere.txt", "No such file")
start("labelled", LABELLED, "input.yaml:2:30", "train.tsv:2", "no tab", prepare=labelled("a\tone\nb two\n"))
start("replay", REPLAY, "input.yaml:4:3", "gradients.h5", "is for 3 ranks, but 2 run", prepare=gradients(ranks=3))
start("restart", QUADRATIC + "checkpoint:\n  restart: earlier.h5\n", "input.yaml:4:3", "earlier.h5", "does not exist")
start("variance", QUADRATIC + "freeze:\n  from: earlier.h5\n", "input.yaml:4:3", "earlier.h5", "does not exist")
start("output", QUADRATIC + "run:\n  output: taken/a\n", "input.yaml:4:3", "cannot be written", output=None,
      prepare=lambda d: (d / "taken").write_text("mine"))
start("output_forbidden", QUADRATIC + "run:\n  output: locked/out\n", "input.yaml:4:3", "Permission denied",
      output=None, prepare=lambda d: (d / "locked").mkdir(0o555), user=NOBODY)
start("memory", TEXT + "model:\n  hidden: 65536\n  layers: 1000\n  heads: 2\n", "input.yaml:5:3", "GiB on each rank",
      prepare=write_corpus)
start("no_ranks", QUADRATIC, "command line", "--ranks", ranks="0")
case("start_elsewhere", TEXT + "model:\n  hidden: 65536\n  layers: 1000\n  heads: 2\n", "hidden: 65536",
     command=("validate", "input.yaml"), arguments=("--ranks", "2", "--elsewhere"), status=0, prepare=write_corpus)
case("start_without_ranks", "data:\n  corpus: nothere.txt\n", "nothere.txt", status=0,
     command=("validate", "input.yaml"))
# --- files that would be each other's ---------------------------------------------------------------------------------

case("json_is_the_input", QUADRATIC, "--json: './input.yaml' would be the file of --json and the input, which is read",
     arguments=("--json", "./input.yaml"), ranks=2)
case("json_is_a_link_to_the_input", QUADRATIC, "--json", "the input, which is read",
     arguments=("--json", "link.json"), prepare=lambda d: os.link(d / "input.yaml", d / "link.json"))
case("json_is_a_table", QUADRATIC, "--json", "out/steps.csv' would be", arguments=("--json", "out/steps.csv"))
case("json_is_a_table_of_bench", QUADRATIC, "--json", "would be the file of --json and collective.csv",
     command=("bench", "collective", "input.yaml"), arguments=("--json", "out/collective.csv"))
case("dump_is_a_table", QUADRATIC, "run.dump_parameters", "'out/run.csv' would be", ranks=2,
     arguments=("--set", "run.dump_parameters=run.csv"))
case("dump_is_the_input", QUADRATIC, "run.dump_parameters", "the input, which is read",
     arguments=("--set", "run.dump_parameters=../input.yaml"))
case("dump_is_the_json", QUADRATIC, "--json", "would be the file of --json and the file of run.dump_parameters",
     arguments=("--set", "run.dump_parameters=x", "--json", "out/x"))
case("dump_is_a_checkpoint", QUADRATIC, "run.dump_parameters", "a checkpoint",
     arguments=("--set", "run.dump_parameters=checkpoints/step_00000005.h5"))
case("corpus_is_a_table", TEXT.replace("corpus.txt", "out/run.csv"), "run.output", "data.corpus, which is read",
     ranks=2)

# --- runs that fail ---------------------------------------------------------------------------------------------------

case("diverges", QUADRATIC + "optimizer: {lr: 3.0e38}\n", "rank 0, step ", "gradient of tensor 'x' is not finite",
     "lower optimizer.lr", status=1)
case("exceeds_squares", QUADRATIC + "optimizer: {algorithm: adam, lr: 1.0e25}\n", "rank 0, step 2",
     "has a finite element of magnitude 2.30584e+18 or more", "sums of its square",
     "lower optimizer.lr", status=1)
case("exceeds_fp16", QUADRATIC + "optimizer: {algorithm: sgd, lr: 1.0e6}\ncomm: {dense_type: fp16}\n",
     "rank 0, step 2", "gradient of tensor 'x' has a finite element of magnitude 65520 or more", "travels in fp16",
     "set comm.dense_type to bf16 or fp32", status=1, ranks=2)
case("exceeds_sums", QUADRATIC + "optimizer: {algorithm: sgd, lr: 1.0e37}\n", "rank 0, step 2",
     "has a finite element of magnitude 2.6", "sums of such numbers", status=1, ranks=2)
case("nan_on_one_rank", REPLAY, "rank 1, step 2: the gradient of tensor 'second' is not finite", status=1, ranks=2,
     prepare=gradients("nan", 2))
case("nan_on_one_rank_buckets", REPLAY, "rank 1, step 2: the gradient of tensor 'second' is not finite", status=1,
     ranks=2, prepare=gradients("nan", 2, parameters=5000), arguments=BUCKETS)
case("large_on_one_rank", REPLAY, "rank 1, step 2: the gradient of tensor 'second'", status=1, ranks=2,
     prepare=gradients("large", 2))
case("full_disk_at_first_line", QUADRATIC, "out/steps.csv", "writing failed", "free space", status=1, ranks=2,
     prepare=lambda d: (d / "out/steps.csv.partial").symlink_to("/dev/full"))
case("full_disk_at_start", QUADRATIC, "run.output", "cannot be written", "free space",
     prepare=lambda d: (d / "out/input.resolved.yaml.partial").symlink_to("/dev/full"))
case("full_disk_at_end", QUADRATIC, "out/run.csv", "writing failed", status=1, ranks=2,
     prepare=lambda d: (d / "out/run.csv.partial").symlink_to("/dev/full"))
case("full_disk_in_the_run", QUADRATIC, "out/steps.csv", "writing failed", status=1, ranks=2, tmpfs="64k",
     arguments=("--set", "train.steps=100000"))
case("full_disk_for_parameters", QUADRATIC, "out/x.h5", "could not be written", status=1, ranks=2, tmpfs="256k",
     completes=True, arguments=("--set", "quadratic.dimension=200000", "--set", "run.dump_parameters=x.h5"))
case("full_disk_for_checkpoint", QUADRATIC, "step_00000001.h5", "could not be written", "free space", status=1, ranks=2,
     tmpfs="256k", arguments=("--set", "quadratic.dimension=200000", "--set", "checkpoint.every=1"))
case("checkpoints_are_a_file", QUADRATIC + "checkpoint:\n  every: 1\n",
     "input.yaml (checkpoint.directory has its default)", "out/checkpoints' cannot be written", ranks=2,
     prepare=lambda d: (d / "out/checkpoints").write_text("mine"))
case("full_standard_output", QUADRATIC, "standard output: writing failed", status=1, stdout="/dev/full",
     command=("validate", "input.yaml"))

# --- launchers --------------------------------------------------------------------------------------------------------


def launched(name, *fragments, **environment):
    """A process that a launcher started as one of several, and MPI connects with no other."""
    case("launched_by_" + name, QUADRATIC, *fragments, "MPI sees this one alone", environment=environment)


launched("mpich", "PMI_SIZE: ", "started 3 processes", "mpirun", "unset PMI_SIZE", PMI_RANK="0", PMI_SIZE="3")
launched("another_open_mpi", "OMPI_COMM_WORLD_SIZE: ", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
launched("mvapich", "MV2_COMM_WORLD_SIZE: ", MV2_COMM_WORLD_SIZE="2", MV2_COMM_WORLD_RANK="1")
launched("pals", "PALS_RANKID: ", PALS_RANKID="1")
launched("srun", "SLURM_STEP_NUM_TASKS: ", "srun", "--mpi", SLURM_STEP_NUM_TASKS="4", SLURM_NTASKS="4",
         SLURM_PROCID="0")
launched("torchrun", "WORLD_SIZE: ", "torch.distributed", WORLD_SIZE="2", RANK="0")
case("launched_bench", QUADRATIC, "PMI_SIZE: ", command=("bench", "collective", "input.yaml"),
     environment={"PMI_RANK": "0", "PMI_SIZE": "3"})
case("launched_validate", QUADRATIC, "quadratic:", status=0, command=("validate", "input.yaml"),
     environment={"PMI_RANK": "0", "PMI_SIZE": "3"})

# --- where MPI does not start, as on some login nodes -----------------------------------------------------------------

NO_MPI = {"OMPI_MCA_pml": "none"}  # Open MPI finds no transport, so that MPI_Init fails
case("without_mpi_validate", QUADRATIC, "quadratic:", status=0, environment=NO_MPI,
     command=("validate", "input.yaml", "--ranks", "2"), prepare=lambda d: needs_that_a_training_fails(NO_MPI))
case("without_mpi_bad_input", "train: 5\n", "section 'train' is not a map", environment=NO_MPI,
     command=("validate", "input.yaml"))
case("without_mpi_list", None, "algorithms: adam", status=0, environment=NO_MPI, command=("list",), output=None)
case("without_mpi_version", None, "onebit ", status=0, environment=NO_MPI, command=("--version",), output=None)
case("without_mpi_help", None, "Usage: ", status=0, environment=NO_MPI, command=("train", "--help"), output=None)
case("without_mpi_info", None, "earlier.h5: this is not a checkpoint", environment=NO_MPI, output=None,
     command=("checkpoint", "info", "earlier.h5"), prepare=lambda d: (d / "earlier.h5").write_text("x" * 5000))

# --- what must work ---------------------------------------------------------------------------------------------------


def skipped_steps(directory):
    lines = [line.split(",") for line in (directory / "out/steps.csv").read_text().splitlines()]
    column = lines[0].index("skipped")
    found = [line[column] for line in lines[1:]]
    assert found == ["0", "1", "0", "0"], f"column skipped of steps.csv is {found}"


def none_of(directory, name):
    assert not (directory / name).exists(), f"{name} is there"


def reads_back(directory, name):
    """A directory's name is in the resolved input, and its tables are whole."""
    resolved = (directory / name / "input.resolved.yaml").read_text()
    quoted = name.replace('"', '\\"')
    assert f'output: "{quoted}"' in resolved, resolved
    rows = list(csv.reader((directory / name / "run.csv").open(newline="")))
    assert len(rows) == 2 and len(rows[0]) == len(rows[1]), rows


def two_classes(directory):
    with open(directory / "out/run.csv", newline="") as file:
        row, = csv.DictReader(file)
    assert row["parameters"] == LABELLED_PARAMETERS, row["parameters"]


def works(name, text, **options):
    case("works_" + name, text, "results are in", status=0, completes=True, **options)


works("plain", QUADRATIC)
works("in_a_batch_script", QUADRATIC, environment={"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"})
works("in_a_batch_script_with_ranks", QUADRATIC, ranks=2,
      environment={"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"})
works("one_rank_of_mpirun_below_srun", QUADRATIC,
      environment={"SLURM_STEP_NUM_TASKS": "4", "OMPI_COMM_WORLD_SIZE" if support.is_open_mpi() else "PMI_SIZE": "1"})
works("below_another_launcher", QUADRATIC, ranks=2, environment={"PMI_SIZE": "3", "WORLD_SIZE": "3", "RANK": "1"})
works("openmp_threads_of_levels", QUADRATIC, environment={"OMP_NUM_THREADS": "2,1"})
works("openmp_threads_empty", QUADRATIC, environment={"OMP_NUM_THREADS": ""})
works("openmp_threads_where_the_input_wins", QUADRATIC, environment={"OMP_NUM_THREADS": "none"},
      arguments=("--set", "run.threads=1"))
works("kokkos_threads_where_the_input_wins", QUADRATIC, environment={"KOKKOS_NUM_THREADS": "600"},
      arguments=("--set", "run.threads=1"))
works("kokkos_threads_of_serial", QUADRATIC, environment={"KOKKOS_NUM_THREADS": "2"},
      arguments=("--set", "run.backend=serial"), prepare=lambda d: needs_serial())
works("kokkos_device", QUADRATIC, environment={"KOKKOS_DEVICE_ID": "none", "KOKKOS_DISABLE_WARNINGS": "0"})
works("trial_of_one_step", QUADRATIC + "freeze: {step: 300}\n", arguments=("--set", "train.steps=1"))
works("byte_order_mark", b"\xef\xbb\xbf" + QUADRATIC.encode())
works("crlf", QUADRATIC.replace("\n", "\r\n"))
works("anchor", "workload: {kind: quadratic}\ntrain:\n  steps: &n 6\n  batch: *n\n")
works("line_ends_of_old_macs", QUADRATIC.replace("\n", "\r"))
works("exponents", QUADRATIC + "run: {seed: 9223372036854775807}\nquadratic: {dimension: 1e2}\n",
      arguments=("--set", "train.steps=1e1"))
works("no_dump", QUADRATIC + "run: {dump_parameters: x.h5}\n", arguments=("--set", "run.dump_parameters="),
      check=lambda d: none_of(d, "out/x.h5"))
works("output_with_a_sign", QUADRATIC, output="out/run #3", check=lambda d: none_of(d, "out/run"))
works("values_that_csv_quotes", QUADRATIC, output='out/a, "b"; =1', check=lambda d: reads_back(d, 'out/a, "b"; =1'))
for mark in ("bom", "crlf", "cr", "no_end", "blank_lines"):
    works("labelled_" + mark, LABELLED, prepare=labelled(
        {"bom": b"\xef\xbb\xbf"}.get(mark, b"") + {"crlf": "a\tone\r\nb\ttwo\r\n", "cr": "a\tone\rb\ttwo\r",
                                                    "no_end": "a\tone\nb\ttwo", "blank_lines": "a\tone\nb\ttwo\n\n"}
        .get(mark, "a\tone\nb\ttwo\n").encode()), check=two_classes)
works("key_without_effect", QUADRATIC + "lamb: {min_coefficient: 0.1}\n")
works("empty_section", QUADRATIC + "optimizer:\n", ranks=2)
works("transport_device", QUADRATIC + "comm: {transport: device}\n", ranks=2)
works("on_nonfinite_skip", REPLAY + "optimizer: {on_nonfinite: skip}\n", prepare=gradients("nan", 2), ranks=2,
      check=skipped_steps)
works("on_nonfinite_skip_large", REPLAY + "optimizer: {on_nonfinite: skip}\n", prepare=gradients("large", 2), ranks=2,
      check=skipped_steps)
works("on_nonfinite_skip_buckets", REPLAY + "optimizer: {on_nonfinite: skip}\n",
      prepare=gradients("nan", 2, parameters=5000), ranks=2, arguments=BUCKETS, check=skipped_steps)
works("synthetic", "workload: {kind: synthetic, parameters: 100, compute_time_ms: 1}\ntrain: {steps: 5, batch: 12}\n",
      ranks=2)
for variant in ("complete", "gradients", "double", "checksums"):
    works("replay_" + variant, REPLAY, prepare=gradients(variant))


# --- running them -----------------------------------------------------------------------------------------------------


def needs_less_memory_than(size):
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >= 2 * size:
        raise Skip(f"this machine has {2 * size >> 30} GiB of memory or more, where the model fits")


def backends():
    """Those of this build."""
    listing = subprocess.run([PROGRAM, "list"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    return re.search("^backends: (.*)$", listing, re.MULTILINE)[1].split()


def needs_no(backend):
    if backend in BACKENDS:
        raise Skip(f"this build has the backend {backend}, and the case is of one without")


def needs_that_a_training_fails(environment):
    """Where it does not, the case would show nothing."""
    if not support.is_open_mpi():
        raise Skip("the case makes MPI_Init of Open MPI fail, and this is another library")
    done = subprocess.run([PROGRAM, "train", "input.yaml"], env={**ENVIRONMENT, **environment}, capture_output=True,
                          text=True, check=False)
    assert done.returncode != 0 and "MPI_Init" in done.stderr, done.stderr


def needs_openmp():
    if "openmp" not in BACKENDS:
        raise Skip("this build has no OpenMP")


def needs_serial():
    if "serial" not in BACKENDS:
        raise Skip("this build has no Serial")


def contents(directory):
    """What is at each path below a directory, except for directories."""
    return {path.relative_to(directory).as_posix():
            path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else b"special"
            for path in directory.rglob("*") if not path.is_dir() or path.is_symlink()}


def execute(case, directory):
    """Runs a case; returns (status or None where it hung, standard output, standard error)."""
    command = [PROGRAM, *case.command, *case.arguments]
    if case.output is not None:
        command += ["--set", "run.output=" + case.output]
    has_keys = case.output is not None or command[1:] == ["train", "input.yaml"]
    if has_keys and "openmp" not in BACKENDS and not case.name.endswith("_not_built"):
        command += ["--set", "run.backend=" + BACKENDS[0]]  # openmp is the default
    if case.ranks > 1:
        command = [MPIEXEC, "-n", str(case.ranks), *command]
    with contextlib.ExitStack() as stack:
        stdout = stack.enter_context(open(case.stdout, "w")) if case.stdout else subprocess.PIPE
        # Open MPI's files are in a place of their own: it trips over those of another program that ends meanwhile.
        environment = {**ENVIRONMENT, "TMPDIR": str(directory.parent / "tmp"), **case.environment}
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=stdout, stderr=subprocess.PIPE,
                                   text=True, errors="replace", start_new_session=True, user=case.user)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
            return process.returncode, out or "", err
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return None, out or "", err


def may_run_program(user):
    try:
        return subprocess.run([PROGRAM, "list"], env=ENVIRONMENT, user=user, capture_output=True).returncode == 0
    except PermissionError:  # the program is where this user may not go, as /root
        return False


def try_case(case, directory):
    """All that is wrong, one text a finding. \\throws Skip"""
    if case.user is not None:
        if os.geteuid() != 0:
            case.user = None  # permissions hold for this user as it is
        elif not may_run_program(case.user):
            raise Skip("another user may not run the program from where it is")
    (directory / "out").mkdir(parents=True)
    (directory.parent / "tmp").mkdir()
    with contextlib.ExitStack() as stack:
        if case.tmpfs:
            stack.enter_context(mounted(directory / "out", case.tmpfs))
        for name in EARLIER:
            (directory / "out" / name).write_text("of an earlier run\n")
        if case.text is not None:
            path = directory / "input.yaml"
            path.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
        if case.prepare:
            case.prepare(directory)
        if case.user is not None:
            for path in (directory, directory.parent / "tmp", directory / "out", *(directory / "out").iterdir()):
                os.chown(path, case.user, -1)
        before = contents(directory)
        status, out, err = execute(case, directory)
        after = contents(directory)

        wrong = []
        if status is None:
            wrong.append(f"was still running after {LIMIT_S} s")
        elif status != case.status:
            wrong.append(f"ended with status {status}")
        wrong += [f"holds {text!r}" for text in FORBIDDEN if text in err]
        wrong += [f"lacks {text!r}" for text in case.fragments if text not in (err if case.status else out)]
        if case.status != 0:
            for text, pattern in (("message", "^error: "), ("remedy", "^  remedy: ")):
                count = len(re.findall(pattern, err, re.MULTILINE))
                if count != 1:
                    wrong.append(f"has {count} lines with a {text}")
        kept = [name for name in before if not (case.completes and name.startswith("out/"))]
        wrong += [f"{name} was changed" for name in kept if after.get(name) != before[name]]
        wrong += [f"{name} is new" for name in after if name not in before and not name.startswith("out/")]
        if case.status == 0:
            wrong += [f"{name} is left" for name in after if name.endswith(".partial")]
        if case.check and not wrong:
            try:
                case.check(directory)
            except AssertionError as error:
                wrong.append(str(error))
        if wrong:
            wrong += ["standard output: " + line for line in out.splitlines()[-5:]]
            wrong += ["standard error: " + line[:300] for line in err.splitlines()[:40]]
        return wrong


def main():
    pattern = re.compile(sys.argv[4] if len(sys.argv) > 4 else "")
    selected = [case for case in CASES if pattern.search(case.name)]
    assert len({case.name for case in CASES}) == len(CASES), "two cases have the same name"
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="onebit-bad-input."))
    scratch.chmod(0o755)
    failed = skipped = 0
    begin = time.monotonic()
    try:
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as workers:
            for case, future in [(case, workers.submit(try_case, case, scratch / case.name / "at"))
                                 for case in selected]:
                try:
                    wrong = future.result()
                    failed += bool(wrong)
                    print(f"{'FAILED' if wrong else 'ok':8}{case.name}", *wrong, sep="\n        ", flush=True)
                except Skip as reason:
                    skipped += 1
                    skips.report(case.name, reason)
    finally:
        shutil.rmtree(scratch)
    together = sum(case.ranks > 1 for case in selected)
    print(f"{len(selected)} cases, {together} of them with 2 or 3 ranks: {failed} failed, {skipped} skipped, "
          f"{time.monotonic() - begin:.0f} s")
    sys.exit(failed > 0 or not selected)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    PROGRAM = os.path.abspath(os.environ.get("ONEBIT_BINARY") or sys.argv[1])
    MPIEXEC = sys.argv[2]
    MAKE_REPLAY = os.path.abspath(sys.argv[3])
    BACKENDS = backends()
    main()
