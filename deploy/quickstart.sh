#!/usr/bin/env bash
# Sets everything up on a fresh Debian or Ubuntu machine and runs the demo. Safe to run twice.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_engine
install_venv runtime
"$venv/bin/dawn" images build
exec "$venv/bin/dawn" demo "$@"
