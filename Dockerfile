# SPDX-License-Identifier: Apache-2.0
# The image is one static binary. For several architectures at once:
#
#     docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 -t REGISTRY/shunt:v0.1.0 --push .
#
# The compiled BPF objects are in the tree, so that Go alone builds it. The builder runs on the machine's own
# architecture and compiles for the target's: no emulation.
ARG GO_VERSION=1.26
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
# shunt demo is made of the lab of the tests.
COPY test/lab test/lab
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath \
	-ldflags "-s -w -X github.com/shunt-lb/shunt/pkg/version.version=${VERSION}" -o /out/shunt ./cmd/shunt && \
	chmod 0555 /out/shunt

# Nothing but the binary: no shell, no libraries, nothing that anybody may write to.
FROM scratch
COPY --from=build /out/shunt /shunt
# root, whose powers deploy/base/daemonset.yaml takes away but for two capabilities: Kubernetes gives capabilities to no
# other user, and what is pinned in the BPF file system belongs to root.
USER 0:0
ENTRYPOINT ["/shunt"]
