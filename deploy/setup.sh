#!/usr/bin/env bash
# Sourced by quickstart.sh, tests/run.sh and .ci/run: a virtual environment from a hashed lock, an engine, images.
# Refuses to touch anything outside this checkout but the engine it has to start.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${DAWN_VENV:-$root/.venv}

say() { printf '%s\n' "dawn: $*" >&2; }
fail() { say "$1"; [ -z "${2:-}" ] || say "hint: $2"; exit "${3:-75}"; }

find_python() {
  local candidate
  for candidate in ${DAWN_PYTHON:-} python3.13 python3.12 python3.11 python3; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$candidate"; return; }
  done
  fail "Python 3.11 or newer is needed" "install it, or name one with DAWN_PYTHON"
}

apt_install() { # packages...
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
  say "installing $* with apt"
  DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null 2>&1 || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# install_venv LOCK: makes the environment once; done again only when the lock or the project file changed.
install_venv() {
  local lock=$root/deploy/locks/$1.txt stamp=$venv/.dawnfleet-$1 wanted python
  wanted=$(cat "$lock" "$root/pyproject.toml" | sha256sum | cut -d' ' -f1)
  if [ -x "$venv/bin/dawn" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  python=$(find_python)
  if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv" 2>/dev/null || { apt_install python3-venv && "$python" -m venv "$venv"; } \
      || fail "could not make a virtual environment at $venv" "install python3-venv"
  fi
  say "installing the locked libraries ($1)"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$lock" >&2
  # The build back-end comes from the same lock in a test environment; users get it in isolation from theirs.
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$root/deploy/locks/build.txt" >&2
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e "$root" >&2
  echo "$wanted" > "$stamp"
}

engine_answers() { docker ${DAWN_DOCKER_URL:+--host "$DAWN_DOCKER_URL"} version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# An engine that answers: used if there, started as root on Debian and Ubuntu, else told how.
ensure_engine() {
  engine_answers && return
  [ -z "${DAWN_DOCKER_URL:-}" ] || fail "no Docker engine answers at $DAWN_DOCKER_URL" "start it, or unset DAWN_DOCKER_URL"
  if [ "$(id -u)" != 0 ]; then
    fail "no Docker engine answers" "start one and join its group: sudo systemctl start docker; sudo usermod -aG docker $USER"
  fi
  command -v dockerd >/dev/null 2>&1 || apt_install docker.io \
    || fail "no Docker engine answers and none could be installed" "install Docker Engine 20.10 or newer and start it"
  say "starting the Docker engine"
  if [ -d /run/systemd/system ]; then
    systemctl start docker >&2 || true
  else
    rm -f /var/run/docker.pid
    setsid nohup dockerd >/var/log/dockerd.log 2>&1 </dev/null &
  fi
  local tries=0
  until engine_answers; do
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || fail "the Docker engine did not start" "look at /var/log/dockerd.log"
    sleep 0.5
  done
}

# A Chromium for the tests of the pages: DAWN_TEST_CHROMIUM names one, else it is installed as root on Debian and
# Ubuntu. Without one those tests are skipped, and say why.
ensure_chromium() {
  [ -z "${DAWN_TEST_CHROMIUM:-}" ] || return 0
  command -v chromium >/dev/null 2>&1 || apt_install chromium \
    || say "no Chromium here: tests of the pages in a browser are skipped (name one with DAWN_TEST_CHROMIUM)"
}
