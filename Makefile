# outbox-operator. `make` alone lists what there is.
SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help

IMAGE ?= outbox-operator:dev
LINT := $$(hack/pins/tool.sh golangci-lint)

.PHONY: help
help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

##@ See it

# The demo is built as Kubernetes is, so that they share what both need: on a new machine all of it is compiled.
DEMO := CGO_ENABLED=0 GOFLAGS="$${GOFLAGS-} -trimpath" go run ./hack/demo

.PHONY: demo
demo: ## The main job on a real Kubernetes: brings up what it needs, shows it, cleans up. KEEP=1 leaves it running until Ctrl-C.
	@hack/need.sh go
	@$(DEMO) $(if $(KEEP),-keep) kubernetes

.PHONY: demo-local
demo-local: ## The same without Kubernetes: PostgreSQL and dispatcher processes. KEEP=1 as above.
	@hack/need.sh go
	@$(DEMO) $(if $(KEEP),-keep) local

##@ Prove it

.PHONY: test
test: ## What a change can break, each thing once: on real PostgreSQL, brokers, a real kube-apiserver and a real cluster. CI=true: nothing is skipped.
	@hack/need.sh go
	@hack/test.sh

.PHONY: test-all
test-all: ## Everything, without Go's cache: all majors of PostgreSQL, all specs on the cluster, all tools.
	@hack/need.sh go
	@hack/test.sh all

.PHONY: test-e2e
test-e2e: ## The specs on a cluster alone. LABELS="troubles || counts" picks some: hack/README.md lists the labels.
	@hack/need.sh go
	@LABELS='$(LABELS)' hack/test.sh e2e

.PHONY: chaos
chaos: ## Faults by a seeded schedule against real processes, and a ledger that decides. FOR=30m SEED=7 as wanted (10 minutes, a new seed).
	@hack/need.sh go
	@go run ./hack/chaos -for $(or $(FOR),10m) $(if $(SEED),-seed $(SEED))

.PHONY: scale
scale: ## 10, 100 and 1,000 OutboxDispatchers on a real API server: time, memory, writes. About 8 minutes on two quiet cores.
	@hack/need.sh go
	@KUBEBUILDER_ASSETS=$$(hack/pins/kube/build.sh test) go test ./hack/scale -v -count=1 -timeout 30m -args -sizes 10,100,1000 -strict -out scale.svg

.PHONY: bench
bench: ## Side by side with River, Debezium and plain SQL: about 35 minutes on two quiet cores. ARGS="-cells drain" for a part.
	@hack/need.sh go
	@cd hack/bench && go run . $(ARGS)

.PHONY: verify
verify: ## Generated files are up to date, go.mod is tidy, rooms keep to their lines, what is linked is allowed and has no known vulnerability with a fix, linters are content.
	@hack/need.sh go
	@hack/verify.sh

##@ Change it

.PHONY: generate
generate: ## Regenerate deep copies, the CRD, the manager's role, and what the chart has of config/.
	@hack/generate.sh

.PHONY: lint
lint: ## Run the linters alone.
	@$(LINT) run ./...

.PHONY: build
build: ## Build the three binaries into bin/. VERSION=v1.2.3 is what they call themselves (git's description of the checkout).
	@hack/need.sh go
	@mkdir -p bin
	@VERSION=$(VERSION) hack/build.sh bin/ ./controllers/cmd/manager ./dispatcher/cmd/dispatcher ./controllers/cmd/kubectl-outbox

.PHONY: image
image: ## Build the image archive bin/image.tar of this checkout without a container engine (IMAGE names it). With one: docker build --build-arg VERSION=v1.2.3 -t NAME .
	@mkdir -p bin
	@VERSION=$(VERSION) go run ./hack/release image $(IMAGE) bin/image.tar

.PHONY: release
release: ## Make all that a release has in bin/release: VERSION=v1.2.3, KEY=FILE to sign, ARGS="-image NAME -source URL" for a fork. It publishes nothing.
	@hack/need.sh go
	@GOTOOLCHAIN=$$(sed -n 's/^toolchain //p' go.mod) go run ./hack/release $(if $(KEY),-key $(KEY)) $(ARGS) '$(VERSION)' bin/release

.PHONY: clean
clean: ## Remove what was built in the checkout, and clusters that an interrupted run left behind.
	@rm -rf bin
	@for name in outbox demo e2e; do OUTBOX_CLUSTER=$$name hack/cluster/down.sh --clean; done
