# The operator's image: the manager, the dispatcher and the licences of what they link, nothing else. Both have Mozilla's roots in them.
# `make image` builds the same without a container engine.
FROM --platform=$BUILDPLATFORM golang:1.26.10 AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY dispatcher/client/go.mod dispatcher/client/go.sum dispatcher/client/
RUN go mod download
COPY api api
COPY controllers controllers
COPY dispatcher dispatcher
COPY migrations migrations
COPY hack/build.sh hack/
COPY hack/release hack/release
ARG TARGETOS
ARG TARGETARCH
# What the binaries call themselves: docker build --build-arg VERSION=v1.2.3 -t NAME .
ARG VERSION=dev
RUN VERSION=$VERSION GOOS=$TARGETOS GOARCH=$TARGETARCH hack/build.sh /out/
RUN go run ./hack/release licenses /out/LICENSES

FROM scratch
COPY --from=build /out/ /
USER 65532:65532
ENTRYPOINT ["/manager"]
