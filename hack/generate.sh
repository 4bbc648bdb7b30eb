#!/usr/bin/env bash
# Writes everything that is generated, from the types in api/ and the markers in controllers/: deep
# copies, the CRD, the manager's role; and from these in config/ what the chart and config/namespaced
# say too. Then the tables of fields in the pages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"$(hack/pins/tool.sh controller-gen)" \
  object crd rbac:roleName=outbox-operator paths=./api/... paths=./controllers/... \
  output:crd:dir=charts/outbox-operator/files/crds output:rbac:dir=config/rbac
go run ./hack/chart
go run ./hack/fields
go run ./hack/dashboards
