#!/usr/bin/env bash
# One night over real packages: a codemod over older published sdists, no model, each package's own tests as checks.
# Then an independent script, which shares no code with Dawnfleet, judges every verdict again.
# Usage: deploy/night.sh [PACKAGE...]   (all of deploy/night/packages.toml by default)
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_engine
install_venv runtime
"$venv/bin/dawn" images build >&2

night=${DAWN_NIGHT_DIR:-$(mktemp -d -t dawn-night-XXXXXX)}
export DAWN_STATE_DIR=$night/state DAWN_ARCHIVE=file://$night/archive
say "sdists, archive and report lie in $night"
export DAWN_STORE_IMAGES=${DAWN_STORE_IMAGES:-false}   # one machine: images of 300 MB each need not travel
mapfile -t sdists < <("$venv/bin/python" "$root/deploy/night/fetch.py" "$night/sdists" "$@")

manifest=$night/night.yaml
{
  cat "$root/deploy/night/night.yaml"
  echo "targets:"
  for sdist in "${sdists[@]}"; do printf '  - repo: %s\n' "$sdist"; done
} > "$manifest"

status=0
"$venv/bin/dawn" submit "$manifest" || status=$?
[ "$status" -le 5 ] || exit "$status"   # 4 and 5 say that checks are red: that is a verdict, and it is judged below
"$venv/bin/python" "$root/deploy/night/verify.py" "$night/archive"
