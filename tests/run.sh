#!/usr/bin/env bash
# Sets up and passes the tests. `tests/run.sh [--full] [pytest arguments]`; --full adds the heavy matrix.
. "$(dirname "${BASH_SOURCE[0]}")/../deploy/setup.sh"
cd "$root"
select=(-m "not full")
if [ "${1:-}" = --full ]; then select=(); shift; fi
ensure_engine
ensure_chromium
install_venv dev
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
"$venv/bin/dawn" images build
exec "$venv/bin/python" -m pytest "${select[@]}" "$@"
