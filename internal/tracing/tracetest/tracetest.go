// Package tracetest is a collector of traces for tests: it takes OTLP over HTTP
// and hands out what came.
package tracetest

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one span as it arrived.
type Span struct {
	Trace, ID, Parent string // hex; Parent is empty at the root
	Name, Service     string
	Failed            string // the status's text, for failed ones
	Attributes        map[string]string
}

// Collector takes traces until the test ends.
type Collector struct {
	URL string

	mu    sync.Mutex
	spans []Span        // guarded by mu
	news  chan struct{} // closed and replaced when spans come; guarded by mu
}

// Start starts a collector.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{news: make(chan struct{})}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	c.URL = srv.URL
	return c
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	for _, rs := range req.GetResourceSpans() {
		service := attributes(rs.GetResource().GetAttributes())["service.name"]
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, spanOf(s, service))
			}
		}
	}
	close(c.news)
	c.news = make(chan struct{})
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(http.StatusOK)
}

func read(r *http.Request) (*collector.ExportTraceServiceRequest, error) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("read traces: %w", err)
		}
		body = z
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("read traces: %w", err)
	}
	req := &collector.ExportTraceServiceRequest{}
	return req, proto.Unmarshal(raw, req)
}

func spanOf(s *trace.Span, service string) Span {
	out := Span{
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Name: s.GetName(), Service: service, Attributes: attributes(s.GetAttributes()),
	}
	if s.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR {
		out.Failed = s.GetStatus().GetMessage()
	}
	return out
}

func attributes(list []*common.KeyValue) map[string]string {
	out := make(map[string]string, len(list))
	for _, kv := range list {
		v := kv.GetValue()
		if _, isInt := v.GetValue().(*common.AnyValue_IntValue); isInt {
			out[kv.GetKey()] = fmt.Sprint(v.GetIntValue())
			continue
		}
		out[kv.GetKey()] = v.GetStringValue()
	}
	return out
}

// Spans is what has come so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Await waits until the spans that have come are enough, or ctx ends.
func (c *Collector) Await(ctx context.Context, enough func([]Span) bool) ([]Span, error) {
	for {
		c.mu.Lock()
		spans, news := append([]Span(nil), c.spans...), c.news
		c.mu.Unlock()
		if enough(spans) {
			return spans, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return spans, ctx.Err()
		}
	}
}
