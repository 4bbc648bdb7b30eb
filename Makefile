# outbox-operator. `make` alone lists what there is.
SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help

IMAGE ?= outbox-operator:dev
LINT := go tool -modfile=hack/lint/go.mod golangci-lint

.PHONY: help
help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

##@ See it

.PHONY: demo
demo: ## The main job on a real Kubernetes: brings up what it needs, shows it, cleans up. KEEP=1 leaves it running until Ctrl-C.
	@hack/need.sh go
	@go run ./hack/demo $(if $(KEEP),-keep) kubernetes

.PHONY: demo-local
demo-local: ## The same without Kubernetes: PostgreSQL and dispatcher processes. KEEP=1 as above.
	@hack/need.sh go
	@go run ./hack/demo $(if $(KEEP),-keep) local

##@ Prove it

.PHONY: test
test: ## All tests: units, a real PostgreSQL, a real kube-apiserver, and the main job on a real cluster.
	@hack/need.sh go
	@hack/test.sh

.PHONY: test-unit
test-unit: ## All tests but those on a cluster.
	@hack/need.sh go
	@hack/test.sh unit

.PHONY: test-e2e
test-e2e: ## The tests on a cluster alone.
	@hack/need.sh go
	@hack/test.sh e2e

.PHONY: chaos
chaos: ## Faults by a seeded schedule against real processes, and a ledger that decides. FOR=30m SEED=7 as wanted (10 minutes, a new seed).
	@hack/need.sh go
	@go run ./hack/chaos -for $(or $(FOR),10m) $(if $(SEED),-seed $(SEED))

.PHONY: bench
bench: ## Side by side with River, Graphile Worker, pg-boss and plain SQL: about 35 minutes on two quiet cores. ARGS="-cells drain" for a part.
	@hack/need.sh go
	@cd hack/bench && go run . $(ARGS)

.PHONY: verify
verify: ## Generated files are up to date, go.mod is tidy, linters are content.
	@hack/need.sh go
	@hack/verify.sh

##@ Change it

.PHONY: generate
generate: ## Regenerate deep copies, the CRD and the manager's role.
	@hack/tools/generate.sh

.PHONY: lint
lint: ## Run the linters alone.
	@$(LINT) run ./...

.PHONY: build
build: ## Build the two binaries into bin/.
	@CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -o bin/ ./controllers/cmd/manager ./dispatcher/cmd/dispatcher

.PHONY: image
image: ## Build the image archive bin/image.tar without a container engine (IMAGE names it). With one: docker build -t NAME .
	@mkdir -p bin
	@hack/image/build.sh $(IMAGE) bin/image.tar

.PHONY: clean
clean: ## Remove what was built in the checkout, and clusters that an interrupted run left behind.
	@rm -rf bin
	@for name in outbox demo e2e; do OUTBOX_CLUSTER=$$name hack/cluster/down.sh --purge; done
