#!/usr/bin/env bash
# What one call in a fresh, hardened container costs on this host, beside what else could be done; a scripted repair of
# twenty commands through the loop and its host; and how journal and time grow with the steps of a run.
# `tests/bench/run.sh [--short] [--json]`; the last line is JSON.
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/setup.sh"
cd "$root"
ensure_engine
install_venv dev
"$venv/bin/python" -m worker.sandbox.images build toolbox python >&2
PYTHONPATH=tests exec "$venv/bin/python" tests/bench/bench.py "$@"
