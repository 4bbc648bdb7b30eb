# The operator's image: the manager and the dispatcher, nothing else.
# `make image` builds the same without a container engine.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY controllers controllers
COPY dispatcher dispatcher
COPY migrations migrations
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
# grpcnotrace leaves out gRPC's pages for debugging: with their templates, which call methods by name, the
# linker keeps every method of every type.
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -tags grpcnotrace -ldflags "-s -w -X main.version=$VERSION" \
    -o /out/ ./controllers/cmd/manager ./dispatcher/cmd/dispatcher

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/ /
USER 65532:65532
ENTRYPOINT ["/manager"]
