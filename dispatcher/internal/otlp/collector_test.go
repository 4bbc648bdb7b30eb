package otlp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// received is a span as the collector got it.
type received struct {
	name, traceID, parentID, token string
	resource, attributes           map[string]string
}

// receiver is an OTLP collector of the test, for gRPC or HTTP.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	spans  chan received
	refuse string // the response to all, if any
}

func newReceiver() *receiver { return &receiver{spans: make(chan received, 100)} }

func (r *receiver) take(request *collector.ExportTraceServiceRequest, token string) {
	for _, of := range request.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				r.spans <- received{
					span.GetName(), hex.EncodeToString(span.GetTraceId()), hex.EncodeToString(span.GetParentSpanId()), token,
					texts(of.GetResource().GetAttributes()), texts(span.GetAttributes()),
				}
			}
		}
	}
}

func texts(attributes []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range attributes {
		all[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return all
}

// Export implements the gRPC service.
func (r *receiver) Export(ctx context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	head, _ := metadata.FromIncomingContext(ctx)
	var token string
	if values := head.Get("authorization"); len(values) > 0 {
		token = values[0]
	}
	r.take(request, token)
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP is the same for HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	token := request.Header.Get("Authorization")
	if r.refuse != "" {
		http.Error(w, r.refuse+": "+token, http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(request.Body)
	if err == nil && request.Header.Get("Content-Encoding") == "gzip" {
		var unzip *gzip.Reader
		if unzip, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, err = io.ReadAll(unzip)
		}
	}
	var spans collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &spans)
	}
	if err != nil || request.URL.Path != "/v1/traces" {
		http.Error(w, "not spans", http.StatusBadRequest)
		return
	}
	r.take(&spans, token)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// overHTTP serves plain HTTP, or HTTPS, and returns the URL.
func (r *receiver) overHTTP(t *testing.T, certificate *tls.Certificate) string {
	server := httptest.NewUnstartedServer(r)
	if certificate == nil {
		server.Start()
	} else {
		server.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}}
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	return server.URL
}

// overGRPC does so for gRPC.
func (r *receiver) overGRPC(t *testing.T, certificate *tls.Certificate) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	scheme, options := "http", []grpc.ServerOption(nil)
	if certificate != nil {
		scheme, options = "https", []grpc.ServerOption{grpc.Creds(credentials.NewServerTLSFromCert(certificate))}
	}
	server := grpc.NewServer(options...)
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	return scheme + "://" + listener.Addr().String()
}
