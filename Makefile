# SPDX-License-Identifier: Apache-2.0
#
# clang-19 compiles the BPF objects: docs/development.md has the comparison with clang-14.
CLANG        := clang-19
CLANG_FORMAT := clang-format-19
VERSION      := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS      := -s -w -X github.com/shunt-lb/shunt/pkg/version.version=$(VERSION)
export CGO_ENABLED := 0
# A module of its own; Kubernetes is built with the compiler's own choice about cgo, and so are the tests beside it.
IN_CLUSTER   := cd test/cluster && env -u CGO_ENABLED

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## the static binary, bin/shunt
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/shunt ./cmd/shunt

.PHONY: demo
demo: build ## nodes in network namespaces, and the story of a few connections (root)
	bin/shunt demo

# nft and iptables are kube-proxy's, and what a node's firewall is made of.
.PHONY: test-tools
test-tools:
	@command -v nft >/dev/null && command -v iptables-nft >/dev/null || { \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends nftables iptables >/dev/null; }

.PHONY: test
test: test-tools ## all tests, test-deploy and the quick part of test-cluster included (root)
	@[ "$$(id -u)" = 0 ] || { echo "make test needs root: most tests load programs and make namespaces; make test-unit does without" >&2; exit 1; }
	go test -timeout 20m ./...
	$(MAKE) test-deploy
	$(IN_CLUSTER) go test -short -timeout 40m ./...

.PHONY: test-cluster
test-cluster: test-tools ## all comparisons with the real kube-proxy and API server (root, nftables; the first builds both)
	$(IN_CLUSTER) go test -timeout 60m ./...

.PHONY: test-deploy
test-deploy: ## chart and overlays, by helm and kustomize themselves (their first build takes minutes)
	cd tools/deploy && go test -timeout 20m ./...

.PHONY: test-unit
test-unit: ## the tests that need neither root nor a kernel feature
	go test ./pkg/... ./cmd/... ./tools/...

.PHONY: test-kernels
test-kernels: ## the kernel tests on Debian's 6.1 and 6.12, emulated (needs qemu-system-x86, xz-utils)
	go run ./test/kernels

.PHONY: bench
bench: ## what Services cost: direct, kube-proxy and shunt, interleaved; updates docs/benchmarks.md (root)
	$(IN_CLUSTER) go run ./perf -document ../../docs/benchmarks.md

.PHONY: bench-short
bench-short: ## the same in a minute, to see that it works (root)
	$(IN_CLUSTER) go run ./perf -short

.PHONY: bench-control
bench-control: ## how kube-proxy, in its modes, and shunt follow 100 to 10,000 Services (root, nftables, iptables; an hour)
	$(IN_CLUSTER) go run ./controlbench

.PHONY: bench-programming
bench-programming: ## planning and writing 10,000 Services of 10 endpoints (root)
	go test -run '^$$' -bench '^Benchmark(Program|Change|ReadBack)$$' -benchtime 3x ./test/maps

.PHONY: generate
generate: ## rebuild the BPF objects and their Go
	BPF2GO_CC=$(CLANG) BPF2GO_STRIP=llvm-strip-19 go generate ./pkg/loader ./pkg/flows

.PHONY: format
format: ## format C and Go
	$(CLANG_FORMAT) -i bpf/*.c bpf/*.h
	gofmt -w cmd pkg test tools

.PHONY: lint
lint: ## vet (tools/deploy too), formats, staticcheck, the import and licence rules
	go vet ./...
	cd tools/deploy && go vet ./...
	@out=$$(gofmt -l cmd pkg test tools); [ -z "$$out" ] || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	$(CLANG_FORMAT) --dry-run -Werror bpf/*.c bpf/*.h
	go tool staticcheck ./...
	staticcheck=$$(go tool -n staticcheck) && $(IN_CLUSTER) sh -c "go vet ./... && $$staticcheck ./..."
	go run ./tools/lint

.PHONY: clean
clean: ## remove what build made
	rm -rf bin
