#!/usr/bin/env bash
# Says what is missing before anything else fails because of it: need.sh go
set -euo pipefail
for tool in "$@"; do
  command -v "$tool" >/dev/null && continue
  case $tool in
    go) echo "Go is not in PATH. Install Go 1.21 or later (https://go.dev/doc/install, or your distribution's package golang-go); it fetches the version of go.mod by itself." >&2 ;;
    *) echo "$tool is not in PATH. Install it and run this again." >&2 ;;
  esac
  exit 1
done
