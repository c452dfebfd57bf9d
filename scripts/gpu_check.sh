#!/usr/bin/env bash
# Checks OneBit on a machine with a GPU, in four stages: docs/guide/gpu.md. --help lists the options.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/gpu_check" "$@"
