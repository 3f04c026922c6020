#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Checks the dependencies that are linked: licences, sources, duplicate versions, and known
# vulnerabilities if their list can be downloaded.
#
#   deny.sh           checks, and notes in tools/deny.sha256 what was checked
#   deny.sh changed   checks only if they have changed since, because building cargo-deny takes
#                     minutes; vulnerabilities that became known since are not looked for
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. tools/pinned.sh

if [ "${1:-}" = changed ] && sha256sum --quiet --check tools/deny.sha256 2>/dev/null; then
    echo "deny: the same dependencies were checked before (make deny checks again)"
    exit
fi
install_pinned cargo-deny
deny=build/tools/bin/cargo-deny

"$deny" --log-level warn check --hide-inclusion-graph licenses bans sources
sha256sum Cargo.lock deny.toml tools/deny.sh >tools/deny.sha256
if "$deny" --log-level off fetch db 2>/dev/null; then
    "$deny" --log-level warn check --disable-fetch advisories
else
    echo "deny: the list of vulnerabilities cannot be downloaded: vulnerabilities not checked"
fi
