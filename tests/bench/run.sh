#!/usr/bin/env bash
# What one call in a fresh, hardened container costs on this host, beside what else could be done, and a scripted
# repair of twenty commands. `tests/bench/run.sh [--short] [--json]`; the last line is JSON.
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/setup.sh"
cd "$root"
ensure_engine
install_venv dev
"$venv/bin/python" -m worker.sandbox.images build toolbox python >&2
exec "$venv/bin/python" tests/bench/bench.py "$@"
