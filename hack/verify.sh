#!/usr/bin/env bash
# Fails when a generated file is not what its generator makes, when go.mod is not tidy, when a room has more lines than
# hack/rooms.txt allows, when what is linked has a licence that is not allowed or a known vulnerability with a fix, or when a linter has something to say. Changes that were there before are left alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '\n== %s\n' "$*"; }

state() { git ls-files -z --cached --others --exclude-standard | xargs -0 sha256sum 2>/dev/null | sort -k2; }

say "Generated files"
before=$(state)
hack/generate.sh
if ! diff <(echo "$before") <(state); then
  echo "The files above are not what their generator makes: run 'make generate' and commit the result." >&2
  exit 1
fi

say "go.mod"
for dir in . dispatcher/client hack/*/; do # hack/pins has programs: nothing imports them
  [ -f "$dir/go.mod" ] || continue
  (cd "$dir" && go mod tidy -diff)
done

say "Lines of each room"
go test -count=1 -run '^TestRoomsKeepToTheirLines$' ./hack

say "Scripts"
git ls-files --cached --others --exclude-standard '*.sh' .ci/run | xargs -n 1 bash -n

say "What is linked: licences, and known vulnerabilities (the first run builds the scanner: 1 minute)"
go run ./hack/release verify

say "Linters (the first run builds them: 1 to 2 minutes)"
lint=$(hack/pins/tool.sh golangci-lint)
for dir in . dispatcher/client; do
  (cd $dir && go vet ./... && "$lint" run ./...)
done
say "Verified."
