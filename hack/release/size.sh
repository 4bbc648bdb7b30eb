#!/usr/bin/env bash
# size.sh: prints what each sink, and tracing, adds to the dispatcher's binary: as it is, and compressed
# as a layer of the image is. "alone" compares with a dispatcher without any of them, "last" with one that
# has all others: what they share, such as gRPC, is not in "last". It changes nothing: the builds see other
# contents of two files (go build -overlay).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sinks=dispatcher/sink/sink.go
otlp=dispatcher/internal/otlp
mapfile -t parts < <(sed -n 's|^\t".*/dispatcher/internal/sinks/\([a-z]*sink\)"$|\1|p' $sinks | grep -v '^logsink$')
[ ${#parts[@]} -gt 0 ] || { echo "$sinks imports no sink that this script knows" >&2; exit 1; }
parts+=(cloud tracing) # the SDKs of the clouds, which a build tag leaves out

# size PART...: builds a dispatcher without these parts, and prints its size and its compressed size.
size() {
  local drop=" $* " pattern tags=
  pattern=$(printf '%s|' "$@" none)
  # Without a sink's import, and without the cases (two lines each) that make one.
  awk -v drop="${pattern%|}" '
    $0 ~ "/(" drop ")\"$" { next }
    /^\tcase "/ { held = $0; next }
    held { if ($0 !~ "(" drop ")[.]") print held "\n" $0; held = ""; next }
    { print }' $sinks > "$dir/sink.go"
  overlay="\"$PWD/$sinks\": \"$dir/sink.go\""
  if [[ $drop == *" tracing "* ]]; then
    cat > "$dir/otlp.go" <<'GO'
package otlp

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/sdk/trace"
)

type Process struct{ Dispatcher, Version, Worker string }

func NewProvider(context.Context, Process, *slog.Logger) (*trace.TracerProvider, error) { return nil, nil }
GO
    overlay+=", \"$PWD/$otlp/otlp.go\": \"$dir/otlp.go\""
  fi
  [[ $drop != *" cloud "* ]] || tags=nocloud
  echo "{\"Replace\": {$overlay}}" > "$dir/overlay.json"
  GOFLAGS="-overlay=$dir/overlay.json" TAGS=$tags hack/build.sh "$dir/dispatcher" ./dispatcher/cmd/dispatcher
  echo "$(stat -c %s "$dir/dispatcher") $(gzip -c "$dir/dispatcher" | wc -c)"
}

# mib BYTES and row NAME BYTES... print as MiB.
mib() { awk -v n="$1" 'BEGIN { printf "%.1f", n / 1048576 }'; }
row() { printf '| %-22s | %8s | %10s | %8s | %10s |\n' "$1" "$(mib "$2")" "$(mib "$3")" "${4:+$(mib "$4")}" "${5:+$(mib "$5")}"; }

read -r none nonez <<< "$(size "${parts[@]}")"
read -r all allz <<< "$(size)"
echo '| MiB                    |    alone | compressed |     last | compressed |'
echo '|------------------------|---------:|-----------:|---------:|-----------:|'
row 'without any' "$none" "$nonez"
for part in "${parts[@]}"; do
  others=()
  for other in "${parts[@]}"; do [ "$other" = "$part" ] || others+=("$other"); done
  read -r one onez <<< "$(size "${others[@]}")"
  read -r rest restz <<< "$(size "$part")"
  row "$part" $((one - none)) $((onez - nonez)) $((all - rest)) $((allz - restz))
done
row 'with all' "$all" "$allz"
