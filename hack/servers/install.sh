#!/usr/bin/env bash
# Installs Debian's packages of what tests start, and starts none of it: then tests need no root. As root they install what is
# missing themselves.
set -euo pipefail
[ -e /usr/sbin/policy-rc.d ] || {
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod +x /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
}
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
packages=(pgbouncer prometheus python3-venv rabbitmq-server redis-server)
command -v javac >/dev/null || packages+=(default-jdk-headless)
command -v npm >/dev/null || packages+=(npm)
command -v google-chrome >/dev/null || packages+=(chromium)
apt-get install -q -y --no-install-recommends "${packages[@]}"
