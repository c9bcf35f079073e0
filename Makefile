# Everything a person does with this tree. `make` alone lists the targets.
# Needs Go and git; each target installs the rest through tools/deps, and
# tools/make brings make itself.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Where `make run` keeps images, machines and its database.
DATA ?= $(CURDIR)/data
# Stamped into both binaries; a tree without git is "unknown".
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# Static, without paths of this machine. buildvcs is off because VERSION says
# the same and go refuses to read a repository that belongs to somebody else.
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"

# Two packages at a time is what two cores carry. Packages that boot machines,
# run a Docker daemon or measure time come after the others, without the race
# detector: machines one package after the other, and beside them those that
# stand before Docker and mostly wait, and give way (docs/contributing/tests.md).
ALONE := ./internal/hostd/qemu/... ./internal/playguard/runner/... ./test/...
DOCKER := ./internal/playguard/runner/... ./test/playguard/...
# A fleet in one process and in time of its own: it gives way to machines, too.
SIMULATED := ./test/sim
# How many packages, and how many tests of one, are before Docker at a time.
WAITING := -p 3 -parallel 3
# At exit the race detector sleeps a second for what is still under way, which
# goroutine leaks are looked for anyway.
RACE := GORACE=atexit_sleep_ms=50
# SQLite is translated C: the detector makes it three times as slow and has
# nothing to find in it, only in who calls it.
RACED := -race -gcflags=modernc.org/...=-race=false
# What generates its cases makes few of them under the race detector, which has
# nothing to find there, and all of them in a run of its own.
COUNTED := ./internal/reconcile ./internal/playguard/loop
# Where nothing runs at the same time there is no race to be found.
PURE := ./internal/playguard/decide
# What a test run vets is less than go vet ./... does, once, in test and test-all.
GOTEST := go test -vet=off -json -timeout
REPORT := go run ./tools/testsum
# Playguard's fault table has a fast selection, with Compose v1 alone.
FAULTS := ./test/playguard

# The long run of random weather belongs to `make soak`.
SOAKED := $$(tools/packages alone ./test/playguard/... | grep -v /soak$$)

LINT := build/bin/golangci-lint
# No package of Debian 12 has Compose v2; test/tools pins the release.
COMPOSE_V2 := build/bin/docker-compose-v2

.PHONY: help build run test test-all soak soak-playguard compose-v2 lint bench generate clean deps-build deps-run deps-test shape layers generated

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

deps-build:
	@tools/deps build

deps-run:
	@tools/deps build run

deps-test:
	@tools/deps build run test lint

build: deps-build ## bin/fuse and bin/fused, static
	@mkdir -p bin
	$(GOBUILD) -o bin/fused ./cmd/fused
	$(GOBUILD) -o bin/fuse ./cmd/fuse

run: deps-run build ## a control plane here, and a machine that comes and goes before your eyes
	bin/fuse dev --data-dir "$(DATA)" --demo

test: deps-test shape layers ## the fast tests, under five minutes with a warm cache
	go vet ./...
	$(GOTEST) 5m -p 2 $$(tools/packages fast $(ALONE)) | $(REPORT)
	$(GOTEST) 3m -short -run 'TestRows|TestTable' $(FAULTS) | $(REPORT) -title "Playguard's faults"

test-all: deps-test build lint shape layers generated compose-v2 ## everything once: lint, race detector, real machines, short soak
	go vet ./...
	$(RACE) $(GOTEST) 15m $(RACED) -p 2 $$(tools/packages fast $(ALONE) $(PURE)) | $(REPORT) -noskip -title "with the race detector"
	$(GOTEST) 10m -count=1 -p 2 $(COUNTED) $(PURE) | $(REPORT) -noskip -title "with full counts"
	nice -n 5 $(GOTEST) 30m -count=1 $(WAITING) $$(tools/packages alone $(DOCKER) $(SIMULATED)) | $(REPORT) -noskip -title "before Docker, and simulated" & docker=$$!; \
	machines=0; $(GOTEST) 20m -p 1 -count=1 $$(tools/packages but "$(DOCKER) $(SIMULATED)" $(ALONE)) | $(REPORT) -noskip -title "with real machines" || machines=$$?; \
	wait $$docker && exit $$machines

soak: deps-test build compose-v2 ## the long loops with their full counts (hours)
	FUSE_SOAK=1 $(GOTEST) 6h -p 1 -count=1 $$(tools/packages soak) | $(REPORT) -title soak

soak-playguard: deps-test build compose-v2 ## Playguard's fault table, 20 times in a row (an hour)
	$(GOTEST) 3h $(WAITING) -count=20 $(SOAKED) | $(REPORT) -noskip -title "Playguard's soak"

compose-v2: deps-build $(COMPOSE_V2) ## Compose v2 for tests, built once from its module

$(COMPOSE_V2): test/tools/go.mod test/tools/go.sum
	@mkdir -p $(@D)
	cd test/tools && CGO_ENABLED=0 go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X github.com/docker/compose/v2/internal.Version=$$(go list -m -f '{{.Version}}' github.com/docker/compose/v2)" \
		-o ../../$@ github.com/docker/compose/v2/cmd

lint: deps-build $(LINT) ## golangci-lint, at the release that tools/lint pins
	$(LINT) run --timeout 10m ./...

$(LINT): tools/lint/go.mod tools/lint/go.sum
	@mkdir -p $(@D)
	cd tools/lint && go build -o ../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

shape: ## the caps on files, functions, types and packages
	@go run ./tools/shape

layers: ## who may import whom
	@go run ./tools/layers

bench: deps-test build ## benchmarks: the packages', then the control plane's
	go test -run '^$$' -bench . -benchmem -p 1 -timeout 30m ./...
	bin/fuse bench control-plane

generated: deps-build ## committed generated code is what its sources give
	@tools/openapi/generate --check
	@tools/proto/generate --check

generate: ## regenerate committed code (protobuf, OpenAPI)
	go generate ./...

clean: ## remove what was built; DATA stays
	rm -rf bin build
