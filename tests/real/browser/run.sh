#!/usr/bin/env bash
# The report's page in headless Chromium; Debian's is installed where there is none and we are root.
set -euo pipefail
cd "$(dirname "$0")/../../.."
if ! command -v chromium >/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "make test-report needs chromium: install it, e.g. sudo apt-get install chromium" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi
uv run --with "playwright>=1.49,<2" pytest -q -o addopts="" tests/real/browser
