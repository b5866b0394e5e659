#!/usr/bin/env bash
# Builds the service image where it is missing or old and hands its arguments to docker-compose (default: up -d).
#   deploy/compose.sh                       start everything
#   deploy/compose.sh exec scheduler dawn status
#   deploy/compose.sh down                  stop; the volumes with queue and archive stay
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_engine
install_venv runtime
"$venv/bin/dawn" images build >&2

if docker compose version >/dev/null 2>&1; then compose=(docker compose)
elif command -v docker-compose >/dev/null 2>&1; then compose=(docker-compose)
else apt_install docker-compose || fail "there is no docker-compose" "install docker-compose"; compose=(docker-compose)
fi

cd "$root"
base=$("$venv/bin/dawn" images list | awk '$1 == "python" { print $2 }')
bundle=${DAWN_CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}
parts=(pyproject.toml README.md LICENSE worker scheduler sandbox_images deploy)
tag=$({ echo "$base"; cat "$bundle"; find "${parts[@]}" -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; } \
  | sha256sum | cut -c1-12)
export DAWN_IMAGE=dawnfleet/app:$tag
if ! docker image inspect "$DAWN_IMAGE" >/dev/null 2>&1; then
  say "building $DAWN_IMAGE"
  tar -c --exclude='*.pyc' --exclude=__pycache__ "${parts[@]}" \
      --transform="s|^${bundle#/}\$|ca-bundle.crt|" --dereference "$bundle" 2>/dev/null \
    | docker build -q -t "$DAWN_IMAGE" --build-arg "BASE=$base" -f deploy/Dockerfile - >&2
fi
[ $# -gt 0 ] || set -- up -d
exec "${compose[@]}" -f deploy/compose.yaml -p "${DAWN_COMPOSE_PROJECT:-dawnfleet}" "$@"
